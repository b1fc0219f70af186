"""AntMaze is D4RL's: its logged rows come out again, and its starts, goals, rewards and ends are as in D4RL."""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from c4rl.environments.antmaze import GOAL_RADIUS, MAZES, AntMaze, place
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import TASKS, get_task

SETS = ["umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse"]
STANDING = np.array([0, 0, 0.55, 1, 0, 0, 0, 0, 1, 0, -1, 0, -1, 0, 1])


def antmaze(name: str) -> AntMaze:
    environment = make_environment(get_task(name))
    assert isinstance(environment, AntMaze)
    return environment


def errors_of_replay(environment: AntMaze, before: np.ndarray, actions: np.ndarray, after: np.ndarray) -> np.ndarray:
    """The largest error over the state, one step from each of 400 logged states."""
    rows = np.random.default_rng(0).choice(len(actions), min(400, len(actions)), replace=False)
    errors = []
    for row in rows:
        environment.set_state(before[row, :15], before[row, 15:])
        errors.append(np.abs(environment.step(actions[row])[0] - after[row]).max())
    return np.array(errors)


@pytest.mark.parametrize("name", SETS)
def test_logged_d4rl_rows_are_replayed(name: str, shared: Callable[[str], Path]) -> None:
    with h5py.File(shared(f"data/d4rl-hdf5/antmaze-{name}-v0.hdf5")) as file:
        before, actions = file["observations"][:], file["actions"][:]
        after = np.concatenate((file["infos/qpos"][:], file["infos/qvel"][:]), axis=1)  # of the state after the step
    errors = errors_of_replay(antmaze(f"antmaze-{name}"), before, actions, after)
    assert np.median(errors) <= 1e-5
    assert np.quantile(errors, 0.99) <= 1e-3


def test_logged_rewards_and_ends_are_replayed(shared: Callable[[str], Path]) -> None:
    with np.load(shared("data/d4rl-10k/antmaze-umaze-v0.npz"), allow_pickle=False) as file:
        data = dict(file)
    environment = antmaze("antmaze-umaze")
    environment.goal = np.array([0.525, 9.47])  # the goal that the file's rewards were computed for
    rewarded, others = np.flatnonzero(data["rewards"]), np.flatnonzero(data["rewards"] == 0)
    for row in [*rewarded, *others[:: len(others) // 300]]:
        environment.set_state(data["observations"][row, :15], data["observations"][row, 15:])
        observation, reward, terminated, *_ = environment.step(data["actions"][row])
        assert reward == data["rewards"][row] and terminated == data["terminals"][row]
        np.testing.assert_allclose(observation, data["next_observations"][row], rtol=0, atol=1e-3)


@pytest.mark.parametrize("maze", MAZES)
def test_starts_and_goals_lie_in_d4rls_boxes(maze: str) -> None:
    environment = AntMaze(maze, 10)
    observations, goals = [], []
    for seed in range(200):
        observations.append(environment.reset(seed=seed)[0])
        goals.append(environment.goal)
    starts, offsets = np.array(observations), np.array(goals) - place(environment.maze.goal)
    np.testing.assert_allclose(np.abs(starts[:, :2]).max(axis=0), 0.1, atol=0.01)
    np.testing.assert_allclose([starts[:, 2].min(), starts[:, 2].max()], [0.65, 0.85], atol=0.01)
    np.testing.assert_allclose(np.linalg.norm(starts[:, 3:7], axis=1), 1, atol=1e-12)
    assert starts[:, 15:].std() == pytest.approx(0.1, rel=0.1)
    # the sum of U(0, 1) and U(0, 0.5)
    assert offsets.min() >= 0 and offsets.max() <= 1.5
    assert offsets.mean() == pytest.approx(0.75, abs=0.06)
    assert offsets.std() == pytest.approx(np.sqrt(1.25 / 12), rel=0.15)


def test_the_mazes_are_d4rls() -> None:
    assert [place(maze.goal).tolist() for maze in MAZES.values()] == [[0, 8], [20, 20], [32, 24], [52, 36]]
    horizons = [task.horizon for task in TASKS.values() if task.domain == "antmaze"]
    assert horizons == [700, 700, 1000, 1000, 1000, 1000, 2000, 2000]


def reward_at(distance: float) -> tuple[float, bool]:
    environment = AntMaze("umaze", 10)
    environment.reset(seed=0)
    observation = environment.set_state(STANDING, np.zeros(14))
    observation, *_ = environment.step(np.zeros(8))
    environment.goal = observation[:2] + np.array([distance, 0])
    environment.set_state(STANDING, np.zeros(14))
    _, reward, terminated, *_ = environment.step(np.zeros(8))
    return reward, terminated


def test_within_half_a_unit_of_the_goal_pays_1_and_ends() -> None:
    assert reward_at(GOAL_RADIUS - 0.01) == (1.0, True)
    assert reward_at(GOAL_RADIUS + 0.01) == (0.0, False)


def test_a_fall_ends_nothing_and_the_horizon_cuts() -> None:
    environment = AntMaze("umaze", 5)
    environment.reset(seed=0)
    environment.set_state(np.concatenate((STANDING[:3], [0, 1, 0, 0], STANDING[7:])), np.zeros(14))  # on its back
    ends = [environment.step(np.zeros(8))[2:4] for _ in range(5)]
    assert ends == [(False, False)] * 4 + [(False, True)]


def test_walls_hold_and_openings_do_not() -> None:
    environment = AntMaze("umaze", 1000)
    environment.reset(seed=0)
    reached = {}
    for direction, axis, sign in (("wall below", 1, -1), ("wall left", 0, -1), ("way right", 0, 1)):
        velocity = np.zeros(14)
        velocity[axis] = 8.0 * sign
        environment.set_state(STANDING, velocity)
        reached[direction] = max(sign * environment.step(np.zeros(8))[0][axis] for _ in range(30))
    assert reached["wall below"] < 2 and reached["wall left"] < 2 < reached["way right"]


def test_equal_seeds_give_equal_episodes() -> None:
    actions = np.random.default_rng(0).uniform(-1, 1, (50, 8))
    episodes = []
    for seed in (3, 3, 4):
        environment = antmaze("antmaze-medium-play")
        start, _ = environment.reset(seed=seed)
        episodes.append(np.stack([start, *(environment.step(action)[0] for action in actions)]))
    np.testing.assert_array_equal(episodes[0], episodes[1])
    assert not np.array_equal(episodes[0], episodes[2])
