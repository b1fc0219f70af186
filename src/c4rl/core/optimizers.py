"""Adam and Polyak averaging over flat storage: one tensor holds a whole stack of networks."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from c4rl.core.ops.adam import adam_step, joined


def flatten_parameters(module: nn.Module) -> Tensor:
    """Move the module's parameters, in order, into one contiguous tensor and return it; they become views of it."""
    parameters = list(module.parameters())
    flat = torch.cat([p.detach().reshape(-1) for p in parameters])
    for p, view in zip(parameters, views_like(flat, parameters), strict=True):
        p.data = view
    return flat


def views_like(flat: Tensor, parameters: list[nn.Parameter]) -> list[Tensor]:
    pieces = flat.split([p.numel() for p in parameters])
    return [piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True)]


def _per_run(values: Tensor, like: Tensor) -> Tensor:
    """[R] -> [R, 1, ...], to broadcast against a parameter [R, ...]."""
    return values.view(-1, *(1,) * (like.dim() - 1))


def _per_parameter(values: Tensor, parameters: list[nn.Parameter]) -> Tensor:
    """[R] -> for every number of the flat storage, the value of its run."""
    return torch.cat([_per_run(values, p).expand_as(p).reshape(-1) for p in parameters])


class FlatAdam:
    """Adam on one module of a stack. `step(losses)` minimises the sum of losses [R] or [R, M], one or several.

    lr: one step size, or one per run [R]. clip_norm: each run's gradient is clipped to this norm. decay: of the
    weights, apart from the gradient (AdamW), one for all or one per run [R].
    """

    def __init__(
        self, module: nn.Module, lr: float | Tensor, *, clip_norm: float | None = None, decay: float | Tensor = 0.0
    ) -> None:
        self.lr, self.clip_norm = lr, clip_norm
        self.average: RunningAverage | None = None  # follows every step
        self.flat = flatten_parameters(module)
        self.names = [name for name, _ in module.named_parameters()]
        self.parameters = list(module.parameters())
        self.gradient, self.first, self.second = (torch.zeros_like(self.flat) for _ in range(3))
        self.count = torch.zeros((), dtype=torch.float32, device=self.flat.device)
        self._gradient_views = views_like(self.gradient, self.parameters)
        self._one = torch.ones_like(self.flat[0])
        if isinstance(lr, Tensor):  # of every parameter
            self._flat_lr = _per_parameter(lr, self.parameters)
        self._decay = _per_parameter(decay, self.parameters) if isinstance(decay, Tensor) else decay

    def step(self, losses: Tensor | Sequence[Tensor | float], factor: Tensor | float = 1.0) -> None:
        """factor: scales the step size, for schedules; a scalar tensor (a captured graph would freeze a number)."""
        given = [losses] if isinstance(losses, Tensor) else losses
        terms = [term for term in given if isinstance(term, Tensor)]  # not added up first: that takes kernels
        gradients = torch.autograd.grad(terms, self.parameters, [self._one.expand_as(term) for term in terms])
        gradient = joined(gradients, self.gradient, self._gradient_views)
        if self.clip_norm is not None:
            self._clip(gradient, self.clip_norm)
        lr = self._flat_lr if isinstance(self.lr, Tensor) else self.lr
        if isinstance(self._decay, Tensor) or self._decay != 0:
            scale = factor.to(self.flat.dtype) if isinstance(factor, Tensor) else factor
            self.flat.mul_(1 - lr * scale * self._decay)
        adam_step(self.flat, gradient, self.first, self.second, self.count, lr, factor)
        if self.average is not None:
            self.average.step()

    def _clip(self, flat: Tensor, most: float) -> None:
        views = views_like(flat, self.parameters)
        squares = [g.flatten(1).square().sum(1) for g in views]
        norm = torch.stack(squares).sum(0).sqrt()  # [R]
        shrink = (most / (norm + 1e-6)).clamp(max=1.0)
        for gradient in views:
            gradient.mul_(_per_run(shrink, gradient))

    def state(self) -> dict[str, Tensor]:
        """Both moments, shaped like the parameters (so that runs can be cut out), and the shared step count."""
        out = {"count": self.count}
        for kind, flat in (("first", self.first), ("second", self.second)):
            views = views_like(flat, self.parameters)
            out |= {f"{kind}.{name}": view for name, view in zip(self.names, views, strict=True)}
        return out


class CosineSchedule:
    """A step-size factor that falls from 1 at the first of `updates` updates to 0 after the last.

    A table, because a lookup is cheap; float32, the only type that PyTorch's Adam takes.
    """

    def __init__(self, updates: int, device: torch.device) -> None:
        done = torch.arange(updates + 1, dtype=torch.float64, device=device) / updates
        self.factors = (0.5 * (1 + torch.cos(math.pi * done))).float()

    def at(self, step: Tensor, before: int = 0) -> Tensor:
        """step: int64 scalar, the current update; before: updates of earlier stages."""
        place = (step - (1 + before)).clamp(0, len(self.factors) - 1)
        return self.factors.index_select(0, place.view(1)).squeeze(0)


class Polyak:
    """θ̄ ← τθ + (1−τ)θ̄, one operation for all runs. Build it after the online network's FlatAdam.

    tau: one for all, or one per run [R].
    """

    def __init__(self, online: FlatAdam, target: nn.Module, tau: float | Tensor) -> None:
        self.online = online.flat
        self.tau = _per_parameter(tau, online.parameters) if isinstance(tau, Tensor) else tau
        self.target = flatten_parameters(target.requires_grad_(False))

    def step(self) -> None:
        self.target.lerp_(self.online, self.tau)


class RunningAverage(Polyak):
    """The average of the weights over the last 1 / tau steps of an Adam, older ones fading out.

    Until there were so many it is the plain mean, which forgets the initial weights.
    """

    def __init__(self, online: FlatAdam, target: nn.Module, tau: float | Tensor) -> None:
        super().__init__(online, target, tau)
        self._count = online.count
        online.average = self

    def step(self) -> None:
        plain = (1 / self._count).to(self.target.dtype)
        rate = torch.maximum(plain, self.tau) if isinstance(self.tau, Tensor) else plain.clamp(min=self.tau)
        self.target.lerp_(self.online, rate)
