"""C4 as a plug-in (Algorithm 1): single-cluster batches, the cross-covariance penalty, and a divergence term."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.plugins.c4.authors import AuthorsConfig, AuthorsRelease
from c4rl.plugins.c4.clustering import Clustering, ClusteringConfig, launch_key
from c4rl.plugins.c4.cross_covariance import PenaltyConfig, WeightedPenalty
from c4rl.plugins.c4.divergence_term import DivergenceConfig, DivergenceTerm
from c4rl.plugins.c4.divergences import check_divergence
from c4rl.plugins.c4.feature_gradients import Mode, feature_gradients, online_feature_gradients
from c4rl.plugins.c4.padding import padded, unpadded
from c4rl.plugins.seams import ActorStep, CriticStep, Host, Plugin, Sampler


@dataclass(frozen=True)
class C4Config(ClusteringConfig, PenaltyConfig, DivergenceConfig, AuthorsConfig):
    mode: Mode = "exact"
    """Gradients of Q with respect to its input (exact; scores more), or penultimate features (proxy, cheaper; as the
    paper runs it)."""
    actor_rows: Literal["cluster", "uniform"] = "uniform"
    """Rows of the actor's batch. uniform: its own, from all the data (scores more); cluster: the critics', from one
    cluster (as in the paper's section on clustered buffers, and in --preset paper). The plug-in returns chooses them
    instead, unless --weighted-rows is all."""

    def check(self) -> None:
        super().check()
        if self.trajectory_tails and self.sampler != "hard":
            raise InputError(f"--trajectory-tails: found --sampler {self.sampler}, expected --sampler hard")


class C4(Plugin):
    """Clustered cross-covariance control for any algorithm with a critic."""

    needs_critic: ClassVar[bool] = True
    monitored: ClassVar[bool] = True

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
        self.authors = AuthorsRelease(config, buffer, stack.dtype)
        self.clustering = Clustering(
            config,
            stack.seeds,
            buffer.offsets.tolist(),
            buffer.lengths.tolist(),
            stack.device,
            authors=self.authors,
            row_weights=lambda: buffer.row_weights,
        )
        assert algorithm.critics is not None
        weights = algorithm.critics[0].mlp.weights
        self.clustering.make_room(weights[0 if config.mode == "exact" else -1].shape[2], stack.dtype)
        self.penalty = WeightedPenalty(config, stack.runs, stack.device, stack.dtype)
        self.divergence = None
        if config.divergence_weight:
            clustered = config.sampler != "uniform" and config.actor_rows == "cluster"
            single_cluster = clustered and not algorithm.plugins.choose_actor_rows
            self.divergence = DivergenceTerm(config, stack, algorithm, self.clustering, buffer, single_cluster)
        # λR of the last update, summed over the critics, and its ratio to the TD loss, [R]
        self._penalty, self._share = torch.zeros(2, stack.runs, device=stack.device, dtype=stack.dtype)

    def start(self, algorithm: Host) -> None:
        self.refresh(algorithm, 0)

    # -- Algorithm 1: every `period` updates the E- and M-steps,

    def refresh(self, algorithm: Host, step: int) -> dict[str, Tensor]:
        """Fit the mixture to y = [g', g] of the first critic."""
        assert algorithm.critics is not None
        critic, target = algorithm.critics
        if step > 0:
            self.authors.before_clustering(critic)
        next_critic = target if self.config.next_features == "target" else critic

        def gradients(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            batch = self.authors.clustered(self.buffer.gather(rows))
            pairs, next_pairs = map(algorithm.critic_inputs, (batch.state_actions, batch.next_state_actions))
            g_next = feature_gradients(self.config.mode, next_critic, next_pairs, slice(1))[:, 0]
            g = feature_gradients(self.config.mode, critic, pairs, slice(1))[:, 0]
            return g_next, g, batch.next_valid > 0

        report = self.clustering.refresh(gradients, self.streams, step)
        if self.divergence is not None:
            self.divergence.refresh()
        return report

    # -- then each update z ~ Cat(p) and rows ~ r_iz,

    def sampler(self) -> Sampler | None:
        return self.clustering if self.config.sampler != "uniform" else None

    def actor_sampler(self) -> Sampler | None:
        own = self.config.actor_rows == "uniform" and self.config.sampler != "uniform"
        return self.buffer.sampler("c4/actor_rows") if own else None

    # -- and λR of C = Cov_B(g', g) in each critic's loss.

    def critic_penalty(self, step: CriticStep) -> Tensor | None:
        if self.penalty.is_zero:
            return None
        batch = self.authors.penalised(step.batch)
        g = online_feature_gradients(self.config.mode, step.critic, step.output, batch.state_actions)
        g_next = feature_gradients(self.config.mode, step.target, batch.next_state_actions)
        weighted = self.penalty(g_next, g, batch.next_valid, step.td_loss)  # [R, M]
        torch.sum(weighted.detach(), 1, out=self._penalty)
        torch.div(self._penalty, step.td_loss.detach().sum(1).clamp_min(1e-12), out=self._share)
        return weighted

    # -- Clustered buffers: the divergence in the actor's loss

    @property
    def has_actor_term(self) -> bool:
        return self.divergence is not None

    def actor_term(self, step: ActorStep) -> Tensor | None:
        return self.divergence(step, self.streams) if self.divergence is not None else None

    # -- bookkeeping

    @property
    def static_refresh(self) -> bool:
        return self.divergence is None and self.clustering.static_refresh

    def metrics(self) -> dict[str, Tensor]:
        return {"c4_penalty": self._penalty, "c4_penalty_to_td": self._share}

    def failures(self) -> dict[int, tuple[int, str]]:
        return self.clustering.failures()

    def state(self) -> dict[str, Tensor]:
        out = {"averages": self.penalty.averages, "penalty": self._penalty, "share": self._share}
        out |= {"next_actions_kept": self.authors.next_actions_kept, **self.clustering.state()}
        return out | (self.divergence.state() if self.divergence is not None else {})

    def unpadded(self, name: str, tensor: Tensor, run: int) -> Tensor:
        return unpadded(name, tensor, *self.clustering.extents(run))

    def padded(self, name: str, own: Tensor, run: int) -> Tensor:
        return padded(name, own, *self.clustering.extents(run))
