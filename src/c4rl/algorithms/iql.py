"""IQL (Kostrikov et al., 2021): values by expectile regression at logged actions alone, then a weighted clone."""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Algorithm, CriticConfig, Metrics, Published
from c4rl.algorithms.losses import mean_squared_error, td_target
from c4rl.core.buffer import Batch
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic, CriticOutput, Stack, Value, per_row
from c4rl.core.optimizers import CosineSchedule, FlatAdam, Polyak
from c4rl.core.policies import DeterministicPolicy, Gaussian, TanhMeanGaussianPolicy, dropout_masks
from c4rl.core.random import Streams
from c4rl.plugins.seams import ActorStep, CriticStep, Plugins


@dataclass(frozen=True)
class IQLConfig(CriticConfig):
    """Defaults are those of IQL's own release for locomotion (ikostrikov/implicit_q_learning)."""

    stackable: ClassVar[frozenset[str]] = frozenset(
        {"actor_lr", "critic_lr", "value_lr", "discount", "tau", "expectile", "inverse_temperature"}
    )

    hidden_layers: int = 2
    """Hidden layers of every network."""
    actor_lr: float = 3e-4
    """Adam's step size for the policy, before its schedule."""
    value_lr: float = 3e-4
    """Adam's step size for V."""
    expectile: float = 0.7
    """Expectile of Q over logged actions that V regresses on; 0.5 is the mean."""
    inverse_temperature: float = 3.0
    """β: logged actions are cloned with weight exp(β (Q - V))."""
    weight_maximum: float = 100.0
    """Upper clip of that weight."""
    policy: Literal["gaussian", "deterministic"] = "gaussian"
    """A Gaussian around tanh(f(s)) with one standard deviation for all states, or tanh(f(s)) alone."""
    actor_dropout: float = 0.0
    """Share of the policy's hidden units that each update leaves out."""
    actor_schedule: Literal["cosine", "constant"] = "cosine"
    """The policy's step size falls to zero over the job's updates, or stays."""
    initialization: Literal["orthogonal_throughout", "torch"] = "orthogonal_throughout"
    """Initial weights: orthogonal with gain sqrt 2 in every layer, or PyTorch's."""


# the release: README.md, configs/ and train_offline.py of ikostrikov/implicit_q_learning
_RELEASE = "IQL's release (ikostrikov/implicit_q_learning at 09d7002)"
_NETWORKS: dict[str, Any] = {
    "hidden_layers": 2,
    "hidden_width": 256,
    "batch_size": 256,
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
    "value_lr": 3e-4,
    "discount": 0.99,
    "tau": 0.005,
    "weight_maximum": 100.0,
    "policy": "gaussian",
    "actor_schedule": "cosine",
    "initialization": "orthogonal_throughout",
}
_LOCOMOTION: dict[str, Any] = _NETWORKS | {"expectile": 0.7, "inverse_temperature": 3.0, "actor_dropout": 0.0}
_ANTMAZE: dict[str, Any] = _NETWORKS | {"expectile": 0.9, "inverse_temperature": 10.0, "actor_dropout": 0.0}
_KITCHEN: dict[str, Any] = _NETWORKS | {"expectile": 0.7, "inverse_temperature": 0.5, "actor_dropout": 0.1}
_RAW: dict[str, Any] = {"updates": 1_000_000, "normalize_observations": False, "normalize_returns": False}
_RETURN_RANGE: dict[str, Any] = _RAW | {"normalize_returns": True}


