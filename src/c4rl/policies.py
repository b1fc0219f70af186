"""Policies: deterministic tanh, and tanh-Gaussian. Actions live in [-1, 1]; the task's bounds are applied outside."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c4rl.networks import Stack, StackedMLP

ATANH_MARGIN = 1e-6  # logged actions at ±1 would have infinite pre-images


class TanhGaussian(NamedTuple):
    """A distribution per state, before sampling: evaluated once per state however many actions are drawn."""

    mean: Tensor  # [R, B, a], of the pre-image
    log_std: Tensor

    def sample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparametrised actions and log-probabilities from standard normal noise [R, B, (N,) a]."""
        mean, log_std = self.mean, self.log_std
        if noise.dim() == 4:
            mean, log_std = mean.unsqueeze(2), log_std.unsqueeze(2)
        u = mean + log_std.exp() * noise
        log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        return torch.tanh(u), (log_normal - _log_tanh_slope(u)).sum(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Of given actions [R, B, a] in [-1, 1] -> [R, B]."""
        u = torch.atanh(actions.clamp(-1 + ATANH_MARGIN, 1 - ATANH_MARGIN))
        normalised = (u - self.mean) * (-self.log_std).exp()
        log_normal = -0.5 * normalised.square() - self.log_std - 0.5 * math.log(2 * math.pi)
        return (log_normal - _log_tanh_slope(u)).sum(-1)

    def detach(self) -> "TanhGaussian":
        return TanhGaussian(self.mean.detach(), self.log_std.detach())


def _log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 - tanh²u), stable for large |u|."""
    return 2 * (math.log(2) - u - F.softplus(-2 * u))


class DeterministicPolicy(nn.Module):
    """μ(s) = tanh(f(s))."""

    def __init__(self, stack: Stack, name: str, hidden: Sequence[int]) -> None:
        super().__init__()
        self.mlp = StackedMLP(stack, name, (stack.observation_dim, *hidden, stack.action_dim))

    def forward(self, observations: Tensor) -> Tensor:
        """[R, B, s] -> [R, B, a]."""
        return torch.tanh(self.mlp(observations))


class GaussianPolicy(nn.Module):
    """Tanh-Gaussian. `log_std` is "linear" (an output of the network, clamped to [-5, 2]) or "scaled" (the same output
    times a learned scalar, initially 1, plus another, initially -1, clamped to [-20, 2])."""

    def __init__(self, stack: Stack, name: str, hidden: Sequence[int], log_std: str = "linear") -> None:
        super().__init__()
        self.action_dim, self.scaled = stack.action_dim, log_std == "scaled"
        self.mlp = StackedMLP(stack, name, (stack.observation_dim, *hidden, 2 * stack.action_dim))
        if self.scaled:
            shape = (stack.runs, 1, 1)
            self.log_std_multiplier = nn.Parameter(torch.ones(shape, device=stack.device, dtype=stack.dtype))
            self.log_std_offset = nn.Parameter(-torch.ones(shape, device=stack.device, dtype=stack.dtype))

    def forward(self, observations: Tensor) -> TanhGaussian:
        """[R, B, s] -> distribution over [R, B, a]."""
        mean, log_std = self.mlp(observations).split(self.action_dim, dim=-1)
        if self.scaled:
            return TanhGaussian(mean, (log_std * self.log_std_multiplier + self.log_std_offset).clamp(-20, 2))
        return TanhGaussian(mean, log_std.clamp(-5, 2))


Policy = DeterministicPolicy | GaussianPolicy
