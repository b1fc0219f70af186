"""D4RL's scripted Maze2D behaviour: shortest path over the grid's cells, a PD controller from waypoint to waypoint."""

from collections import deque

import numpy as np

from c4rl.core.array import Array
from c4rl.environments.maze2d import Maze

Cell = tuple[int, int]

PROPORTIONAL_GAIN = 10.0
DERIVATIVE_GAIN = -1.0
REACHED = 0.1  # distance at which a waypoint counts as reached
JITTER = 0.2  # waypoints lie uniformly between a cell's index and its true centre
# D4RL breaks ties between shortest paths in this order
MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))


class WaypointController:
    """Drives the ball to the cell of a target. `rng` jitters the waypoints, the only randomness here."""

    def __init__(self, maze: Maze, rng: np.random.Generator) -> None:
        self.maze, self._rng = maze, rng
        self._waypoints: list[Array] = []
        self._next = 0

    def plan(self, position: Array, target: Cell) -> None:
        """Waypoints along a shortest path from the position's cell to the target; the target's is not jittered."""
        path = shortest_path(self.maze, self.maze.cell_of(position), target)
        self._waypoints = [cell - JITTER * self._rng.uniform(size=2) for cell in path[:-1]]
        self._waypoints.append(np.array(path[-1], np.float64))
        self._next = 0

    def act(self, position: Array, velocity: Array) -> tuple[Array, bool]:
        """The clipped PD force towards the current waypoint, and whether the target is reached."""
        waypoint = self._waypoints[self._next]
        action = np.clip(PROPORTIONAL_GAIN * (waypoint - position) + DERIVATIVE_GAIN * velocity, -1.0, 1.0)
        reached = float(np.hypot(*(waypoint - position))) < REACHED
        arrived = float(np.hypot(*(self._waypoints[-1] - position))) < REACHED
        if reached and self._next < len(self._waypoints) - 1:
            self._next += 1
        return action, arrived


def shortest_path(maze: Maze, start: Cell, target: Cell) -> list[Cell]:
    """The cells after `start` up to and including `target`; [target] where they coincide."""
    distance = {target: 0}
    frontier = deque([target])
    while frontier:
        i, j = frontier.popleft()
        for di, dj in MOVES:
            cell = (i + di, j + dj)
            if not maze.walls[cell] and cell not in distance:
                distance[cell] = distance[i, j] + 1
                frontier.append(cell)
    path, cell = [], start
    while cell != target:
        neighbours = [(cell[0] + di, cell[1] + dj) for di, dj in MOVES]
        cell = min((c for c in neighbours if c in distance), key=lambda c: distance[c])  # min keeps the first of equals
        path.append(cell)
    return path or [target]
