"""Adam over flat storage."""

from typing import Any

import torch
from torch import Tensor
from torch.optim.adam import adam

from c4rl.core import ops

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8


def adam_step(
    flat: Tensor,
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    count: Tensor,
    lr: float | Tensor,
    factor: Tensor | float = 1.0,
) -> None:
    """One step in place. lr: a number, or one per parameter like `flat`; factor multiplies it; count: steps so far."""
    if not isinstance(factor, Tensor) and factor != 1.0:
        lr, factor = lr * factor, 1.0
    if own := ops.kernels_for(flat, "adam"):
        own.adam_step(flat, gradient, first, second, count, lr, factor, BETA_1, BETA_2, EPSILON)
    elif not isinstance(lr, Tensor):
        form: dict[str, Any] = {
            "beta1": BETA_1,
            "beta2": BETA_2,
            "eps": EPSILON,
            "lr": lr * factor,
            "weight_decay": 0.0,
        }
        adam([flat], [gradient], [first], [second], [], [count], fused=True, amsgrad=False, maximize=False, **form)
    else:  # the same written out: PyTorch's takes one step size for all
        # scheduled step sizes are float32, as PyTorch's Adam requires
        lr = (lr.float() * factor).to(lr.dtype) if isinstance(factor, Tensor) else lr * factor
        count += 1
        first.lerp_(gradient, 1 - BETA_1)
        second.mul_(BETA_2).addcmul_(gradient, gradient, value=1 - BETA_2)
        corrections = [(1 - beta ** count.double()).to(flat.dtype) for beta in (BETA_1, BETA_2)]
        scale = (second / corrections[1]).sqrt_().add_(EPSILON)
        flat.addcmul_(lr, (first / corrections[0]).div_(scale), value=-1)


def joined(pieces: tuple[Tensor, ...], flat: Tensor, views: list[Tensor]) -> Tensor:
    """Pieces as one tensor: where fused kernels wrote them in a row, or copied to `flat` (by its `views`)."""
    own = ops.kernels_for(flat, "adam")
    if own is not None and (found := own.in_a_row(pieces)) is not None:
        return found
    if own is not None:  # uses the whole GPU, _foreach_copy_ only a few blocks of it
        return torch.cat([piece.reshape(-1) for piece in pieces], out=flat)
    torch._foreach_copy_(views, pieces)
    return flat
