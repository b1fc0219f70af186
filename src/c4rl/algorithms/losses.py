"""Loss terms that several algorithms share."""

from torch import Tensor

from c4rl.core.buffer import Batch
from c4rl.core.networks import per_row
from c4rl.core.ops import losses
from c4rl.core.ops.losses import mean_squared_error, relative_mean, soft_actor_loss, soft_maximum_gap, squared_error

__all__ = [
    "clipped_target",
    "mean_squared_error",
    "relative_mean",
    "soft_actor_loss",
    "soft_maximum_gap",
    "squared_error",
    "td_target",
]


def td_target(batch: Batch, discount: float | Tensor, next_value: Tensor) -> Tensor:
    """y = r + γ V(s') [R, B], without V where the episode ended. discount: γ, or one per run [R]."""
    return batch.rewards + per_row(discount) * batch.continues * next_value


def clipped_target(batch: Batch, discount: float | Tensor, next_q: Tensor) -> Tensor:
    """`td_target` with the smallest of next_q [R, M, B] as V(s'). Not differentiable."""
    return losses.clipped_target(batch.rewards, batch.continues, per_row(discount), next_q)
