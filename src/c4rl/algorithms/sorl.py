"""SORL (Mao et al., 2024, "Stylized Offline RL"): an EM over trajectories finds m styles, then each gets its policy.

The published method and code are for discrete actions and have no D4RL experiment. This is our continuous adaptation:
Gaussian style policies; an E-step by the mean log-likelihood of a trajectory's steps with a temperature, because a sum
of densities is ruled by a few sharp steps; and the behaviour's advantage from IQL's Q and V. With posteriors fixed,
    L_i = E[ p̂(z=i|τ) · min(exp(A(s, a)/λ), 100) · -log π_i(a|s) ],   A = Q - V shared by all styles.
"""

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import EVERY_TASK, LOCOMOTION, Algorithm, CriticConfig, Metrics, Published, Stage
from c4rl.algorithms.iql import advantage_weight, expectile_loss
from c4rl.algorithms.losses import mean_squared_error, td_target
from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic, Stack, Value
from c4rl.core.optimizers import CosineSchedule, FlatAdam, Polyak
from c4rl.core.random import Streams
from c4rl.plugins.seams import ActorStep, CriticStep, Plugins
from c4rl.plugins.trajectory_styles import StyleConfig, StyleDistributions, StylePolicies, TrajectoryStyles

MOST_WEIGHT = 100.0  # clip of exp(A/λ)
SCORE_STEP = 0.01  # a style's score is an average over about the last hundred batches,
SCORE_ROWS = 64  # of which it looks at this many rows
LEAST_HELD = 0.01  # of the data: a style with less has learned nothing and is not selected
ADAPTATION = "ours: adaptation to continuous actions on IQL's values, as SORL has no D4RL experiment"


@dataclass(frozen=True)
class SORLConfig(StyleConfig, CriticConfig):
    """Defaults are those of IQL's release for locomotion, and three styles as in SORL's."""

    stackable: ClassVar[frozenset[str]] = frozenset(
        {"actor_lr", "critic_lr", "discount", "tau", "expectile", "advantage_temperature"}
    )

    hidden_layers: int = 2
    """Hidden layers of Q, V and the style policies."""
    actor_lr: float = 3e-4
    """Adam's step size for the style policies, before its schedule."""
    expectile: float = 0.7
    """V is this expectile of Q at logged actions."""
    advantage_temperature: float = 1 / 3
    """λ: actions are weighted by exp(A/λ), at most 100 (IQL's β is 1/λ)."""
    actor_schedule: Literal["cosine", "constant"] = "cosine"
    """Step size of the style policies: down to 0 over the updates, or held."""
    selection: Literal["q", "advantage"] = "q"
    """The style that is evaluated, chosen offline: the largest mean Q of its policy's action on its own trajectories,
    or the largest mean advantage of the actions logged there."""


