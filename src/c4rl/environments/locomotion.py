"""Hopper, HalfCheetah, Walker2d and Ant as D4RL has them: gymnasium's -v4 on D4RL's physics, with a faster step.

gymnasium spends a third of a step in small NumPy calls around MuJoCo. This module makes fewer of them for
the same numbers, bit for bit; resets and spaces are gymnasium's own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import load_env_creator

from c4rl.core.array import Array
from c4rl.environments.d4rl_physics import D4RLPhysics, step


def _hopper_stands(position: Array, velocity: Array) -> bool:
    bounded = np.abs(position[2:]).max() < 100 and np.abs(velocity).max() < 100
    return bool(bounded and position[1] > 0.7 and -0.2 < position[2] < 0.2)


def _walker_stands(position: Array, velocity: Array) -> bool:
    return bool(0.8 < position[1] < 2.0 and -1.0 < position[2] < 1.0)


def _ant_stands(position: Array, velocity: Array) -> bool:
    return bool(0.2 <= position[2] <= 1.0 and np.isfinite(position).all() and np.isfinite(velocity).all())


@dataclass(frozen=True)
class _Robot:
    hidden_positions: int  # leading coordinates that the observation leaves out
    control_cost: float
    bonus: float  # per step, even the one that falls
    stands: Callable[[Array, Array], bool] | None = None  # None: never terminates
    max_velocity: float | None = None  # clip of observed velocities
    torso: str | None = None  # forward motion is this body's, not the first coordinate's


_ROBOTS = {
    "Hopper-v4": _Robot(1, 1e-3, 1.0, _hopper_stands, max_velocity=10.0),
    "HalfCheetah-v4": _Robot(1, 0.1, 0.0),
    "Walker2d-v4": _Robot(1, 1e-3, 1.0, _walker_stands, max_velocity=10.0),
    "Ant-v4": _Robot(2, 0.5, 1.0, _ant_stands, torso="torso"),
}


def gymnasium_environment(name: str) -> gymnasium.Env:
    """gymnasium's own class on D4RL's physics: the plain environment that `Locomotion` steps faster."""
    entry_point = gymnasium.spec(name).entry_point
    assert isinstance(entry_point, str)
    theirs: Any = load_env_creator(entry_point)
    return type(name, (D4RLPhysics, theirs), {})()


class Locomotion(gymnasium.Wrapper):
    """Reward: forward velocity + bonus - control cost |a|^2. Terminates where the robot fell; cut at the horizon."""

    def __init__(self, name: str, horizon: int) -> None:
        simulator: Any = gymnasium_environment(name)
        super().__init__(simulator)
        self._robot, self._horizon, self._steps = _ROBOTS[name], horizon, 0
        self._model, self._data = simulator.model, simulator.data
        self._frames, self._dt = simulator.frame_skip, simulator.dt
        self._position, self._velocity = self._data.qpos, self._data.qvel
        torso = self._robot.torso
        self._forward = self._position if torso is None else self._data.body(torso).xpos

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self._steps = 0
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        robot = self._robot
        before = self._forward[0]
        self._data.ctrl[:] = action
        step(self._model, self._data, self._frames)
        self._steps += 1
        speed = (self._forward[0] - before) / self._dt
        # summed in the action's own precision, as gymnasium does
        reward = float(speed + robot.bonus - robot.control_cost * np.add.reduce(np.square(action)))
        terminated = robot.stands is not None and not robot.stands(self._position, self._velocity)
        return self._observation(), reward, terminated, self._steps >= self._horizon, {}

    def _observation(self) -> Array:
        velocity, bound = self._velocity, self._robot.max_velocity
        if bound is not None:
            velocity = np.minimum(np.maximum(velocity, -bound), bound)
        return np.concatenate((self._position[self._robot.hidden_positions :], velocity))
