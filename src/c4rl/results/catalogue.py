"""The tables, declared: which methods on which sets, how long and how often."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from c4rl.core.errors import InputError
from c4rl.jobs.presets.best import RECIPES
from c4rl.jobs.presets.c4 import values_of
from c4rl.results.tables import Method, ResultTable

BEST = RECIPES["alike"]

ROBOTS = ("halfcheetah", "hopper", "walker2d", "ant")
QUALITIES = ("medium-expert", "medium", "medium-replay", "expert", "full-replay")
TWENTY = tuple(f"{robot}-{quality}-v2" for robot in ROBOTS for quality in QUALITIES)  # of the paper's main table
NINE = tuple(f"{robot}-{quality}-v2" for quality in (*QUALITIES[1:3], QUALITIES[0]) for robot in ROBOTS[:3])
EIGHT = tuple(
    f"{name}-v2"
    for name in (
        "halfcheetah-expert", "halfcheetah-medium-replay", "halfcheetah-medium", "hopper-expert",
        "hopper-medium-expert", "hopper-medium-replay", "walker2d-medium-expert", "walker2d-medium",
    )
)  # fmt: skip
THREE = ("halfcheetah-medium-replay-v2", "hopper-medium-expert-v2", "walker2d-medium-v2")  # for screening
SCREENING: dict[str, Any] = {"trained": THREE, "seeds": 5, "updates": 30_000, "evaluations": 6}

# BPPO's published rule runs the simulator after every update; its first stages are as long as the critic's here
BPPO = {"acceptance": "never", "value_updates": 100_000, "cloning_updates": 25_000}
NORMALISED = {"normalize_observations": True}
CONTROL = {"K": 1, "lambda_": 0.0}


def _published(label: str, algorithm: str, **values: Any) -> Method:
    return Method(label, algorithm, **({"paper": label} | values))


def _cql_c4(preset: str, **options: Any) -> tuple[Method, Method]:
    """With C4, and the same with all but C4."""
    with_c4 = Method(f"CQL + C4, {preset}", "cql", None, preset, options=options, paper="CQL + C4", seeds=5)
    label = f"control: {preset}, K 1, λ 0"
    return with_c4, replace(with_c4, label=label, options=options | CONTROL, paper=None)


def _series(base: Method, swept: str, values: tuple[float, ...], word: str = "") -> tuple[Method, ...]:
    """A method for each value of an option."""
    return tuple(
        replace(
            base,
            label=f"{base.label}, {word or swept} {value}",
            options=base.options | {swept: value},
            paper=str(value),
            swept=swept,
            series=base.label,
            x=value,
        )
        for value in values
    )


def _with_plugins(base: Method) -> tuple[Method, ...]:
    """Alone, with LayerNorm and DR3, and with C4 at this package's defaults (K 5, λ 0.3, 16 directions)."""
    return (
        base,
        replace(base, label=f"{base.label} + LN", plugins=("layer_norm",), paper=None),
        replace(base, label=f"{base.label} + DR3", plugins=("dr3",), paper=None),
        replace(base, label=f"{base.label} + C4", plugins=("c4",), paper=f"{base.label} + C4", seeds=5),
    )


def _rows(base: Method) -> tuple[Method, ...]:
    """On parts of the data; the largest is all of it, about 10,000 rows."""
    return tuple(
        replace(base, label=f"{base.label}, {rows}k rows", job=base.job | job, series=base.label, x=rows, paper=None)
        for rows, job in ((1, {"size": 1000}), (3, {"size": 3000}), (5, {"size": 5000}), (10, {}))
    )


def _ingredients() -> Iterator[Method]:
    """Sixteen rows for six factors, a 2^(6-2) design of resolution IV, the last two set by the others (Lagrange by the
    product of C4, LayerNorm and cloning; twins by that of LayerNorm, cloning and entropy)."""
    for c4, norm, cloning, entropy in itertools.product((True, False), repeat=4):
        lagrange, twins = bool((c4 + norm + cloning) % 2), bool((norm + cloning + entropy) % 2)
        factors = {"C4": c4, "LayerNorm": norm, "cloning term": cloning, "fixed entropy": entropy}
        factors |= {"Lagrange": lagrange, "twin averaging": twins}
        off: dict[str, Any] = {"divergence_weight": 0.0} if not cloning else {}
        off |= {"entropy": "automatic"} if not entropy else {}
        off |= {"lagrange": "none"} if not lagrange else {}
        options = off | ({} if c4 else CONTROL) | {"average_critics": twins}
        label = " + ".join(name for name, on in factors.items() if on) or "none of them"
        plugins = ("c4", "layer_norm") if norm else ("c4",)
        yield Method(label, "cql", plugins, "authors-fixed", options=options, factors=factors)


