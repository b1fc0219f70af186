"""The cross-covariance C = Cov(g', g) of a critic by its singular values."""

from typing import Any

import torch
from torch import Tensor

from c4rl.plugins.c4.cross_covariance import cross_covariance, traces

LEADING = 16  # singular values that are listed


def describe_spectrum(g_next: Tensor, g: Tensor) -> dict[str, Any]:
    """Of g', g [n, m]: trace, norms, the leading singular values and how many directions carry C.

    effective_rank: (sum s)^2 / sum s^2. normalised_trace: tr C / sqrt(tr Sigma' tr Sigma), between -1 and 1.
    """
    valid = g.new_ones(len(g), dtype=torch.bool)
    g_next, g = g_next.double(), g.double()
    values = torch.linalg.svdvals(cross_covariance(g_next, g, valid))
    trace, normalised = traces(g_next, g, valid)
    squares = float(values.square().sum())
    return {
        "features": g.shape[1],
        "trace_per_feature": float(trace),
        "normalised_trace": float(normalised),
        "frobenius": squares**0.5,
        "spectral": float(values[0]),
        "effective_rank": float(values.sum()) ** 2 / squares if squares > 0 else 0.0,
        "singular_values": values[:LEADING].tolist(),
    }
