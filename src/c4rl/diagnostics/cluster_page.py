"""`c4rl clusters`: the gradient pairs of a checkpoint on a plane, coloured by cluster, return and time."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.errors import InputError
from c4rl.data.dataset import Array
from c4rl.diagnostics.cluster_structure import describe_clusters, find_clusters, row_facts
from c4rl.diagnostics.gradients import gradient_pairs, sample_rows
from c4rl.diagnostics.page import Page, Plot, Series
from c4rl.jobs.runs import file_name, runs_of
from c4rl.plugins.c4.feature_gradients import Mode
from c4rl.training.restore import restore
from c4rl.training.run_directory import job_config

QUARTERS = ("lowest quarter", "second", "third", "highest quarter")


def on_a_plane(y: Array, seed: int = 0) -> tuple[Array, str]:
    """[n, 2] and the method: t-SNE where scikit-learn is installed, else the two principal components."""
    standard = (y - y.mean(0)) / np.maximum(y.std(0), 1e-12)
    if find_spec("sklearn") is not None and len(y) >= 10:
        from sklearn.manifold import TSNE

        perplexity = min(30.0, (len(y) - 1) / 3)
        return TSNE(2, perplexity=perplexity, init="pca", random_state=seed).fit_transform(standard), "t-SNE"
    left, size, _ = np.linalg.svd(standard - standard.mean(0), full_matrices=False)
    return left[:, :2] * size[:2], "principal components"


def quarters(values: Array) -> Array:
    """[n] 0 to 3 by the quartiles; fewer different values make fewer groups."""
    return np.searchsorted(np.quantile(values, [0.25, 0.5, 0.75]), values, side="left")


def write_cluster_page(
    folder: Path, path: Path, run: str | None = None, K: int = 5, mode: Mode = "exact", size: int = 1000
) -> dict[str, Any]:
    """Of one run; returns what its clusters are made of."""
    run = run if run is not None else file_name(runs_of(job_config(folder))[0].key)
    launch, preparation, config = restore(folder, run=run)
    first = launch.runs[0]
    sample = sample_rows(launch, size)
    if len(sample.rows) < K:
        raise InputError(f"--K: found {K}, expected at most as many clusters as rows ({len(sample.rows)})")
    g_next, g = (pair[0, 0] for pair in gradient_pairs(launch, sample.batch, mode))
    clusters, facts = find_clusters(g_next, g, K), row_facts(preparation.train, sample.rows)
    found, (plane, method) = describe_clusters(clusters, facts), on_a_plane(clusters.y)
    name = file_name(first.key)
    page = Page(
        f"c4rl clusters: {folder.resolve().name}, {name}",
        f"{config.algorithm} at update {int(launch.step):,}; {len(plane):,} rows; {mode} gradients [g', g] by {method}",
    )
    page.section(
        "Pictures",
        f"{found['effective_clusters']} clusters hold 2% of the rows or more. They explain "
        f"{found['explains_return']:.0%} of the returns' variance and {found['explains_time']:.0%} of the time's.",
    )

    def picture(title: str, labels: Array, names: list[str]) -> Plot:
        series = [
            Series(names[z], plane[labels == z, 0].tolist(), plane[labels == z, 1].tolist(), colour=int(z))
            for z in np.unique(labels)
        ]
        return Plot(title, f"first axis of {method}", series, kind="points", table=False)

    page.plots(
        picture("By cluster", clusters.labels, [f"cluster {z}" for z in range(K)]),
        picture("By return of the trajectory", quarters(facts.returns), [f"return: {q}" for q in QUARTERS]),
        picture("By time in the trajectory", quarters(facts.time), [f"time: {q}" for q in QUARTERS]),
    )
    page.section("Clusters", "A trajectory belongs to the cluster that holds most of its rows.")
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
    split = found["split"]
    page.section("Theorem 2", "The cross-covariance C of successive gradients, split by these clusters.")
    page.table(
        ("part", "trace", "Frobenius norm"),
        [[part, split[f"{part}_trace"], split[f"{part}_frobenius"]] for part in ("within", "between")],
    )
    page.write(path)
    return found
