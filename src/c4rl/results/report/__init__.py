"""`c4rl report`: one page for a job or a comparison of jobs, from their folders."""

from collections.abc import Sequence
from pathlib import Path

from c4rl.diagnostics.page import Page
from c4rl.results.report.curves import CLUSTERS, CURVES, PLOTTED, TRACES, add_curves
from c4rl.results.report.datasets import add_cards
from c4rl.results.report.inside import add_inside, add_terms
from c4rl.results.report.jobs import read_jobs
from c4rl.results.report.policies import add_pictures
from c4rl.results.report.scores import add_scores
from c4rl.results.report.selection import add_selection
from c4rl.results.report.settings import add_differences, add_timings


def write_report(
    folders: Sequence[Path], path: Path, pictures: Sequence[tuple[Path, str]] = (), allow_import: bool = False
) -> None:
    """pictures: PNG files to show, with their captions."""
    jobs = read_jobs(folders, allow_import)
    methods = [method for job in jobs for method in job.methods]
    methods.sort(key=lambda method: method.rank, reverse=True)
    for place, method in enumerate(methods):
        method.place = place
    tasks = ", ".join(dict.fromkeys(task for job in jobs for task in job.config.tasks))
    runs = sum(len(method.runs) for method in methods)
    title = jobs[0].label if len(jobs) == 1 else f"{len(jobs)} jobs compared"
    page = Page(f"c4rl report: {title}", f"{tasks}; {len(methods)} settings, {runs} runs")
    add_scores(page, methods)
    add_selection(page, jobs, methods)
    add_pictures(page, jobs, pictures)
    shown = methods[:PLOTTED]
    add_curves(page, "Cross-covariance", shown, TRACES)
    add_terms(page, shown)
    add_inside(page, jobs)
    add_curves(page, "Clusters over time", shown, CLUSTERS)
    add_curves(page, "Q health", shown, CURVES, warnings=methods)
    add_timings(page, jobs)
    add_differences(page, jobs)
    add_cards(page, jobs)
    page.write(path)
