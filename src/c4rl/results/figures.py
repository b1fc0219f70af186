"""The figures of the results store: ours with 95% intervals, the paper's where it prints numbers."""

from dataclasses import replace
from pathlib import Path

from matplotlib.figure import Figure

from c4rl.core.errors import InputError
from c4rl.core.files import replacing
from c4rl.results.catalogue import get_table
from c4rl.results.catalogue.methods import CONTROLLED, PAPER
from c4rl.results.comparison_figures import improvement, profiles, radar, series
from c4rl.results.figure_parts import Drawing
from c4rl.results.speed_figures import speed_figure
from c4rl.results.speed_tables import SPEED_TABLES
from c4rl.results.store import Store
from c4rl.results.tables import fill
from c4rl.results.training_figures import cosines, curves, terms

SHOWN = ("BC", "TD3+BC", "TSRL", "CQL", *(c4.label for c4, _ in CONTROLLED), CONTROLLED[0][1].label)
FIGURES = {
    drawing.name: drawing
    for drawing in (
        Drawing("curves", curves, "main", SHOWN),
        *(
            Drawing(f"curves-{name}", curves, table, (base, *(f"{base} + {p}" for p in ("LN", "DR3", "C4"))))
            for name, table, base in (("cql", "cql-plugins", "CQL"), ("td3_bc", "c4-plugin", "TD3+BC"))
        ),
        Drawing("profiles", profiles, "main", SHOWN),
        Drawing(
            "improvement",
            improvement,
            "c4-plugin",
            pairs=tuple((method.label, method.against) for method in get_table("c4-plugin").methods if method.against),
        ),
        Drawing(
            "improvement-on-controls",
            improvement,
            "main",
            tuple(method.label for pair in CONTROLLED for method in pair),
            tuple((c4.label, control.label) for c4, control in CONTROLLED),
        ),
        *(Drawing(name, series, name) for name in ("clusters", "lambda", "alpha", "frequency", "rows")),
        Drawing("effective-k", curves, "effective-k", quantity="c4_effective_K"),
        Drawing("trace", curves, "trace", quantity="cross_covariance_trace_exact"),
        Drawing("terms", terms, "inside"),
        Drawing("cosines", cosines, "inside", quantity="variance_lead"),
        Drawing("radar", radar, "main", SHOWN, theirs=PAPER.paper),
    )
}


def draw(
    name: str,
    output: Path,
    table: str | None,
    methods: tuple[str, ...] | None,
    sets: tuple[str, ...] | None,
    store: Path,
    speeds: Path,
) -> None:
    """Draw one figure into a new file; table, methods, sets: others than its own."""
    if name not in (*FIGURES, *SPEED_TABLES):
        raise InputError(f"figure: found '{name}', expected one of {', '.join((*FIGURES, *SPEED_TABLES))}")
    if name in SPEED_TABLES:
        for flag, given in (("table", table), ("methods", " ".join(methods or ())), ("sets", " ".join(sets or ()))):
            if given:
                raise InputError(f"--{flag}: found {given}, expected none: figure {name} is of measured speeds")
        _save(speed_figure(SPEED_TABLES[name], speeds), output)
        return
    drawing = FIGURES[name]
    if table is not None:
        drawing = replace(drawing, table=table, methods=None, pairs=())
    if methods is not None:
        drawing = replace(drawing, methods=methods, pairs=())
    chosen = get_table(drawing.table)
    chosen = replace(chosen, quantity=drawing.quantity or chosen.quantity).on(sets)
    chosen = chosen.only(drawing.methods)
    filled = fill(chosen, Store(store))
    if not filled:
        raise InputError(
            f"figure {name}: the store has no run of it, expected some; see c4rl bench table {chosen.name}"
        )
    _save(drawing.draw(drawing, chosen, filled), output)


def _save(figure: Figure, output: Path) -> None:
    with replacing(output) as temporary:
        figure.savefig(temporary, format=output.suffix[1:], dpi=150)
