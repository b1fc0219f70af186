"""What every algorithm is: typed options, one `update` that reads as pseudocode, and a policy."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import dataclass, field
from fnmatch import fnmatch
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from c4rl.algorithms.losses import clipped_target
from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.networks import Critic, Stack
from c4rl.core.optimizers import FlatAdam
from c4rl.core.options import Options, PerRun, option
from c4rl.core.policies import Policy
from c4rl.core.random import Streams
from c4rl.data.dataset import Dataset
from c4rl.plugins.seams import Plugins, module_state

Metrics = dict[str, Tensor]  # [R] each


class Stage(NamedTuple):
    """A stretch of updates of one kind; most algorithms have one stage."""

    name: str
    updates: int
    batch_size: int
    plugged: bool = True  # plug-ins choose the rows, add their terms and are refreshed
    evaluated: bool = True  # there is a policy worth looking at


# patterns of task names, for `Published`
LOCOMOTION = ("halfcheetah-*", "hopper-*", "walker2d-*", "ant-*")
ADROIT = ("pen-*", "hammer-*", "door-*", "relocate-*")
EVERY_TASK = (*LOCOMOTION, "antmaze-*", "maze2d-*", *ADROIT, "kitchen-*")


@dataclass(frozen=True)
class Published:
    """Settings from an algorithm's own publication for the tasks whose names match."""

    tasks: tuple[str, ...]  # patterns, as "antmaze-*"
    source: str
    options: dict[str, Any]  # of the algorithm
    training: dict[str, Any] = field(default_factory=dict)  # fields of TrainConfig


@dataclass(frozen=True)
class AlgorithmConfig(Options):
    """Options that every algorithm has. Defaults are the paper's."""

    # options that may differ between the runs of one launch: there they are tensors [R]. Each class speaks for itself
    stackable: ClassVar[frozenset[str]] = frozenset()

    hidden_layers: int = option(4, at_least=1, at_most=100)
    """Hidden layers of every network."""
    hidden_width: int = option(256, at_least=1, at_most=100_000)
    """Units per hidden layer."""
    actor_lr: PerRun = option(1e-4, above=0, at_most=1)
    """Adam's step size for the policy."""
    batch_size: int = option(256, at_least=2, at_most=10**6)
    """Rows per update and run."""

    @property
    def hidden(self) -> tuple[int, ...]:
        return (self.hidden_width,) * self.hidden_layers


@dataclass(frozen=True)
class CriticConfig(AlgorithmConfig):
    """Options of every algorithm with a critic."""

    critic_lr: PerRun = option(3e-4, above=0, at_most=1)
    """Adam's step size for the critics."""
    discount: PerRun = option(0.99, at_least=0, at_most=1)
    """γ."""
    tau: PerRun = option(0.005, above=0, at_most=1)
    """Polyak's step: targets move this far towards the online networks."""


