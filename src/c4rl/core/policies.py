"""Policies: deterministic tanh, tanh-Gaussian, and Gaussian around a tanh.

Actions live in [-1, 1]; the task's bounds are applied outside.
"""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c4rl.core.networks import Stack, StackedMLP
from c4rl.core.numpy_policy import LAYER_NORM_EPSILON
from c4rl.core.ops.tanh_gaussian import log_normal_density, log_tanh_slope, sample_tanh_gaussian
from c4rl.core.random import Streams

ATANH_MARGIN = 1e-6  # logged actions at ±1 would have infinite pre-images


class TanhGaussian(NamedTuple):
    """A distribution per state, before sampling: evaluated once per state however many actions are drawn."""

    mean: Tensor  # [R, B, a], of the pre-image
    log_std: Tensor

    def sample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Reparametrised actions and log-probabilities from standard normal noise [R, B, (N,) a]."""
        return sample_tanh_gaussian(self.mean, self.log_std, noise)

    def log_prob(self, actions: Tensor) -> Tensor:
        """Log-probability of actions [R, B, a] in [-1, 1] -> [R, B]."""
        u = torch.atanh(actions.clamp(-1 + ATANH_MARGIN, 1 - ATANH_MARGIN))
        normalised = (u - self.mean) * (-self.log_std).exp()
        return (log_normal_density(normalised, self.log_std) - log_tanh_slope(u)).sum(-1)

    def detach(self) -> "TanhGaussian":
        return TanhGaussian(self.mean.detach(), self.log_std.detach())


def dropout_masks(streams: Streams, stream: str, share: float, hidden: Sequence[int], rows: int) -> list[Tensor] | None:
    """Dropout factors of hidden layers of one width, [R, rows, width] each: 0 or 1 / (1 - share)."""
    if share == 0:
        return None
    drawn = streams.uniform(stream, len(hidden), rows, hidden[0])
    return list(((drawn >= share).to(drawn.dtype) / (1 - share)).unbind(1))


class Policy(nn.Module):
    """A policy per run, from an MLP f on states."""

    per_action: ClassVar[int] = 1  # numbers that f gives for each dimension of an action

    def __init__(
        self, stack: Stack, name: str, hidden: Sequence[int], *, layer_norm: bool = False, initialization: str = "torch"
    ) -> None:
        super().__init__()
        self.action_dim = stack.action_dim
        sizes = (stack.observation_dim, *hidden, self.per_action * stack.action_dim)
        self.mlp = StackedMLP(stack, name, sizes, layer_norm=layer_norm, initialization=initialization)


class DeterministicPolicy(Policy):
    """μ(s) = tanh(f(s))."""

    def forward(self, observations: Tensor, masks: Sequence[Tensor] | None = None) -> Tensor:
        """[R, B, s] -> [R, B, a]. masks: dropout factors of each hidden layer."""
        return torch.tanh(self.mlp(observations, masks))


class GaussianPolicy(Policy):
    """Tanh-Gaussian. `log_std` is "linear" (an output of the network, clamped to [-5, 2]) or "scaled" (the same output
    times a learned scalar, initially 1, plus another, initially -1, clamped to [-20, 2])."""

    per_action = 2

    def __init__(
        self, stack: Stack, name: str, hidden: Sequence[int], log_std: str = "linear", *, layer_norm: bool = False
    ) -> None:
        super().__init__(stack, name, hidden, layer_norm=layer_norm)
        self.scaled = log_std == "scaled"
        if self.scaled:
            shape = (stack.runs, 1, 1)
            self.log_std_multiplier = nn.Parameter(torch.ones(shape, device=stack.device, dtype=stack.dtype))
            self.log_std_offset = nn.Parameter(-torch.ones(shape, device=stack.device, dtype=stack.dtype))

    def forward(self, observations: Tensor, masks: Sequence[Tensor] | None = None) -> TanhGaussian:
        """[R, B, s] -> distribution over [R, B, a]. masks: dropout factors of each hidden layer."""
        mean, log_std = self.mlp(observations, masks).split(self.action_dim, dim=-1)
        if self.scaled:
            return TanhGaussian(mean, (log_std * self.log_std_multiplier + self.log_std_offset).clamp(-20, 2))
        return TanhGaussian(mean, log_std.clamp(-5, 2))


class Gaussian(TanhGaussian):
    """Replaces a TanhGaussian, without squashing: actions may leave [-1, 1], and `mean` is an action."""

    def sample(self, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = self.mean, self.log_std
        if noise.dim() == 4:
            mean, log_std = mean.unsqueeze(2), log_std.unsqueeze(2)
        return mean + log_std.exp() * noise, log_normal_density(noise, log_std).sum(-1)

    def log_prob(self, actions: Tensor) -> Tensor:
        normalised = (actions - self.mean) * (-self.log_std).exp()
        return log_normal_density(normalised, self.log_std).sum(-1)

    def entropy(self) -> Tensor:
        """[R, B]."""
        return (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1)

    def detach(self) -> "Gaussian":
        return Gaussian(self.mean.detach(), self.log_std.detach())


class TanhMeanGaussianPolicy(Policy):
    """N(tanh(f(s)), σ²): the mean is squashed, the distribution is not; log σ does not depend on s and starts at 0."""

    def __init__(self, stack: Stack, name: str, hidden: Sequence[int], **form: Any) -> None:
        super().__init__(stack, name, hidden, **form)
        shape = (stack.runs, 1, stack.action_dim)
        self.log_std = nn.Parameter(torch.zeros(shape, device=stack.device, dtype=stack.dtype))

    def forward(self, observations: Tensor, masks: Sequence[Tensor] | None = None) -> Gaussian:
        """[R, B, s] -> distribution over [R, B, a]. masks: dropout factors of each hidden layer."""
        return Gaussian(torch.tanh(self.mlp(observations, masks)), self.log_std.clamp(-5, 2))


class TanhHeadGaussianPolicy(Policy):
    """N(μ(s), σ(s)²) of x = tanh(f(s)), 2|A| numbers: μ is the first half, log σ = -5 + 2.5(x + 1) of the second."""

    per_action = 2

    def forward(self, observations: Tensor) -> Gaussian:
        """[R, B, s] -> distribution over [R, B, a]."""
        mean, x = torch.tanh(self.mlp(observations)).split(self.action_dim, dim=-1)
        return Gaussian(mean, -5 + 2.5 * (x + 1))


class EvaluatedPolicy(NamedTuple):
    """tanh(f(s)) of an MLP f per run, without noise or dropout: what is scored and exported."""

    weights: list[Tensor]  # [R, in, out] each
    biases: list[Tensor]  # [R, out] each
    gains: Sequence[Tensor] = ()  # with LayerNorm, of each hidden layer [R, width]
    shifts: Sequence[Tensor] = ()

    @classmethod
    def of(cls, mlp: StackedMLP, action_dim: int) -> "EvaluatedPolicy":
        """From the first `action_dim` outputs, which are the mean of a Gaussian."""
        weights, biases, *norm = ([p[:, 0] for p in own] for own in mlp.layers())
        return cls([*weights[:-1], weights[-1][..., :action_dim]], [*biases[:-1], biases[-1][..., :action_dim]], *norm)

    def act(self, observations: Tensor) -> Tensor:
        """[R, B, s] -> [R, B, a]."""
        x = observations
        for layer, (w, b) in enumerate(zip(self.weights[:-1], self.biases[:-1], strict=True)):
            x = torch.baddbmm(b.unsqueeze(1), x, w)
            if self.gains:
                gain, shift = (p[layer].unsqueeze(1) for p in (self.gains, self.shifts))
                x = torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPSILON), gain)
            x = x.relu()
        return torch.tanh(torch.baddbmm(self.biases[-1].unsqueeze(1), x, self.weights[-1]))
