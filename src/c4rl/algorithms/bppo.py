"""BPPO (Zhuang et al., ICLR 2023): PPO's clipped steps from a cloned policy, on logged states.

Four stages, one after the other: the behaviour's Q by SARSA (which plug-ins act on) and its V by regression on returns,
the behaviour itself by cloning, and its improvement. Q and V do not read each other; Q comes first so that update n of
the job is the critic's n-th. The original's optional stage, Q continued under the new policy, is not here: off by
default there, and its batches would have to be drawn inside of an update.

In the improvement stage actions are drawn from π_old and not from the data, and π_old ← π wherever a rule finds π
better: the original asks the simulator after every update, and reports the best score that it saw. Here that is
--acceptance online_best. With offline_q the critic decides, an easy judge: on 10,000 rows (networks of 256 units, two
seeds) it accepted nearly every update, so that nothing held π near the clone, and scores fell below the clone's on
three of four locomotion tasks, to 0 on two. By default π_old stays the clone (never), which kept the scores and uses
no simulator. The policy evaluated and exported is π_old, the best accepted one, as in the original; with never, which
has no best one, it is π.

A trajectory that was cut off (by a time limit, by the end of the data, by a subset) counts as ended there, as in the
original: its later returns are unknown, and its last row has no next action. Rewards are those that training sees.
"""

from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import ADROIT, Algorithm, CriticConfig, Metrics, Published, Stage
from c4rl.algorithms.losses import mean_squared_error, td_target
from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic, Stack, Value
from c4rl.core.optimizers import FlatAdam, Polyak
from c4rl.core.policies import Gaussian, TanhHeadGaussianPolicy
from c4rl.core.random import Streams
from c4rl.core.returns import returns_to_go
from c4rl.plugins.seams import CriticStep, Plugins

CRITIC, VALUE, CLONING, IMPROVEMENT = range(4)  # stages
DECAYED = 201  # improvement updates after which the clip and the step size stay: the original stops at k > 200
JUDGED_STATES, JUDGED_SEED = 1024, 0  # by offline_q; the same states for every run
CLONE_JUDGED_EVERY = 2000  # updates of the cloning stage, by online_best


@dataclass(frozen=True)
class BPPOConfig(CriticConfig):
    stackable: ClassVar[frozenset[str]] = frozenset({"actor_lr", "critic_lr", "value_lr", "tau"})

    hidden_layers: int = 2
    """Hidden layers of the policy and of Q."""
    hidden_width: int = 1024
    """Units per hidden layer of the policy and of Q."""
    batch_size: int = 512
    """Rows per update and run, in every stage."""
    critic_lr: float = 1e-4
    """Adam's step size for Q."""
    target_period: int = 2
    """Updates of Q per step of its target."""
    value_layers: int = 3
    """Hidden layers of V."""
    value_width: int = 512
    """Units per hidden layer of V."""
    value_lr: float = 1e-4
    """Adam's step size for V."""
    output_relu: bool = False
    """Q and V end in a ReLU, as in the original: negative returns (one in six of 10,000 rows of
    halfcheetah-medium-replay, all where rewards are shifted by -1) all become 0. Plug-ins see Q before this ReLU."""
    value_updates: int = 200_000
    """Updates of V (of Q: --updates)."""
    cloning_updates: int = 50_000
    """Updates that clone the behaviour; many more overfit small data."""
    improvement_updates: int = 1000
    """Updates of the improvement stage."""
    clip_ratio: float = 0.25
    """ε: π/π_old is clipped to 1 ± ε."""
    clip_decay: float = 0.96
    """ε is multiplied by this before each of the first 201 improvement updates."""
    lr_decay: float = 0.98
    """The policy's step size is multiplied by this after every second of the first 201 improvement updates."""
    omega: float = 0.9
    """ω: positive advantages weigh ω, others 1 - ω; 0.5 leaves them as they are."""
    entropy_weight: float = 0.0
    """Weight of the policy's entropy in its improvement (the original suggests 0.01 on medium data)."""
    acceptance: Literal["never", "offline_q", "online_best"] = "never"
    """When π_old becomes π. never: it stays the cloned policy, and π is the result. In the others the best π_old is.
    offline_q: when the mean Q(s, π(s)) over fixed logged states is the best so far. online_best, the original: when the
    score of --eval-episodes episodes in the simulator is, after every improvement update, and the cloned policy is the
    best by score too; this USES THE ENVIRONMENT to learn."""


