"""Metrics against updates: means over seeds, with the band of the seeds."""

from collections.abc import Sequence
from statistics import fmean

from c4rl.diagnostics.divergence import first_warning
from c4rl.diagnostics.metrics import values_of
from c4rl.diagnostics.page import Page, Plot, Series, thinned
from c4rl.jobs.runs import file_name
from c4rl.results.report.jobs import Method

PLOTTED = 60  # methods; tables have all
POINTS = 100  # of a curve
NUMBERS = 16_000  # of a plot, so that the page of a large sweep stays small
# metric -> title
CURVES = {
    "q": "Mean Q of the batch",
    "critic_loss": "Critic loss",
    "actor_loss": "Actor loss",
}
TRACES = {
    "cross_covariance_trace_exact_normalised": "tr C / sqrt(tr Sigma' tr Sigma), exact gradients",
    "cross_covariance_trace_proxy_normalised": "tr C / sqrt(tr Sigma' tr Sigma), penultimate features",
    "cross_covariance_trace_exact": "tr C / m, exact gradients",
    "cross_covariance_trace_proxy": "tr C / m, penultimate features",
}
LOGGED_TERMS = {
    "td_A": "A",
    "td_B": "B",
    "td_C": "C",
    "td_cosine_with_variance": "Cosine of grad E[delta^2] with grad Var[delta]",
    "td_cosine_with_mean": "Cosine of grad E[delta^2] with grad (E[delta])^2",
}
CLUSTERS = {
    "c4_effective_K": "Clusters with 2% of the rows or more",
    "c4_cluster_0": "Share of the largest cluster",
    "c4_within_trace": "Trace within clusters",
    "c4_between_trace": "Trace between clusters",
}
LOGARITHMIC = ("critic_loss", "td_A", "td_B", "td_C")


def curve_plot(methods: Sequence[Method], metric: str, title: str) -> Plot:
    """Means over seeds at common updates, with the band of the seeds."""
    series, most = [], max(8, min(POINTS, NUMBERS // max(len(methods), 1) // 3))
    for method in methods:
        by_update: dict[int, list[float]] = {}
        for lines in method.runs.values():
            for update, value in zip(*values_of(lines, metric), strict=True):
                if value is not None:
                    by_update.setdefault(update, []).append(value)
        updates = thinned(sorted(by_update), most)
        if updates:
            values = [by_update[update] for update in updates]
            band = any(len(some) > 1 for some in values)
            low, high = ([f(some) for some in values] if band else None for f in (min, max))
            means = [fmean(some) for some in values]
            series.append(Series(method.name, updates, means, low, high, method.place))
    return Plot(title, "update", series, log_y=metric in LOGARITHMIC)


def add_curves(
    page: Page,
    section: str,
    methods: Sequence[Method],
    metrics: dict[str, str],
    warnings: Sequence[Method] = (),
    words: Sequence[str] = (),
) -> None:
    plots = [curve_plot(methods, metric, title) for metric, title in metrics.items()]
    plots = [plot for plot in plots if plot.series]
    if not plots:
        return
    page.section(section, *words)
    found = []
    for method in warnings:
        for key, lines in method.runs.items():
            if (warning := first_warning(lines, method.value_bound)) is not None:
                where = f"{method.name}, {file_name(key)}" if len(method.runs) > 1 else method.name
                found.append(("fault", "diverged:", f"{where} at update {warning.update:,}: {warning.reason}."))
    if found:
        page.listing(found[:50])
    elif warnings:
        page.text("No sign of divergence in the logs.", kind="fine")
    page.plots(*plots)
