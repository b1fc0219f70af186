"""Clusters of the gradient pairs y = [g', g]: how many there are, what they share, which trajectories form them."""

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from c4rl.core.array import Array
from c4rl.core.random import Streams
from c4rl.data.dataset import Dataset
from c4rl.data.subsets import trajectory_returns, trajectory_slices
from c4rl.plugins.c4.cross_covariance import within_and_between
from c4rl.plugins.c4.gaussian_mixture import fit, kmeans_start
from c4rl.plugins.c4.principal_directions import principal_directions

DIRECTIONS = 16  # of g' and of g each, as C4 fits its mixture
STEPS = 20  # of EM


class Clusters(NamedTuple):
    """Of the rows given, largest cluster first."""

    y: Array  # [n, D], as the mixture sees it
    labels: Array  # [n], the likeliest cluster of each row
    effective: int  # clusters with p_z above 0.02
    split: dict[str, float]  # trace and Frobenius norm of Theorem 2's two parts


def find_clusters(g_next: Tensor, g: Tensor, K: int = 5) -> Clusters:
    """A mixture of K Gaussians on y = [g', g] of [n, m] each, on principal directions where m is large."""
    pair = g_next.detach().unsqueeze(0).double(), g.detach().unsqueeze(0).double()
    sides = [principal_directions(x, DIRECTIONS)(x) for x in pair] if g.shape[1] > 2 * DIRECTIONS else list(pair)
    y = torch.cat(sides, 2)
    streams = Streams([0], torch.zeros((), dtype=torch.int64, device=y.device))
    K = min(K, y.shape[1])
    components = torch.full((1,), K, device=y.device)
    found = fit(y, kmeans_start(y, streams, components, K), steps=STEPS)
    order = found.mixture.weights[0].argsort(descending=True).to(y.device)
    responsibilities = found.responsibilities[:, :, order]
    valid = torch.ones(y.shape[:2], dtype=torch.bool, device=y.device)
    split = within_and_between(*pair, valid, responsibilities)
    return Clusters(
        y=y[0].cpu().numpy(),
        labels=responsibilities[0].argmax(1).cpu().numpy(),
        effective=int(found.mixture.effective_clusters()[0]),
        split={name: float(value[0]) for name, value in split.items()},
    )


class RowFacts(NamedTuple):
    """Of each sampled row, [n]."""

    trajectory: Array
    returns: Array  # of its trajectory
    time: Array  # rows since its trajectory began


def row_facts(dataset: Dataset, rows: Array) -> RowFacts:
    starts, _ = trajectory_slices(dataset)
    trajectory = dataset.trajectory_ids[rows]
    return RowFacts(trajectory, trajectory_returns(dataset)[trajectory], rows - starts[trajectory])


def explained(values: Array, labels: Array) -> float:
    """The share of a number's variance that lies between clusters, 0 to 1."""
    total = float(np.var(values))
    if values.min() == values.max() or total == 0:  # the variance of equal numbers may be rounding noise
        return 0.0
    means = {z: float(values[labels == z].mean()) for z in np.unique(labels)}
    return float(np.var([means[z] for z in labels]) / total)


def describe_clusters(clusters: Clusters, facts: RowFacts) -> dict[str, Any]:
    """What the clusters are made of; a cluster's trajectories are those with most of their rows in it."""
    labels = clusters.labels
    counts = {t: np.bincount(labels[facts.trajectory == t]) for t in np.unique(facts.trajectory)}
    home = {int(t): int(count.argmax()) for t, count in counts.items()}
    purity = sum(int(count.max()) for count in counts.values()) / len(labels)
    listed = []
    for z in np.unique(labels):
        own = labels == z
        listed.append(
            {
                "cluster": int(z),
                "share": float(own.mean()),
                "mean_return": float(facts.returns[own].mean()),
                "mean_time": float(facts.time[own].mean()),
                "trajectories": [t for t, cluster in home.items() if cluster == z],
            }
        )
    return {
        "effective_clusters": clusters.effective,
        "explains_return": explained(facts.returns, labels),
        "explains_time": explained(facts.time, labels),
        "trajectory_purity": purity,
        "split": clusters.split,
        "clusters": listed,
    }
