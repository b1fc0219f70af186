"""TD3+BC (Fujimoto & Gu, 2021): TD3 with a cloning term and the Q term scaled by its own size."""

from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Algorithm, CriticConfig, Metrics, Published
from c4rl.networks import Critic, Stack, per_row
from c4rl.plugins import ActorStep, CriticStep, Plugins
from c4rl.policies import DeterministicPolicy
from c4rl.random import Streams
from c4rl.training.buffer import Batch
from c4rl.training.optimizer import FlatAdam, Polyak


@dataclass(frozen=True)
class TD3BCConfig(CriticConfig):
    stackable: ClassVar[frozenset[str]] = frozenset({"actor_lr", "critic_lr", "discount", "tau", "alpha"})

    alpha: float = 2.5
    """Weight of the Q term against cloning."""
    policy_noise: float = 0.2
    """Standard deviation of the target action's noise."""
    noise_clip: float = 0.5
    """Bound of that noise."""
    policy_delay: int = 2
    """Critic updates per actor (and target) update."""
    actor_first: bool = False
    """Update the actor on updates 1, 3, 5, ... (as OfflineRL-Kit counts) instead of 2, 4, 6, ..."""


class TD3BC(Algorithm):
    config_type = TD3BCConfig
    has_density = False
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            (
                "halfcheetah-*",
                "hopper-*",
                "walker2d-*",
                "ant-*",
                "antmaze-*",
                "maze2d-*",
                "pen-*",
                "hammer-*",
                "door-*",
                "relocate-*",
                "kitchen-*",
            ),
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
        self.config, self.discount = config, config.discount
        self.actor = DeterministicPolicy(stack, "actor", config.hidden)
        self.critic = Critic(stack, "critic", config.hidden, layer_norm=plugins.critic_layer_norm)
        self.target_actor, self.target_critic = deepcopy(self.actor), deepcopy(self.critic)
        self.networks = {
            "actor": self.actor,
            "critic": self.critic,
            "target_actor": self.target_actor,
            "target_critic": self.target_critic,
        }
        self.optimizers = {
            "actor": FlatAdam(self.actor, config.actor_lr),
            "critic": FlatAdam(self.critic, config.critic_lr),
        }
        self.polyak = [
            Polyak(self.optimizers["actor"], self.target_actor, config.tau),
            Polyak(self.optimizers["critic"], self.target_critic, config.tau),
        ]
        self._actor_loss = torch.zeros(stack.runs, device=stack.device, dtype=stack.dtype)  # of the last actor update

    def phase(self, step: int) -> Hashable:
        return (step - self.config.actor_first) % self.config.policy_delay == 0

    def update(self, batch: Batch, step: int) -> Metrics:
        config = self.config
        with torch.no_grad():
            noise = self.streams.normal("target_noise", *batch.actions.shape[1:]) * config.policy_noise
            noise = noise.clamp(-config.noise_clip, config.noise_clip)
            next_actions = (self.target_actor(batch.next_observations) + noise).clamp(-1, 1)
            next_q = self.target_critic(batch.next_observations, next_actions).q.amin(1)
            y = batch.rewards + per_row(config.discount) * batch.continues * next_q

        output = self.critic.at(batch.state_actions)
        td_loss = (output.q - y.unsqueeze(1)).square().mean(2)  # [R, M]
        penalty = self.plugins.critic_penalty(
            CriticStep(batch, self.critic, self.target_critic, output, next_actions, td_loss)
        )
        self.optimizers["critic"].step((td_loss + penalty).sum())

        if self.phase(step):
            actions = self.actor(batch.observations)
            q = self.critic(batch.observations, actions, members=slice(1), frozen=True).q[:, 0]  # Q1 alone
            scale = config.alpha / q.detach().abs().mean(1)
            cloning = (actions - batch.actions).square().mean((1, 2))
            actor_loss = cloning - scale * q.mean(1)
            term = self.plugins.actor_term(ActorStep(batch, self.critic, actions, None, None))
            self.optimizers["actor"].step((actor_loss + term).sum())
            for polyak in self.polyak:
                polyak.step()
            self._actor_loss.copy_(actor_loss.detach())

        return {
            "critic_loss": td_loss.detach().sum(1),
            "actor_loss": self._actor_loss,
            "q": output.q.detach().mean((1, 2)),
        }

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"actor_loss": self._actor_loss}
