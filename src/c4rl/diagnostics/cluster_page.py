"""`c4rl clusters`: the gradient pairs of a critic on a plane, over training, coloured by cluster, return and time."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from c4rl.core.array import Array
from c4rl.core.errors import InputError
from c4rl.diagnostics.cluster_structure import Clusters, RowFacts, describe_clusters, find_clusters, row_facts
from c4rl.diagnostics.gradients import gradient_pairs, sample_rows
from c4rl.diagnostics.page import Page, Plot, Series
from c4rl.diagnostics.tsne import tsne
from c4rl.jobs.runs import file_name, runs_of
from c4rl.plugins.c4.feature_gradients import Mode
from c4rl.training.restore import restore
from c4rl.training.run_directory import RunDirectory, job_config

QUARTERS = ("lowest quarter", "second", "third", "highest quarter")
MOST_POINTS = 2000  # of t-SNE, which takes every pair of them


class Moment(NamedTuple):
    """One checkpoint."""

    update: int
    clusters: Clusters
    plane: Array  # [n, 2]


def on_a_plane(y: Array, start: Array | None = None) -> tuple[Array, str]:
    """[n, 2] and the method: t-SNE, or of too many points the two principal components. start: an earlier picture."""
    standard = (y - y.mean(0)) / np.maximum(y.std(0), 1e-12)
    if 10 <= len(y) <= MOST_POINTS:
        return tsne(standard, start), "t-SNE"
    left, size, _ = np.linalg.svd(standard - standard.mean(0), full_matrices=False)
    return left[:, :2] * size[:2], "principal components"


def quarters(values: Array) -> Array:
    """[n] 0 to 3 by the quartiles; fewer different values make fewer groups."""
    return np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), values, side="left")


def named_as(labels: Array, before: Array, K: int) -> Array:
    """The same clusters under the numbers that most of their rows had before, so that colours stay over training."""
    shared = np.zeros((K, K), int)
    np.add.at(shared, (labels, before), 1)
    names = np.full(K, -1)
    for place in np.argsort(-shared, axis=None, kind="stable"):  # the largest overlaps first
        now, then = divmod(int(place), K)
        if names[now] < 0 and then not in names:
            names[now] = then
    return names[labels]


def write_cluster_page(
    folder: Path, path: Path, run: str | None, K: int, mode: Mode, size: int, allow_import: bool
) -> dict[str, Any]:
    """Of one run, at its kept checkpoints or the last one; returns what its last clusters are made of."""
    run = run if run is not None else file_name(runs_of(job_config(folder, allow_import))[0].key)
    moments: list[Moment] = []
    kept: list[int | None] = [*RunDirectory(folder).kept_checkpoints()]
    for update in kept or [None]:
        launch, preparation, config = restore(folder, run, update, allow_import)
        sample = sample_rows(launch, size)
        if len(sample.rows) < K:
            raise InputError(f"--K: found {K}, expected at most as many clusters as rows ({len(sample.rows)})")
        g_next, g = (pair[0, 0] for pair in gradient_pairs(launch, sample.batch, mode))
        clusters, facts = find_clusters(g_next, g, K), row_facts(preparation.train, sample.rows)
        if moments:
            clusters = clusters._replace(labels=named_as(clusters.labels, moments[-1].clusters.labels, K))
        plane, method = on_a_plane(clusters.y, moments[-1].plane if moments else None)
        moments.append(Moment(int(launch.step), clusters, plane))
    found = [describe_clusters(moment.clusters, facts) for moment in moments]
    times = " and ".join(f"{moment.update:,}" for moment in (moments[:1] + moments[1:][-1:]))
    page = Page(
        f"c4rl clusters: {folder.resolve().name}, {run}",
        f"{config.algorithm}, {len(moments)} checkpoints between the updates {times}"
        if len(moments) > 1
        else f"{config.algorithm} at update {times}",
    )
    _pictures(page, moments, facts, method, f"{len(facts.time):,} rows; {mode} gradients [g', g] by {method}.", K)
    _over_training(page, moments, found)
    _last_clusters(page, found[-1])
    page.write(path)
    return found[-1]


def _pictures(page: Page, moments: list[Moment], facts: RowFacts, method: str, words: str, K: int) -> None:
    """A row for each colouring, a picture for each checkpoint."""
    page.section("Pictures", words)
    if len(moments) > 1:
        page.text("Each picture starts from the previous one, and a cluster keeps its colour.", kind="faint")
    returns, time = quarters(facts.returns), quarters(facts.time)
    colourings = {
        "By cluster": ([moment.clusters.labels for moment in moments], [f"cluster {z}" for z in range(K)]),
        "By return of the trajectory": ([returns] * len(moments), [f"return: {q}" for q in QUARTERS]),
        "By time in the trajectory": ([time] * len(moments), [f"time: {q}" for q in QUARTERS]),
    }
    rows = [
        [
            _picture(moment, one, names, f"{title}, update {moment.update:,}", method)
            for moment, one in zip(moments, labels, strict=True)
        ]
        for title, (labels, names) in colourings.items()
    ]
    if len(moments) == 1:
        page.plots(*(plot for row in rows for plot in row))
    else:
        for row in rows:
            page.plots(*row)


def _picture(moment: Moment, labels: Array, names: list[str], title: str, method: str) -> Plot:
    series = [
        Series(names[z], moment.plane[labels == z, 0].tolist(), moment.plane[labels == z, 1].tolist(), colour=int(z))
        for z in np.unique(labels)
    ]
    return Plot(title, f"first axis of {method}", series, kind="points", table=False)


def _over_training(page: Page, moments: list[Moment], found: list[dict[str, Any]]) -> None:
    page.section("Over training", "The clusters, and Theorem 2's split of the cross-covariance C by them.")
    explained = "share of the variance of returns", "share of the variance of time"
    headings = ("update", "clusters with 2% of the rows", *explained)
    parts = [f"{part}_{size}" for part in ("within", "between") for size in ("trace", "frobenius")]
    rows = [
        [
            moment.update,
            one["effective_clusters"],
            one["explains_return"],
            one["explains_time"],
            *(one["split"][part] for part in parts),
        ]
        for moment, one in zip(moments, found, strict=True)
    ]
    page.table((*headings, *(part.replace("_", ": ") for part in parts)), rows)


def _last_clusters(page: Page, found: dict[str, Any]) -> None:
    page.section("Clusters of the last checkpoint", "A trajectory belongs to the cluster that holds most of its rows.")
    rows = [
        [
            f"cluster {c['cluster']}",
            c["share"],
            c["mean_return"],
            c["mean_time"],
            len(c["trajectories"]),
            ", ".join(map(str, c["trajectories"][:40])) + (" ..." if len(c["trajectories"]) > 40 else ""),
        ]
        for c in found["clusters"]
    ]
    page.table(("cluster", "share of rows", "mean return", "mean time", "trajectories", "which"), rows)
