"""C4's penalty for critics whose loss is computed elsewhere, at the least cost (docs/integrations.md)."""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, nn

from c4rl.integrations.loss_features import LossFeatures
from c4rl.integrations.stacked_critics import StackedCritics
from c4rl.plugins.c4.anywhere import C4Anywhere

__all__ = ["LossPenalty"]


class LossPenalty:
    """The sum of several critics' penalties, from features that their loss has computed, where it has.

    critics: each with its target. networks: those that the loss calls, where it is not the critics themselves.
    bind: see StackedCritics.
    """

    def __init__(
        self,
        c4: C4Anywhere,
        critics: Iterable[tuple[nn.Module, nn.Module]],
        networks: Sequence[nn.Module] | None = None,
        bind: Callable[[Any, bool], None] = lambda *_: None,
    ) -> None:
        self.c4, self.critics = c4, list(critics)
        self._features = LossFeatures([critic for critic, _ in self.critics] if networks is None else networks)
        self._online = StackedCritics([critic for critic, _ in self.critics], bind)
        self._targets = StackedCritics([target for _, target in self.critics], bind)

    def added_to(self, loss: Callable[[], Tensor]) -> Tensor:
        """The loss and the penalty. loss: computes the sum of the critics' losses on the rows that C4 drew last."""
        with self.recording():
            value = loss()
        return value + self.of(value, self.c4.last_rows)

    def recording(self) -> AbstractContextManager[None]:
        """The context in which to compute the critics' loss: it records their features."""
        return self._features.recording() if self.c4.config.mode == "proxy" else nullcontext()

    def of(self, loss: Tensor, rows: Tensor) -> Tensor:
        """λR of these rows. loss: the sum of the critics' losses on them."""
        c4, g, g_next = self.c4, None, None
        if not c4.weighted_penalty.is_zero:
            x, x_next = c4.x[rows], c4.x_next[rows]

            def online() -> list[Tensor]:
                return [c4.features(critic, x) for critic, _ in self.critics]

            def targets() -> list[Tensor]:
                return [c4.features(target, x_next) for _, target in self.critics]

            if c4.config.mode == "proxy":
                g, g_next = self._features.of_critics(online), self._targets.features(x_next, targets)
            else:
                g, g_next = self._online.gradients(x, online, graph=True), self._targets.gradients(x_next, targets)
        return c4.joint_penalty(self.critics, loss.detach() / len(self.critics), rows, g, g_next)
