"""Maze2D data with D4RL's recipe.

One endless trajectory: the waypoint controller drives to a random goal, then to the next, with noisy actions. A row
where the goal was reached (or given up after a horizon) carries the time-out flag and ends a trajectory; the ball is
never reset. Rewards are those of the task's fixed goal, which the controller does not know.

In D4RL's files a row's reward is that of the position it starts from; here, as in the environment, it is that of the
position the step reaches: a TD target needs r(s, a, s').
"""

from collections.abc import Callable

import numpy as np

from c4rl.core.array import Array
from c4rl.data.assembly import number_trajectories
from c4rl.environments.tasks import Task

ACTION_NOISE = 0.5
TOLD_EVERY = 2000  # rows: a twentieth of a second


def transitions(task: Task, size: int, seed: int, progress: Callable[[int, int], None]) -> dict[str, Array]:
    """A dataset's arrays. progress: (rows recorded, rows to record)."""
    # imported here: reading data needs no simulator
    from c4rl.environments.maze2d import Maze2D
    from c4rl.environments.waypoint_controller import WaypointController

    assert task.environment is not None
    environment = Maze2D(task.environment, task.dense, task.horizon)
    cells = environment.maze.free_cells
    rng = np.random.default_rng(seed)
    controller = WaypointController(environment.maze, rng)

    observations, actions = np.empty((size + 1, 4)), np.empty((size, 2))
    rewards, timeouts = np.empty(size), np.zeros(size, bool)
    observations[0], _ = environment.reset(seed=seed)
    steps_to_goal = None  # None: the last goal is done with, draw the next
    for t in range(size):
        position, velocity = observations[t, :2], observations[t, 2:]
        if steps_to_goal is None:
            controller.plan(position, cells[rng.integers(len(cells))])
            steps_to_goal = 0
        action, arrived = controller.act(position, velocity)
        actions[t] = np.clip(action + ACTION_NOISE * rng.standard_normal(2), -1, 1)
        observations[t + 1], rewards[t], *_ = environment.step(actions[t])
        timeouts[t] = arrived or steps_to_goal >= task.horizon
        steps_to_goal = None if timeouts[t] else steps_to_goal + 1
        if (t + 1) % TOLD_EVERY == 0:
            progress(t + 1, size)

    # a last row that was cut gets no flag: the stored sets were written so
    last = timeouts | (np.arange(size) == size - 1)
    next_actions = np.where(last[:, None], 0, np.roll(actions, -1, axis=0))
    return {
        "observations": observations[:-1].astype(np.float32),
        "actions": actions.astype(np.float32),
        "rewards": rewards.astype(np.float32),
        "next_observations": observations[1:].astype(np.float32),
        "terminals": np.zeros(size, bool),
        "timeouts": timeouts,
        "trajectory_ids": number_trajectories(timeouts),
        "next_actions": next_actions.astype(np.float32),
        "next_action_valid": ~last,
        "action_low": np.full(2, -1, np.float32),
        "action_high": np.full(2, 1, np.float32),
    }
