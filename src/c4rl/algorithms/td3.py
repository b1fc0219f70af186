"""What TD3's offline descendants share (Fujimoto et al., 2018): smoothed targets, clipped double Q, a delayed actor."""

from collections.abc import Hashable, Sequence
from copy import deepcopy
from dataclasses import dataclass

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Algorithm, CriticConfig
from c4rl.algorithms.losses import clipped_target, mean_squared_error, relative_mean
from c4rl.core.buffer import Batch
from c4rl.core.networks import Critic, CriticOutput, Stack
from c4rl.core.optimizers import FlatAdam, Polyak
from c4rl.core.options import PerRun, option
from c4rl.core.policies import DeterministicPolicy
from c4rl.core.random import Streams
from c4rl.plugins.seams import ActorStep, CriticStep, Plugins


@dataclass(frozen=True)
class TD3Config(CriticConfig):
    alpha: PerRun = option(2.5, at_least=0, at_most=1e6)
    """α: weight of the actor's Q term (whose Q is divided by its mean size) against what holds it to the data."""
    policy_noise: float = option(0.2, at_least=0, at_most=10)
    """Standard deviation of the target action's noise."""
    noise_clip: float = option(0.5, at_least=0, at_most=10)
    """Bound of that noise."""
    policy_delay: int = option(2, at_least=1, at_most=10**6)
    """Critic updates per actor (and target) update."""


class TD3(Algorithm):
    """Its networks and steps. A descendant's `update` puts them in order and says what holds the actor to the data."""

    has_density = False
    config: TD3Config

    def __init__(
        self,
        config: TD3Config,
        stack: Stack,
        streams: Streams,
        plugins: Plugins,
        actor_hidden: Sequence[int] | None = None,
    ) -> None:
        super().__init__(config, stack, streams, plugins)
        self.config, self.discount = config, config.discount
        self.actor = DeterministicPolicy(stack, "actor", actor_hidden or config.hidden)
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

    def phase(self, step: int) -> Hashable:
        """Whether the actor is updated."""
        return step % self.config.policy_delay == 0

    @torch.no_grad()
    def smoothed_target(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """ã' = clip(π̄(s') + clipped noise) [R, B, a] and y = r + γ min Q̄(s', ã') [R, B]."""
        config = self.config
        noise = self.streams.normal("target_noise", *batch.actions.shape[1:]) * config.policy_noise
        noise = noise.clamp(-config.noise_clip, config.noise_clip)
        next_actions = (self.target_actor(batch.next_observations) + noise).clamp(-1, 1)
        next_q = self.target_critic(batch.next_observations, next_actions).q
        return next_actions, clipped_target(batch, config.discount, next_q)

    def critic_step(self, batch: Batch, next_actions: Tensor, y: Tensor) -> tuple[CriticOutput, Tensor]:
        """One step on the TD loss and what plug-ins add; the critics as they were, and the TD loss [R, M]."""
        output = self.critic.at(batch.state_actions)
        td_loss = mean_squared_error(output.q, y.unsqueeze(1), keep=2)
        penalty = self.plugins.critic_penalty(
            CriticStep(batch, self.critic, self.target_critic, output, next_actions, td_loss)
        )
        self.optimizers["critic"].step(td_loss + penalty)
        return output, td_loss.detach()

    def scaled_q(self, batch: Batch, actions: Tensor) -> Tensor:
        """α E[Q1(s, π(s))] / E|Q1(s, π(s))|, the divisor without gradient, [R]."""
        q = self.critic(batch.observations, actions, members=slice(1), frozen=True).q.squeeze(1)
        return relative_mean(q, self.config.alpha)

    def actor_step(self, batch: Batch, actions: Tensor, loss: Tensor) -> None:
        """One step on the actor's loss [R] and what plug-ins add; then both targets move."""
        term = self.plugins.actor_term(ActorStep(batch, self.critic, actions, None, None))
        self.optimizers["actor"].step(loss + term)
        for polyak in self.polyak:
            polyak.step()
