"""The divergence as an actor term: weight · D(π, ν_z), everywhere or only where the data does not reach."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.networks import Critic, Stack
from c4rl.core.options import Options, option
from c4rl.core.random import Streams
from c4rl.plugins.c4.behaviour_model import BehaviourModel
from c4rl.plugins.c4.clustering import Clustering
from c4rl.plugins.c4.divergences import (
    SEVERAL,
    BehaviourSamples,
    Divergence,
    PolicySamples,
    check_order,
    divergence_term,
)
from c4rl.plugins.c4.feature_gradients import feature_gradients
from c4rl.plugins.seams import ActorStep, Host


@dataclass(frozen=True)
class DivergenceConfig(Options):
    divergence: Divergence = "kl_data"
    """Divergence between the policy and the behaviour model; kl_data is the likelihood of logged actions. chi_square
    may overflow; renyi with --divergence-alpha 2, which is log(1 + chi_square), does not."""
    divergence_weight: float = option(0.0, at_least=0, at_most=1e6)
    """Weight in the actor's loss; 0: no divergence term."""
    divergence_against: Literal["cluster", "mixture"] = "cluster"
    """Behaviour model: that of the batch's own cluster (the paper's per-cluster objective), or the mixture of all. An
    actor's batch from all clusters (--sampler uniform, --actor-rows uniform, rows chosen by the plug-in returns) is
    compared with the mixture."""
    divergence_gate: float | None = option(None, above=0, below=1)
    """Apply the divergence only where the mixture's likelihood of g at (s, π(s)) is below this quantile of the batch's
    own; None: everywhere."""
    divergence_alpha: float = option(0.5, above=0, at_most=100)
    """Order of the Renyi divergence."""
    divergence_samples: int = option(4, at_least=2, at_most=1000)
    """Actions per state that renyi and mmd draw from a stochastic policy; few pull renyi towards kl."""

    def check(self) -> None:
        super().check()
        if self.divergence == "renyi":
            check_order(self.divergence_alpha)


class DivergenceTerm:
    def __init__(
        self,
        config: DivergenceConfig,
        stack: Stack,
        algorithm: Host,
        clustering: Clustering,
        buffer: TransitionBuffer,
        single_cluster: bool,
    ) -> None:
        """single_cluster: whether the actor's batch comes from one cluster, `clustering.cluster`."""
        self.config, self.clustering, self.buffer = config, clustering, buffer
        self.critic_inputs = algorithm.critic_inputs
        self.own_cluster = single_cluster and config.divergence_against == "cluster"
        sizes = stack.runs, clustering.clusters, stack.observation_dim, stack.action_dim
        self.behaviour = BehaviourModel(*sizes, device=stack.device, dtype=stack.dtype)
        # of g alone, for the gate; written in place
        self.marginal = clustering.mixture.marginal() if clustering.mixture and config.divergence_gate else None

    @torch.no_grad()
    def refresh(self) -> None:
        """Refit ν_z on the clusters' rows, and take up the mixture's marginal."""
        clustering = self.clustering
        assert clustering.responsibilities is not None and clustering.mixture is not None
        if self.marginal is not None:
            for kept, new in zip(self.marginal, clustering.mixture.marginal(), strict=True):
                kept.copy_(new)
        batch = self.buffer.gather(clustering.tables.pool_rows(clustering.last_index))
        weights = clustering.responsibilities
        if (row_weights := self.buffer.row_weights) is not None:
            assert batch.rows is not None
            weights = weights * row_weights.gather(1, batch.rows - self.buffer.offsets.unsqueeze(1)).unsqueeze(2)
        self.behaviour.fit(batch.observations, batch.actions, weights.to(batch.actions.dtype))

    def __call__(self, step: ActorStep, streams: Streams) -> Tensor:
        """[R]: weight · mean over the batch of gate · D(π(·|s), ν(·|s))."""
        config, batch = self.config, step.batch
        actions, log_prob = step.actions.unsqueeze(2), step.log_prob
        log_prob = log_prob.unsqueeze(2) if log_prob is not None else None
        if config.divergence in SEVERAL and step.distribution is not None:
            shape = (*step.actions.shape[1:2], config.divergence_samples, step.actions.shape[2])
            actions, log_prob = step.distribution.sample(streams.normal(f"c4/{config.divergence}", *shape))
        at_data = step.distribution.log_prob(batch.actions) if step.distribution is not None else None
        divergence = divergence_term(
            config.divergence,
            PolicySamples(actions, log_prob, at_data),
            BehaviourSamples(batch.actions, lambda a: self._log_behaviour(batch.observations, a)),
            alpha=config.divergence_alpha,
        )  # [R, B]
        if config.divergence_gate is not None:
            divergence = divergence * self.gate(step)
        return config.divergence_weight * divergence.mean(1)

    def _log_behaviour(self, observations: Tensor, actions: Tensor) -> Tensor:
        if self.own_cluster:
            return self.behaviour.log_prob_cluster(observations, actions, self.clustering.cluster)
        return self.behaviour.log_prob_mixture(observations, actions)

    def gate(self, step: ActorStep) -> Tensor:
        """Where the policy leaves the data, [R, B]."""
        assert step.critic is not None
        pairs = torch.cat([step.batch.observations, step.actions], dim=2)
        return self.open_at(step.critic, pairs, step.batch.state_actions)

    @torch.no_grad()
    def open_at(self, critic: Critic, pairs: Tensor, data: Tensor) -> Tensor:
        """1 where g at `pairs` [R, B, s + a] is less likely than the q-quantile it has at `data`, else 0; [R, B].

        The data are those of the batch at hand: a threshold kept from the last refresh goes stale as the features move
        (199 updates later it was open on 59 to 99% of the data instead of 10%).
        """
        assert self.config.divergence_gate is not None
        threshold = self.likelihood(critic, data).quantile(self.config.divergence_gate, dim=1, keepdim=True)
        return (self.likelihood(critic, pairs) < threshold).to(pairs.dtype)

    def likelihood(self, critic: Critic, pairs: Tensor) -> Tensor:
        """log p(g) of pairs [R, B, s + a] under the mixture's marginal of g, [R, B]."""
        clustering = self.clustering
        assert self.marginal is not None
        g = feature_gradients(clustering.config.mode, critic, self.critic_inputs(pairs), slice(1))[:, 0]
        if clustering.projections:
            g = clustering.projections[1](g)
        return self.marginal.log_prob(g)

    def state(self) -> dict[str, Tensor]:
        model = self.behaviour
        parts = {"weight": model.weight, "bias": model.bias, "log_std": model.log_std, "log_p": model.log_p}
        marginal = self.marginal._asdict() if self.marginal is not None else {}
        return {
            f"{owner}.{name}": t
            for owner, own in (("behaviour", parts), ("marginal", marginal))
            for name, t in own.items()
        }
