"""DOGE (Li et al., ICLR 2023): TD3 held near the data by a learnt distance g(s, a) to the logged actions."""

from dataclasses import dataclass

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Metrics
from c4rl.algorithms.losses import mean_squared_error
from c4rl.algorithms.td3 import TD3, TD3Config
from c4rl.core.buffer import Batch
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic, Stack
from c4rl.core.options import PerRun, option
from c4rl.core.random import Streams
from c4rl.plugins.seams import Plugins


@dataclass(frozen=True)
class DOGEConfig(TD3Config):
    hidden_layers: int = option(2, at_least=1, at_most=100)
    """Hidden layers of the actor and the critics."""
    actor_lr: PerRun = option(3e-4, above=0, at_most=1)
    """Adam's step size for the policy."""
    alpha: PerRun = option(7.5, at_least=0, at_most=1e6)
    """Weight of the Q term against the distance."""
    distance_layers: int = option(3, at_least=1, at_most=100)
    """Hidden layers of the distance g."""
    distance_lr: PerRun = option(1e-3, above=0, at_most=1)
    """Adam's step size for g."""
    distance_updates: int = option(100_000, at_least=0, at_most=1e9)
    """T_g: g is trained for this many updates at the start, then held fixed."""
    negative_actions: int = option(20, at_least=1, at_most=10_000)
    """N: random actions per row that g is fitted to."""
    negative_range: float = option(1.5, above=0, at_most=1000)
    """The random actions are uniform on this multiple of the action box: 1.5 in the original code, 1 in its paper."""
    distance_threshold: float = option(0.0, at_least=-1000, at_most=1000)
    """ε: how much farther than the logged actions the policy's may be on average."""
    multiplier_initial: float = option(5.0, above=0, at_most=1e6)
    """First value of the distance's weight λ."""
    multiplier_minimum: float = option(1.0, above=0, at_most=1e6)
    """Lower bound of λ: the constraint is never switched off."""
    multiplier_maximum: float = option(100.0, above=0, at_most=1e6)
    """Upper bound of λ."""
    multiplier_lr: float = option(3e-4, at_least=0, at_most=1)
    """Step size of λ, relative to λ."""

    def check(self) -> None:
        low, first, high = self.multiplier_minimum, self.multiplier_initial, self.multiplier_maximum
        if not low <= first <= high:
            raise InputError(
                f"--multiplier-initial: found {first} with a minimum of {low} and a maximum of {high}, "
                "expected minimum <= initial <= maximum"
            )


class DOGE(TD3):
    config_type = DOGEConfig
    config: DOGEConfig
    runs_together_on_cpu = 1  # 20 random actions per row fill the cache: eight stacked runs were 1.3x slower
    remembered = ("actor_loss", "distance_loss", "excess_distance")

    def __init__(self, config: DOGEConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        # like a critic, g is one number per (s, a)
        g = Critic(stack, "distance", (config.hidden_width,) * config.distance_layers, members=1)
        self.distance = self.learner("distance", g, config.distance_lr)
        self.multiplier = self.kept("multiplier", value=config.multiplier_initial)  # λ

    def updates_distance(self, step: int) -> bool:
        return step <= self.config.distance_updates

    def phase(self, step: int) -> tuple[bool, bool]:
        return self.updates_actor(step), self.updates_distance(step)

    def update(self, batch: Batch, step: int, actor_batch: Batch) -> Metrics:
        config = self.config
        next_actions = self.smoothed_actions(batch)
        metrics = self.td_step(batch, next_actions, self.target(batch, next_actions))

        # g(s, â) regresses on |â - a|: its optimum is the mean distance of â to the actions logged at s
        if self.updates_distance(step):
            with torch.no_grad():
                negatives = self._negative_actions(actor_batch)
                distances = (negatives - actor_batch.actions.unsqueeze(2)).norm(dim=3)  # [R, B, N]
            estimates = self.distance(actor_batch.observations, negatives).q.squeeze(1)
            distance_loss = mean_squared_error(estimates, distances)
            self.optimizers["distance"].step(distance_loss)
            self.remember(distance_loss=distance_loss)

        if self.updates_actor(step):
            actions = self.trained_policy(actor_batch.observations)
            with torch.no_grad():
                logged = self.distance.at(actor_batch.state_actions).q.squeeze(1)
            chosen = self.distance(actor_batch.observations, actions, frozen=True).q.squeeze(1)
            excess = (chosen - logged).mean(1)  # Δ, [R]
            violation = excess - config.distance_threshold
            # dual ascent in proportion to λ itself, just before the actor sees it
            ascended = self.multiplier * (1 + config.multiplier_lr * violation.detach())
            self.multiplier.copy_(ascended.clamp(config.multiplier_minimum, config.multiplier_maximum))
            actor_loss = self.multiplier * violation - self.scaled_q(actor_batch, actions)
            self.actor_step(actor_batch, actions, actor_loss)
            self.remember(excess_distance=excess)

        return metrics | self.last | {"multiplier": self.multiplier}

    def _negative_actions(self, batch: Batch) -> Tensor:
        """Uniform random actions [R, B, N, a], mostly not the logged ones."""
        rows, width = batch.actions.shape[1:]
        uniform = self.streams.uniform("negative_actions", rows, self.config.negative_actions, width)
        return (2 * uniform - 1) * self.config.negative_range
