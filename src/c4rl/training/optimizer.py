"""Adam and Polyak averaging over flat storage: a whole stack of networks is one tensor to them."""

import torch
from torch import Tensor, nn
from torch.optim.adam import adam


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


class FlatAdam:
    """Adam on one module of a stack. `step(loss)` takes the loss summed over runs."""

    def __init__(self, module: nn.Module, lr: float) -> None:
        self.lr = lr
        self.flat = flatten_parameters(module)
        self.names = [name for name, _ in module.named_parameters()]
        self.parameters = list(module.parameters())
        self.gradient, self.first, self.second = (torch.zeros_like(self.flat) for _ in range(3))
        self.count = torch.zeros((), dtype=torch.float32, device=self.flat.device)
        self._gradient_views = views_like(self.gradient, self.parameters)

    def step(self, loss: Tensor) -> None:
        gradients = torch.autograd.grad(loss, self.parameters)
        for view, gradient in zip(self._gradient_views, gradients, strict=True):
            view.copy_(gradient)
        adam(
            [self.flat],
            [self.gradient],
            [self.first],
            [self.second],
            [],
            [self.count],
            fused=True,
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.lr,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )

    def state(self) -> dict[str, Tensor]:
        """Both moments, shaped like the parameters (so that runs can be cut out), and the shared step count."""
        out = {"count": self.count}
        for kind, flat in (("first", self.first), ("second", self.second)):
            views = views_like(flat, self.parameters)
            out |= {f"{kind}.{name}": view for name, view in zip(self.names, views, strict=True)}
        return out


class Polyak:
    """θ̄ ← τθ + (1−τ)θ̄, one operation for all runs. Build it after the online network's FlatAdam."""

    def __init__(self, online: FlatAdam, target: nn.Module, tau: float) -> None:
        self.online, self.tau = online.flat, tau
        self.target = flatten_parameters(target.requires_grad_(False))

    def step(self) -> None:
        self.target.lerp_(self.online, self.tau)
