"""AntMaze's behaviour as in D4RL: an ant that walks in any direction, steered along a shortest path through the maze.

Each episode leads to a target, which ends it. The task's goal, fixed for all episodes, pays and is terminal wherever
the ant comes past it. An ant that has fallen on its back stays there until the episode is cut.
"""

from typing import Any, Literal

import gymnasium
import numpy as np

from c4rl.core.array import Array
from c4rl.core.behaviour_policy import BehaviourPolicy
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.environments.antmaze import CELL, GOAL_RADIUS, START, AntMaze, goal_near, place
from c4rl.environments.goal_ant import body_observation
from c4rl.environments.waypoint_controller import Cell, shortest_path

WALK_STEPS = 1000  # until an episode is cut, in every maze
ACTION_NOISE = 0.2
Kind = Literal["umaze", "play", "diverse"]


class MazeWalk(gymnasium.Wrapper):
    """kind: "umaze" walks from the start to the goal, "play" from any cell to the goal, "diverse" from any cell to any.

    `target` is where the current episode leads.
    """

    env: AntMaze

    def __init__(self, maze: str, kind: Kind, goal: Array) -> None:
        """goal: of the task; see `goal_near`."""
        super().__init__(AntMaze(maze, WALK_STEPS))
        self.kind, self.goal = kind, goal
        self.target = np.zeros(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed)
        cells, rng = self.env.maze.free_cells, self.env.np_random
        start = START if self.kind == "umaze" else cells[rng.integers(len(cells))]
        self.target = goal_near(cells[rng.integers(len(cells))], rng) if self.kind == "diverse" else self.goal
        position = observation[:15].copy()
        position[:2] += place(start)
        self.env.goal = self.goal
        return self.env.set_state(position, observation[15:]), info

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        arrived = bool(np.hypot(*(observation[:2] - self.target)) <= GOAL_RADIUS)
        return observation, reward, terminated, truncated or arrived, info


class SteeredWalker:
    """Acts in a `MazeWalk` with a policy of `GoalAnt`."""

    def __init__(self, walk: MazeWalk, policy: NumpyPolicy | BehaviourPolicy) -> None:
        self._walk, self._policy = walk, policy
        self._next: dict[tuple[Cell, Cell], Cell] = {}

    def act(self, observation: Array, rng: np.random.Generator | None = None) -> Array:
        """The mean action towards the next cell's centre, or the target in its own cell, with noise."""
        way = self._waypoint(observation[:2]) - observation[:2]
        direction = way / max(float(np.hypot(*way)), 1e-6)
        action = self._policy.act(body_observation(observation[:15], observation[15:], direction))
        noise = 0.0 if rng is None else ACTION_NOISE * rng.standard_normal(len(action))
        return np.clip(action + noise, -1, 1).astype(np.float32)

    def _waypoint(self, position: Array) -> Array:
        walk = self._walk
        here, there = _cell(position), _cell(walk.target)
        if here == there or walk.env.maze.walls[here]:
            return walk.target
        if (here, there) not in self._next:
            self._next[here, there] = shortest_path(walk.env.maze, here, there)[0]
        following = self._next[here, there]
        return walk.target if following == there else place(following)


def _cell(position: Array) -> Cell:
    column, row = np.rint(position / CELL).astype(int)
    return int(row) + START[0], int(column) + START[1]