class Algorithm(ABC):
    """R runs of one algorithm. Subclasses fill `networks` and `optimizers` and define `update`."""

    config_type: ClassVar[type[AlgorithmConfig]]
    has_critic: ClassVar[bool] = True
    has_density: ClassVar[bool] = True  # whether the policy is a distribution with log-probabilities
    has_actor_term: ClassVar[bool] = True  # whether plug-ins may add to the actor's loss
    runs_together_on_cpu: ClassVar[int] = 8  # as many runs as one launch serves best there
    published: ClassVar[tuple[Published, ...]] = ()  # for --preset published; where several match, later ones win
    actor: Policy
    config: Any
    discount: PerRun = 0.99

    def __init__(self, config: Any, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        self.stack, self.streams, self.plugins = stack, streams, plugins
        self.stages = self.plan(config, stack.updates)
        self.networks: dict[str, nn.Module] = {}
        self.optimizers: dict[str, FlatAdam] = {}

    @classmethod
    def published_for(cls, task: str) -> list[Published]:
        """The published settings that name this task (with its version), in order: later ones win."""
        return [p for p in cls.published if any(fnmatch(task, pattern) for pattern in p.tasks)]

    @classmethod
    def policy_has_density(cls, config: Any) -> bool:
        """Whether, with these options, the policy is a distribution with log-probabilities."""
        return cls.has_density

    @classmethod
    def check(cls, config: Any, task: str) -> None:
        """Refuse options that make no sense, before any work is done."""

    @classmethod
    def select_rows(cls, config: Any, dataset: Dataset) -> Dataset:
        """The rows to train on, by options that say `chooses_rows`."""
        return dataset

    @classmethod
    def plan(cls, config: Any, updates: int) -> tuple[Stage, ...]:
        """The stages of a job of `updates` critic updates, in order; updates are numbered through all of them."""
        return (Stage("training", updates, config.batch_size),)

    @classmethod
    def launch_key(cls, config: Any, rows: int, data: int) -> Hashable:
        """Of a run on dataset number `data` of the job, of this many rows: runs of equal keys may share a launch.

        An algorithm that looks at more than batches says itself how far its datasets may differ.
        """
        return data if cls.attach is not Algorithm.attach else 0

    def attach(self, buffer: TransitionBuffer) -> None:
        """Called once, before the first update, for algorithms that look at more than batches."""

    @abstractmethod
    def update(self, batch: Batch, step: int) -> Metrics:
        """Update number `step` (from 1) on one batch."""

    def after_update(self, step: int) -> Metrics:
        """After update `step` and outside of any captured graph: what a stage's end or a period calls for.

        Writes in place into tensors of `state()`. Returns what is to be logged.
        """
        return {}

    def stage_at(self, step: int) -> tuple[int, int]:
        """Update `step` (from 1) -> which stage, and which update of it (from 1). Beyond the end: the last stage."""
        for index, stage in enumerate(self.stages[:-1]):
            if step <= stage.updates:
                return index, step
            step -= stage.updates
        return len(self.stages) - 1, step

    def phase(self, step: int) -> Hashable:
        """Updates of equal phase run the same operations (so that one captured graph serves them all)."""
        return self.stage_at(step)[0]

    def asks_environment(self, step: int) -> bool:
        """Whether update `step` is followed by episodes in the simulator whose scores the algorithm decides by."""
        return False

    def receive_scores(self, scores: Tensor) -> None:
        """The mean score of every run's policy [R], where `asks_environment`."""

    def policy_layers(self) -> tuple[list[Tensor], list[Tensor]]:
        """Weights [R, in, out] and biases [R, out] of the MLP f whose tanh(f(s)) is the evaluation policy."""
        mlp, a = self.actor.mlp, self.stack.action_dim
        weights, biases = [w[:, 0] for w in mlp.weights], [b[:, 0] for b in mlp.biases]
        weights[-1], biases[-1] = weights[-1][..., :a], biases[-1][..., :a]  # of a Gaussian: the mean alone
        return weights, biases

    @property
    def critics(self) -> tuple[Critic, Critic] | None:
        """The critic and its target, where there is one."""
        if not self.has_critic:
            return None
        critic, target = self.networks["critic"], self.networks["target_critic"]
        assert isinstance(critic, Critic) and isinstance(target, Critic)
        return critic, target

    def critic_inputs(self, state_actions: Tensor) -> Tensor:
        """What the critic is given for rows [s, a], [R, B, s + a]: themselves, or their place in a latent space."""
        return state_actions

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The evaluation policy on normalised observations [R, B, s] -> [R, B, a] in [-1, 1]."""
        out = self.actor(observations)
        return out if isinstance(out, Tensor) else torch.tanh(out.mean)

    def temporal_difference(self, batch: Batch) -> Tensor | None:
        """TD errors r + γQ̄(s', π(s')) - Q(s, a) of the evaluation policy, [R, M, B]; None without a critic."""
        if self.critics is None:
            return None
        critic, target = self.critics
        with torch.no_grad():
            next_pairs = torch.cat([batch.next_observations, self.act(batch.next_observations)], dim=2)
            y = clipped_target(batch, self.discount, target.at(self.critic_inputs(next_pairs)).q)
            return y.unsqueeze(1) - critic.at(self.critic_inputs(batch.state_actions)).q

    def state(self) -> dict[str, Tensor]:
        """Every tensor that training changes, live."""
        out = module_state(self.networks)
        for name, optimizer in self.optimizers.items():
            out |= {f"optimizer.{name}/{key}": tensor for key, tensor in optimizer.state().items()}
        return out
