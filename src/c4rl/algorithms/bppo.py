"""BPPO (Zhuang et al., ICLR 2023): PPO's clipped steps from a cloned policy, on logged states.

Four stages, one after the other: the behaviour's Q by SARSA (which plug-ins act on) and its V by regression on returns,
the behaviour itself by cloning, and its improvement. Q and V do not depend on each other; Q comes first so that update
n of the job is the critic's n-th. The original's optional stage, which trains Q further under the new policy, is left
out: it is off by default there, and would have to draw its batches inside an update.

The improvement stage draws actions from π_old, not from the data, and sets π_old ← π when a rule finds π better. The
original runs the simulator after every update and reports the best score that it saw: --acceptance online_best. With
offline_q the critic decides, and it is lenient: on 10,000 rows (networks of 256 units, two seeds) it accepted nearly
every update, so nothing kept π near the clone, and scores fell below the clone's on three of four locomotion tasks, to
0 on two. By default (never) π_old stays the clone, which kept the scores and uses no simulator. The evaluated and
exported policy is π_old, the best accepted one, as in the original; with never it is π.

A trajectory that was cut off (by a time limit, the end of the data or a subset) counts as ended there, as in the
original: its later returns are unknown, and its last row has no next action. Rewards are the scaled ones.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from c4rl.algorithms.accepted_policies import CLONING, CRITIC, IMPROVEMENT, VALUE, AcceptedPolicies
from c4rl.algorithms.algorithm import CriticConfig, Metrics, Stage
from c4rl.algorithms.losses import mean_squared_error, td_target
from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic, Stack, Value
from c4rl.core.options import PerRun, option
from c4rl.core.policies import Gaussian, TanhHeadGaussianPolicy
from c4rl.core.random import Streams
from c4rl.core.returns import returns_to_go
from c4rl.plugins.seams import Plugins

DECAYED = 201  # improvement updates after which the clip and the step size stay: the original stops at k > 200
JUDGED_STATES, JUDGED_SEED = 1024, 0  # by offline_q; the same states for every run


@dataclass(frozen=True)
class BPPOConfig(CriticConfig):
    hidden_layers: int = option(2, at_least=1, at_most=100)
    """Hidden layers of the policy and of Q."""
    hidden_width: int = option(1024, at_least=1, at_most=100_000)
    """Units per hidden layer of the policy and of Q."""
    batch_size: int = option(512, at_least=2, at_most=1_000_000)
    """Rows per update and run, in every stage."""
    critic_lr: PerRun = option(1e-4, above=0, at_most=1)
    """Adam's step size for Q."""
    target_period: int = option(2, at_least=1, at_most=1e9)
    """Updates of Q per step of its target."""
    value_layers: int = option(3, at_least=1, at_most=100)
    """Hidden layers of V."""
    value_width: int = option(512, at_least=1, at_most=100_000)
    """Units per hidden layer of V."""
    value_lr: PerRun = option(1e-4, above=0, at_most=1)
    """Adam's step size for V."""
    output_relu: bool = False
    """Q and V end in a ReLU, as in the original: negative returns (one in six of 10,000 rows of
    halfcheetah-medium-replay, all where rewards are shifted by -1) all become 0. Plug-ins see Q before this ReLU."""
    value_updates: int = option(200_000, at_least=1, at_most=1e9)
    """Updates of V; --updates counts those of Q."""
    cloning_updates: int = option(50_000, at_least=1, at_most=1e9)
    """Updates that clone the behaviour; many more overfit small data."""
    improvement_updates: int = option(1000, at_least=1, at_most=1e9)
    """Updates of the improvement stage."""
    clip_ratio: float = option(0.25, above=0, at_most=1)
    """ε: π/π_old is clipped to 1 ± ε."""
    clip_decay: float = option(0.96, above=0, at_most=1)
    """ε is multiplied by this before each of the first 201 improvement updates."""
    lr_decay: float = option(0.98, above=0, at_most=1)
    """The policy's step size is multiplied by this after every second of the first 201 improvement updates."""
    omega: float = option(0.9, above=0, at_most=1)
    """ω: positive advantages weigh ω, others 1 - ω; 0.5 leaves them as they are."""
    entropy_weight: float = option(0.0, at_least=0, at_most=1e6)
    """Weight of the policy's entropy in its improvement (the original suggests 0.01 on medium data)."""
    acceptance: Literal["never", "offline_q", "online_best"] = "never"
    """When π replaces π_old. never: π_old stays the cloned policy, and the result is π; otherwise it is the best π_old.
    offline_q: when the mean Q(s, π(s)) over fixed logged states is the best so far. online_best, the original: when the
    score of --eval-episodes simulated episodes after an improvement update is the best so far; the cloned policy is the
    best by score too. This USES THE ENVIRONMENT to learn."""

    def check(self) -> None:
        own = "actor_schedule", "actor_decay", "actor_average", "actor_dropout"
        self.refuse("PPO's own clip and step sizes hold the policy", *own)
        self.refuse("its clone and its improved policy are built as in its release", "actor_layer_norm")