class SORL(Algorithm):
    config_type = SORLConfig
    has_density = False  # m densities, of which a row has none of its own
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            EVERY_TASK,
            ADAPTATION,
            {
                "hidden_layers": 2,
                "hidden_width": 256,
                "batch_size": 256,
                "actor_lr": 3e-4,
                "critic_lr": 3e-4,
                "discount": 0.99,
                "tau": 0.005,
                "styles": 3,
                "expectile": 0.7,
                "advantage_temperature": 1 / 3,
            },
            {"updates": 1_000_000, "normalize_observations": True},
        ),
        Published(LOCOMOTION, f"{ADAPTATION}, returns scaled as IQL does", {}, {"normalize_returns": True}),
        Published(
            ("antmaze-*",),
            f"{ADAPTATION}, IQL's for antmaze",
            {"expectile": 0.9, "advantage_temperature": 1 / 10},
            {"reward_shift": -1.0},
        ),
        Published(("antmaze-*", "maze2d-*"), f"{ADAPTATION}: episodes per evaluation", {}, {"eval_episodes": 100}),
    )

    def __init__(self, config: SORLConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        self.config, self.discount = config, config.discount
        self.style_policies = StylePolicies(stack, "actor", config.hidden, config.styles)
        self.critic = Critic(stack, "critic", config.hidden, layer_norm=plugins.critic_layer_norm)
        self.target_critic = deepcopy(self.critic)
        self.value = Value(stack, "value", config.hidden)
        self.networks = {
            "actor": self.style_policies,
            "critic": self.critic,
            "target_critic": self.target_critic,
            "value": self.value,
        }
        self.optimizers = {
            "actor": FlatAdam(self.style_policies, config.actor_lr),
            "critic": FlatAdam(self.critic, config.critic_lr),
            "value": FlatAdam(self.value, config.critic_lr),
        }
        self.polyak = Polyak(self.optimizers["critic"], self.target_critic, config.tau)
        self._schedule = CosineSchedule(self.stages[1].updates, stack.device)
        # averages of Σ p̂_i x and of Σ p̂_i, whose ratio is a style's score, [R, 2, m]
        shape = (stack.runs, 2, config.styles)
        self._score_sums = torch.zeros(shape, device=stack.device, dtype=stack.dtype)

    @classmethod
    def check(cls, config: SORLConfig, task: str) -> None:
        config.check()
        if not 0 < config.expectile < 1:
            raise InputError(f"--expectile: found {config.expectile}, expected a number between 0 and 1")
        if not config.advantage_temperature > 0:
            raise InputError(
                f"--advantage-temperature: found {config.advantage_temperature}, expected a positive number"
            )

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

    def update(self, batch: Batch, step: int) -> Metrics:
        if self.stage_at(step)[0] == 0:
            return {"style_loss": self.styles.maximisation_step(batch)}
        config = self.config
        assert batch.rows is not None
        posteriors = self.styles.of(batch.rows)  # [R, B, m]

        # V: the expectile of Q at logged actions
        with torch.no_grad():
            q = self.target_critic.at(batch.state_actions).q.amin(1)
        value_loss = expectile_loss(q - self.value(batch.observations), config.expectile).mean(1)
        self.optimizers["value"].step(value_loss)

        # style policies: posterior- and advantage-weighted regression
        with torch.no_grad():
            advantage = q - self.value(batch.observations)
            weights = advantage_weight(advantage, 1 / config.advantage_temperature, MOST_WEIGHT)
        policies: StyleDistributions = self.style_policies(batch.observations)
        actor_loss = -(posteriors * weights.unsqueeze(2) * policies.log_prob(batch.actions)).sum(2).mean(1)
        actions = (posteriors.unsqueeze(3) * policies.mean).sum(2)  # what the row's own styles would do
        term = self.plugins.actor_term(ActorStep(batch, self.critic, actions, None, None))
        self.optimizers["actor"].step(actor_loss + term, self._actor_factor())

        # Q: one-step backup of V, without any next action; a penalty on (s', a') is shown the logged one, where it is
        with torch.no_grad():
            y = td_target(batch, config.discount, self.value(batch.next_observations))
        output = self.critic.at(batch.state_actions)
        td_loss = mean_squared_error(output.q, y.unsqueeze(1), keep=2)  # [R, M]
        next_actions = batch.next_state_actions[..., self.stack.observation_dim :]
        shown = batch._replace(continues=batch.continues * batch.next_valid)
        penalty = self.plugins.critic_penalty(
            CriticStep(shown, self.critic, self.target_critic, output, next_actions, td_loss)
        )
        self.optimizers["critic"].step(td_loss + penalty)
        self.polyak.step()

        self._score(batch, posteriors, advantage, policies)
        return {
            "critic_loss": td_loss.detach().sum(1),
            "value_loss": value_loss.detach(),
            "actor_loss": actor_loss.detach(),
            "q": output.q.detach().mean((1, 2)),
            "advantage": advantage.mean(1),
            "advantage_weight": weights.mean(1),
            "selected_style": self.selected.to(advantage.dtype),
        } | {f"style_score_{i}": score for i, score in enumerate(self.style_scores.unbind(1))}

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
        """Of every style by the rule of --selection, [R, m]; 0 for styles not in use."""
        total, weight = self._score_sums.unbind(1)
        return total / weight.clamp(min=1e-8)

    @property
    def selected(self) -> Tensor:
        """[R]: the style that is evaluated and exported, among those that hold some of the data."""
        weight = self._score_sums[:, 1]
        held = self.styles.active & (weight >= LEAST_HELD * weight.sum(1, keepdim=True))
        return self.style_scores.masked_fill(~held, -math.inf).argmax(1)

    def policy_layers(self) -> tuple[list[Tensor], list[Tensor]]:
        return self.style_policies.mean_layers(self.selected)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        means = self.style_policies(observations).mean  # [R, B, m, a]
        return means[torch.arange(len(means), device=means.device), :, self.selected]

    # --

    def _actor_factor(self) -> Tensor | float:
        """Of the style policies' step size: from 1 at the first update of their stage to 0 after the last."""
        if self.config.actor_schedule == "constant":
            return 1.0
        return self._schedule.at(self.streams.step, before=self.stages[0].updates)

    def state(self) -> dict[str, Tensor]:
        styles = {f"styles.{name}": tensor for name, tensor in self.styles.state().items()}
        return super().state() | styles | {"score_sums": self._score_sums}
