"""Base of IQL and its descendants (Kostrikov et al., 2021): Q and V at logged actions only, then a weighted clone."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Algorithm, CriticConfig, Metrics
from c4rl.algorithms.losses import mean_squared_error, td_target
from c4rl.core.buffer import Batch
from c4rl.core.networks import Critic, Value, per_row
from c4rl.core.options import PerRun, option


@dataclass(frozen=True)
class ImplicitQConfig(CriticConfig):
    """Defaults are those of IQL's own release for locomotion (ikostrikov/implicit_q_learning)."""

    hidden_layers: int = option(2, at_least=1, at_most=100)
    """Hidden layers of every network."""
    actor_lr: PerRun = option(3e-4, above=0, at_most=1)
    """Adam's step size for the policy, before its schedule."""
    expectile: PerRun = option(0.7, above=0, below=1)
    """Expectile of Q over logged actions that V regresses on; 0.5 is the mean."""
    actor_schedule: Literal["constant", "cosine"] = "cosine"
    """The policy's step size stays constant, or falls to zero over the job's updates."""


class ImplicitQ(Algorithm):
    """IQL's values and steps. A descendant builds the policy, and its `update` puts the steps in order."""

    config: ImplicitQConfig

    def build_values(self, value_lr: PerRun, initialization: str = "torch") -> None:
        config, stack = self.config, self.stack
        value = Value(stack, "value", config.hidden, initialization=initialization)
        critic = Critic(
            stack, "critic", config.hidden, layer_norm=self.plugins.critic_layer_norm, initialization=initialization
        )
        self.value = self.learner("value", value, value_lr)
        self.critic, self.target_critic = self.learner_with_target("critic", critic, config.critic_lr, config.tau)

    @torch.no_grad()
    def logged_q(self, batch: Batch) -> Tensor:
        """min Q̄(s, a) [R, B]."""
        return self.target_critic.at(batch.state_actions).q.amin(1)

    def value_step(self, batch: Batch, logged_q: Tensor) -> Metrics:
        """V: an upper expectile of Q̄ over logged actions."""
        value = self.value(batch.observations)
        loss = expectile_loss(logged_q - value, self.config.expectile).mean(1)
        self.optimizers["value"].step(loss)
        return {"value_loss": loss, "v": value.mean(1)}

    @torch.no_grad()
    def advantage(self, batch: Batch, logged_q: Tensor) -> Tensor:
        """A = min Q̄(s, a) - V(s) [R, B]."""
        return logged_q - self.value(batch.observations)

    @torch.no_grad()
    def regression_target(self, batch: Batch) -> Tensor:
        """y = r + γ V(s') [R, B]."""
        return td_target(batch, self.config.discount, self.value(batch.next_observations))

    def td_step(self, batch: Batch) -> Metrics:
        """Critics: TD on V, without choosing an action. Penalties on (s', a') get the logged a'."""
        output = self.critic.at(batch.state_actions)
        td_loss = mean_squared_error(output.q, self.regression_target(batch).unsqueeze(1), keep=2)
        metrics = self.critic_step(batch.ended_where_cut(), output, batch.next_actions, td_loss)
        self.move_targets()
        return metrics


def expectile_loss(difference: Tensor, expectile: PerRun) -> Tensor:
    """|τ_e - 1{u < 0}| u² of u = Q̄ - V [R, B], elementwise; τ_e: one for all, or one per run [R]."""
    return (per_row(expectile) - (difference < 0).to(difference.dtype)).abs() * difference.square()


def advantage_weight(advantage: Tensor, inverse_temperature: PerRun, maximum: float) -> Tensor:
    """min(exp(β A), maximum) of A [R, B]; β: one for all, or one per run [R]."""
    return (per_row(inverse_temperature) * advantage).exp().clamp(max=maximum)
