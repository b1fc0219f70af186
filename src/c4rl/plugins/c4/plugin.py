"""C4 as a plug-in: single-cluster batches + cross-covariance penalty + divergence term (Algorithm 1)."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic, per_row
from c4rl.core.options import PerRun
from c4rl.plugins.c4.clustering import Clustering, ClusteringConfig, launch_key
from c4rl.plugins.c4.cross_covariance import Estimator, Scale, automatic_weight, penalty
from c4rl.plugins.c4.divergence_term import DivergenceConfig, DivergenceTerm
from c4rl.plugins.c4.divergences import check_divergence
from c4rl.plugins.c4.feature_gradients import feature_gradients, online_feature_gradients
from c4rl.plugins.c4.padding import padded, unpadded
from c4rl.plugins.seams import ActorStep, CriticStep, Host, Plugin, Sampler


@dataclass(frozen=True)
class C4Config(ClusteringConfig, DivergenceConfig):
    lambda_: PerRun | Literal["auto"] = 0.3
    """Weight of the cross-covariance penalty; auto holds it at --lambda-fraction of the TD loss."""
    lambda_fraction: PerRun = 0.1
    """With --lambda auto: the size of lambda R against the TD loss; large ones crush the critic (docs/c4.md)."""
    beta: PerRun = 1.0
    """Weight of (tr C)^2 beside ||C||_F^2."""
    estimator: Estimator = "plugin"
    """Of the penalty: the paper's, the unbiased one, or the authors' uncentred dot product."""
    scale: Scale = "raw"
    """The paper's sum over all m^2 entries of C, or that divided by m."""
    zero_next_actions: bool = False
    """Authors' release: from the second refresh on, the penalty sees a' = 0."""
    mask_invalid: bool = True
    """Leave rows without a valid next action out of the penalty and of the mixture's fit (the authors' release keeps
    them)."""

    def __post_init__(self) -> None:
        if any(isinstance(value, Tensor) for value in vars(self).values()):
            return

        def require(flag: str, holds: bool, found: object, expected: str) -> None:
            if not holds:
                raise InputError(f"--{flag}: found {found}, expected {expected}")

        require("K", self.K >= 1, self.K, "1 or more clusters")
        require("period", self.period >= 1, self.period, "1 or more updates")
        require("em-steps", self.em_steps >= 1, self.em_steps, "1 or more")
        require("pool", self.pool >= 2, self.pool, "2 or more rows")
        tails = f"--sampler {self.sampler} beside it"
        require("trajectory-tails", self.sampler == "hard" or not self.trajectory_tails, tails, "--sampler hard")
        require("directions", self.directions is None or self.directions >= 1, self.directions, "1 or more, or None")
        if isinstance(self.lambda_, str):
            require("lambda", self.lambda_ == "auto", self.lambda_, "a number of 0 or more, or auto")
        else:
            require("lambda", self.lambda_ >= 0, self.lambda_, "a number of 0 or more, or auto")
        require("beta", self.beta >= 0, self.beta, "0 or more")
        require("divergence-weight", self.divergence_weight >= 0, self.divergence_weight, "0 or more")
        gate = self.divergence_gate
        require("divergence-gate", gate is None or 0 < gate < 1, gate, "a quantile between 0 and 1, or None")