class BPPO(AcceptedPolicies):
    mixes_datasets = True
    config_type = BPPOConfig
    has_actor_term = False  # the stage that plug-ins act on has no actor
    config: BPPOConfig

    def __init__(self, config: BPPOConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        critic = Critic(stack, "critic", config.hidden, members=1, layer_norm=plugins.critic_layer_norm)
        value = Value(stack, "value", (config.value_width,) * config.value_layers)
        self.critic, self.target_critic = self.learner_with_target("critic", critic, config.critic_lr, config.tau)
        self.value = self.learner("value", value, config.value_lr)
        self._before_improvement = sum(stage.updates for stage in self.stages[:IMPROVEMENT])

    @classmethod
    def check(cls, config: BPPOConfig, task: str) -> None:
        if config.acceptance == "online_best" and task == "none":
            raise InputError("--acceptance: found online_best with --task none, expected offline_q or never")

    @classmethod
    def plan(cls, config: BPPOConfig, updates: int) -> tuple[Stage, ...]:
        return (
            Stage("critic", updates, config.batch_size, evaluated=False),
            Stage("value", config.value_updates, config.batch_size, plugged=False, evaluated=False),
            Stage("cloning", config.cloning_updates, config.batch_size, plugged=False),
            Stage("improvement", config.improvement_updates, config.batch_size, plugged=False),
        )

    def attach(self, buffer: TransitionBuffer) -> None:
        discount = self.config.discount
        discounts = discount.tolist() if isinstance(discount, Tensor) else [discount]
        returns = torch.stack([returns_to_go(buffer, one) for one in discounts])  # G of every row, [R or 1, N]
        self.returns = returns.to(self.stack.dtype)
        streams = Streams([JUDGED_SEED] * self.stack.runs, torch.zeros_like(self.streams.step))
        rows = streams.integers("judged_states", buffer.lengths, JUDGED_STATES) + buffer.offsets.unsqueeze(1)
        self.judged_states = buffer.gather(rows).observations

    def moves_target(self, update: int) -> bool:
        return update % self.config.target_period == 0

    def phase(self, step: int) -> Hashable:
        stage, update = self.stage_at(step)
        return stage, stage == CRITIC and self.moves_target(update)

    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        stage, update = self.stage_at(step)
        if stage == CRITIC:
            return self._update_critic(batch, self.moves_target(update))
        return {VALUE: self._update_value, CLONING: self._clone, IMPROVEMENT: self._improve}[stage](actor_batch)

    def _update_critic(self, batch: Batch, moves_target: bool) -> Metrics:
        """SARSA, a step towards y."""
        output = self.critic.at(batch.state_actions)
        q = self._value_of(output.q)
        td_loss = mean_squared_error(q, self.regression_target(batch).unsqueeze(1), keep=2)  # [R, M], M = 1
        metrics = self.critic_step(batch.ended_where_cut(), output, batch.next_actions, td_loss)
        if moves_target:
            self.move_targets()
        return metrics | {"q": q.mean((1, 2))}

    def _update_value(self, batch: Batch) -> Metrics:
        """V(s) on the return that followed."""
        assert batch.rows is not None
        value = self._value_of(self.value(batch.observations))
        loss = mean_squared_error(value, self.returns.expand(len(value), -1).gather(1, batch.rows))
        self.optimizers["value"].step(loss)
        return {"value_loss": loss, "v": value.mean(1)}

    def _clone(self, batch: Batch) -> Metrics:
        loss = -self.old_actor(batch.observations).log_prob(batch.actions).mean(1)
        self.optimizers["old_actor"].step(loss)
        return {"actor_loss": loss}

    def _improve(self, batch: Batch) -> Metrics:
        config = self.config
        clip, lr_factor = self.schedules()
        with torch.no_grad():
            old: Gaussian = self.old_actor(batch.observations)
            actions, _ = old.sample(self.streams.normal("old_action", *batch.actions.shape[1:]))
            q = self._value_of(self.critic(batch.observations, actions).q.squeeze(1))
            advantage = q - self._value_of(self.value(batch.observations))
            weighted = weighted_advantage(advantage, config.omega)
        policy: Gaussian = self.actor(batch.observations)
        ratio = (policy.log_prob(actions) - old.log_prob(actions)).exp()
        surrogate = torch.minimum(ratio * weighted, ratio.clamp(1 - clip, 1 + clip) * weighted)
        loss = -(surrogate + config.entropy_weight * policy.entropy()).mean(1)
        self.optimizers["actor"].step(loss, lr_factor)
        self.judge_improvement()
        return {
            "actor_loss": loss,
            "advantage": advantage.mean(1),
            "clipped_share": ((ratio.detach() - 1).abs() > clip).to(ratio.dtype).mean(1),
            "entropy": policy.entropy().mean(1),
            "accepted": self.accepted,  # under online_best: the update before
        }

    def schedules(self) -> tuple[Tensor, Tensor]:
        """ε and the factor of the step size at this improvement update, as tensors that a captured graph recomputes."""
        k = self.streams.step - 1 - self._before_improvement  # from 0
        clip = self.config.clip_ratio * self.config.clip_decay ** (k + 1).clamp(max=DECAYED).double()
        factor = self.config.lr_decay ** (k.clamp(max=DECAYED) // 2).double()
        return clip.to(self.stack.dtype), factor.float()  # the only type that Adam's kernel takes

    @torch.no_grad()
    def expected_q(self, policy: TanhHeadGaussianPolicy) -> Tensor:
        """Mean Q(s, π(s)) of the mean actions over the judged states, [R]."""
        actions = policy(self.judged_states).mean
        return self._value_of(self.critic(self.judged_states, actions).q.squeeze(1)).mean(1)

    def _value_of(self, output: Tensor) -> Tensor:
        return output.relu() if self.config.output_relu else output

    def values_at(self, critic: Critic, state_actions: Tensor) -> Tensor:
        return self._value_of(super().values_at(critic, state_actions))

    @torch.no_grad()
    def regression_target(self, batch: Batch) -> Tensor:
        """y = r + γ Q̄(s', a') [R, B] with the logged a'."""
        next_q = self.values_at(self.target_critic, batch.next_state_actions)
        return td_target(batch.ended_where_cut(), self.config.discount, next_q[:, 0])


def weighted_advantage(advantage: Tensor, omega: float) -> Tensor:
    """A [R, B] normalised within each run; then ωA where A > 0, else (1 - ω)A. For ω = 0.5 A itself and not A / 2, as
    in the original."""
    advantage = (advantage - advantage.mean(1, keepdim=True)) / (advantage.std(1, keepdim=True) + 1e-10)
    return advantage if omega == 0.5 else torch.where(advantage > 0, omega * advantage, (1 - omega) * advantage)