BC, TD3BC, IQL = _published("BC", "bc"), _published("TD3+BC", "td3_bc"), _published("IQL", "iql")
BPPO_, A2PR = _published("BPPO", "bppo", options=BPPO), _published("A2PR", "a2pr")
CQL = _published("CQL", "cql")
CONTROLLED = tuple(map(_cql_c4, ("paper", "authors", "authors-fixed")))  # each with its control
PAPER, PAPER_CONTROL = CONTROLLED[0]
DIVERGENCE = _cql_c4("paper-divergence")[0]
# CQL with the networks and step sizes of the paper, without C4
PAPER_CQL = Method("CQL, paper", "cql", ("none",), "paper", paper="CQL")
TD3BC_C4 = Method("TD3+BC + C4", "td3_bc", ("c4",), options={"lambda_": 0.3, "actor_rows": "cluster"})

# the recipe of --preset best, and what it was chosen from
RECIPE = Method(
    "best",
    "bc",
    ("returns",),
    "none",
    options=values_of(BEST.options) | values_of(BEST.plugins["returns"]),
    job={"updates": 10_000},
    seeds=25,
)
T_ALONE = RECIPE.options | {"return_temperature": 0.1, "return_top": 0.0, "return_rows": 0.0}
CLONING = replace(
    RECIPE,
    label="constant step size 3e-4, 20,000 updates",
    options=T_ALONE | {"actor_lr": 3e-4, "actor_schedule": "constant"},
    job={"updates": 20_000},
)
UNWEIGHTED = {name: value for name, value in CLONING.options.items() if not name.startswith("return_")}
VALUES = Method(
    "TD3+BC, α 0.25, weighted and averaged as best",
    "td3_bc",
    ("layer_norm", "returns"),
    "none",
    options={
        "hidden_layers": 2,
        "actor_lr": 3e-4,
        "alpha": 0.25,
        "critic_cloning": 0.1,
        "actor_decay": 0.1,
        "actor_average": 0.001,
    },
    seeds=10,
)
C4_VALUES = VALUES.options | {"actor_rows": "cluster"}


