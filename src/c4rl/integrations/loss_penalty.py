"""C4's penalty for critics whose loss is computed elsewhere, at as little cost as can be (docs/integrations.md)."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn

from c4rl.integrations.loss_features import LossFeatures
from c4rl.integrations.stacked_targets import StackedTargets
from c4rl.plugins.c4.anywhere import C4Anywhere

__all__ = ["LossPenalty"]


class LossPenalty:
    """The sum of several critics' penalties, from features that their loss has computed, where it has.

    critics: each with its target. networks: those that the loss calls, where it is not the critics themselves.
    bind: see StackedTargets.
    """

    def __init__(
        self,
        c4: C4Anywhere,
        critics: Iterable[tuple[nn.Module, nn.Module]],
        networks: Sequence[nn.Module] | None = None,
        bind: Callable[[Any], None] = lambda _: None,
    ) -> None:
        self.c4, self.critics = c4, list(critics)
        self._features = LossFeatures([critic for critic, _ in self.critics] if networks is None else networks)
        self._targets = StackedTargets([target for _, target in self.critics], bind)

    def added_to(self, loss: Callable[[], Tensor]) -> Tensor:
        """The loss and the penalty. loss: computes the sum of the critics' losses on the rows that C4 drew last."""
        with self.recording():
            value = loss()
        return value + self.of(value, self.c4.last_rows)

    def recording(self) -> AbstractContextManager[None]:
        """Around the critics' loss."""
        return self._features.recording()

    def of(self, loss: Tensor, rows: Tensor) -> Tensor:
        """λR. loss: the sum of the critics' losses on these rows."""
        c4, known, known_next = self.c4, None, None
        if not c4.weighted_penalty.is_zero and c4.config.mode == "proxy":
            x, x_next = c4.x[rows], c4.x_next[rows]
            known = self._features.of_critics(lambda: [c4.features(critic, x) for critic, _ in self.critics])
            targets = [target for _, target in self.critics]
            known_next = self._targets.features(x_next, lambda: [c4.features(target, x_next) for target in targets])
        return c4.joint_penalty(self.critics, loss.detach() / len(self.critics), rows, known, known_next)