class IQL(Algorithm):
    config_type = IQLConfig
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            ("halfcheetah-*", "hopper-*", "walker2d-*"), f"{_RELEASE}, mujoco_config.py", _LOCOMOTION, _RETURN_RANGE
        ),
        Published(
            ("ant-*",), "ours: as the other robots, their scaling of returns included", _LOCOMOTION, _RETURN_RANGE
        ),
        Published(
            ("antmaze-*",),
            f"{_RELEASE}, antmaze_config.py",
            _ANTMAZE,
            _RAW | {"reward_shift": -1.0, "eval_episodes": 100, "eval_every": 100_000},
        ),
        Published(
            ("maze2d-*",),
            "CORL's iql/maze2d for expectile, β, rewards and states, as IQL's release has none; ours: the release's "
            "networks",
            _LOCOMOTION,
            _RAW | {"normalize_observations": True, "eval_episodes": 100},
        ),
        Published(
            ("pen-*", "hammer-*", "door-*", "relocate-*", "kitchen-*"), f"{_RELEASE}, kitchen_config.py", _KITCHEN, _RAW
        ),
    )

    def __init__(self, config: IQLConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        self.config, self.discount = config, config.discount
        kind = TanhMeanGaussianPolicy if config.policy == "gaussian" else DeterministicPolicy
        self.actor = kind(stack, "actor", config.hidden, initialization=config.initialization)
        self.value = Value(stack, "value", config.hidden, initialization=config.initialization)
        self.critic = Critic(
            stack,
            "critic",
            config.hidden,
            layer_norm=plugins.critic_layer_norm,
            initialization=config.initialization,
        )
        self.target_critic = deepcopy(self.critic)
        self.networks = {
            "actor": self.actor,
            "value": self.value,
            "critic": self.critic,
            "target_critic": self.target_critic,
        }
        self.optimizers = {
            "actor": FlatAdam(self.actor, config.actor_lr),
            "value": FlatAdam(self.value, config.value_lr),
            "critic": FlatAdam(self.critic, config.critic_lr),
        }
        self.polyak = Polyak(self.optimizers["critic"], self.target_critic, config.tau)
        self._schedule = CosineSchedule(stack.updates, stack.device)

    @classmethod
    def policy_has_density(cls, config: Any) -> bool:
        return config.policy == "gaussian"

    @classmethod
    def check(cls, config: IQLConfig, task: str) -> None:
        def require(flag: str, holds: bool, found: float, expected: str) -> None:
            if not holds:
                raise InputError(f"--{flag}: found {found}, expected {expected}")

        require("value-lr", config.value_lr > 0, config.value_lr, "a positive number")
        require("expectile", 0 < config.expectile < 1, config.expectile, "a number between 0 and 1")
        require("inverse-temperature", config.inverse_temperature >= 0, config.inverse_temperature, "0 or more")
        require("weight-maximum", config.weight_maximum > 0, config.weight_maximum, "a positive number")
        require("actor-dropout", 0 <= config.actor_dropout < 1, config.actor_dropout, "a share of 0 or more, below 1")

    def update(self, batch: Batch, step: int) -> Metrics:
        config = self.config
        with torch.no_grad():
            target_q = self.target_critic.at(batch.state_actions).q.amin(1)  # [R, B]

        # V: an upper expectile of Q̄ over logged actions
        value = self.value(batch.observations)
        value_loss = expectile_loss(target_q - value, config.expectile).mean(1)
        self.optimizers["value"].step(value_loss)

        # actor: clone logged actions by their advantage over the new V
        with torch.no_grad():
            advantage = target_q - self.value(batch.observations)
            weight = advantage_weight(advantage, config.inverse_temperature, config.weight_maximum)
        actions, log_prob, distribution, distance = self._policy_at(batch)
        actor_loss = (weight * distance).mean(1)
        term = self.plugins.actor_term(ActorStep(batch, self.critic, actions, log_prob, distribution))
        self.optimizers["actor"].step(actor_loss + term, self._actor_factor())

        # critics: TD on the new V; no action is chosen anywhere
        with torch.no_grad():
            y = td_target(batch, config.discount, self.value(batch.next_observations))
        output = self.critic.at(batch.state_actions)
        td_loss = mean_squared_error(output.q, y.unsqueeze(1), keep=2)  # [R, M]
        penalty = self.plugins.critic_penalty(self._critic_step(batch, output, td_loss))
        self.optimizers["critic"].step(td_loss + penalty)
        self.polyak.step()

        return {
            "value_loss": value_loss.detach(),
            "critic_loss": td_loss.detach().sum(1),
            "actor_loss": actor_loss.detach(),
            "q": output.q.detach().mean((1, 2)),
            "v": value.detach().mean(1),
            "advantage_weight": weight.mean(1),
        }

    def _policy_at(self, batch: Batch) -> tuple[Tensor, Tensor | None, Gaussian | None, Tensor]:
        """At s: actions with graph, their log-probability, the distribution, and the distance [R, B] to logged ones."""
        config = self.config
        masks = dropout_masks(self.streams, "dropout", config.actor_dropout, config.hidden, batch.actions.shape[1])
        if config.policy == "deterministic":
            actions = self.actor(batch.observations, masks)
            return actions, None, None, (actions - batch.actions).square().sum(2)
        distribution: Gaussian = self.actor(batch.observations, masks)
        distance = -distribution.log_prob(batch.actions)
        if not self.plugins.have_actor_term:  # actions of its own are for plug-ins alone
            return distribution.mean, None, distribution, distance
        noise = self.streams.normal("actor_action", *batch.actions.shape[1:])
        return *distribution.sample(noise), distribution, distance

    def _actor_factor(self) -> Tensor | float:
        """Of the actor's step size: from 1 at the first update to 0 after the last."""
        if self.config.actor_schedule == "constant":
            return 1.0
        return self._schedule.at(self.streams.step)

    def _critic_step(self, batch: Batch, output: CriticOutput, td_loss: Tensor) -> CriticStep:
        """The critic update as a penalty sees it: the next action is the logged one, as the target has none."""
        next_actions = batch.next_state_actions[..., self.stack.observation_dim :]
        # where a trajectory was cut off no next action was logged: to a penalty on (s', a') it ends there
        ended = batch._replace(continues=batch.continues * batch.next_valid)
        return CriticStep(ended, self.critic, self.target_critic, output, next_actions, td_loss)

    @torch.no_grad()
    def act(self, observations: Tensor) -> Tensor:
        """tanh(f(s)), the mean of the Gaussian, without dropout."""
        return torch.tanh(self.actor.mlp(observations))


def expectile_loss(difference: Tensor, expectile: float | Tensor) -> Tensor:
    """|τ_e - 1{u < 0}| u² of u = Q̄ - V [R, B], elementwise; τ_e: one for all, or one per run [R]."""
    return (per_row(expectile) - (difference < 0).to(difference.dtype)).abs() * difference.square()


def advantage_weight(advantage: Tensor, inverse_temperature: float | Tensor, maximum: float) -> Tensor:
    """min(exp(β A), maximum) of A [R, B]; β: one for all, or one per run [R]."""
    return (per_row(inverse_temperature) * advantage).exp().clamp(max=maximum)
