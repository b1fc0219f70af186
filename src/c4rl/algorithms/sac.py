"""SAC (Haarnoja et al., 2018) with a tuned temperature: what trains behaviour agents, on rows that keep coming."""

from dataclasses import dataclass

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Algorithm, CriticConfig, Metrics
from c4rl.algorithms.losses import clipped_target, mean_squared_error, soft_actor_loss
from c4rl.core.buffer import Batch
from c4rl.core.networks import Critic, LogScalar, Stack
from c4rl.core.options import PerRun, option
from c4rl.core.policies import GaussianPolicy, TanhGaussian
from c4rl.core.random import Streams
from c4rl.plugins.seams import Plugins


@dataclass(frozen=True)
class SACConfig(CriticConfig):
    hidden_layers: int = option(2, at_least=1, at_most=100)
    """Hidden layers of every network."""
    actor_lr: PerRun = option(3e-4, above=0, at_most=1)
    """Adam's step size for the policy and its temperature."""


class SAC(Algorithm):
    config_type = SACConfig
    config: SACConfig

    def __init__(self, config: SACConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        critic = Critic(stack, "critic", config.hidden, layer_norm=plugins.critic_layer_norm)
        self.actor: GaussianPolicy = self.learner(
            "actor", GaussianPolicy(stack, "actor", config.hidden), config.actor_lr
        )
        self.critic, self.target_critic = self.learner_with_target("critic", critic, config.critic_lr, config.tau)
        self.temperature = self.learner("temperature", LogScalar(stack, 0.0), config.actor_lr)

    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        # actor: α log π(ã|s) - min Q(s, ã)
        alpha = self.temperature.log.detach().exp()
        policy = self.actor(actor_batch.observations)
        actions, log_prob = policy.sample(self.streams.normal("actor_action", *actor_batch.actions.shape[1:]))
        actor_loss = soft_actor_loss(alpha, log_prob, self.critic(actor_batch.observations, actions, frozen=True).q)
        term = self.actor_term(actor_batch, actions, log_prob, policy)

        # critics: towards the smaller target value, less the price of the next action's certainty
        backup, y = self._target(batch, alpha)
        output = self.critic(batch.observations, batch.actions)
        td_loss = mean_squared_error(output.q, y.unsqueeze(1), keep=2)  # [R, M]

        self.optimizers["actor"].step((actor_loss, term), self.actor_lr_factor)
        metrics = self.critic_step(batch, output, backup, td_loss)
        excess = (actions.shape[-1] - log_prob.detach()).mean(1)  # -log π - H̄ with H̄ = -|A|
        self.optimizers["temperature"].step(self.temperature.log * excess)
        self.move_targets()
        return metrics | {"actor_loss": actor_loss, "entropy": -log_prob.mean(1), "entropy_weight": alpha}

    @torch.no_grad()
    def _target(self, batch: Batch, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Actions at s' [R, B, a], and y = r + γ(min Q̄(s', ã') - α log π(ã'|s')) [R, B]."""
        following: TanhGaussian = self.actor(batch.next_observations)
        actions, log_prob = following.sample(self.streams.normal("backup_action", *batch.actions.shape[1:]))
        next_q = self.target_critic(batch.next_observations, actions).q - (alpha.unsqueeze(1) * log_prob).unsqueeze(1)
        return actions, clipped_target(batch, self.config.discount, next_q)
