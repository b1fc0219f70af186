"""DOGE (Li et al., ICLR 2023): TD3 held near the data by a learnt distance g(s, a) to the logged actions."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Metrics, Published
from c4rl.algorithms.losses import mean_squared_error
from c4rl.algorithms.td3 import TD3, TD3Config
from c4rl.core.buffer import Batch
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic, Stack
from c4rl.core.optimizers import FlatAdam
from c4rl.core.random import Streams
from c4rl.plugins.seams import Plugins


@dataclass(frozen=True)
class DOGEConfig(TD3Config):
    stackable: ClassVar[frozenset[str]] = frozenset(
        {"actor_lr", "critic_lr", "distance_lr", "discount", "tau", "alpha"}
    )

    hidden_layers: int = 2
    """Hidden layers of the actor and the critics."""
    actor_lr: float = 3e-4
    """Adam's step size for the policy."""
    alpha: float = 7.5
    """Weight of the Q term against the distance."""
    distance_layers: int = 3
    """Hidden layers of the distance g."""
    distance_lr: float = 1e-3
    """Adam's step size for g."""
    distance_updates: int = 100_000
    """T_g: g is trained on this many first updates, then held."""
    negative_actions: int = 20
    """N: random actions per row that g is fitted to."""
    negative_range: float = 1.5
    """They are uniform on this multiple of the action box: 1.5 in the original code, 1 in its paper."""
    distance_threshold: float = 0.0
    """ε: how much farther than the logged actions the policy's may be on average."""
    multiplier_initial: float = 5.0
    """First value of the distance's weight λ."""
    multiplier_minimum: float = 1.0
    """λ never falls below: the constraint is never switched off."""
    multiplier_maximum: float = 100.0
    """λ never rises above."""
    multiplier_lr: float = 3e-4
    """Step size of λ, relative to λ."""


_RELEASE = "Facebear-ljx/DOGE at 13636d9"
_LOCOMOTION: dict[str, Any] = {
    "hidden_layers": 2,
    "hidden_width": 256,
    "batch_size": 256,
    "actor_lr": 3e-4,
    "critic_lr": 3e-4,
    "discount": 0.99,
    "alpha": 7.5,
    "distance_lr": 1e-3,
    "distance_updates": 100_000,
    "negative_actions": 20,
    "negative_range": 1.5,
    "multiplier_initial": 5.0,
    "multiplier_minimum": 1.0,
}
_ANTMAZE: dict[str, Any] = _LOCOMOTION | {
    "critic_lr": 1e-3,
    "discount": 0.995,
    "alpha": 5.0,
    "distance_lr": 1e-4,
    "distance_updates": 1_000_000,
    "multiplier_initial": 1.0,
}
_TRAINING: dict[str, Any] = {"updates": 1_000_000, "normalize_observations": True}
_ANTMAZE_TRAINING: dict[str, Any] = {
    "updates": 1_000_000,
    "normalize_observations": False,
    "reward_shift": -1.0,
    "eval_every": 100_000,
    "eval_episodes": 100,
}


