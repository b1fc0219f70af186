"""The base class of all algorithms: typed options, an `update` that reads as pseudocode, and a policy."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from c4rl.algorithms.losses import clipped_target
from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic, CriticOutput, Stack
from c4rl.core.optimizers import CosineSchedule, FlatAdam, Polyak, RunningAverage
from c4rl.core.options import Options, PerRun, flag_of, option
from c4rl.core.policies import EvaluatedPolicy, Policy, TanhGaussian, dropout_masks
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
    evaluated: bool = True  # there is a policy worth evaluating


@dataclass(frozen=True)
class AlgorithmConfig(Options):
    """Options that every algorithm has. Defaults are the paper's."""

    hidden_layers: int = option(4, at_least=1, at_most=100)
    """Hidden layers of every network."""
    hidden_width: int = option(256, at_least=1, at_most=100_000)
    """Units per hidden layer."""
    actor_lr: PerRun = option(1e-4, above=0, at_most=1)
    """Adam's step size for the policy."""
    actor_schedule: Literal["constant", "cosine"] = "constant"
    """The policy's step size stays constant, or falls to zero over the job's updates."""
    actor_decay: PerRun = option(0.0, at_least=0, at_most=1000)
    """Decay of the policy's weights (AdamW): each update removes this part of them, times the step size."""
    actor_average: PerRun = option(0.0, at_least=0, at_most=1)
    """Evaluate a running average of the policy's weights, over about 1 / this many of its updates; 0: the weights
    themselves."""
    actor_dropout: float = option(0.0, at_least=0, below=1)
    """Share of the policy's hidden units that are dropped in its own loss; none are in targets and evaluation."""
    actor_layer_norm: bool = False
    """LayerNorm in the policy, before each hidden layer's ReLU."""
    batch_size: int = option(256, at_least=2, at_most=1_000_000)
    """Rows per update and run."""

    def refuse(self, reason: str, *names: str) -> None:
        """Refuse inherited options that an algorithm cannot follow, where they are not at their defaults."""
        defaults = {field.name: field.default for field in fields(self)}
        for name in names:
            if (value := getattr(self, name)) != defaults[name]:
                raise InputError(f"--{flag_of(name)}: found {value}, expected {defaults[name]}: {reason}")

    @property
    def hidden(self) -> tuple[int, ...]:
        return (self.hidden_width,) * self.hidden_layers

    @property
    def actor_hidden(self) -> tuple[int, ...]:
        return self.hidden


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
    """R runs of one algorithm. Subclasses register networks, define one update and choose the policy to evaluate."""

    config_type: ClassVar[type[AlgorithmConfig]]
    has_critic: ClassVar[bool] = True
    has_density: ClassVar[bool] = True  # whether the policy is a distribution with log-probabilities
    has_actor_term: ClassVar[bool] = True  # whether plug-ins may add to the actor's loss
    has_one_policy: ClassVar[bool] = True  # whether `actor` is the one network that acts
    runs_together_on_cpu: ClassVar[int] = 8  # the number of runs per launch that is fastest there
    mixes_datasets: ClassVar[bool] = False  # with an `attach` of its own: runs on different data may share a launch
    remembered: ClassVar[tuple[str, ...]] = ()  # metrics that only some updates have; `last` keeps them in between
    actor: Policy

    def __init__(self, config: Any, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        self.config, self.stack, self.streams, self.plugins = config, stack, streams, plugins
        self.stages = self.plan(config, stack.updates)
        falls = config.actor_schedule == "cosine"
        self._schedule = CosineSchedule(self.stages[-1].updates, stack.device) if falls else None
        self.networks: dict[str, nn.Module] = {}
        self.optimizers: dict[str, FlatAdam] = {}
        self._polyak: list[Polyak] = []
        self._kept: dict[str, Tensor] = {}
        self.last: Metrics = {name: self.kept(name) for name in self.remembered}

    # -- what is trained, and stored with a checkpoint

    def learner(self, name: str, network: Network, lr: PerRun, clip_norm: float | None = None) -> Network:
        """Train the network under this name: `optimizers[name]` is its Adam, checkpoints hold both."""
        config, policy = self.config, name == "actor"
        averaged = policy and (isinstance(config.actor_average, Tensor) or config.actor_average > 0)
        average = deepcopy(network) if averaged else None
        decay = config.actor_decay if policy else 0.0
        self.networks[name] = network
        self.optimizers[name] = FlatAdam(network, lr, clip_norm=clip_norm, decay=decay)
        if average is not None:
            RunningAverage(self.optimizers[name], average, config.actor_average)
            self.networks[f"average_{name}"] = average
        return network

    def learner_with_target(self, name: str, network: Network, lr: PerRun, tau: PerRun) -> tuple[Network, Network]:
        """The same with a target that `move_targets` moves. Returns the network and its target."""
        target = deepcopy(network)
        self.learner(name, network, lr)
        self._polyak.append(Polyak(self.optimizers[name], target, tau))
        self.networks[f"target_{name}"] = target
        return network, target

    def move_targets(self) -> None:
        for polyak in self._polyak:
            polyak.step()

    @property
    def actor_lr_factor(self) -> Tensor | float:
        """From 1 at the first update of the last stage to 0 after its last, or 1."""
        if self._schedule is None:
            return 1.0
        return self._schedule.at(self.streams.step, before=sum(stage.updates for stage in self.stages[:-1]))

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
        """All tensors that training changes; not copies."""
        out = module_state(self.networks)
        for name, optimizer in self.optimizers.items():
            out |= {f"optimizer.{name}/{key}": tensor for key, tensor in optimizer.state().items()}
        return out | self._kept

    def unpadded(self, name: str, tensor: Tensor, run: int) -> Tensor:
        """One run's slice of a tensor of `state`, without the padding that the stack added."""
        return tensor

    def padded(self, name: str, own: Tensor, run: int) -> Tensor:
        """The reverse: pad what `unpadded` gave to this stack's size."""
        return own

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
        """The rows to train on, for algorithms whose options choose rows."""
        return dataset

    @classmethod
    def plan(cls, config: Any, updates: int) -> tuple[Stage, ...]:
        """The stages of a job of `updates` critic updates, in order; updates are numbered through all of them."""
        return (Stage("training", updates, config.batch_size),)

    @classmethod
    def launch_key(cls, config: Any, rows: int, data: int) -> Hashable:
        """Runs with equal keys may share a launch. data: number of the run's dataset, which has this many rows.

        An algorithm that reads more than batches sets `mixes_datasets` if runs on different datasets may share one.
        """
        return 0 if cls.mixes_datasets or cls.attach is Algorithm.attach else data

    def attach(self, buffer: TransitionBuffer) -> None:
        """Called once before the first update, for algorithms that read more than batches."""

    # -- training

    @abstractmethod
    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        """Update number `step` (from 1). Critics and values train on `batch`, the actor and its helpers on
        `actor_batch`, which is the same object unless a plug-in draws the actor's rows. Metrics may carry a graph."""

    def after_update(self, step: int) -> Metrics:
        """Work after update `step`, outside any captured graph: at the end of a stage, or once per period.

        Writes in place into tensors of `state()`. Returns metrics to log.
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
        """Whether the algorithm needs its policies' simulator scores after update `step`."""
        return False

    def receive_scores(self, scores: Tensor) -> None:
        """Takes the mean score of every run's policy [R] after `asks_environment`."""

    def critic_penalty(self, batch: Batch, output: CriticOutput, backup: Tensor, td_loss: Tensor) -> Tensor | float:
        """What plug-ins add to the critics' losses [R, M]; see `CriticStep`."""
        assert self.critics is not None
        return self.plugins.critic_penalty(CriticStep(batch, *self.critics, output, backup, td_loss))

    def critic_step(self, batch: Batch, output: CriticOutput, backup: Tensor, td_loss: Tensor) -> Metrics:
        """One step of the critics on their TD loss [R, M] and what plug-ins add. Returns metrics to log."""
        self.optimizers["critic"].step((td_loss, self.critic_penalty(batch, output, backup, td_loss)))
        return {"critic_loss": td_loss.sum(1), "q": output.q.mean((1, 2))}

    def trained_policy(self, observations: Tensor) -> Any:
        """The actor at observations [R, B, s] as its own loss sees it: with dropout, if asked for."""
        config = self.config
        masks = dropout_masks(self.streams, "dropout", config.actor_dropout, config.actor_hidden, observations.shape[1])
        return self.actor(observations, masks)

    def plain_actions(self, observations: Tensor) -> Tensor:
        """What the trained policy would play at observations [R, B, s], without noise or dropout, with its graph."""
        return EvaluatedPolicy.of(self.actor.mlp, self.stack.action_dim).act(observations)

    def drawn_actions(self, policy: TanhGaussian, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Actions [R, B, a] and their log-probability [R, B] for plug-ins; only the mean if none uses them."""
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
        actor: Any = self.networks.get("average_actor", self.actor)
        return EvaluatedPolicy.of(actor.mlp, self.stack.action_dim)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """The evaluated policy's actions at normalised observations [R, B, s] -> [R, B, a] in [-1, 1]."""
        return self.evaluated_policy().act(observations)

    @property
    def critics(self) -> tuple[Critic, Critic] | None:
        """The critic and its target; None without a critic."""
        if not self.has_critic:
            return None
        critic, target = self.networks["critic"], self.networks["target_critic"]
        assert isinstance(critic, Critic) and isinstance(target, Critic)
        return critic, target

    def critic_inputs(self, state_actions: Tensor) -> Tensor:
        """The critic's input for rows [s, a], [R, B, s + a]: the rows themselves, or latent pairs."""
        return state_actions

    def values_at(self, critic: Critic, state_actions: Tensor) -> Tensor:
        """A critic's values of rows [s, a], [R, M, B], as its TD loss compares them."""
        return critic.at(self.critic_inputs(state_actions)).q

    def regression_target(self, batch: Batch) -> Tensor:
        """y [R, B], which this update's TD loss moves the critics to, without a graph; for `td_errors`."""
        raise NotImplementedError

    def td_errors(self, batch: Batch) -> Tensor:
        """y - Q(s, a) of this update's TD loss [R, M, B], with a graph into the critics; also of rows that the loss
        leaves out (--drop-terminals)."""
        assert self.critics is not None
        return self.regression_target(batch).unsqueeze(1) - self.values_at(self.critics[0], batch.state_actions)

    @torch.no_grad()
    def temporal_difference(self, batch: Batch) -> Tensor | None:
        """TD errors r + γQ̄(s', π(s')) - Q(s, a) of the evaluated policy, [R, M, B]; None without a critic."""
        if self.critics is None:
            return None
        critic, target = self.critics
        next_pairs = torch.cat([batch.next_observations, self.act(batch.next_observations)], dim=2)
        y = clipped_target(batch, self.config.discount, self.values_at(target, next_pairs))
        return y.unsqueeze(1) - self.values_at(critic, batch.state_actions)
