"""Base of TD3's offline descendants (Fujimoto et al., 2018): smoothed targets, clipped double Q, a delayed actor."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Algorithm, CriticConfig, Metrics
from c4rl.algorithms.losses import clipped_target, mean_squared_error, relative_mean, squared_error
from c4rl.core.buffer import Batch
from c4rl.core.networks import Critic, Stack, per_row
from c4rl.core.options import PerRun, option
from c4rl.core.policies import DeterministicPolicy
from c4rl.core.random import Streams
from c4rl.plugins.seams import Plugins


@dataclass(frozen=True)
class TD3Config(CriticConfig):
    alpha: PerRun = option(2.5, at_least=0, at_most=1e6)
    """α: weight of the actor's Q term (Q divided by its mean size) against the term that keeps it near the data."""
    critic_cloning: PerRun = option(0.0, at_least=0, at_most=1e6)
    """β2: weight of the squared distance between the next action and the logged one, summed over dimensions and
    subtracted from the next value in the TD target."""
    policy_noise: float = option(0.2, at_least=0, at_most=100)
    """Standard deviation of the target action's noise."""
    noise_clip: float = option(0.5, at_least=0, at_most=100)
    """Bound of that noise."""
    policy_delay: int = option(2, at_least=1, at_most=1_000_000)
    """Critic updates per actor (and target) update."""


class TD3(Algorithm):
    """TD3's networks and steps. A descendant's `update` puts them in order and keeps the actor near the data."""

    has_density = False
    layer_norm: ClassVar[bool] = False  # in the critics, even without the plug-in
    remembered: ClassVar[tuple[str, ...]] = ("actor_loss",)
    config: TD3Config

    def __init__(self, config: TD3Config, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        actor = DeterministicPolicy(stack, "actor", config.actor_hidden, layer_norm=config.actor_layer_norm)
        critic = Critic(stack, "critic", config.hidden, layer_norm=self.layer_norm or plugins.critic_layer_norm)
        self.actor, self.target_actor = self.learner_with_target("actor", actor, config.actor_lr, config.tau)
        self.critic, self.target_critic = self.learner_with_target("critic", critic, config.critic_lr, config.tau)

    def updates_actor(self, step: int) -> bool:
        return step % self.config.policy_delay == 0

    def phase(self, step: int) -> Hashable:
        return self.updates_actor(step)

    @torch.no_grad()
    def smoothed_actions(self, batch: Batch, masks: Sequence[Tensor] | None = None) -> Tensor:
        """ã' = clip(π̄(s') + clipped noise) [R, B, a]. masks: dropout factors of π̄'s hidden layers."""
        config = self.config
        noise = self.streams.normal("target_noise", *batch.actions.shape[1:]) * config.policy_noise
        noise = noise.clamp(-config.noise_clip, config.noise_clip)
        return (self.target_actor(batch.next_observations, masks) + noise).clamp(-1, 1)

    @torch.no_grad()
    def target(self, batch: Batch, next_actions: Tensor, critic: Critic | None = None) -> Tensor:
        """y = r + γ (min Q̄(s', ã') - β2 |ã' - a'|²) [R, B], without β2 where no a' was logged. critic: instead of Q̄."""
        config, critic = self.config, critic or self.target_critic
        y = clipped_target(batch, config.discount, critic(batch.next_observations, next_actions).q)
        if not isinstance(config.critic_cloning, Tensor) and config.critic_cloning == 0:
            return y
        distance = squared_error(next_actions, batch.next_actions).sum(2)
        discount = per_row(config.discount) * batch.ended_where_cut().continues
        return y - discount * per_row(config.critic_cloning) * distance

    def regression_target(self, batch: Batch) -> Tensor:
        return self.target(batch, self.smoothed_actions(batch))

    def td_step(self, batch: Batch, next_actions: Tensor, y: Tensor) -> Metrics:
        """One step of the critics towards y [R, B]."""
        output = self.critic.at(batch.state_actions)
        return self.critic_step(batch, output, next_actions, mean_squared_error(output.q, y.unsqueeze(1), keep=2))

    def scaled_q(self, batch: Batch, actions: Tensor) -> Tensor:
        """α E[Q1(s, π(s))] / E|Q1(s, π(s))|, the divisor without gradient, [R]."""
        q = self.critic(batch.observations, actions, members=slice(1), frozen=True).q.squeeze(1)
        return relative_mean(q, self.config.alpha)

    def actor_step(self, batch: Batch, actions: Tensor, loss: Tensor) -> None:
        """One step on the actor's loss [R] and what plug-ins add; then both targets move."""
        self.optimizers["actor"].step((loss, self.actor_term(batch, actions)), self.actor_lr_factor)
        self.move_targets()
        self.remember(actor_loss=loss)
