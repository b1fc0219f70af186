"""CQL(H) (Kumar et al., 2020): SAC whose critics push down a soft maximum over actions and push up logged ones."""

import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Algorithm, CriticConfig, Metrics
from c4rl.algorithms.losses import clipped_target, mean_squared_error, soft_actor_loss, soft_maximum_gap
from c4rl.core.buffer import Batch
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic, LogScalar, Stack, per_row
from c4rl.core.ops.tanh_gaussian import uniform_and_sampled
from c4rl.core.options import PerRun, option
from c4rl.core.policies import GaussianPolicy, TanhGaussian
from c4rl.core.random import Streams
from c4rl.plugins.seams import Plugins

LAGRANGE_MAXIMUM = 1e6


@dataclass(frozen=True)
class CQLConfig(CriticConfig):
    cql_weight: PerRun = option(10.0, at_least=0, at_most=1e6)
    """α_cql, the weight of the conservative term."""
    cql_actions: int = option(10, at_least=1, at_most=100_000)
    """N: actions drawn per state from each of the uniform, π(s) and π(s') distributions."""
    cql_temperature: float = option(1.0, above=0, at_most=1e6)
    """T of the log-sum-exp."""
    lse_group: Literal[30, 3] = 30
    """Log-sum-exp over all 3N actions of a state (30), or over one triple at a time (3, as OfflineRL-Kit runs)."""
    importance_sampling: bool = True
    """Subtract the actions' log-densities; off: plain Q values, with the logged action among them."""
    gap_minimum: float = option(-math.inf, at_least=-math.inf, at_most=1e6, infinite=True)
    """Lower clip of the per-state gap (-200 in the antmaze recipe)."""
    gap_maximum: float = option(math.inf, at_least=-1e6, at_most=math.inf, infinite=True)
    """Upper clip of the per-state gap."""
    lagrange: Literal["none", "weighted_gap", "raw_gap"] = "none"
    """Adapt the weight so that the gap meets the threshold: α'(α_cql·gap - τ) or α'·α_cql(gap - τ)."""
    lagrange_threshold: float = option(10.0, at_least=-1e6, at_most=1e6)
    """τ of the Lagrange forms."""
    lagrange_initial_log: float = option(0.0, at_least=-100, at_most=13.8)
    """Initial log α'; where α' reaches 1e6, it stays."""
    max_q_backup: Literal["none", "max_min", "min_max"] = "none"
    """Back up the best of N next actions by the smaller critic (max_min), or the smaller of the two maxima."""
    entropy: Literal["automatic", "fixed"] = "automatic"
    """SAC's temperature: tuned to the target entropy -|A|, or held fixed."""
    entropy_weight: float = option(1.0, above=0, at_most=1e6)
    """The temperature if fixed, its initial value if automatic."""
    backup_entropy: bool = False
    """Subtract the next action's entropy cost in the TD target."""
    cloning_updates: int = option(0, at_least=0, at_most=1e9)
    """For this many updates at the start, the actor maximises the likelihood of logged actions instead of Q."""
    policy_log_std: Literal["linear", "scaled"] = "linear"
    """Form of the policy's log standard deviation."""
    critic_initialization: Literal["torch", "orthogonal"] = "torch"
    """Initial weights of the critics."""

    def check(self) -> None:
        if self.gap_minimum > self.gap_maximum:
            raise InputError(
                f"--gap-minimum: found {self.gap_minimum}, expected at most the maximum, {self.gap_maximum}"
            )


