"""What happens inside the critics: Theorem 1's terms, gradients and Q."""

from collections.abc import Sequence

from c4rl.diagnostics.diagnose import TERMS, order_sentence
from c4rl.diagnostics.page import Page, Plot, Series
from c4rl.diagnostics.q_health import ACTIONS
from c4rl.jobs.runs import file_name
from c4rl.plugins.c4.monitor import DISPLACEMENT
from c4rl.results.report.curves import LOGGED_TERMS, PLOTTED, add_curves
from c4rl.results.report.jobs import COSINES, Job, Method, late_of
from c4rl.results.statistics import rank_correlation

LETTERS = {"A": "td_A", "B": "td_B", "C": "td_C"}
CORRELATED = 5  # runs, before a correlation is shown


def add_terms(page: Page, methods: Sequence[Method]) -> None:
    """What `c4rl train --monitor` logged."""
    words = (
        f"Var[delta] ~ A + B - C where the critic's input is displaced by k = {DISPLACEMENT:g} in a random direction, "
        "on 1,024 fixed rows; and which part of E[delta^2] = Var[delta] + (E[delta])^2 an update follows."
    )
    add_curves(page, "Theorem 1 during training", methods, LOGGED_TERMS, words=[words])
    runs = [(method.kind, method.score, lines) for method in methods for lines in method.runs.values()]
    found = [(kind, [late_of(lines, name) for name in (score, *LETTERS.values())]) for kind, score, lines in runs]
    _add_correlations(page, found)


def _add_correlations(page: Page, runs: Sequence[tuple[str, Sequence[float | None]]]) -> None:
    """runs: what the score of each is called, and its score, A, B and C."""
    for kind in dict.fromkeys(kind for kind, _ in runs):
        whole = [values for other, values in runs if other == kind and None not in values]
        if len(whole) >= CORRELATED:
            scores, *terms = zip(*whole, strict=True)
            found = (f"{name} {rank_correlation(scores, one):+.2f}" for name, one in zip(LETTERS, terms, strict=True))
            page.text(
                f"Rank correlation with the {kind} over {len(whole)} runs: {', '.join(found)}. With few runs this "
                "means little."
            )


def add_inside(page: Page, jobs: Sequence[Job]) -> None:
    """What `c4rl diagnose --save` found."""
    runs = [(job.label, run) for job in jobs if job.diagnostics for run in job.diagnostics["runs"]]
    if not runs:
        return
    page.section(
        "Inside the critic",
        "Theorem 1 at the last checkpoint: Var[delta] ~ A + B - C for small displacements of the critic's input.",
        order_sentence(runs[0][1]["terms"]["gap_order"]),
    )
    late = _late_scores(jobs)
    kinds = [late.get((label, r["run"]), ("score", None)) for label, r in runs]
    heading = f"late {' or '.join(dict.fromkeys(kind for kind, _ in kinds))}"
    rows = [
        [f"{label}, {r['run']}", score, *(r["terms"][n] for n in TERMS)]
        for (label, r), (_, score) in zip(runs, kinds, strict=True)
    ]
    page.table(("run", heading, "A", "B", "C", "A + B - C", "C / (A + B)", "variance of the base residual"), rows)
    _add_correlations(page, [(kind, row[1:5]) for (kind, _), row in zip(kinds, rows, strict=True)])
    steps = [(f"{label}, {r['run']}", r["terms"]["by_step"]) for label, r in runs[:PLOTTED]]
    gaps = [Series(name, [p["k"] for p in points], [p["gap"] for p in points]) for name, points in steps]
    places, names = list(range(len(runs))), [f"{label}, {r['run']}" for label, r in runs]
    cosines = [Series(title, places, [r["cosines"][name] for _, r in runs]) for name, title in COSINES.items()]
    values = [Series(f"{kind} actions", places, [r["q"][kind]["mean"] for _, r in runs]) for kind in ACTIONS]
    page.plots(
        Plot("Gap between measured and linear variance", "k", gaps, log_x=True, log_y=True),
        Plot("Cosine of grad E[delta^2]", "run", cosines, kind="bars", names=names),
        Plot("Mean Q", "run", values, kind="bars", names=names),
    )


def _late_scores(jobs: Sequence[Job]) -> dict[tuple[str, str], tuple[str, float | None]]:
    """(job, run) -> what its score is called, and its late score."""
    return {
        (job.label, file_name(key)): (method.kind, late_of(lines, method.score))
        for job in jobs
        for method in job.methods
        for key, lines in method.runs.items()
    }
