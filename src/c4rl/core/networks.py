"""Stacked networks: R runs x M members of one architecture, evaluated together.

Weights are [R, M, in, out]; parameters of different runs are disjoint, so one backward pass of the losses summed over R
gives every run its own exact gradient.
"""

import itertools
import math
import warnings
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from c4rl.core.ops import fused, kernels, product_mode, products
from c4rl.core.random import Streams, stream_key

LAYER_NORM_EPSILON = 1e-5


class Stack(NamedTuple):
    """What every part of R stacked runs needs to know."""

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
    """A setting to stand beside [R, B] or [R, M]: a number as it is, one per run [R] as [R, 1]."""
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

    def activate(self, layer: int, z: Tensor, members: slice = slice(None)) -> Tensor:
        """Hidden layer `layer` from its linear map z [R·M, B, width], in place where autograd allows."""
        if self.layer_norm:
            gain, shift = (p[layer][:, members].flatten(0, 1).unsqueeze(1) for p in (self.gains, self.shifts))
            z = torch.addcmul(shift, F.layer_norm(z, z.shape[-1:], eps=LAYER_NORM_EPSILON), gain)
        return z.relu_()

    def linear(self, layer: int, x: Tensor, members: slice = slice(None)) -> Tensor:
        """x [R·M, B, in] -> [R·M, B, out]."""
        w, b = self.weights[layer][:, members].flatten(0, 1), self.biases[layer][:, members].flatten(0, 1)
        return torch.baddbmm(b.unsqueeze(1), x, w)

    def fuses(self, x: Tensor) -> bool:
        """Whether fused kernels evaluate it on these rows."""
        return fused(x) and _fused_proven(x.device, self.layer_norm, product_mode())

    def evaluate(
        self,
        x: Tensor,
        actions: Tensor | None = None,
        members: slice = slice(None),
        frozen: bool = False,
        masks: Sequence[Tensor] | None = None,
    ) -> tuple[Tensor, list[Tensor]]:
        """By fused kernels: the output [R, M, rows, out] and every hidden layer; see `stacked_mlp`.

        masks: of hidden layers of networks of one member, [R, rows, width] each.
        """
        from c4rl.core.triton.mlp import Layers, stacked_mlp  # needs Triton

        layers = Layers(*([p[:, members] for p in own] for own in (self.weights, self.biases, self.gains, self.shifts)))
        if frozen:
            layers = Layers.of([tensor.detach() for tensor in layers.tensors], len(layers.weights))
        return stacked_mlp(x, actions, layers, LAYER_NORM_EPSILON, [mask.unsqueeze(1) for mask in masks or ()])

    def forward(self, x: Tensor, masks: Sequence[Tensor] | None = None, frozen: bool = False) -> Tensor:
        """[R, B, in] -> [R, B, out]; for networks of one member.

        masks: of each hidden layer, for dropout. frozen: as of a Critic.
        """
        if self.fuses(x) and not (masks and self.layer_norm):
            return self.evaluate(x, frozen=frozen, masks=masks)[0].squeeze(1)
        last = len(self.weights) - 1
        for layer in range(last):
            x = self.activate(layer, self.linear(layer, x))
            if masks is not None:
                x = x * masks[layer]
        return self.linear(last, x)


class Value(nn.Module):
    """V(s), one function per run."""

    def __init__(self, stack: Stack, name: str, hidden: Sequence[int], *, initialization: str = "torch") -> None:
        super().__init__()
        self.mlp = StackedMLP(stack, name, (stack.observation_dim, *hidden, 1), initialization=initialization)

    def forward(self, observations: Tensor) -> Tensor:
        """[R, B, s] -> [R, B]."""
        return self.mlp(observations).squeeze(-1)