class CQL(Algorithm):
    config_type = CQLConfig
    config: CQLConfig
    runs_together_on_cpu = 1  # 31 actions per state fill the cache: stacked runs were 1.3x slower

    def __init__(self, config: CQLConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        actor = GaussianPolicy(stack, "actor", config.hidden, config.policy_log_std, layer_norm=config.actor_layer_norm)
        critic = Critic(
            stack,
            "critic",
            config.hidden,
            layer_norm=plugins.critic_layer_norm,
            initialization=config.critic_initialization,
        )
        temperature, multiplier = math.log(config.entropy_weight), config.lagrange_initial_log
        self.actor = self.learner("actor", actor, config.actor_lr)
        self.critic, self.target_critic = self.learner_with_target("critic", critic, config.critic_lr, config.tau)
        self.temperature = self.learner("temperature", LogScalar(stack, temperature), config.actor_lr)
        self.multiplier = self.learner("multiplier", LogScalar(stack, multiplier), config.critic_lr)

    def clones(self, step: int) -> bool:
        return step <= self.config.cloning_updates

    def phase(self, step: int) -> Hashable:
        return self.clones(step)

    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        # actor: α log π(ã|s) - min Q(s, ã), or cloning first
        alpha = self.temperature.log.detach().exp()
        policy: TanhGaussian = self.trained_policy(actor_batch.observations)
        actions, log_prob = policy.sample(self.streams.normal("actor_action", *actor_batch.actions.shape[1:]))
        if self.clones(step):
            value = policy.log_prob(actor_batch.actions).unsqueeze(1)
        else:
            value = self.critic(actor_batch.observations, actions, frozen=True).q
        actor_loss = soft_actor_loss(alpha, log_prob, value)
        term = self.actor_term(actor_batch, actions, log_prob, policy)

        # critics: TD + conservative term, from the policy as it is before this update's actor step
        with torch.no_grad():
            known = actor_batch is batch and not self.config.actor_dropout
            here = policy.detach() if known else self.actor(batch.observations)
            there: TanhGaussian = self.actor(batch.next_observations)
        next_actions, y = self._target(batch, there, alpha)
        drawn, log_density = self._drawn_actions(batch, here, there)
        output, q_drawn = self.critic.at_logged_and_more(batch.observations, batch.actions, drawn)
        td_loss = mean_squared_error(output.q, y.unsqueeze(1), keep=2)  # [R, M]
        gap = self._gap(q_drawn, log_density, output.q)
        conservative, dual_loss = self._conservative_losses(gap)
        penalty = self.critic_penalty(batch, output, next_actions, td_loss)

        self.optimizers["actor"].step((actor_loss, term), self.actor_lr_factor)
        self.optimizers["critic"].step((td_loss, conservative, penalty))
        if self.config.entropy == "automatic":
            excess = (actions.shape[-1] - log_prob.detach()).mean(1)  # -log π - H̄ with H̄ = -|A|
            self.optimizers["temperature"].step(self.temperature.log * excess)
        if self.config.lagrange != "none":
            self.optimizers["multiplier"].step(dual_loss)
        self.move_targets()

        metrics = {"critic_loss": td_loss.sum(1), "cql_gap": gap.mean(1), "q": output.q.mean((1, 2))}
        return metrics | {"actor_loss": actor_loss, "entropy": -log_prob.mean(1), "entropy_weight": alpha}

    @torch.no_grad()
    def regression_target(self, batch: Batch) -> Tensor:
        return self._target(batch, self.actor(batch.next_observations), self.temperature.log.exp())[1]

    @torch.no_grad()
    def _target(self, batch: Batch, next_policy: TanhGaussian, alpha: Tensor) -> tuple[Tensor, Tensor]:
        """The backup actions [R, B, a] and the TD target y [R, B]."""
        config = self.config
        rows, width = batch.actions.shape[1:]
        if config.max_q_backup == "none":
            actions, log_prob = next_policy.sample(self.streams.normal("backup_action", rows, width))
            next_q = self.target_critic(batch.next_observations, actions).q  # [R, M, B]
        else:
            noise = self.streams.normal("backup_action", rows, config.cql_actions, width)
            many, many_log_prob = next_policy.sample(noise)
            q = self.target_critic(batch.next_observations, many).q  # [R, M, B, N]
            smaller, best = q.amin(1).max(-1)
            next_q = smaller.unsqueeze(1) if config.max_q_backup == "max_min" else q.amax(-1)
            actions = many.gather(2, best[..., None, None].expand(-1, -1, 1, width)).squeeze(2)
            log_prob = many_log_prob.gather(2, best.unsqueeze(2)).squeeze(2)
        if config.backup_entropy:
            next_q = next_q - (alpha.unsqueeze(1) * log_prob).unsqueeze(1)
        return actions, clipped_target(batch, config.discount, next_q)

    @torch.no_grad()
    def _drawn_actions(self, batch: Batch, policy: TanhGaussian, next_policy: TanhGaussian) -> tuple[Tensor, Tensor]:
        """N actions each of the uniform, π(s) and π(s') distributions [R, B, 3N, a], and their log-densities."""
        count, (rows, width) = self.config.cql_actions, batch.actions.shape[1:]
        uniform = self.streams.uniform("cql_uniform", rows, count, width)
        noise = self.streams.normal("cql_action", rows, count, width)
        next_noise = self.streams.normal("cql_next_action", rows, count, width)  # of actions that are evaluated at s
        return uniform_and_sampled(uniform, policy, noise, next_policy, next_noise)

    def _gap(self, q: Tensor, log_density: Tensor, q_data: Tensor) -> Tensor:
        """Per critic: soft maximum of Q(s, ·) minus Q(s, a), averaged over states, [R, M]. q: [R, M, B, 3N]."""
        config, count = self.config, self.config.cql_actions
        unclipped = math.isinf(config.gap_minimum) and math.isinf(config.gap_maximum)
        if config.importance_sampling and config.lse_group == 30 and config.cql_temperature == 1 and unclipped:
            return soft_maximum_gap(q, log_density, q_data)
        if config.importance_sampling:
            q = q - log_density.unsqueeze(1)
        if config.lse_group == 3:
            q = q.unflatten(3, (3, count)).transpose(3, 4)  # one action of each kind per group, [R, M, B, N, 3]
        if not config.importance_sampling:
            logged = q_data.unsqueeze(3) if q.dim() == 4 else q_data[..., None, None]
            q = torch.cat([q, logged.expand(*q.shape[:-1], 1)], dim=-1)
        soft_maximum = config.cql_temperature * (q / config.cql_temperature).logsumexp(-1)
        soft_maximum = soft_maximum.mean(3) if config.lse_group == 3 else soft_maximum  # [R, M, B]
        gap = soft_maximum - q_data
        return (gap if unclipped else gap.clamp(config.gap_minimum, config.gap_maximum)).mean(2)

    def _conservative_losses(self, gap: Tensor) -> tuple[Tensor, Tensor]:
        """The critics' term [R, M] and the multiplier's loss [R]."""
        config = self.config
        weight = per_row(config.cql_weight)
        if config.lagrange == "none":
            return weight * gap, torch.zeros_like(self.multiplier.log)
        multiplier = self.multiplier.log.exp().clamp(0, LAGRANGE_MAXIMUM).unsqueeze(1)
        if config.lagrange == "weighted_gap":
            excess = weight * gap - config.lagrange_threshold
        else:
            excess = weight * (gap - config.lagrange_threshold)
        return multiplier.detach() * excess, -0.5 * (multiplier * excess.detach()).sum(1)
