"""What every algorithm is: typed options, one `update` that reads as pseudocode, and a policy."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from c4rl.algorithms.losses import clipped_target
from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.networks import Critic, CriticOutput, Stack
from c4rl.core.optimizers import FlatAdam, Polyak
from c4rl.core.options import Options, PerRun, option
from c4rl.core.policies import EvaluatedPolicy, Policy, TanhGaussian
from c4rl.core.random import Streams
from c4rl.data.dataset import Dataset
from c4rl.plugins.seams import ActorStep, CriticStep, Plugins, module_state

Metrics = dict[str, Tensor]  # [R] each
Network = TypeVar("Network", bound=nn.Module)


class Stage(NamedTuple):
    """A stretch of updates of one kind; most algorithms have one stage."""

    name: str
    updates: int
    batch_size: int
    plugged: bool = True  # plug-ins choose the rows, add their terms and are refreshed
    evaluated: bool = True  # there is a policy worth looking at


@dataclass(frozen=True)
class AlgorithmConfig(Options):
    """Options that every algorithm has. Defaults are the paper's."""

    hidden_layers: int = option(4, at_least=1, at_most=100)
    """Hidden layers of every network."""
    hidden_width: int = option(256, at_least=1, at_most=100_000)
    """Units per hidden layer."""
    actor_lr: PerRun = option(1e-4, above=0, at_most=1)
    """Adam's step size for the policy."""
    batch_size: int = option(256, at_least=2, at_most=1_000_000)
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
    tau: PerRun = option(0.005, at_least=0, at_most=1)
    """Polyak's step: targets move this far towards the online networks."""


class Algorithm(ABC):
    """R runs of one algorithm. Subclasses register their networks, say how one update goes and which policy counts."""

    config_type: ClassVar[type[AlgorithmConfig]]
    has_critic: ClassVar[bool] = True
    has_density: ClassVar[bool] = True  # whether the policy is a distribution with log-probabilities
    has_actor_term: ClassVar[bool] = True  # whether plug-ins may add to the actor's loss
    runs_together_on_cpu: ClassVar[int] = 8  # as many runs as one launch serves best there
    remembered: ClassVar[tuple[str, ...]] = ()  # metrics that not every update has: `last` keeps them in between
    actor: Policy

    def __init__(self, config: Any, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        self.config, self.stack, self.streams, self.plugins = config, stack, streams, plugins
        self.stages = self.plan(config, stack.updates)
        self.networks: dict[str, nn.Module] = {}
        self.optimizers: dict[str, FlatAdam] = {}
        self._polyak: list[Polyak] = []
        self._kept: dict[str, Tensor] = {}
        self.last: Metrics = {name: self.kept(name) for name in self.remembered}

    # -- what is trained, and stored with a checkpoint

    def learner(self, name: str, network: Network, lr: PerRun, clip_norm: float | None = None) -> Network:
        """Train the network under this name: `optimizers[name]` is its Adam, checkpoints hold both."""
        self.networks[name] = network
        self.optimizers[name] = FlatAdam(network, lr, clip_norm=clip_norm)
        return network

    def learner_with_target(self, name: str, network: Network, lr: PerRun, tau: PerRun) -> tuple[Network, Network]:
        """The same with a target that `move_targets` moves; the network and its target."""
        target = deepcopy(network)
        self.learner(name, network, lr)
        self._polyak.append(Polyak(self.optimizers[name], target, tau))
        self.networks[f"target_{name}"] = target
        return network, target

    def move_targets(self) -> None:
        for polyak in self._polyak:
            polyak.step()

    def kept(self, name: str, *shape: int, value: float = 0.0) -> Tensor:
        """A tensor [R, *shape] that updates write into in place; checkpoints hold it under this name."""
        stack = self.stack
        self._kept[name] = torch.full((stack.runs, *shape), value, device=stack.device, dtype=stack.dtype)
        return self._kept[name]

    def remember(self, **metrics: Tensor) -> None:
        """Keep `remembered` metrics [R] until the next update that has them."""
        for name, value in metrics.items():
            self.last[name].copy_(value.detach())

    def state(self) -> dict[str, Tensor]:
        """Every tensor that training changes, live."""
        out = module_state(self.networks)
        for name, optimizer in self.optimizers.items():
            out |= {f"optimizer.{name}/{key}": tensor for key, tensor in optimizer.state().items()}
        return out | self._kept

    # -- before training

    @classmethod
    def policy_has_density(cls, config: Any) -> bool:
        """Whether, with these options, the policy is a distribution with log-probabilities."""
        return cls.has_density

    @classmethod
    def check(cls, config: Any, task: str) -> None:
        """Refuse options that make no sense for the task, before any work is done."""

    @classmethod
    def select_rows(cls, config: Any, dataset: Dataset) -> Dataset:
        """The rows to train on, by options that choose them."""
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

    # -- training

    @abstractmethod
    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        """Update number `step` (from 1): of critics and what serves them on `batch`, of the actor and what serves it on
        `actor_batch`, the same object unless a plug-in draws the actor's rows. Metrics may carry a graph."""

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

    def critic_penalty(self, batch: Batch, output: CriticOutput, backup: Tensor, td_loss: Tensor) -> Tensor | float:
        """What plug-ins add to the critics' losses [R, M]; see `CriticStep`."""
        assert self.critics is not None
        return self.plugins.critic_penalty(CriticStep(batch, *self.critics, output, backup, td_loss))

    def critic_step(self, batch: Batch, output: CriticOutput, backup: Tensor, td_loss: Tensor) -> Metrics:
        """One step of the critics on their TD loss [R, M] and what plug-ins add; what to log of it."""
        self.optimizers["critic"].step(td_loss + self.critic_penalty(batch, output, backup, td_loss))
        return {"critic_loss": td_loss.sum(1), "q": output.q.mean((1, 2))}

    def drawn_actions(self, policy: TanhGaussian, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Actions [R, B, a] and their log-probability [R, B] for plug-ins; the mean alone where none looks."""
        if not self.plugins.have_actor_term:
            return policy.mean, None
        return policy.sample(self.streams.normal("actor_action", *batch.actions.shape[1:]))

    def actor_term(
        self, batch: Batch, actions: Tensor, log_prob: Tensor | None = None, distribution: TanhGaussian | None = None
    ) -> Tensor | float:
        """What plug-ins add to the actor's loss [R]; see `ActorStep`."""
        critic = self.critics[0] if self.critics is not None else None
        return self.plugins.actor_term(ActorStep(batch, critic, actions, log_prob, distribution))

    # -- the result

    def evaluated_policy(self) -> EvaluatedPolicy:
        """The policy that is scored and exported, as it stands."""
        return EvaluatedPolicy.of(self.actor.mlp, self.stack.action_dim)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """Its actions at normalised observations [R, B, s] -> [R, B, a] in [-1, 1]."""
        return self.evaluated_policy().act(observations)

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
    def temporal_difference(self, batch: Batch) -> Tensor | None:
        """TD errors r + γQ̄(s', π(s')) - Q(s, a) of the evaluated policy, [R, M, B]; None without a critic."""
        if self.critics is None:
            return None
        critic, target = self.critics
        next_pairs = torch.cat([batch.next_observations, self.act(batch.next_observations)], dim=2)
        y = clipped_target(batch, self.config.discount, target.at(self.critic_inputs(next_pairs)).q)
        return y.unsqueeze(1) - critic.at(self.critic_inputs(batch.state_actions)).q
