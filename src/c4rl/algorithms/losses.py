"""What the losses of many algorithms are made of."""

import torch
import torch.nn.functional as F
from torch import Tensor

from c4rl.networks import per_row
from c4rl.training.buffer import Batch


def td_target(batch: Batch, discount: float | Tensor, next_value: Tensor) -> Tensor:
    """y = r + γ V(s') [R, B], without V where the episode ended. discount: γ, or one per run [R]."""
    return batch.rewards + per_row(discount) * batch.continues * next_value


def squared_error(x: Tensor, y: Tensor) -> Tensor:
    """(x - y)², broadcast: three kernels less, there and back, than by operators."""
    x, y = torch.broadcast_tensors(x, y)
    return F.mse_loss(x, y, reduction="none")
