"""TD3+BC (Fujimoto & Gu, 2021): TD3 with a cloning term and the Q term scaled by its own size."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import EVERY_TASK, Metrics, Published
from c4rl.algorithms.losses import mean_squared_error
from c4rl.algorithms.td3 import TD3, TD3Config
from c4rl.core.buffer import Batch
from c4rl.core.networks import Stack
from c4rl.core.random import Streams
from c4rl.plugins.seams import Plugins


@dataclass(frozen=True)
class TD3BCConfig(TD3Config):
    actor_first: bool = False
    """Update the actor on updates 1, 3, 5, ... (as OfflineRL-Kit counts) instead of 2, 4, 6, ..."""


class TD3BC(TD3):
    config_type = TD3BCConfig
    config: TD3BCConfig
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            EVERY_TASK,
            "TD3+BC's release (sfujim/TD3_BC at 8791ad7) for halfcheetah, hopper and walker2d, CORL for antmaze, "
            "maze2d and adroit; ours: the same for ant and kitchen, which both lack",
            {
                "hidden_layers": 2,
                "hidden_width": 256,
                "batch_size": 256,
                "actor_lr": 3e-4,
                "critic_lr": 3e-4,
                "discount": 0.99,
                "tau": 0.005,
                "alpha": 2.5,
                "policy_noise": 0.2,
                "noise_clip": 0.5,
                "policy_delay": 2,
            },
            {"updates": 1_000_000, "normalize_observations": True},
        ),
        Published(("antmaze-*",), "CORL, antmaze: r - 1", {}, {"reward_shift": -1.0}),
        Published(("antmaze-*", "maze2d-*"), "CORL: episodes per evaluation", {}, {"eval_episodes": 100}),
    )

    def __init__(self, config: TD3BCConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        self._actor_loss = torch.zeros(stack.runs, device=stack.device, dtype=stack.dtype)  # of the last actor update

    def phase(self, step: int) -> Hashable:
        return (step - self.config.actor_first) % self.config.policy_delay == 0

    def update(self, batch: Batch, step: int) -> Metrics:
        next_actions, y = self.smoothed_target(batch)
        output, td_loss = self.critic_step(batch, next_actions, y)

        if self.phase(step):
            actions = self.actor(batch.observations)
            cloning = mean_squared_error(actions, batch.actions)
            actor_loss = cloning - self.scaled_q(batch, actions)
            self.actor_step(batch, actions, actor_loss)
            self._actor_loss.copy_(actor_loss.detach())

        return {
            "critic_loss": td_loss.sum(1),
            "actor_loss": self._actor_loss,
            "q": output.q.detach().mean((1, 2)),
        }

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"actor_loss": self._actor_loss}
