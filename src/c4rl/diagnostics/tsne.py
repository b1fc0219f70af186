"""t-SNE (van der Maaten and Hinton, 2008), exact: every pair of points counts, so for a few thousand points at most."""

import math

import numpy as np
import torch
from torch import Tensor

from c4rl.core.array import Array

STEPS, EXAGGERATED_STEPS = 600, 200
EXAGGERATION = 12.0  # of the attraction, at first: neighbours gather before clusters settle
BISECTIONS = 40
PERPLEXITY = 30.0  # neighbours of a point, about
SMALL = 1e-4  # standard deviation of the first positions, where no picture gives them


def tsne(points: Array, start: Array | None = None) -> Array:
    """[n, d] -> [n, 2]. start [n, 2]: where to begin, as of an earlier picture that this one should resemble; default:
    the two principal components."""
    x = torch.tensor(points - points.mean(0), dtype=torch.float64)
    p = neighbour_probabilities(x, min(PERPLEXITY, (len(x) - 1) / 3)).float()
    if start is None:
        left, size, _ = torch.linalg.svd(x, full_matrices=False)
        y = (SMALL * left[:, :2] * size[:2] / (left[:, 0] * size[0]).std().clamp_min(1e-12)).float()
    else:
        y = torch.tensor(start, dtype=torch.float32)
    rate = max(len(x) / EXAGGERATION / 4, 50.0)
    speed, gains = torch.zeros_like(y), torch.ones_like(y)
    exaggerated = p * EXAGGERATION
    for step in range(STEPS):
        early = step < EXAGGERATED_STEPS
        slope = gradient(y, exaggerated if early else p)
        # a coordinate that keeps its direction takes longer steps
        gains = torch.where(slope * speed < 0, gains + 0.2, gains * 0.8).clamp_min(0.01)
        speed = (0.5 if early else 0.8) * speed - rate * gains * slope
        y = y + speed
    return (y - y.mean(0)).numpy().astype(np.float64)


def gradient(y: Tensor, p: Tensor) -> Tensor:
    """Of KL(p | q): 4 sum_j (p_ij - q_ij) k_ij (y_i - y_j), with the kernel k = 1 / (1 + |y_i - y_j|^2), q ~ k."""
    kernel = _squared_distances(y).add_(1).reciprocal_().fill_diagonal_(0)
    pull = p.sub(kernel, alpha=1 / float(kernel.sum())).mul_(kernel)  # in place: memory is what takes the time here
    return 4 * (pull.sum(1, keepdim=True) * y - pull @ y)


def neighbour_probabilities(x: Tensor, perplexity: float) -> Tensor:
    """[n, n], symmetric, sum 1: how near points are, each with as wide a Gaussian as gives it so many neighbours."""
    distances = _squared_distances(x)
    distances = distances / distances.mean().clamp_min(1e-300)
    low, high = torch.full((len(x), 1), -30.0, dtype=x.dtype), torch.full((len(x), 1), 60.0, dtype=x.dtype)
    p = distances
    for _ in range(BISECTIONS):  # over the logarithm of each point's precision
        middle = (low + high) / 2
        logits = (-distances * middle.exp()).fill_diagonal_(-torch.inf)
        p = torch.softmax(logits, 1)
        entropy = -(p * p.clamp_min(1e-300).log()).sum(1, keepdim=True)
        wide = entropy > math.log(perplexity)
        low, high = torch.where(wide, middle, low), torch.where(wide, high, middle)
    return (p + p.T) / (2 * len(x))


def _squared_distances(x: Tensor) -> Tensor:
    norms = x.square().sum(1)
    return (x @ x.T).mul_(-2).add_(norms).add_(norms[:, None]).clamp_min_(0).fill_diagonal_(0)
