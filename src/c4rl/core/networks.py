"""Stacked networks: R runs x M members of one architecture, evaluated together.

Weights are [R, M, in, out]; parameters of different runs are disjoint, so one backward pass of the losses summed over R
gives every run its own exact gradient.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from c4rl.core.ops.mlp import Layers, one_pass_pays, stacked_mlp
from c4rl.core.random import stream_key


class Stack(NamedTuple):
    """Seeds, sizes and device of R stacked runs."""

    seeds: tuple[int, ...]
    observation_dim: int
    action_dim: int
    device: torch.device
    dtype: torch.dtype = torch.float32
    updates: int = 1  # critic updates of the whole job: the horizon of schedules

    @property
    def runs(self) -> int:
        return len(self.seeds)


def per_row(value: float | Tensor) -> float | Tensor:
    """A setting that broadcasts against [R, B] or [R, M]: a number as it is, one per run [R] as [R, 1]."""
    return value.unsqueeze(1) if isinstance(value, Tensor) else value


class StackedMLP(nn.Module):
    """ReLU MLPs: weights [R, M, in, out], optional LayerNorm between each hidden linear map and its ReLU.

    The initial weights of a run are a function of its seed and of `name` alone. `initialization` is "torch" (uniform on
    ±1/sqrt(fan in), weights and biases), "orthogonal" (gain sqrt 2, last layer 0.01, zero biases),
    "orthogonal_throughout" (the same with gain sqrt 2 in the last layer too) or "orthogonal_weights" (gain 1 in every
    layer, biases as "torch").
    """

    def __init__(
        self,
        stack: Stack,
        name: str,
        sizes: Sequence[int],
        members: int = 1,
        *,
        layer_norm: bool = False,
        initialization: str = "torch",
    ) -> None:
        super().__init__()
        self.members, self.layer_norm = members, layer_norm
        generators = [torch.Generator().manual_seed(stream_key(seed, name)) for seed in stack.seeds]

        def drawn(draw: str, *shape: int, scale: float) -> nn.Parameter:
            per_run = []
            for generator in generators:
                if draw == "uniform":
                    per_run.append(
                        (torch.rand(members, *shape, generator=generator, dtype=torch.float64) * 2 - 1) * scale
                    )
                elif draw == "orthogonal":
                    per_run.append(torch.stack([_orthogonal(shape, generator) * scale for _ in range(members)]))
                else:
                    per_run.append(torch.full((members, *shape), scale, dtype=torch.float64))
            return nn.Parameter(torch.stack(per_run).to(stack.device, stack.dtype))

        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.gains, self.shifts = nn.ParameterList(), nn.ParameterList()
        for layer, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
            last = layer == len(sizes) - 2
            if initialization in ("orthogonal", "orthogonal_throughout"):
                gain = 0.01 if last and initialization == "orthogonal" else math.sqrt(2)
                self.weights.append(drawn("orthogonal", fan_in, fan_out, scale=gain))
                self.biases.append(drawn("constant", fan_out, scale=0.0))
            elif initialization == "orthogonal_weights":
                self.weights.append(drawn("orthogonal", fan_in, fan_out, scale=1.0))
                self.biases.append(drawn("uniform", fan_out, scale=1 / math.sqrt(fan_in)))
            else:
                bound = 1 / math.sqrt(fan_in)
                self.weights.append(drawn("uniform", fan_in, fan_out, scale=bound))
                self.biases.append(drawn("uniform", fan_out, scale=bound))
            if layer_norm and not last:
                self.gains.append(drawn("constant", fan_out, scale=1.0))
                self.shifts.append(drawn("constant", fan_out, scale=0.0))

    def layers(self, members: slice = slice(None), frozen: bool = False) -> Layers:
        """In the form that `ops` takes. frozen: without gradients."""

        def chosen(parameters: nn.ParameterList) -> list[Tensor]:
            own = list(parameters) if members == slice(None) else [p[:, members] for p in parameters]
            return [p.detach() for p in own] if frozen else own

        return chosen(self.weights), chosen(self.biases), chosen(self.gains), chosen(self.shifts)

    def forward(self, x: Tensor, masks: Sequence[Tensor] | None = None, frozen: bool = False) -> Tensor:
        """[R, B, in] -> [R, B, out]; for networks of one member.

        masks: dropout factors of each hidden layer, [R, B, width]. frozen: as for a Critic.
        """
        factors = [mask.unsqueeze(1) for mask in masks or ()]
        return stacked_mlp(x, None, self.layers(frozen=frozen), factors)[0].squeeze(1)


class Value(nn.Module):
    """V(s), one function per run."""

    def __init__(self, stack: Stack, name: str, hidden: Sequence[int], *, initialization: str = "torch") -> None:
        super().__init__()
        self.mlp = StackedMLP(stack, name, (stack.observation_dim, *hidden, 1), initialization=initialization)

    def forward(self, observations: Tensor) -> Tensor:
        """[R, B, s] -> [R, B]."""
        return self.mlp(observations).squeeze(-1)


class LogScalar(nn.Module):
    """One trained number per run, of which the exponential is used."""

    def __init__(self, stack: Stack, initial: float) -> None:
        super().__init__()
        self.log = nn.Parameter(torch.full((stack.runs,), initial, device=stack.device, dtype=stack.dtype))


class CriticOutput(NamedTuple):
    """One evaluation of a critic. `...` is [B] or [B, N] for N actions per state."""

    q: Tensor  # [R, M, ...]
    features: Tensor  # [R, M, ..., width], the last hidden layer (post-activation): Q = w·φ + b
    hidden: tuple[Tensor, ...]  # each hidden layer, [R·M, rows, width]; lower ones may be rounded, for their signs


class Critic(nn.Module):
    """M Q-functions per run on [s, a]."""

    def __init__(
        self,
        stack: Stack,
        name: str,
        hidden: Sequence[int],
        members: int = 2,
        *,
        layer_norm: bool = False,
        initialization: str = "torch",
    ) -> None:
        super().__init__()
        self.observation_dim = stack.observation_dim
        sizes = (stack.observation_dim + stack.action_dim, *hidden, 1)
        self.mlp = StackedMLP(stack, name, sizes, members, layer_norm=layer_norm, initialization=initialization)

    def forward(
        self, observations: Tensor, actions: Tensor, members: slice = slice(None), frozen: bool = False
    ) -> CriticOutput:
        """observations [R, B, s]; actions [R, B, a], or [R, B, N, a] for N actions per state.

        frozen: the parameters' gradients are not computed.
        """
        if actions.dim() == 3:
            return self.at(torch.cat([observations, actions], dim=-1), members, frozen)
        return self._output(observations, actions.flatten(1, 2), members, frozen, actions.shape[1:3])

    def at(self, state_actions: Tensor, members: slice = slice(None), frozen: bool = False) -> CriticOutput:
        """The same on rows that already hold [s, a], [R, B, s + a]."""
        return self._output(state_actions, None, members, frozen, state_actions.shape[1:2])

    def at_logged_and_more(self, observations: Tensor, actions: Tensor, others: Tensor) -> tuple[CriticOutput, Tensor]:
        """At (s, a) for actions [R, B, a], and q [R, M, B, N] of others [R, B, N, a]."""
        if not one_pass_pays(others):  # on a CPU it was 1.1x slower
            return self(observations, actions), self(observations, others).q
        together = torch.cat([actions.unsqueeze(2), others], dim=2)  # hidden layers are of use at logged actions only
        count = together.shape[2]
        output, hidden = stacked_mlp(observations, together.flatten(1, 2), self.mlp.layers(), every=count)
        q, q_others = output.view(*output.shape[:2], -1, count).split([1, count - 1], dim=3)
        return CriticOutput(q.squeeze(3), hidden[-1], tuple(h.flatten(0, 1) for h in hidden)), q_others

    def _output(
        self, x: Tensor, actions: Tensor | None, members: slice, frozen: bool, rows: tuple[int, ...]
    ) -> CriticOutput:
        output, layers = stacked_mlp(x, actions, self.mlp.layers(members, frozen))
        hidden = tuple(layer.flatten(0, 1) for layer in layers)
        return CriticOutput(output.view(*output.shape[:2], *rows), layers[-1].unflatten(2, rows), hidden)


def _orthogonal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    rows, columns = shape
    tall = torch.randn(max(shape), min(shape), generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(tall)
    q = q * torch.sign(torch.diagonal(r))  # uniform over orthogonal matrices
    return q if rows >= columns else q.T
