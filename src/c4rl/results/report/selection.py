"""Which checkpoints held-out trajectories selected, and what those score."""

from collections.abc import Sequence
from typing import Any

from c4rl.diagnostics.page import Page
from c4rl.jobs.runs import file_name
from c4rl.results.report.curves import PLOTTED, curve_plot
from c4rl.results.report.jobs import Job, Method
from c4rl.training.records import CRITERIA, selected_records


def add_selection(page: Page, jobs: Sequence[Job], methods: Sequence[Method]) -> None:
    """A table of the checkpoints that --select chose."""
    criteria = {job.folder: CRITERIA[job.config.select] for job in jobs if job.config.select != "none"}
    rows: list[list[Any]] = []
    for method in (method for method in methods if method.folder in criteria):
        criterion = criteria[method.folder]
        for key, lines in method.runs.items():
            chosen = selected_records(lines, criterion).get(key)
            if chosen is None:
                continue
            name = f"{method.name}, {file_name(key)}" if len(method.runs) > 1 else method.name
            scores = {line["update"]: line["score"] for line in lines if "score" in line}
            found = [scores.get(chosen["update"]), scores[max(scores)], max(scores.values())] if scores else [None] * 3
            rows.append([name, criterion.replace("_", " "), chosen["update"], chosen[criterion], *found])
    if not rows:
        return
    page.section(
        "Held-out selection",
        "The checkpoint of each run with the lowest error on held-out trajectories, chosen without the simulator; "
        "best was chosen with it.",
    )
    headings = ("run", "lowest", "selected update", "its value", "score there", "last score", "best score")
    page.table(headings, rows, folded="every run" if len(rows) > 12 else "")
    shown = [method for method in methods if method.folder in criteria][:PLOTTED]
    names = dict.fromkeys(criteria.values())
    page.plots(*(curve_plot(shown, name, name.replace("_", " ").capitalize()) for name in names))
