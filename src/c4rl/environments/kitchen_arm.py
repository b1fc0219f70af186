"""Kitchen's scripted behaviour: the hand goes along a few points around a handle, and so through four sub-tasks.

It sees what a policy sees, the noisy positions. Joint movements come from the hand's Jacobian; the hand keeps the
direction it has at the start. The points are this package's own, found by random search in the simulator.
"""

from itertools import permutations
from typing import Any

import gymnasium
import mujoco
import numpy as np

from c4rl.core.array import Array
from c4rl.environments.kitchen import KITCHENS, REACH, ROBOT, START, SUBTASKS, Kitchen, is_done

OPEN, CLOSED = 1.0, -1.0
# sub-task -> the site at its handle, and points relative to where that is at the start, with the fingers' action
SCRIPTS: dict[str, tuple[str, tuple[tuple[float, float, float, float], ...]]] = {
    "microwave": (
        "microhandle_site",
        (
            (0.084, -0.15, -0.036, OPEN),
            (0.016, -0.066, 0.055, OPEN),
            (0.034, 0.146, 0.16, CLOSED),
            (-0.177, -0.346, 0.012, CLOSED),
            (-0.244, -0.316, -0.128, CLOSED),
        ),
    ),
    "kettle": (
        "kettle_site",
        (
            (-0.092, -0.133, -0.164, CLOSED),
            (-0.024, 0.014, -0.151, CLOSED),
            (-0.065, 0.156, -0.024, CLOSED),
        ),
    ),
    "light switch": (
        "light_site",
        (
            (0.062, -0.104, 0.003, CLOSED),
            (0.077, -0.008, 0.035, CLOSED),
            (-0.123, 0.001, 0.044, CLOSED),
        ),
    ),
    "slide cabinet": (
        "slide_site",
        (
            (-0.092, -0.156, -0.053, CLOSED),
            (0.007, 0.142, 0.02, CLOSED),
            (0.221, 0.09, -0.07, CLOSED),
        ),
    ),
    "bottom burner": (
        "knob2_site",
        (
            (0.03, 0.021, -0.095, OPEN),
            (-0.048, -0.032, -0.003, CLOSED),
        ),
    ),
}
BACK = 0.2  # how far the hand comes back from a handle before it goes on: its y
NEAR = 0.03  # distance at which a point counts as reached
PATIENCE = 20  # steps, after which it goes on to the next point anyway
STRIDE = 0.09  # of the hand in a step, at most
TURN, DAMPING = 0.3, 1e-3  # weight of the hand's direction; of the least squares that give joint movements
ACTION_NOISE = 0.1


def orders(kind: str) -> list[tuple[str, ...]]:
    """What an episode may do, one after the other: the task's four sub-tasks in their order (complete), any four of
    the five (partial), or any four that are not the task's four (mixed)."""
    if kind == "complete":
        return [KITCHENS[kind]]
    every = permutations(SUBTASKS, 4)
    return [order for order in every if kind == "partial" or set(order) != set(KITCHENS[kind])]


class KitchenArm(gymnasium.Wrapper):
    """A `Kitchen` and who acts in it. `order`: the sub-tasks that are left in the current episode, which ends with
    them, or with the horizon."""

    env: Kitchen

    def __init__(self, kind: str, horizon: int) -> None:
        super().__init__(Kitchen(kind, horizon))
        self._orders, self._model = orders(kind), self.env.model
        self._data, self._hand = mujoco.MjData(self._model), self._model.site("end_effector").id
        self._moves, self._turns = np.zeros((3, self._model.nv)), np.zeros((3, self._model.nv))
        self._see(START)
        self._direction = self._data.site_xmat[self._hand].reshape(3, 3).copy()
        self._points = {
            name: [(self._data.site(site).xpos + point[:3], point[3]) for point in points]
            for name, (site, points) in SCRIPTS.items()
        }
        self.order: list[str] = []
        self._current = ""
        self._begin([])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        found = self.env.reset(seed=seed)
        self.order = list(self._orders[self.env.np_random.integers(len(self._orders))])
        self._current = self.order[0]
        self._begin(self._points[self._current])
        return found

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        self.order = [name for name in self.order if not is_done(name, observation)]
        return observation, reward, terminated, truncated or not self.order, info

    def act(self, observation: Array, rng: np.random.Generator | None = None) -> Array:
        """The step along the script, with noise."""
        self._see(observation[: len(START)])
        place = self._data.site_xpos[self._hand]
        if self.order[0] != self._current:  # the last one is done: back off, then on to the next
            self._current = self.order[0]
            self._begin([(np.array([place[0], min(place[1], BACK), place[2]]), CLOSED), *self._points[self._current]])
        elif self._steps >= PATIENCE or np.linalg.norm(self._way[0][0] - place) < NEAR:
            self._begin(self._way[1:] or self._points[self._current])
        self._steps += 1
        target, fingers = self._way[0]
        action = np.append(self._joints(target - place), [fingers, fingers])
        noise = 0.0 if rng is None else ACTION_NOISE * rng.standard_normal(ROBOT)
        return np.clip(action + noise, -1, 1).astype(np.float32)

    def _begin(self, way: list[tuple[Array, float]]) -> None:
        """Go along these points, each a place and the fingers' action."""
        self._way, self._steps = way, 0

    def _see(self, position: Array) -> None:
        self._data.qpos[:] = position
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)

    def _joints(self, way: Array) -> Array:
        """The action of the seven joints that moves the hand this way, and turns it back to its direction."""
        away = self._direction @ self._data.site_xmat[self._hand].reshape(3, 3).T
        turn = 0.5 * np.array([away[2, 1] - away[1, 2], away[0, 2] - away[2, 0], away[1, 0] - away[0, 1]])
        mujoco.mj_jacSite(self._model, self._data, self._moves, self._turns, self._hand)
        joints = ROBOT - 2
        jacobian = np.vstack([self._moves[:, :joints], TURN * self._turns[:, :joints]])
        wanted = np.append(
            way * min(1.0, STRIDE / max(float(np.linalg.norm(way)), 1e-9)), TURN * np.clip(turn, -0.3, 0.3)
        )
        change = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + DAMPING * np.eye(6), wanted)
        action = change / REACH
        return action / max(1.0, float(np.abs(action).max()))