# The defaults above are the release's but for what these name.
_MAIN = "main.py, Dragon-Zhuang/BPPO at 0bb6e7d"
_LONG: dict[str, Any] = {"value_updates": 2_000_000, "cloning_updates": 500_000}
_TRAINING: dict[str, Any] = {"updates": 2_000_000, "normalize_observations": False}


class BPPO(Algorithm):
    config_type = BPPOConfig
    has_actor_term = False  # the stage that plug-ins act on has no actor
    actor: TanhHeadGaussianPolicy
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            ("hopper-*", "halfcheetah-*", "walker2d-*", "antmaze-*", *ADROIT, "kitchen-*"),
            f"{_MAIN}, for every task of the paper; policies are accepted by the simulator",
            _LONG | {"output_relu": True, "acceptance": "online_best"},
            _TRAINING,
        ),
        Published(
            ("hopper-medium-v*", "walker2d-medium-replay-*"),
            f"{_MAIN}, a remark on these two",
            {"value_updates": 200_000, "cloning_updates": 50_000},
            {"updates": 200_000},
        ),
        Published(ADROIT[1:], "ours: no ReLU, as returns are negative", {"output_relu": False}),
        Published(
            ("ant-*", "maze2d-*"), f"ours: {_MAIN}, without its ReLU and its use of the simulator", _LONG, _TRAINING
        ),
    )

    def __init__(self, config: BPPOConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        self.config, self.discount = config, config.discount
        self.critic = Critic(stack, "critic", config.hidden, members=1, layer_norm=plugins.critic_layer_norm)
        self.target_critic = deepcopy(self.critic)
        self.value = Value(stack, "value", (config.value_width,) * config.value_layers)
        self.old_actor = TanhHeadGaussianPolicy(stack, "actor", config.hidden, initialization="orthogonal_weights")
        self.actor = deepcopy(self.old_actor)
        self.networks = {
            "critic": self.critic,
            "target_critic": self.target_critic,
            "value": self.value,
            "old_actor": self.old_actor,  # π_old: first the clone, later the best accepted policy
            "actor": self.actor,  # π; while cloning, under online_best, the best clone so far
        }
        self.optimizers = {
            "critic": FlatAdam(self.critic, config.critic_lr),
            "value": FlatAdam(self.value, config.value_lr),
            "old_actor": FlatAdam(self.old_actor, config.actor_lr),
            "actor": FlatAdam(self.actor, config.actor_lr, clip_norm=0.5),
        }
        self.polyak = Polyak(self.optimizers["critic"], self.target_critic, config.tau)
        self._before_improvement = sum(stage.updates for stage in self.stages[:IMPROVEMENT])
        kind: dict[str, Any] = {"device": stack.device, "dtype": stack.dtype}
        # what π has to beat; the lowest finite number, as an infinite one would count as a failed run
        self._best = torch.full((stack.runs,), torch.finfo(stack.dtype).min, **kind)
        self._accepted, self._acceptances = torch.zeros(stack.runs, **kind), torch.zeros(stack.runs, **kind)
        self._shows_new = torch.zeros((), dtype=torch.bool, device=stack.device)  # π is evaluated, not π_old

    @classmethod
    def check(cls, config: BPPOConfig, task: str) -> None:
        networks = ("target_period", "value_layers", "value_width", "value_lr")
        for name in (*networks, "value_updates", "cloning_updates", "improvement_updates"):
            if not (found := getattr(config, name)) > 0:
                raise InputError(f"--{name.replace('_', '-')}: found {found}, expected a positive number")
        for name in ("clip_ratio", "clip_decay", "lr_decay", "omega"):
            if not 0 < (found := getattr(config, name)) <= 1:
                raise InputError(f"--{name.replace('_', '-')}: found {found}, expected above 0 and at most 1")
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

    @classmethod
    def launch_key(cls, config: BPPOConfig, rows: int, data: int) -> Hashable:
        return 0  # returns and judged states are each run's own

    def attach(self, buffer: TransitionBuffer) -> None:
        self.returns = returns_to_go(buffer, self.discount).to(self.stack.dtype)  # G of every row
        streams = Streams([JUDGED_SEED] * self.stack.runs, torch.zeros_like(self.streams.step))
        rows = streams.integers("judged_states", buffer.lengths, JUDGED_STATES) + buffer.offsets.unsqueeze(1)
        self.judged_states = buffer.gather(rows).observations

    def phase(self, step: int) -> Hashable:
        stage, update = self.stage_at(step)
        return stage, update % self.config.target_period == 0 if stage == CRITIC else None

    def update(self, batch: Batch, step: int) -> Metrics:
        stage, update = self.stage_at(step)
        if stage == CRITIC:
            return self._update_critic(batch, update % self.config.target_period == 0)
        return {VALUE: self._update_value, CLONING: self._clone, IMPROVEMENT: self._improve}[stage](batch)

    def _update_critic(self, batch: Batch, moves_target: bool) -> Metrics:
        """SARSA: y = r + γ Q̄(s', a') with the logged a'."""
        batch = batch._replace(continues=batch.continues * batch.next_valid)  # cut off is ended
        with torch.no_grad():
            next_q = self._value_of(self.target_critic.at(batch.next_state_actions).q)
            y = td_target(batch, self.discount, next_q[:, 0]).unsqueeze(1)  # [R, 1, B]
        output = self.critic.at(batch.state_actions)
        q = self._value_of(output.q)
        td_loss = mean_squared_error(q, y, keep=2)  # [R, M], M = 1
        next_actions = batch.next_state_actions[..., self.stack.observation_dim :]
        penalty = self.plugins.critic_penalty(
            CriticStep(batch, self.critic, self.target_critic, output, next_actions, td_loss)
        )
        self.optimizers["critic"].step(td_loss + penalty)
        if moves_target:
            self.polyak.step()
        return {"critic_loss": td_loss.detach().sum(1), "q": q.detach().mean((1, 2))}

    def _update_value(self, batch: Batch) -> Metrics:
        """V(s) on the return that followed."""
        assert batch.rows is not None
        value = self._value_of(self.value(batch.observations))
        loss = mean_squared_error(value, self.returns[batch.rows])
        self.optimizers["value"].step(loss)
        return {"value_loss": loss.detach(), "v": value.detach().mean(1)}

    def _clone(self, batch: Batch) -> Metrics:
        loss = -self.old_actor(batch.observations).log_prob(batch.actions).mean(1)
        self.optimizers["old_actor"].step(loss)
        return {"actor_loss": loss.detach()}

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
        if config.acceptance == "offline_q":
            self._judge(self._expected_q(self.actor))
        else:
            self._shows_new.fill_(True)  # to stay (never), or until the simulator's verdict
        return {
            "actor_loss": loss.detach(),
            "advantage": advantage.mean(1),
            "clipped_share": ((ratio.detach() - 1).abs() > clip).to(ratio.dtype).mean(1),
            "entropy": policy.entropy().detach().mean(1),
            "accepted": self._accepted,  # under online_best: the update before
        }

    def schedules(self) -> tuple[Tensor, Tensor]:
        """ε and the factor of the step size at this improvement update, as tensors that a captured graph recomputes."""
        k = self.streams.step - 1 - self._before_improvement  # from 0
        clip = self.config.clip_ratio * self.config.clip_decay ** (k + 1).clamp(max=DECAYED).double()
        factor = self.config.lr_decay ** (k.clamp(max=DECAYED) // 2).double()
        return clip.to(self.stack.dtype), factor.float()  # the only type that Adam's kernel takes

    # -- which policy is the better one

    def after_update(self, step: int) -> Metrics:
        stage, update = self.stage_at(step)
        if update != self.stages[stage].updates:
            return {}
        if stage == CLONING and self.config.acceptance != "online_best":
            self.optimizers["actor"].flat.copy_(self.optimizers["old_actor"].flat)
            self._best.copy_(self._expected_q(self.old_actor))
        if stage == IMPROVEMENT:  # under online_best the last update's verdict is still to come
            return {f"acceptances_{self.config.acceptance}": self._acceptances}
        return {}

    def asks_environment(self, step: int) -> bool:
        stage, update = self.stage_at(step)
        clone_is_judged = update % CLONE_JUDGED_EVERY == 0 or update == self.stages[CLONING].updates
        judged = stage == IMPROVEMENT or (stage == CLONING and clone_is_judged)
        return self.config.acceptance == "online_best" and judged

    @torch.no_grad()
    def receive_scores(self, scores: Tensor) -> None:
        stage, update = self.stage_at(int(self.streams.step))
        scores = scores.to(self._best.dtype)
        if stage == CLONING:
            self._keep_better(scores, self.old_actor, self.actor)
            if update == self.stages[CLONING].updates:  # go on from the best clone
                self.optimizers["old_actor"].flat.copy_(self.optimizers["actor"].flat)
        else:
            self._judge(scores)
            self._shows_new.fill_(False)

    def _judge(self, scores: Tensor) -> None:
        """π_old ← π in the runs whose score [R] is the best so far."""
        self._accepted.copy_(self._keep_better(scores, self.actor, self.old_actor))
        self._acceptances.add_(self._accepted)

    @torch.no_grad()
    def _keep_better(self, scores: Tensor, found: TanhHeadGaussianPolicy, kept: TanhHeadGaussianPolicy) -> Tensor:
        better = scores > self._best
        self._best.copy_(torch.where(better, scores, self._best))
        for mine, new in zip(kept.parameters(), found.parameters(), strict=True):
            mine.copy_(torch.where(better.view(-1, *(1,) * (new.dim() - 1)), new, mine))
        return better

    @torch.no_grad()
    def _expected_q(self, policy: TanhHeadGaussianPolicy) -> Tensor:
        """Mean Q(s, π(s)) of the mean actions over the judged states, [R]."""
        actions = policy(self.judged_states).mean
        return self._value_of(self.critic(self.judged_states, actions).q.squeeze(1)).mean(1)

    def _value_of(self, output: Tensor) -> Tensor:
        return output.relu() if self.config.output_relu else output

    # -- the policy shown, and what is stored

    @property
    def shown(self) -> TanhHeadGaussianPolicy:
        """π_old, or π where none is accepted (never) or where its verdict is due (online_best)."""
        return self.actor if bool(self._shows_new) else self.old_actor

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        return self.shown(observations).mean

    def policy_layers(self) -> tuple[list[Tensor], list[Tensor]]:
        mlp, a = self.shown.mlp, self.stack.action_dim
        weights, biases = [w[:, 0] for w in mlp.weights], [b[:, 0] for b in mlp.biases]
        return [*weights[:-1], weights[-1][..., :a]], [*biases[:-1], biases[-1][..., :a]]

    @torch.no_grad()
    def temporal_difference(self, batch: Batch) -> Tensor:
        next_q = self._value_of(self.target_critic(batch.next_observations, self.act(batch.next_observations)).q)
        y = td_target(batch, self.discount, next_q[:, 0]).unsqueeze(1)
        return y - self._value_of(self.critic.at(batch.state_actions).q)

    def state(self) -> dict[str, Tensor]:
        judged = {"best": self._best, "accepted": self._accepted, "acceptances": self._acceptances}
        return super().state() | judged | {"shows_new": self._shows_new}


def weighted_advantage(advantage: Tensor, omega: float) -> Tensor:
    """A [R, B] normalised within each run; then ωA where A > 0, else (1 - ω)A. For ω = 0.5 A itself and not A / 2, as
    in the original."""
    advantage = (advantage - advantage.mean(1, keepdim=True)) / (advantage.std(1, keepdim=True) + 1e-10)
    return advantage if omega == 0.5 else torch.where(advantage > 0, omega, 1 - omega) * advantage