class DOGE(TD3):
    config_type = DOGEConfig
    config: DOGEConfig
    runs_together_on_cpu = 1  # 20 random actions per row fill the cache: eight stacked runs were 1.3x slower
    published: ClassVar[tuple[Published, ...]] = (
        Published(
            ("hopper-*", "halfcheetah-*", "walker2d-*"), f"train_distance_mujoco.py, {_RELEASE}", _LOCOMOTION, _TRAINING
        ),
        Published(
            ("hopper-medium-v*", "hopper-medium-replay-*"),
            f"run_d4rl.sh, {_RELEASE}",
            {"alpha": 17.5},
        ),
        Published(("ant-*",), "ours: locomotion's settings", _LOCOMOTION, _TRAINING),
        Published(("antmaze-umaze*",), f"train_distance_antmaze.py, {_RELEASE}", _ANTMAZE, _ANTMAZE_TRAINING),
        Published(
            ("antmaze-medium-*", "antmaze-large-*", "antmaze-ultra-*"),
            "ours: the script's default α, which the release names for umaze alone; the rest is the script's",
            _ANTMAZE,
            _ANTMAZE_TRAINING,
        ),
        Published(
            ("maze2d-*",),
            "ours: locomotion's settings with AntMaze's discount",
            _LOCOMOTION | {"discount": 0.995},
            _TRAINING | {"eval_episodes": 100},
        ),
        Published(
            ("pen-*", "hammer-*", "door-*", "relocate-*", "kitchen-*"),
            "ours: locomotion's settings with a smaller α for demonstrations",
            _LOCOMOTION | {"alpha": 2.5},
            _TRAINING,
        ),
    )

    def __init__(self, config: DOGEConfig, stack: Stack, streams: Streams, plugins: Plugins) -> None:
        super().__init__(config, stack, streams, plugins)
        # g is, as a critic is, one number per (s, a)
        self.distance = Critic(stack, "distance", (config.hidden_width,) * config.distance_layers, members=1)
        self.networks["distance"] = self.distance
        self.optimizers["distance"] = FlatAdam(self.distance, config.distance_lr)
        zeros = torch.zeros(stack.runs, device=stack.device, dtype=stack.dtype)
        self.multiplier = torch.full_like(zeros, config.multiplier_initial)  # λ
        # of the last update that had them
        self._last = {name: zeros.clone() for name in ("actor_loss", "distance_loss", "excess_distance")}

    @classmethod
    def check(cls, config: Any, task: str) -> None:
        at_least = {"distance_layers": 1, "distance_updates": 0, "negative_actions": 1, "policy_delay": 1}
        for name, least in at_least.items():
            if getattr(config, name) < least:
                flag = name.replace("_", "-")
                raise InputError(f"--{flag}: found {getattr(config, name)}, expected {least} or more")
        if config.negative_range <= 0:
            raise InputError(f"--negative-range: found {config.negative_range}, expected a positive number")
        low, first, high = config.multiplier_minimum, config.multiplier_initial, config.multiplier_maximum
        if not 0 < low <= first <= high:
            raise InputError(
                f"--multiplier-initial: found {first} with a minimum of {low} and a maximum of {high}, "
                "expected 0 < minimum <= initial <= maximum"
            )

    def phase(self, step: int) -> tuple[bool, bool]:
        """Whether the actor is updated, and whether g is."""
        return step % self.config.policy_delay == 0, step <= self.config.distance_updates

    def update(self, batch: Batch, step: int) -> Metrics:
        config = self.config
        updates_actor, updates_distance = self.phase(step)
        next_actions, y = self.smoothed_target(batch)
        output, td_loss = self.critic_step(batch, next_actions, y)

        # g(s, â) regresses on |â - a|: its optimum is the mean distance of â to the actions logged at s
        if updates_distance:
            with torch.no_grad():
                negatives = self._negative_actions(batch)
                distances = (negatives - batch.actions.unsqueeze(2)).norm(dim=3)  # [R, B, N]
            estimates = self.distance(batch.observations, negatives).q.squeeze(1)
            distance_loss = mean_squared_error(estimates, distances)
            self.optimizers["distance"].step(distance_loss)
            self._last["distance_loss"].copy_(distance_loss.detach())

        if updates_actor:
            actions = self.actor(batch.observations)
            with torch.no_grad():
                logged = self.distance.at(batch.state_actions).q.squeeze(1)
            excess = (self.distance(batch.observations, actions, frozen=True).q.squeeze(1) - logged).mean(1)  # Δ, [R]
            violation = excess - config.distance_threshold
            # dual ascent in proportion to λ itself, just before the actor sees it
            ascended = self.multiplier * (1 + config.multiplier_lr * violation.detach())
            self.multiplier.copy_(ascended.clamp(config.multiplier_minimum, config.multiplier_maximum))
            actor_loss = self.multiplier * violation - self.scaled_q(batch, actions)
            self.actor_step(batch, actions, actor_loss)
            self._last["actor_loss"].copy_(actor_loss.detach())
            self._last["excess_distance"].copy_(excess.detach())

        return {
            "critic_loss": td_loss.sum(1),
            "q": output.q.detach().mean((1, 2)),
            "multiplier": self.multiplier,
            **self._last,
        }

    def _negative_actions(self, batch: Batch) -> Tensor:
        """Uniform random actions [R, B, N, a], mostly not the logged ones."""
        rows, width = batch.actions.shape[1:]
        uniform = self.streams.uniform("negative_actions", rows, self.config.negative_actions, width)
        return (2 * uniform - 1) * self.config.negative_range

    def state(self) -> dict[str, Tensor]:
        return super().state() | self._last | {"multiplier": self.multiplier}
