"""What happens inside the critics: Theorem 1's terms, gradients and Q."""

from collections.abc import Sequence

import numpy as np

from c4rl.core.curves import late_mean
from c4rl.diagnostics.diagnose import TERMS, order_sentence
from c4rl.diagnostics.metrics import values_of
from c4rl.diagnostics.page import Page, Plot, Series
from c4rl.diagnostics.q_health import ACTIONS
from c4rl.jobs.runs import file_name
from c4rl.plugins.c4.monitor import DISPLACEMENT
from c4rl.results.report.curves import LOGGED_TERMS, PLOTTED, add_curves
from c4rl.results.report.jobs import COSINES, Job, Method
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
    late = [
        (late_mean(np.array(scores)), [late_mean(np.array(values_of(lines, name)[1])) for name in LETTERS.values()])
        for method in methods
        for lines in method.runs.values()
        if (scores := values_of(lines, method.score)[1]) and all(values_of(lines, name)[1] for name in LETTERS.values())
    ]
    if len(late) >= CORRELATED:
        page.text(_correlations([score for score, _ in late], list(zip(*(terms for _, terms in late), strict=True))))


def _correlations(scores: Sequence[float], terms: Sequence[Sequence[float]]) -> str:
    """terms: of every run A, then B, then C."""
    found = (f"{name} {rank_correlation(scores, values):+.2f}" for name, values in zip(LETTERS, terms, strict=True))
    return (
        f"Rank correlation with the score over {len(scores)} runs: {', '.join(found)}. With few runs this means little."
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
    headings = ("run", "late score", "A", "B", "C", "A + B - C", "C / (A + B)", "variance of the base residual")
    late = _late_scores(jobs)
    rows = [[f"{label}, {r['run']}", late.get((label, r["run"])), *(r["terms"][n] for n in TERMS)] for label, r in runs]
    page.table(headings, rows)
    scored = [row for row in rows if row[1] is not None]
    if len(scored) >= CORRELATED:
        page.text(_correlations([row[1] for row in scored], [[row[i] for row in scored] for i in (2, 3, 4)]))
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


def _late_scores(jobs: Sequence[Job]) -> dict[tuple[str, str], float]:
    """(job, run) -> late score."""
    found = {}
    for job in jobs:
        for method in job.methods:
            for key, lines in method.runs.items():
                if scores := Method("", job.folder, method.score, runs={key: lines}).late():
                    found[job.label, file_name(key)] = scores[0]
    return found
