"""D4RL's Maze2D on current MuJoCo: a force-driven ball in a grid of walls that must go to a fixed goal and stay.

Positions are in units of cells, x along the map's rows and y along its columns. As in D4RL the ball's origin lies at
(1.2, 1.2) of the world and the wall of cell (i, j) at (i + 1, j + 1): in the ball's coordinates a cell is centred at
its index minus 0.2, and that asymmetry is part of the task.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import gymnasium
import mujoco
import numpy as np

from c4rl.core.array import Array
from c4rl.environments.d4rl_physics import compile_model

BALL_ORIGIN = 1.2
WALL_ORIGIN = 1.0
CELL_SHIFT = WALL_ORIGIN - BALL_ORIGIN  # a cell's centre in the ball's coordinates, relative to its index
BALL_RADIUS = 0.1
MAX_SPEED = 5.0
GOAL_RADIUS = 0.5


@dataclass(frozen=True)
class Maze:
    """A map: `#` wall, `G` goal, anything else free."""

    rows: tuple[str, ...]

    @cached_property
    def walls(self) -> Array:
        """[rows, columns] bool."""
        return np.array([[cell == "#" for cell in row] for row in self.rows])

    @cached_property
    def goal(self) -> tuple[int, int]:
        return next((i, row.index("G")) for i, row in enumerate(self.rows) if "G" in row)

    @cached_property
    def free_cells(self) -> list[tuple[int, int]]:
        """Where episodes start and recorded goals lie, the goal's own cell last."""
        free = [(int(i), int(j)) for i, j in zip(*np.nonzero(~self.walls), strict=True)]
        return [cell for cell in free if cell != self.goal] + [self.goal]

    def cell_of(self, position: Array) -> tuple[int, int]:
        """The cell whose walls surround this position."""
        i, j = np.rint(np.asarray(position) - CELL_SHIFT).astype(int)
        return int(i), int(j)


MAZES = {
    "open": Maze(("#######", "#     #", "#  G  #", "#     #", "#######")),
    "umaze": Maze(("#####", "#G  #", "### #", "#   #", "#####")),
    "medium": Maze(
        (
            "########",
            "#  ##  #",
            "#  #   #",
            "##   ###",
            "#  #   #",
            "# #  # #",
            "#   # G#",
            "########",
        )
    ),
    "large": Maze(
        (
            "############",
            "#    #     #",
            "# ## # # # #",
            "#      #   #",
            "# #### ### #",
            "#  # #     #",
            "## # # # ###",
            "#  #   # G #",
            "############",
        )
    ),
}


@cache
def _model(maze: Maze) -> mujoco.MjModel:
    """D4RL's constants; its floor is left out, since a frictionless contact along z cannot move the ball."""
    walls = "".join(
        f'<geom type="box" pos="{i + WALL_ORIGIN} {j + WALL_ORIGIN} 0" size=".5 .5 .2"/>'
        for i, j in zip(*np.nonzero(maze.walls), strict=True)
    )
    return compile_model(
        f"""
        <mujoco model="maze2d">
          <compiler inertiafromgeom="true" angle="radian"/>
          <option timestep="0.01" gravity="0 0 0" iterations="20" integrator="Euler"/>
          <default>
            <joint damping="1" limited="false"/>
            <geom friction=".5 .1 .1" density="1000" margin="0.002" condim="1" contype="2" conaffinity="1"/>
          </default>
          <worldbody>
            {walls}
            <body pos="{BALL_ORIGIN} {BALL_ORIGIN} 0">
              <geom type="sphere" size="{BALL_RADIUS}" contype="1"/>
              <joint name="x" type="slide" axis="1 0 0"/>
              <joint name="y" type="slide" axis="0 1 0"/>
            </body>
          </worldbody>
          <actuator>
            <motor joint="x" gear="100" ctrlrange="-1 1" ctrllimited="true"/>
            <motor joint="y" gear="100" ctrlrange="-1 1" ctrllimited="true"/>
          </actuator>
        </mujoco>
        """
    )


class Maze2D(gymnasium.Env):
    """Observation (x, y, vx, vy), action: force in [-1, 1]^2. Never terminates; truncated at the horizon.

    The reward is paid for the position reached by the step: 1 within 0.5 of the goal (sparse), exp(-distance) (dense).
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium's own interface)

    def __init__(self, maze: str, dense: bool, horizon: int) -> None:
        self.maze, self.dense, self.horizon = MAZES[maze], dense, horizon
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        self._model = _model(self.maze)
        self._data = mujoco.MjData(self._model)
        # views into MuJoCo's state: every read and write through them is direct
        self._position, self._velocity, self._control = self._data.qpos, self._data.qvel, self._data.ctrl
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start in a random free cell: its index + U(-0.1, 0.1)^2, velocity 0.1 N(0, 1)."""
        super().reset(seed=seed)
        cells = self.maze.free_cells
        cell = cells[self.np_random.integers(len(cells))]
        position = cell + self.np_random.uniform(-0.1, 0.1, size=2)
        return self.set_state(position, 0.1 * self.np_random.standard_normal(2)), {}

    def set_state(self, position: Array, velocity: Array) -> Array:
        """Put the ball somewhere, as if an episode started there; returns the observation."""
        mujoco.mj_resetData(self._model, self._data)
        self._position[:], self._velocity[:] = position, velocity
        self._steps = 0
        return self._observation()

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        np.minimum(np.maximum(self._velocity, -MAX_SPEED), MAX_SPEED, out=self._velocity)
        np.minimum(np.maximum(action, -1.0), 1.0, out=self._control)
        mujoco.mj_step(self._model, self._data)
        self._steps += 1
        observation = self._observation()
        reward = self._reward(observation[0], observation[1])
        return observation, reward, False, self._steps >= self.horizon, {}

    @staticmethod
    def step_together(mazes: "Sequence[Maze2D]", actions: Array) -> tuple[Array, list[float], list[bool]]:
        """`step` of each with its action, bit for bit, in less time: observations, rewards, and which episodes end."""
        forces = np.minimum(np.maximum(actions, -1.0), 1.0).astype(np.float64)
        for maze, force in zip(mazes, forces, strict=True):
            x, y = maze._velocity.tolist()
            if not (-MAX_SPEED <= x <= MAX_SPEED and -MAX_SPEED <= y <= MAX_SPEED):
                np.minimum(np.maximum(maze._velocity, -MAX_SPEED), MAX_SPEED, out=maze._velocity)
            maze._control[:] = force
            mujoco.mj_step(maze._model, maze._data)
            maze._steps += 1
        observations = np.concatenate([part for maze in mazes for part in (maze._position, maze._velocity)])
        observations = observations.reshape(-1, 4)
        rewards = [maze._reward(x, y) for maze, (x, y, _, _) in zip(mazes, observations.tolist(), strict=True)]
        return observations, rewards, [maze._steps >= maze.horizon for maze in mazes]

    def _reward(self, x: float, y: float) -> float:
        """For reaching this position."""
        goal = self.maze.goal
        distance = math.hypot(x - goal[0], y - goal[1])
        return math.exp(-distance) if self.dense else float(distance <= GOAL_RADIUS)

    def _observation(self) -> Array:
        return np.concatenate((self._position, self._velocity))
