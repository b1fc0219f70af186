"""Behaviour cloning: regress logged actions on states."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from c4rl.algorithms.algorithm import EVERY_TASK, Algorithm, AlgorithmConfig, Metrics, Published
from c4rl.algorithms.losses import mean_squared_error
from c4rl.core.buffer import Batch
from c4rl.core.networks import Stack
from c4rl.core.optimizers import FlatAdam
from c4rl.core.options import option
from c4rl.core.policies import DeterministicPolicy, GaussianPolicy
from c4rl.core.random import Streams
from c4rl.data.dataset import Dataset
from c4rl.data.subsets import top_fraction
from c4rl.plugins.seams import Plugins


@dataclass(frozen=True)
class BCConfig(AlgorithmConfig):
    stackable: ClassVar[frozenset[str]] = frozenset({"actor_lr"})

    loss: Literal["mse", "likelihood"] = "mse"
    """Squared error of a deterministic policy, or the negative log-likelihood of a tanh-Gaussian one."""
    top_fraction: float = option(1.0, above=0, at_most=1, chooses_rows=True)
    """Clone only this fraction of the trajectories, the best by discounted return (0.1 is "10% BC")."""


class BC(Algorithm):
    config_type = BCConfig
    has_critic = False
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            EVERY_TASK,
            "CORL (corl-team/CORL at eeeeef2), any_percent_bc.py; ours: the same for ant and kitchen, which it lacks",
            {
                "hidden_layers": 2,
                "hidden_width": 256,
                "batch_size": 256,
                "actor_lr": 3e-4,
                "loss": "mse",
                "top_fraction": 1.0,
            },
            {"updates": 1_000_000, "normalize_observations": True},
        ),
        Published(("antmaze-*", "maze2d-*"), "CORL: episodes per evaluation", {}, {"eval_episodes": 100}),
    )

    @classmethod
    def select_rows(cls, config: BCConfig, dataset: Dataset) -> Dataset:
        return dataset if config.top_fraction == 1 else top_fraction(dataset, config.top_fraction, discount=0.99)

    def __init__(self, config: BCConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        self.config = config
        kind = DeterministicPolicy if config.loss == "mse" else GaussianPolicy
        self.actor = kind(stack, "actor", config.hidden)
        self.networks = {"actor": self.actor}
        self.optimizers = {"actor": FlatAdam(self.actor, config.actor_lr)}

    def update(self, batch: Batch, step: int) -> Metrics:
        if isinstance(self.actor, DeterministicPolicy):
            loss = mean_squared_error(self.actor(batch.observations), batch.actions)
        else:
            loss = -self.actor(batch.observations).log_prob(batch.actions).mean(1)
        self.optimizers["actor"].step(loss)
        return {"actor_loss": loss.detach()}
