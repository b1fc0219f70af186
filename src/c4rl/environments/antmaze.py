"""D4RL's AntMaze on current MuJoCo: an ant that must walk through a maze to a goal, and is paid for arriving alone.

Cells are 4 wide. The start cell is the origin, x grows with the map's columns and y with its rows. This ant is not that
of the locomotion tasks: it steps 0.1 s at a time and is five times weaker.
"""

import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np

from c4rl.core.array import Array
from c4rl.environments.d4rl_physics import compile_model, step
from c4rl.environments.maze2d import MAZES as BALL_MAZES
from c4rl.environments.maze2d import Maze

CELL = 4.0
START = (1, 1)  # in every map
GOAL_RADIUS = 0.5
FRAMES = 5
TORQUE = 30  # of action 1

MAZES = {
    "umaze": Maze(("#####", "#   #", "### #", "#G  #", "#####")),
    "medium": BALL_MAZES["medium"],
    "large": BALL_MAZES["large"],
    "ultra": Maze(
        (
            "################",
            "#       #      #",
            "# ### # # ## # #",
            "# ### #    # # #",
            "#   # ## ### # #",
            "# #   #        #",
            "#   #   # ### ##",
            "# # ### #   # ##",
            "#       # #    #",
            "## ## #   #### #",
            "## #  # #     G#",
            "################",
        )
    ),
}


def place(cell: tuple[int, int]) -> Array:
    """(x, y) of a cell's centre."""
    return CELL * np.array([cell[1] - START[1], cell[0] - START[0]], np.float64)


def goal_near(cell: tuple[int, int], rng: np.random.Generator) -> Array:
    """A goal as D4RL draws it."""
    return place(cell) + rng.uniform(0, 1, 2) + rng.uniform(0, 0.5, 2)


def ant_model(walls: Array) -> mujoco.MjModel:
    """gymnasium's ant with D4RL's constants, between walls [rows, columns]."""
    assets = Path(gymnasium.__file__).parent / "envs" / "mujoco" / "assets"
    root = ElementTree.parse(assets / "ant.xml").getroot()
    for option in root.iter("option"):
        option.set("timestep", "0.02")
    for motor in root.iter("motor"):
        motor.set("gear", str(TORQUE))
    for geom in root.findall("default/geom"):
        geom.attrib |= {"solref": ".02 1", "solimp": ".8 .8 .01", "margin": ".01"}
    (world,) = root.findall("worldbody")
    half = CELL / 2
    for i, j in zip(*np.nonzero(walls), strict=True):
        x, y = place((int(i), int(j)))
        wall = {"pos": f"{x} {y} {half / 2}", "size": f"{half} {half} {half / 2}", "contype": "1", "conaffinity": "1"}
        world.append(ElementTree.Element("geom", wall | {"type": "box"}))
    return compile_model(ElementTree.tostring(root, encoding="unicode"))


class AntMaze(gymnasium.Env):
    """Observation: 15 positions (x, y, height, quaternion, 8 joints) and 14 velocities; the goal is not observed.

    Reward 1 and the end within 0.5 of the goal, else 0. A fall ends nothing.
    """

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium's own interface)

    def __init__(self, maze: str, horizon: int) -> None:
        self.maze, self.horizon = MAZES[maze], horizon
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (29,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32)
        self.model = ant_model(self.maze.walls)
        self.data = mujoco.MjData(self.model)
        self._position, self._velocity = self.data.qpos, self.data.qvel  # views
        self._steps = 0
        self.goal = place(self.maze.goal)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        """Start at the origin, positions + U(-0.1, 0.1), velocities 0.1 N(0, 1), with a new goal in the goal's cell."""
        super().reset(seed=seed)
        rng = self.np_random
        position = self.model.qpos0 + rng.uniform(-0.1, 0.1, self.model.nq)
        velocity = 0.1 * rng.standard_normal(self.model.nv)
        self.goal = goal_near(self.maze.goal, rng)
        return self.set_state(position, velocity), {}

    def set_state(self, position: Array, velocity: Array) -> Array:
        """Put the ant somewhere, as if an episode started there; returns the observation."""
        mujoco.mj_resetData(self.model, self.data)
        self._position[:], self._velocity[:] = position, velocity
        mujoco.mj_normalizeQuat(self.model, self._position)
        self._steps = 0
        return self._observation()

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        np.minimum(np.maximum(action, -1.0), 1.0, out=self.data.ctrl)
        step(self.model, self.data, FRAMES)
        self._steps += 1
        x, y = self._position[:2] - self.goal
        arrived = bool(x * x + y * y <= GOAL_RADIUS**2)
        return self._observation(), float(arrived), arrived, self._steps >= self.horizon, {}

    def _observation(self) -> Array:
        return np.concatenate((self._position, self._velocity))
