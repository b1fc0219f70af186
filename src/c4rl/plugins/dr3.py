"""DR3 (Kumar et al., 2022): a penalty on the dot product of a critic's features at (s, a) and at (s', a')."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.networks import per_row
from c4rl.core.options import Options, PerRun, option
from c4rl.plugins.seams import CriticStep, Host, Plugin


@dataclass(frozen=True)
class DR3Config(Options):
    dr3_weight: PerRun = option(0.03, at_least=0, at_most=1e6)
    """c0. DR3 uses 0.03 for CQL on Atari. For other data search 0.0001 to 0.3: the penalty scales with the features."""
    dr3_next_action: Literal["backup", "data"] = "backup"
    """a': the action of the TD target (DR3's), or the logged next one."""
    dr3_stop_gradient: bool = False
    """Hold the features at (s', a') fixed; DR3 found it slightly worse."""
    dr3_absolute: bool = False
    """Penalise the dot product's size whatever its sign; features after a ReLU have one sign."""


class DR3(Plugin):
    """c0 · mean φ(s, a)·φ(s', a') for each head, φ the online critic's last hidden layer on both sides."""

    mixes_datasets = True
    needs_critic: ClassVar[bool] = True

    def __init__(self, config: DR3Config) -> None:
        self.config = config

    def attach(self, algorithm: Host, buffer: TransitionBuffer) -> None:
        stack = algorithm.stack
        # of the last update, [R]
        self._dot_product, self._norm = torch.zeros(2, stack.runs, device=stack.device, dtype=stack.dtype)

    def critic_penalty(self, step: CriticStep) -> Tensor:
        features = step.output.features  # [R, M, B, width]
        next_features, valid = self._next_features(step)
        products = (features * next_features).sum(3)  # [R, M, B]
        if self.config.dr3_absolute:
            products = products.abs()
        valid = valid.unsqueeze(1)
        mean = (products * valid).sum(2) / valid.sum(2).clamp_min(1)  # over rows that have an (s', a'), [R, M]
        with torch.no_grad():
            self._dot_product.copy_(mean.mean(1))
            self._norm.copy_(features.norm(dim=3).mean((1, 2)))
        return per_row(self.config.dr3_weight) * mean

    def _next_features(self, step: CriticStep) -> tuple[Tensor, Tensor]:
        """φ(s', a') [R, M, B, width], and which rows have an (s', a') [R, B]."""
        batch = step.batch
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.config.dr3_stop_gradient):
            if self.config.dr3_next_action == "data":
                return step.critic.at(batch.next_state_actions).features, batch.next_valid
            next_actions = step.backup_actions.detach()  # no way into the actor
            return step.critic(batch.next_observations, next_actions).features, batch.continues

    def metrics(self) -> dict[str, Tensor]:
        return {"dr3_dot_product": self._dot_product, "dr3_feature_norm": self._norm}

    def state(self) -> dict[str, Tensor]:
        return {"dot_product": self._dot_product, "norm": self._norm}
