"""Environments of tasks, made in one place."""

import gymnasium
import numpy as np

from c4rl.core.errors import InputError
from c4rl.environments.gym_ids import make_gym
from c4rl.environments.tasks import GOAL_ANT, Task, get_task, missing


def make_environment(task: Task) -> gymnasium.Env:
    """The simulator a policy of this task is scored in; episodes end by truncation at `task.horizon` at the latest."""
    absent = missing(task)
    if task.environment is None or absent is not None:
        raise InputError(f"task '{task.name}' cannot be simulated here: {absent}")
    if task.domain == "maze2d":
        from c4rl.environments.maze2d import Maze2D

        return Maze2D(task.environment, dense=task.dense, horizon=task.horizon)
    if task.domain == "locomotion":
        from c4rl.environments.locomotion import Locomotion

        return Locomotion(task.environment, task.horizon)
    if task.environment == GOAL_ANT.environment:
        from c4rl.environments.goal_ant import GoalAnt

        return GoalAnt(task.horizon)
    if task.domain == "antmaze":
        from c4rl.environments.antmaze import AntMaze

        return AntMaze(task.environment, task.horizon)
    if task.domain == "adroit":
        from c4rl.environments.adroit import ADROIT

        return ADROIT[task.environment](task.horizon)
    if task.domain == "kitchen":
        from c4rl.environments.kitchen import Kitchen

        return Kitchen(task.environment, task.horizon)
    return make_gym(task.environment, task.horizon)


def environment_of(task: str) -> gymnasium.Env:
    """`make_environment` by a task's name: what Minari datasets that we wrote name as their environment."""
    return make_environment(get_task(task))


def symmetries_of(task: Task) -> tuple[np.ndarray, np.ndarray] | None:
    """Matrices [K, s, s] and [K, a, a] under which the simulator stays the same, the identity among them; None: no
    other."""
    from c4rl.environments.ant_symmetry import goal_ant_symmetries

    return goal_ant_symmetries() if task.environment == GOAL_ANT.environment else None
