"""Behaviour cloning: regress logged actions on states."""

from dataclasses import dataclass
from typing import Any, Literal

from c4rl.algorithms.algorithm import Algorithm, AlgorithmConfig, Metrics
from c4rl.algorithms.losses import mean_squared_error
from c4rl.core.buffer import Batch
from c4rl.core.networks import Stack
from c4rl.core.options import option
from c4rl.core.policies import DeterministicPolicy, GaussianPolicy
from c4rl.core.random import Streams
from c4rl.data.dataset import Dataset
from c4rl.data.subsets import top_fraction
from c4rl.plugins.seams import Plugins


@dataclass(frozen=True)
class BCConfig(AlgorithmConfig):
    loss: Literal["mse", "likelihood"] = "mse"
    """Squared error of a deterministic policy, or the negative log-likelihood of a tanh-Gaussian one."""
    top_fraction: float = option(1.0, above=0, at_most=1, chooses_rows=True)
    """Clone only this fraction of the trajectories, the best by discounted return (0.1 is "10% BC")."""


class BC(Algorithm):
    config_type = BCConfig
    has_critic = False
    config: BCConfig

    def __init__(self, config: BCConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        kind = DeterministicPolicy if config.loss == "mse" else GaussianPolicy
        actor = kind(stack, "actor", config.hidden, layer_norm=config.actor_layer_norm)
        self.actor = self.learner("actor", actor, config.actor_lr)

    @classmethod
    def policy_has_density(cls, config: Any) -> bool:
        return config.loss == "likelihood"

    @classmethod
    def select_rows(cls, config: Any, dataset: Dataset) -> Dataset:
        return top_fraction(dataset, config.top_fraction, discount=0.99) if config.top_fraction != 1 else dataset

    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        policy = self.trained_policy(actor_batch.observations)
        if self.config.loss == "mse":
            loss = mean_squared_error(policy, actor_batch.actions)
            term = self.actor_term(actor_batch, policy)
        else:
            loss = -policy.log_prob(actor_batch.actions).mean(1)
            term = self.actor_term(actor_batch, *self.drawn_actions(policy, actor_batch), policy)
        self.optimizers["actor"].step((loss, term), self.actor_lr_factor)
        return {"actor_loss": loss}
