"""ReBRAC (Tarasov et al., 2023): TD3+BC with LayerNorm in the critics and cloning in their target too."""

from dataclasses import dataclass

from c4rl.algorithms.algorithm import Metrics
from c4rl.algorithms.losses import relative_mean, squared_error
from c4rl.algorithms.td3 import TD3, TD3Config
from c4rl.core.buffer import Batch
from c4rl.core.options import PerRun, option


@dataclass(frozen=True)
class ReBRACConfig(TD3Config):
    """Defaults are those of ReBRAC's release for locomotion."""

    hidden_layers: int = option(3, at_least=1, at_most=100)
    """Hidden layers of the actor and the critics."""
    batch_size: int = option(1024, at_least=2, at_most=1_000_000)
    """Rows per update and run."""
    actor_lr: PerRun = option(1e-3, above=0, at_most=1)
    """Adam's step size for the policy."""
    critic_lr: PerRun = option(1e-3, above=0, at_most=1)
    """Adam's step size for the critics."""
    alpha: PerRun = option(1.0, at_least=0, at_most=1e6)
    """Weight of the actor's Q term, whose Q is divided by its mean size."""
    actor_cloning: PerRun = option(0.01, at_least=0, at_most=1e6)
    """β1: weight of the squared distance between the policy's and the logged action, summed over dimensions."""
    critic_cloning: PerRun = option(0.01, at_least=0, at_most=1e6)
    """β2: weight of that distance between the next action and the logged one, subtracted from the next value in the TD
    target."""


class ReBRAC(TD3):
    config_type = ReBRACConfig
    layer_norm = True
    config: ReBRACConfig

    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        next_actions = self.smoothed_actions(batch)
        metrics = self.td_step(batch, next_actions, self.target(batch, next_actions))

        if self.updates_actor(step):
            actions = self.trained_policy(actor_batch.observations)
            q = self.critic(actor_batch.observations, actions, frozen=True).q.amin(1)
            cloning = self.config.actor_cloning * squared_error(actions, actor_batch.actions).sum(2).mean(1)
            self.actor_step(actor_batch, actions, cloning - relative_mean(q, self.config.alpha))
        return metrics | self.last
