"""Padding of the stack's tables for runs of fewer clusters or rows.

In a stack all runs have tables for its largest K and its longest pool P. A checkpoint holds each run's own part, so
that it can be read back into any stack. Padding is never drawn from: its clusters have weight 0, its rows no mass.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from c4rl.plugins.c4.behaviour_model import LEAST_LOG_P

OF_MIXTURES = ("weights", "means", "covariances", "precision_factors")
PER_CLUSTER = (*(f"{which}.{name}" for which in ("mixture", "marginal") for name in OF_MIXTURES), "behaviour.")


def unpadded(name: str, tensor: Tensor, own: tuple[int, int], stack: tuple[int, int]) -> Tensor:
    """One run's own part of a table of the stack. own and stack: (K, P) of the run and of the stack."""
    (clusters, rows), (most_clusters, most_rows) = own, stack
    if own == stack:
        return tensor
    if name == "sampler.cumulative":
        return tensor.view(most_clusters, most_rows)[:clusters, :rows].reshape(-1)
    if name == "sampler.pool":
        return tensor[:rows]
    if name == "memberships":
        return tensor[:rows, :clusters]
    return tensor[:clusters] if name.startswith(PER_CLUSTER) else tensor


def padded(name: str, tensor: Tensor, own: tuple[int, int], stack: tuple[int, int]) -> Tensor:
    """What `unpadded` gave, padded to the stack's K and P."""
    (clusters, rows), (most_clusters, most_rows) = own, stack
    if own == stack:
        return tensor
    more_clusters, more_rows = most_clusters - clusters, most_rows - rows
    if name == "sampler.cumulative":  # a running sum: rows without mass repeat the last number
        sums = tensor.view(clusters, rows)
        sums = torch.cat([sums, sums[:, -1:].expand(-1, more_rows)], 1).flatten()
        return torch.cat([sums, sums[-1:].expand(more_clusters * most_rows)])
    if name == "sampler.pool":
        return torch.cat([tensor, tensor[:1].expand(more_rows)])
    if name == "memberships":
        return pad(tensor, (0, more_clusters, 0, more_rows))
    if not name.startswith(PER_CLUSTER):
        return tensor
    filling = tensor[:1].expand(more_clusters, *tensor.shape[1:])  # regular as any cluster; its weight is 0
    if name in ("mixture.weights", "marginal.weights"):
        filling = torch.zeros_like(filling)
    elif name == "behaviour.log_p":
        filling = torch.full_like(filling, LEAST_LOG_P)
    return torch.cat([tensor, filling])
