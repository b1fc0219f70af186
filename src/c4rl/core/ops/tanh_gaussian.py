"""Actions of a tanh-Gaussian policy."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from c4rl.core import ops


def sample_tanh_gaussian(mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """tanh(mean + std noise) and its log-probability; mean, log_std [R, B, a], noise [R, B, (N,) a]."""
    many = noise.dim() == 4
    if not (many and mean.requires_grad and torch.is_grad_enabled()) and (
        own := ops.kernels_for(noise, "tanh_gaussian")
    ):
        return own.sample_tanh_gaussian(mean, log_std, noise)
    if many:
        mean, log_std = mean.unsqueeze(2), log_std.unsqueeze(2)
    u = mean + log_std.exp() * noise
    log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    return torch.tanh(u), (log_normal - log_tanh_slope(u)).sum(-1)


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 - tanh²u), stable for large |u|."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))