class CriticOutput(NamedTuple):
    """What one evaluation of a critic gives. `...` is [B] or [B, N] for N actions per state."""

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

        frozen: nobody asks for the parameters' gradients, so that they need not be computed.
        """
        if actions.dim() == 3:
            return self.at(torch.cat([observations, actions], dim=-1), members, frozen)
        runs, batch, count, _ = actions.shape
        mlp = self.mlp
        if mlp.fuses(actions):
            output, layers = mlp.evaluate(observations, actions.flatten(1, 2), members, frozen)
            return _critic_output(output, layers, (batch, count))
        w = mlp.weights[0][:, members]
        b = mlp.biases[0][:, members].flatten(0, 1).unsqueeze(1)
        chosen = w.shape[1]
        split = self.observation_dim
        # the first layer's state part is computed once per state, not once per action
        state_part = torch.baddbmm(b, _repeat(observations, chosen), w[:, :, :split].flatten(0, 1))
        action_part = torch.bmm(_repeat(actions.flatten(1, 2), chosen), w[:, :, split:].flatten(0, 1))
        z = (state_part.unsqueeze(2) + action_part.unflatten(1, (batch, count))).flatten(1, 2)
        q, hidden = self._upper(mlp.activate(0, z, members), members)
        shape = (runs, chosen, batch, count)
        return CriticOutput(q.view(shape), hidden[-1].view(*shape, -1), hidden)

    def at(self, state_actions: Tensor, members: slice = slice(None), frozen: bool = False) -> CriticOutput:
        """The same on rows that already hold [s, a] side by side, [R, B, s + a]."""
        runs, batch, _ = state_actions.shape
        if self.mlp.fuses(state_actions):
            output, layers = self.mlp.evaluate(state_actions, None, members, frozen)
            return _critic_output(output, layers, (batch,))
        chosen = self.mlp.weights[0][:, members].shape[1]
        h = self.mlp.activate(0, self.mlp.linear(0, _repeat(state_actions, chosen), members), members)
        q, hidden = self._upper(h, members)
        shape = (runs, chosen, batch)
        return CriticOutput(q.view(shape), hidden[-1].view(*shape, -1), hidden)

    def at_logged_and_more(self, observations: Tensor, actions: Tensor, others: Tensor) -> tuple[CriticOutput, Tensor]:
        """At (s, a) for actions [R, B, a], and q [R, M, B, N] of others [R, B, N, a]."""
        if not self.mlp.fuses(others):  # one pass pays where launches count: on a CPU it was 1.1x slower
            return self(observations, actions), self(observations, others).q
        output = self(observations, torch.cat([actions.unsqueeze(2), others], dim=2))
        rows, count = others.shape[1:3]
        hidden = tuple(h.unflatten(1, (rows, -1))[:, :, 0] for h in output.hidden)
        q, q_others = output.q.split([1, count], dim=3)
        return CriticOutput(q.squeeze(3), output.features[..., 0, :], hidden), q_others

    def _upper(self, h: Tensor, members: slice) -> tuple[Tensor, tuple[Tensor, ...]]:
        hidden, last = [h], len(self.mlp.weights) - 1
        for layer in range(1, last):
            hidden.append(self.mlp.activate(layer, self.mlp.linear(layer, hidden[-1], members), members))
        return self.mlp.linear(last, hidden[-1], members), tuple(hidden)


@cache
def _fused_proven(device: torch.device, layer_norm: bool, mode: str) -> bool:
    """Whether the fused kernels are on this GPU, with its Triton, what the plain code is; else a warning, once.

    mode: of products, see `kernels.products`; the plain code's are always float32 here.
    """

    def error(rows: int, hidden: tuple[int, ...]) -> float:
        critic = Critic(Stack((0, 1), 3, 2, device), "proof", hidden, layer_norm=layer_norm)
        x = Streams([0, 1], torch.ones((), dtype=torch.int64, device=device)).normal("proof", rows, 5)

        with kernels(False), products("fp32"):
            plain = critic.at(x)
        with products(mode):
            output, layers = critic.mlp.evaluate(x)
        # one unit that rounding puts on the other side of its ReLU changes a row's gradients by far more than rounding
        sides = [((h.flatten(0, 1) > 0) == (p > 0)).all(2) for h, p in zip(layers, plain.hidden, strict=True)]
        alike = torch.stack(sides).all(0).view_as(plain.q).to(x.dtype)

        def with_gradients(q: Tensor, features: Tensor) -> tuple[Tensor, ...]:
            loss = (alike * (q.square() + features.square().sum(3))).sum()
            return q.detach(), *torch.autograd.grad(loss, list(critic.parameters()))

        with kernels(False), products("fp32"):
            exact = with_gradients(plain.q, plain.features)
        with products(mode):
            fused = with_gradients(output.squeeze(-1), layers[-1])
        return max(float((f - e).norm() / e.norm()) for f, e in zip(fused, exact, strict=True))

    try:
        with torch.enable_grad():  # odd widths in small tiles, and the largest tiles there are
            found = max(error(50, (40, 24)), error(2048, (256, 256, 256)))
        reason = None if found < {"fp32": 1e-4, "tf32": 5e-2}.get(mode, 1e-3) else f"an error of {found:.1g}"
    except Exception as raised:  # whatever a compiler raises must not end a job that can do without
        reason = f"{type(raised).__name__}: {raised}"
    if reason is not None:
        with_norm = (" with LayerNorm" if layer_norm else "") + ("" if mode == "fp32" else f" in {mode}")
        warnings.warn(f"fused kernels of networks{with_norm} are not used: {reason}", stacklevel=2)
    return reason is None


def _critic_output(output: Tensor, layers: list[Tensor], rows: tuple[int, ...]) -> CriticOutput:
    """Of what the fused kernels give: output [R, M, rows, 1], layers [R, M, rows, width]."""
    hidden = tuple(layer.flatten(0, 1) for layer in layers)
    return CriticOutput(output.view(*output.shape[:2], *rows), layers[-1].unflatten(2, rows), hidden)


def _repeat(x: Tensor, members: int) -> Tensor:
    """[R, B, d] -> [R·M, B, d]: every member sees its run's rows."""
    return x.unsqueeze(1).expand(-1, members, -1, -1).flatten(0, 1) if members > 1 else x


def _orthogonal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    rows, columns = shape
    tall = torch.randn(max(shape), min(shape), generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(tall)
    q = q * torch.sign(torch.diagonal(r))  # uniform over orthogonal matrices
    return q if rows >= columns else q.T