class C4(Plugin):
    """Clustered cross-covariance control for any algorithm with a critic."""

    monitored = True

    def __init__(self, config: C4Config) -> None:
        self.config = config
        self.period = config.period

    @classmethod
    def check(cls, options: C4Config, algorithm: type[Host], algorithm_options: Any) -> None:
        if options.divergence_weight:
            if not algorithm.has_actor_term:
                raise InputError(
                    f"--divergence-weight: found {options.divergence_weight}, expected 0: {algorithm.__name__} has no "
                    "actor's loss to add a divergence to"
                )
            check_divergence(options.divergence, deterministic=not algorithm.policy_has_density(algorithm_options))

    @classmethod
    def launch_key(cls, options: C4Config, rows: int, data: int) -> Hashable:
        return launch_key(options, rows)

    def attach(self, algorithm: Host, buffer: TransitionBuffer) -> None:
        config, stack = self.config, algorithm.stack
        self.streams, self.buffer = algorithm.streams, buffer
        offsets, lengths = buffer.offsets.tolist(), buffer.lengths.tolist()
        self.clustering = Clustering(
            config,
            stack.seeds,
            offsets,
            lengths,
            stack.device,
            state_actions=lambda rows: buffer.gather(rows).state_actions,
            trajectory_ids=buffer.trajectory_ids,
        )
        self.divergence = None
        if config.divergence_weight:
            self.divergence = DivergenceTerm(config, stack, algorithm, self.clustering, buffer)

        def zeros(*shape: int) -> Tensor:
            return torch.zeros(stack.runs, *shape, device=stack.device, dtype=stack.dtype)

        self._averages = zeros(2)  # of the TD loss and of |R|, for --lambda auto
        self._penalty, self._share = zeros(), zeros()  # of the last update
        self._next_actions_kept = zeros() + 1  # 0 once a' is lost, as in the authors' release
        self._refresh_clusters(algorithm, 0)

    # -- the seams

    def sampler(self) -> Sampler | None:
        return self.clustering if self.config.sampler != "uniform" else None

    def critic_penalty(self, step: CriticStep) -> Tensor | None:
        config = self.config
        if not isinstance(config.lambda_, Tensor) and config.lambda_ == 0:
            return None
        batch = step.batch
        g = online_feature_gradients(config.mode, step.critic, step.output, batch.state_actions)
        g_next = feature_gradients(config.mode, step.target, self._next_pairs(batch.next_state_actions))
        valid = self._valid(batch).unsqueeze(1)
        beta = per_row(config.beta)
        size = penalty(g_next, g, valid, beta=beta, estimator=config.estimator, scale=config.scale)  # [R, M]
        td_loss = step.td_loss.detach()
        if isinstance(config.lambda_, str):
            mean = size.detach().mean(1)
            weight = automatic_weight(mean, td_loss.mean(1), config.lambda_fraction, self._averages.T).unsqueeze(1)
            weighted = weight * size
        else:
            weighted = per_row(config.lambda_) * size
        torch.sum(weighted.detach(), 1, out=self._penalty)
        torch.div(self._penalty, td_loss.sum(1).clamp_min(1e-12), out=self._share)
        return weighted

    @property
    def has_actor_term(self) -> bool:
        return self.divergence is not None

    def actor_term(self, step: ActorStep) -> Tensor | None:
        return self.divergence(step, self.streams) if self.divergence is not None else None

    def refresh(self, algorithm: Host, step: int) -> dict[str, Tensor]:
        if self.config.zero_next_actions:
            self._next_actions_kept.zero_()
        if self.config.average_critics:
            assert algorithm.critics is not None
            _average_members(algorithm.critics[0])
        return self._refresh_clusters(algorithm, step)

    @property
    def static_refresh(self) -> bool:
        return self.divergence is None and self.clustering.static_refresh

    def metrics(self) -> dict[str, Tensor]:
        return {"c4_penalty": self._penalty, "c4_penalty_to_td": self._share}

    def failures(self) -> dict[int, tuple[int, str]]:
        return self.clustering.failures()

    def state(self) -> dict[str, Tensor]:
        out = {"averages": self._averages, "penalty": self._penalty, "share": self._share}
        out |= {"next_actions_kept": self._next_actions_kept, **self.clustering.state()}
        return out | (self.divergence.state() if self.divergence is not None else {})

    def unpadded(self, name: str, tensor: Tensor, run: int) -> Tensor:
        return unpadded(name, tensor, *self.clustering.extents(run))

    def padded(self, name: str, own: Tensor, run: int) -> Tensor:
        return padded(name, own, *self.clustering.extents(run))

    # --

    def _refresh_clusters(self, algorithm: Host, step: int) -> dict[str, Tensor]:
        assert algorithm.critics is not None
        critic, target = algorithm.critics
        next_critic = target if self.config.next_features == "target" else critic
        mode, first = self.config.mode, slice(1)  # one mixture per run, on the first critic's gradients

        def gradients(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            batch = self.buffer.gather(rows)
            pairs, next_pairs = map(algorithm.critic_inputs, (batch.state_actions, batch.next_state_actions))
            g_next = feature_gradients(mode, next_critic, next_pairs, first)[:, 0]
            g = feature_gradients(mode, critic, pairs, first)[:, 0]
            return g_next, g, self._valid(batch) > 0

        report = self.clustering.refresh(gradients, self.streams, step)
        if self.divergence is not None:
            self.divergence.refresh()
        return report

    def _valid(self, batch: Batch) -> Tensor:
        return batch.next_valid if self.config.mask_invalid else torch.ones_like(batch.next_valid)

    def _next_pairs(self, pairs: Tensor) -> Tensor:
        if not self.config.zero_next_actions:
            return pairs
        kept = torch.ones_like(pairs)
        kept[..., self.buffer.widths[0] :] = self._next_actions_kept.view(-1, 1, 1)
        return pairs * kept


@torch.no_grad()
def _average_members(critic: Critic) -> None:
    for p in critic.parameters():
        p.copy_(p.mean(1, keepdim=True).expand_as(p).clone())
