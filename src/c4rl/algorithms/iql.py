"""IQL (Kostrikov et al., 2021): values by expectile regression at logged actions, then a weighted clone."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from c4rl.algorithms.algorithm import Metrics
from c4rl.algorithms.implicit_q import ImplicitQ, ImplicitQConfig, advantage_weight
from c4rl.core.buffer import Batch
from c4rl.core.networks import Stack
from c4rl.core.options import PerRun, option
from c4rl.core.policies import DeterministicPolicy, Gaussian, TanhMeanGaussianPolicy
from c4rl.core.random import Streams
from c4rl.plugins.seams import Plugins


@dataclass(frozen=True)
class IQLConfig(ImplicitQConfig):
    value_lr: PerRun = option(3e-4, above=0, at_most=1)
    """Adam's step size for V."""
    inverse_temperature: PerRun = option(3.0, at_least=0, at_most=1e6)
    """β: logged actions are cloned with weight exp(β (Q - V))."""
    weight_maximum: float = option(100.0, above=0, at_most=1e9)
    """Upper clip of that weight."""
    policy: Literal["gaussian", "deterministic"] = "gaussian"
    """A Gaussian around tanh(f(s)) with one standard deviation for all states, or tanh(f(s)) alone."""
    initialization: Literal["orthogonal_throughout", "torch"] = "orthogonal_throughout"
    """Initial weights: orthogonal with gain sqrt 2 in every layer, or PyTorch's."""


class IQL(ImplicitQ):
    config_type = IQLConfig
    config: IQLConfig

    def __init__(self, config: IQLConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        kind = TanhMeanGaussianPolicy if config.policy == "gaussian" else DeterministicPolicy
        norm = config.actor_layer_norm
        actor = kind(stack, "actor", config.hidden, layer_norm=norm, initialization=config.initialization)
        self.actor = self.learner("actor", actor, config.actor_lr)
        self.build_values(config.value_lr, config.initialization)

    @classmethod
    def policy_has_density(cls, config: Any) -> bool:
        return config.policy == "gaussian"

    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        config = self.config
        logged_q = self.logged_q(batch)
        actor_q = logged_q if actor_batch is batch else self.logged_q(actor_batch)

        # V: an upper expectile of Q̄ over logged actions
        metrics = self.value_step(batch, logged_q)

        # actor: clone logged actions by their advantage over the new V
        advantage = self.advantage(actor_batch, actor_q)
        weight = advantage_weight(advantage, config.inverse_temperature, config.weight_maximum)
        actions, log_prob, distribution, distance = self._policy_at(actor_batch)
        actor_loss = (weight * distance).mean(1)
        term = self.actor_term(actor_batch, actions, log_prob, distribution)
        self.optimizers["actor"].step((actor_loss, term), self.actor_lr_factor)

        # critics: TD on the new V
        metrics |= self.td_step(batch)
        return metrics | {"actor_loss": actor_loss, "advantage_weight": weight.mean(1)}

    def _policy_at(self, batch: Batch) -> tuple[Tensor, Tensor | None, Gaussian | None, Tensor]:
        """At s: actions with graph, their log-probability, the distribution, and the distance [R, B] to logged ones."""
        if self.config.policy == "deterministic":
            actions = self.trained_policy(batch.observations)
            return actions, None, None, (actions - batch.actions).square().sum(2)
        distribution: Gaussian = self.trained_policy(batch.observations)
        distance = -distribution.log_prob(batch.actions)
        return *self.drawn_actions(distribution, batch), distribution, distance
