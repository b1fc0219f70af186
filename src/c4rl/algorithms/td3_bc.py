"""TD3+BC (Fujimoto & Gu, 2021): TD3 with a cloning term and the Q term scaled by its own size."""

from dataclasses import dataclass

from c4rl.algorithms.algorithm import Metrics
from c4rl.algorithms.losses import mean_squared_error
from c4rl.algorithms.td3 import TD3, TD3Config
from c4rl.core.buffer import Batch


@dataclass(frozen=True)
class TD3BCConfig(TD3Config):
    actor_first: bool = False
    """Update the actor on updates 1, 3, 5, ... (as OfflineRL-Kit counts) instead of 2, 4, 6, ..."""


class TD3BC(TD3):
    config_type = TD3BCConfig
    config: TD3BCConfig

    def updates_actor(self, step: int) -> bool:
        return super().updates_actor(step - self.config.actor_first)

    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        next_actions = self.smoothed_actions(batch)
        metrics = self.td_step(batch, next_actions, self.target(batch, next_actions))

        if self.updates_actor(step):
            actions = self.trained_policy(actor_batch.observations)
            cloning = mean_squared_error(actions, actor_batch.actions)
            self.actor_step(actor_batch, actions, cloning - self.scaled_q(actor_batch, actions))
        return metrics | self.last