def _together(base: Method) -> Method:
    """Every five of its seeds as one policy."""
    return replace(base, label=f"{base.label}, ensembles of 5", members=5, seeds=(base.seeds or 5) // 5)


def _alone_and_together(base: Method) -> tuple[Method, Method]:
    return base, _together(base)


def _but(base: Method, label: str, seeds: int = 5, first: int = 0, **values: Any) -> Method:
    """The same but for this."""
    return replace(base, label=f"{base.label}, {label}", seeds=seeds, first=first, **values)


SMALL = {"hidden_layers": 2, "hidden_width": 64, "actor_lr": 1e-3, "critic_lr": 1e-3}


def _inside() -> Iterator[Method]:
    """Small networks, so that anyone can repeat them on a CPU in minutes."""
    td3_bc: tuple[str, str, dict[str, Any], int] = ("TD3+BC", "td3_bc", {}, 20_000)
    for label, algorithm, options, updates in (td3_bc, ("CQL", "cql", {"cql_actions": 4}, 4000)):
        base = Method(label, algorithm, preset="none", options=SMALL | options, job={"updates": updates})
        yield base
        yield replace(base, label=f"{label} + C4", plugins=("c4",))


BASELINES = (
    BC,
    TD3BC,
    IQL,
    replace(IQL, label="IQL, normalised observations", job=NORMALISED),
    _published("DOGE", "doge"),
    A2PR,
    _published("TSRL", "tsrl"),
    BPPO_,
    replace(BPPO_, label="BPPO, normalised observations", job=NORMALISED),
    _published("SORL", "sorl"),
    _published("ReBRAC", "rebrac", paper=None),
    CQL,
)

TABLES = {
    table.name: table
    for table in (
        ResultTable(
            "main",
            "Locomotion sets of about 10,000 rows, algorithms with the settings of their own publications",
            (*BASELINES, *itertools.chain(*CONTROLLED)),
            TWENTY,
            tasks_are_rows=True,
            shows="main table (10k rows)",
            headline=("TD3+BC", "CQL", PAPER.label, PAPER_CONTROL.label),
            note="paper, authors, authors-fixed: presets of C4; a control is all of the preset but C4. BPPO accepts no "
            "policy by the simulator; its value and cloning stages have 100,000 and 25,000 updates.",
        ),
        ResultTable(
            "c4-screen",
            "CQL with C4's presets and with all of them but C4, screened before the main table",
            (CQL, *itertools.chain(*CONTROLLED), DIVERGENCE),
            THREE,
            headline=(CQL.label, PAPER.label, PAPER_CONTROL.label, DIVERGENCE.label),
            **SCREENING,
        ),
        ResultTable(
            "c4-plugin",
            "Algorithms with the settings of their own publications, alone and with LayerNorm, DR3 and C4 (K 5, λ 0.3)",
            tuple(method for base in (TD3BC, CQL, BPPO_, A2PR) for method in _with_plugins(base)),
            EIGHT,
            shows="figures and tables of C4 as a plug-in",
            headline=("TD3+BC", "TD3+BC + C4", "CQL", "CQL + C4"),
        ),
        ResultTable(
            "clusters",
            "CQL + C4, preset paper, by the number of clusters K",
            (PAPER_CQL, *_series(PAPER, "K", (1, 2, 3, 5, 7, 10, 20))),
            tuple(dict.fromkeys((*THREE, *(f"{robot}-medium-expert-v2" for robot in ROBOTS[:3])))),
            paper="clusters",
            x="clusters K",
            shows="table of the sensitivity to K",
            headline=("CQL + C4, paper, K 1", "CQL + C4, paper, K 5"),
            **SCREENING,
        ),
        ResultTable(
            "effective-k",
            "Effective clusters of CQL + C4, preset paper, started with 20",
            (replace(PAPER, label="CQL + C4, K 20", options={"K": 20}, paper="10k"),),
            THREE,
            paper="effective-k",
            quantity="c4_effective_K",
            shows="table of effective clusters",
            headline=("CQL + C4, K 20",),
            note="The paper does not say which set of a robot its number is of.",
            **SCREENING,
        ),
        ResultTable(
            "lambda",
            "CQL + C4, preset paper, by the penalty's weight λ",
            _series(PAPER, "lambda_", (0.0, 0.05, 0.1, 0.3, 0.5, 1.0), "λ"),
            NINE,
            paper="lambda",
            x="penalty weight λ",
            shows="table of the sensitivity to λ",
            headline=("CQL + C4, paper, λ 0.0", "CQL + C4, paper, λ 0.3"),
            **SCREENING,
        ),
        ResultTable(
            "alpha",
            "The base algorithm's coefficient: α of TD3+BC (the weight of Q), of CQL (the weight of its term)",
            (
                *_series(replace(TD3BC, label="TD3+BC"), "alpha", (0.25, 0.5, 1.0, 2.5, 5.0), "α"),
                *_series(TD3BC_C4, "alpha", (0.25, 0.5, 1.0, 2.5, 5.0), "α"),
                *_series(PAPER, "cql_weight", (1.0, 5.0, 10.0), "α"),
            ),
            THREE,
            x="coefficient α",
            shows="figure of the sensitivity to α",
            headline=("TD3+BC, α 0.5", "TD3+BC + C4, α 0.5"),
            **SCREENING,
        ),
        ResultTable(
            "frequency",
            "CQL + C4, preset paper, by the number of updates between two fits of the mixture",
            _series(PAPER, "period", (20, 50, 100, 200, 500, 1000), "every"),
            NINE,
            paper="frequency",
            x="updates between fits",
            shows="table of the clustering frequency",
            headline=("CQL + C4, paper, every 20", "CQL + C4, paper, every 200"),
            **SCREENING,
        ),
        ResultTable(
            "rows",
            "Scores by the number of rows: whole trajectories of the sets, the same for every method",
            (*_rows(replace(TD3BC, label="TD3+BC")), *_rows(PAPER_CQL), *_rows(PAPER)),
            THREE,
            x="thousand rows",
            shows="figure of scores by data size",
            headline=tuple(f"{label}, {rows}k rows" for label in ("CQL, paper", PAPER.label) for rows in (1, 10)),
            note="10k: all rows of the set.",
            **SCREENING,
        ),
        ResultTable(
            "trace",
            "The trace that C4 penalises, on a fixed sample of 1,024 rows",
            _with_plugins(CQL),
            EIGHT,
            quantity="cross_covariance_trace_exact",
            paper="",
            shows="figure of the trace during training",
            headline=("CQL", "CQL + LN", "CQL + DR3", "CQL + C4"),
        ),
        ResultTable(
            "inside",
            "Inside the critics: networks of 2 x 64 units on 11,186 rows",
            tuple(_inside()),
            ("hopper-medium-expert-v2",),
            updates=20_000,
            paper="",
            note="CQL has 4,000 updates.",
        ),
        ResultTable(
            "ingredients",
            "CQL, preset authors-fixed, with some of its parts: a 2^(6-2) design of resolution IV",
            tuple(_ingredients()),
            THREE,
            updates=30_000,
            evaluations=6,
            note="Without C4: K 1, λ 0. An effect is the mean of the eight rows with a part minus that of the eight "
            "without; interactions of three parts are mixed into it.",
        ),
        ResultTable(
            "c4-on-td3_bc",
            "C4 (K 5, proxy) on TD3+BC, eight locomotion sets of about 10,000 rows",
            tuple(
                Method(f"TD3+BC, α {alpha}{label}", "td3_bc", plugins, options={"alpha": alpha, **options})
                for alpha in (0.5, 2.5)
                for label, plugins, options in (
                    ("", ("none",), {}),
                    *(
                        (f" + C4, λ {weight}, actor rows {rows}", ("c4",), {"lambda_": weight, "actor_rows": rows})
                        for weight, rows in ((0.3, "cluster"), (0.3, "uniform"), (0.0, "uniform"))
                    ),
                )
            ),
            EIGHT,
            seeds=5,
            updates=30_000,
            evaluations=6,
            note="Clusters alone: λ 0.",
        ),
        ResultTable(
            "recipe",
            "--preset best and what it was chosen from, eight locomotion sets of about 10,000 rows",
            (
                RECIPE,
                _together(RECIPE),
                *_alone_and_together(_but(RECIPE, "T 0.1 alone", 25, options=T_ALONE)),
                *_alone_and_together(
                    _but(RECIPE, "batches of 1,024", 10, options=RECIPE.options | {"batch_size": 1024})
                ),
                *_alone_and_together(
                    _but(RECIPE, "by likelihood", 10, options=RECIPE.options | {"loss": "likelihood"})
                ),
                CLONING,
                _together(CLONING),
                _but(CLONING, "without weighting by returns", 10, plugins=("none",), options=UNWEIGHTED),
                _but(RECIPE, "T 0.05 alone", 10, options=T_ALONE | {"return_temperature": 0.05}, job=CLONING.job),
                VALUES,
                _together(VALUES),
                _but(VALUES, "T 0.05", first=5, options=VALUES.options | {"return_temperature": 0.05}),
                _but(VALUES, "α 1", options=VALUES.options | {"alpha": 1.0}),
                _but(VALUES, "without weighting by returns", plugins=("layer_norm",)),
                _but(VALUES, "with C4 (K 5, λ 0.3)", plugins=("layer_norm", "returns", "c4"), options=C4_VALUES),
            ),
            EIGHT,
            updates=40_000,
            evaluations=4,
            note="One setting for all sets. best has 10,000 updates, cloning at a constant step size and with T 0.05 "
            "20,000, the others 40,000.",
        ),
        ResultTable(
            "selection",
            "Runs that hold out a tenth of the trajectories to select a checkpoint",
            tuple(
                _but(base, "--select held-out", 3, job={"select": "held-out", **job}, paper=None)
                for base, job in ((BC, {}), (TD3BC, {"updates": 40_000}))
            ),
            EIGHT,
            evaluations=20,
            note="TD3+BC has 40,000 updates and 16 evaluations.",
        ),
        ResultTable(
            "rebrac",
            "ReBRAC with its published settings, eight locomotion sets of about 10,000 rows",
            (Method("ReBRAC", "rebrac"),),
            EIGHT,
            updates=30_000,
            evaluations=6,
        ),
    )
}


def get_table(name: str, others: Iterable[str] = ()) -> ResultTable:
    """others: further names that might have been meant."""
    if name not in TABLES:
        raise InputError(f"table: found '{name}', expected one of {', '.join((*TABLES, *others))}")
    return TABLES[name]
