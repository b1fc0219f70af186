"""AntMaze's ant on an open floor, paid for walking in a direction: where AntMaze's behaviour agent learns.

Everything it observes is in the frame of its own body, so that it walks alike in all directions and places.
"""

from typing import Any

import gymnasium
import mujoco
import numpy as np

from c4rl.core.array import Array
from c4rl.environments.antmaze import FRAMES, ant_model
from c4rl.environments.d4rl_physics import step

PROGRESS = 10.0  # reward of a unit of length
CONTROL_COST = 0.02
DIRECTION_STEPS = 100  # until another direction is wanted
OBSERVATIONS, ACTIONS = 29, 8


def body_observation(position: Array, velocity: Array, direction: Array) -> Array:
    """The 29 numbers, from AntMaze's 15 positions and 14 velocities and a unit vector (x, y): height, gravity's
    direction, joints, velocity, spin, joints' velocities and the wanted direction."""
    w, x, y, z = position[3:7]
    rotation = np.array(  # from the body to the world
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )
    wanted = direction[0] * rotation[0] + direction[1] * rotation[1]
    return np.concatenate(
        (
            position[2:3],
            -rotation[2],
            position[7:],
            velocity[:3] @ rotation,
            velocity[3:6],
            velocity[6:],
            wanted,
        )
    )


def upside_down(position: Array) -> bool:
    return bool(position[4] ** 2 + position[5] ** 2 > 0.5)  # the body's axis points below the horizon


class GoalAnt(gymnasium.Env):
    """Reward: 10 times the way in the wanted direction, less 0.02 |a|². Ends upside down; cut at the horizon."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium's own interface)

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBSERVATIONS,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32)
        self._model = ant_model(np.zeros((0, 0), bool))
        self._data = mujoco.MjData(self._model)
        self._position, self._velocity = self._data.qpos, self._data.qvel  # views
        self._steps, self._direction = 0, np.array([1.0, 0.0])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """As in AntMaze."""
        super().reset(seed=seed)
        mujoco.mj_resetData(self._model, self._data)
        self._position[:] = self._model.qpos0 + self.np_random.uniform(-0.1, 0.1, self._model.nq)
        self._velocity[:] = 0.1 * self.np_random.standard_normal(self._model.nv)
        mujoco.mj_normalizeQuat(self._model, self._position)
        self._steps = 0
        self._turn()
        return self._observation(), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        before = self._position[:2].copy()
        np.minimum(np.maximum(action, -1.0), 1.0, out=self._data.ctrl)
        step(self._model, self._data, FRAMES)
        self._steps += 1
        way = float((self._position[:2] - before) @ self._direction)
        reward = PROGRESS * way - CONTROL_COST * float(np.square(action).sum())
        if self._steps % DIRECTION_STEPS == 0:
            self._turn()
        return self._observation(), reward, upside_down(self._position), self._steps >= self.horizon, {}

    def _turn(self) -> None:
        angle = self.np_random.uniform(0, 2 * np.pi)
        self._direction = np.array([np.cos(angle), np.sin(angle)])

    def _observation(self) -> Array:
        return body_observation(self._position, self._velocity, self._direction)
