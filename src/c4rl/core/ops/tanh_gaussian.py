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
    return torch.tanh(u), (log_normal_density(noise, log_std) - log_tanh_slope(u)).sum(-1)


def uniform_and_sampled(
    uniform: Tensor, here: tuple[Tensor, Tensor], noise: Tensor, there: tuple[Tensor, Tensor], next_noise: Tensor
) -> tuple[Tensor, Tensor]:
    """Actions of three distributions, N of each [R, B, 3N, a], and their log-densities [R, B, 3N], without gradients.

    uniform: on [0, 1), scaled to [-1, 1]; here, there: mean and log_std of two policies; noise: [R, B, N, a], like it.
    """
    if own := ops.kernels_for(noise, "tanh_gaussian"):
        return own.uniform_and_sampled(uniform, *here, noise, *there, next_noise)
    actions, log_prob = sample_tanh_gaussian(*here, noise)
    next_actions, next_log_prob = sample_tanh_gaussian(*there, next_noise)
    log_uniform = torch.full_like(log_prob, -noise.shape[-1] * math.log(2))
    log_density = torch.cat([log_uniform, log_prob, next_log_prob], dim=2)
    return torch.cat([uniform * 2 - 1, actions, next_actions], dim=2), log_density


def log_normal_density(deviation: Tensor, log_std: Tensor) -> Tensor:
    """Of numbers that lie so many standard deviations from the mean, elementwise."""
    return -0.5 * deviation.square() - log_std - 0.5 * math.log(2 * math.pi)


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 - tanh²u), stable for large |u|."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))
