"""SORL (Mao et al., 2024, "Stylized Offline RL"): an EM over trajectories finds m styles, then each gets its policy.

The published method and code are for discrete actions and have no D4RL experiment. This is our continuous adaptation:
Gaussian style policies; an E-step by the mean log-likelihood of a trajectory's steps with a temperature, because a sum
of densities is ruled by a few sharp steps; and the behaviour's advantage from IQL's Q and V. With posteriors fixed,
    L_i = E[ p̂(z=i|τ) · min(exp(A(s, a)/λ), 100) · -log π_i(a|s) ],   A = Q - V shared by all styles.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from c4rl.algorithms.algorithm import Metrics, Stage
from c4rl.algorithms.implicit_q import ImplicitQ, ImplicitQConfig, advantage_weight
from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.networks import Stack
from c4rl.core.options import PerRun, option
from c4rl.core.policies import EvaluatedPolicy
from c4rl.core.random import Streams
from c4rl.plugins.seams import Plugins
from c4rl.plugins.trajectory_styles import StyleConfig, StyleDistributions, StylePolicies, TrajectoryStyles

MOST_WEIGHT = 100.0  # clip of exp(A/λ)
SCORE_STEP = 0.01  # a style's score averages over about the last hundred batches,
SCORE_ROWS = 64  # with this many rows of each
LEAST_HELD = 0.01  # share of the data; a style with less has learned nothing and is not selected


@dataclass(frozen=True)
class SORLConfig(StyleConfig, ImplicitQConfig):
    """Defaults are those of IQL's release for locomotion, and three styles as in SORL's."""

    advantage_temperature: PerRun = option(1 / 3, above=0, at_most=1e6)
    """λ: actions are weighted by exp(A/λ), at most 100 (IQL's β is 1/λ)."""
    selection: Literal["q", "advantage"] = "q"
    """How the evaluated style is chosen, offline: by the largest mean Q of its policy's action on its own trajectories,
    or the largest mean advantage of the actions logged there."""

    def check(self) -> None:
        self.refuse("its policies are many, one for each style", "actor_dropout", "actor_layer_norm")


class SORL(ImplicitQ):
    mixes_datasets = True
    config_type = SORLConfig
    has_density = False  # it has m densities, and no single one per row
    has_one_policy = False
    config: SORLConfig

    def __init__(self, config: SORLConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        policies = StylePolicies(stack, "actor", config.hidden, config.styles)
        self.style_policies = self.learner("actor", policies, config.actor_lr)
        self.build_values(config.critic_lr)
        # averages of Σ p̂_i x and of Σ p̂_i, whose ratio is a style's score, [R, 2, m]
        self._score_sums = self.kept("score_sums", 2, config.styles)

    @classmethod
    def plan(cls, config: SORLConfig, updates: int) -> tuple[Stage, ...]:
        rounds = config.style_rounds * config.style_steps
        return (
            Stage("styles", rounds, config.style_batch_size, plugged=False, evaluated=False),
            Stage("training", updates, config.batch_size),
        )

    def attach(self, buffer: TransitionBuffer) -> None:
        self.styles = TrajectoryStyles(self.config, self.stack, buffer, self.streams)
        self.networks["styles"], self.optimizers["styles"] = self.styles.policies, self.styles.optimizer

    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        if self.stage_at(step)[0] == 0:
            return {"style_loss": self.styles.maximisation_step(batch)}
        logged_q = self.logged_q(batch)
        actor_q = logged_q if actor_batch is batch else self.logged_q(actor_batch)

        # V: the expectile of Q at logged actions
        metrics = self.value_step(batch, logged_q)

        # style policies: posterior- and advantage-weighted regression
        assert actor_batch.rows is not None
        posteriors = self.styles.of(actor_batch.rows)  # [R, B, m]
        advantage = self.advantage(actor_batch, actor_q)
        weights = advantage_weight(advantage, 1 / self.config.advantage_temperature, MOST_WEIGHT)
        policies: StyleDistributions = self.style_policies(actor_batch.observations)
        actor_loss = -(posteriors * weights.unsqueeze(2) * policies.log_prob(actor_batch.actions)).sum(2).mean(1)
        actions = (posteriors.unsqueeze(3) * policies.mean).sum(2)  # what the row's own styles would do
        self.optimizers["actor"].step((actor_loss, self.actor_term(actor_batch, actions)), self.actor_lr_factor)

        # Q: one-step backup of V
        metrics |= self.td_step(batch)

        self._score(actor_batch, posteriors, advantage, policies)
        return metrics | {
            "actor_loss": actor_loss,
            "advantage": advantage.mean(1),
            "advantage_weight": weights.mean(1),
            "selected_style": self.selected.to(advantage.dtype),
            **{f"style_score_{i}": score for i, score in enumerate(self.style_scores.unbind(1))},
        }

    def after_update(self, step: int) -> Metrics:
        stage, update = self.stage_at(step)
        if stage > 0 or update % self.config.style_steps:
            return {}
        return self.styles.expectation(update // self.config.style_steps)

    # -- the style that is evaluated

    @torch.no_grad()
    def _score(self, batch: Batch, posteriors: Tensor, advantage: Tensor, policies: StyleDistributions) -> None:
        p = posteriors[:, :SCORE_ROWS]
        if self.config.selection == "q":
            actions = policies.mean[:, :SCORE_ROWS]
            worth = self.target_critic(batch.observations[:, :SCORE_ROWS], actions).q.amin(1)  # [R, B, m]
        else:
            worth = advantage[:, :SCORE_ROWS].unsqueeze(2)
        self._score_sums.lerp_(torch.stack([(p * worth).mean(1), p.mean(1)], 1), SCORE_STEP)

    @property
    def style_scores(self) -> Tensor:
        """Score of every style by the rule of --selection, [R, m]; 0 for unused styles."""
        total, weight = self._score_sums.unbind(1)
        return total / weight.clamp(min=1e-8)

    @property
    def selected(self) -> Tensor:
        """[R]: the style that is evaluated and exported, among those that hold some of the data."""
        weight = self._score_sums[:, 1]
        held = self.styles.active & (weight >= LEAST_HELD * weight.sum(1, keepdim=True))
        return self.style_scores.masked_fill(~held, -math.inf).argmax(1)

    def evaluated_policy(self) -> EvaluatedPolicy:
        policies: Any = self.networks.get("average_actor", self.style_policies)
        return EvaluatedPolicy(*policies.mean_layers(self.selected))

    def state(self) -> dict[str, Tensor]:
        return super().state() | {f"styles.{name}": tensor for name, tensor in self.styles.state().items()}

    def unpadded(self, name: str, tensor: Tensor, run: int) -> Tensor:
        return tensor[: self.styles.trajectories.own_count[run]] if name == "styles.posteriors" else tensor

    def padded(self, name: str, own: Tensor, run: int) -> Tensor:
        if name != "styles.posteriors":
            return own
        return pad(own, (0, 0, 0, self.styles.trajectories.count - len(own)))
