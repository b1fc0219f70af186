"""Locomotion is D4RL's: its logged rows, whole episodes and returns come out again, and steps are gymnasium's own."""

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from c4rl.environments.locomotion import _ROBOTS, gymnasium_environment
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import get_task

ROBOTS = ["hopper", "halfcheetah", "walker2d", "ant"]
CLIPS_VELOCITIES = ("hopper", "walker2d")


@pytest.mark.parametrize("robot", ROBOTS)
def test_steps_equal_gymnasiums_own_class_bit_for_bit(robot: str) -> None:
    task = get_task(f"{robot}-medium-v2")
    assert task.environment is not None
    ours, theirs = make_environment(task), TimeLimit(gymnasium_environment(task.environment), 1000)
    assert ours.observation_space.shape == (task.observation_dim,)
    assert ours.action_space.shape == (task.action_dim,)
    rng = np.random.default_rng(0)
    for seed in range(3):
        start, _ = ours.reset(seed=seed)
        np.testing.assert_array_equal(start, theirs.reset(seed=seed)[0])
        done = False
        while not done:
            action = np.tanh(0.5 * rng.normal(size=theirs.action_space.shape)).astype(np.float32)
            (observation, reward, *ends, _), expected = ours.step(action), theirs.step(action)
            np.testing.assert_array_equal(observation, expected[0])
            assert reward == expected[1]
            assert ends == [expected[2], expected[3]]
            done = any(ends)


@pytest.mark.parametrize("robot", ["hopper", "walker2d", "ant"])
def test_a_robot_stands_as_long_as_gymnasium_calls_it_healthy(robot: str) -> None:
    """On both sides of every bound of heights and angles."""
    name = str(get_task(f"{robot}-medium-v2").environment)
    stands, theirs = _ROBOTS[name].stands, gymnasium_environment(name).unwrapped
    assert stands is not None
    edges = [bound + side * 1e-6 for bound in (-1.0, -0.2, 0.2, 0.7, 0.8, 1.0, 2.0) for side in (-1, 1)]
    found = set()
    for first, second, speed in itertools.product(edges, edges, (0.0, 101.0)):
        theirs.data.qpos[1:3], theirs.data.qvel[0] = (first, second), speed
        assert stands(theirs.data.qpos, theirs.data.qvel) == theirs.is_healthy
        found.add(bool(theirs.is_healthy))
    assert found == {True, False}


@pytest.mark.parametrize("robot", ROBOTS)
def test_making_a_v4_environment_warns_of_nothing(robot: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_environment(get_task(f"{robot}-medium-v2"))


class Logged(NamedTuple):
    """Rows of a D4RL file: the state before a step, what was done, and what came of it."""

    positions: np.ndarray
    velocities: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    terminals: np.ndarray
    last: np.ndarray  # of an episode: what came next was not observed
    following: np.ndarray


def from_npz(path: Path) -> Logged:
    with np.load(path, allow_pickle=False) as file:
        data = dict(file)
    observations = data["observations"].astype(np.float64)
    count = (observations.shape[1] + 1) // 2  # of positions, with the first, which is not observed and does not matter
    positions = np.concatenate((np.zeros((len(observations), 1)), observations[:, : count - 1]), axis=1)
    terminals = data["terminals"].astype(bool)
    return Logged(
        positions, observations[:, count - 1 :], data["actions"], data["rewards"], terminals, terminals,
        data["next_observations"],
    )  # fmt: skip


def from_hdf5(path: Path) -> Logged:
    with h5py.File(path) as file:
        names = ("infos/qpos", "infos/qvel", "actions", "rewards", "terminals", "timeouts", "observations")
        *data, timeouts, observations = (file[name][:] for name in names)
    return Logged(*data, data[-1] | timeouts, np.roll(observations, -1, axis=0))


def replayed_rows(task: str, logged: Logged, rows: np.ndarray) -> tuple[list[float], list[float]]:
    """Errors of states and rewards, one step from each logged state; terminals must all be right."""
    environment = make_environment(get_task(task))
    environment.reset(seed=0)
    state_errors, reward_errors = [], []
    for row in rows:
        # Ant's reward is paid for its torso's position, which lags a substep behind the state: one row to get it right
        first = row - 1 if task.startswith("ant") else row
        environment.unwrapped.set_state(logged.positions[first], logged.velocities[first])
        for step in range(first, row + 1):
            observation, reward, terminated, *_ = environment.step(logged.actions[step])
        assert terminated == logged.terminals[row]
        reward_errors.append(abs(reward - logged.rewards[row]))
        if not logged.last[row]:
            state_errors.append(np.abs(observation - logged.following[row, : len(observation)]).max())
    return state_errors, reward_errors


def chosen_rows(robot: str, logged: Logged, count: int) -> np.ndarray:
    usable = np.ones(len(logged.actions), bool)
    if robot in CLIPS_VELOCITIES:  # in the files too
        usable = (np.abs(logged.velocities) < 10).all(axis=1)
    usable &= ~np.roll(logged.last, 1)  # a row before it
    return np.random.default_rng(0).choice(np.flatnonzero(usable[1:]) + 1, count, replace=False)


FILES = {
    "hopper": ["medium-replay", "medium-expert", "expert"],
    "halfcheetah": ["medium", "medium-replay", "expert"],
    "walker2d": ["medium", "medium-expert"],
}


@pytest.mark.parametrize(
    ("robot", "file"),
    [
        *((robot, f"d4rl-10k/{robot}-{quality}-v2.npz") for robot in FILES for quality in FILES[robot]),
        *((robot, f"d4rl-hdf5/{robot}_medium-v2.hdf5") for robot in ROBOTS),
    ],
)
def test_logged_d4rl_rows_are_replayed(robot: str, file: str, shared: Callable[[str], Path]) -> None:
    path = shared(f"data/{file}")
    logged = from_npz(path) if path.suffix == ".npz" else from_hdf5(path)
    for errors in replayed_rows(f"{robot}-medium-v2", logged, chosen_rows(robot, logged, 400)):
        assert np.median(errors) <= 1e-5
        assert np.quantile(errors, 0.99) <= 1e-3


# how long the rounding of the logged start, to float32, stays below 1e-3: after that no simulator could follow
@pytest.mark.parametrize(("robot", "steps"), [("hopper", 440), ("halfcheetah", 30), ("walker2d", 200), ("ant", 50)])
def test_episodes_are_replayed_from_their_first_state_alone(
    robot: str, steps: int, shared: Callable[[str], Path]
) -> None:
    logged = from_hdf5(shared(f"data/d4rl-hdf5/{robot}_medium-v2.hdf5"))
    environment = make_environment(get_task(f"{robot}-medium-v2"))
    for start in (0, int(np.argmax(logged.last)) + 1):
        environment.reset(seed=0)
        environment.unwrapped.set_state(logged.positions[start], logged.velocities[start])
        for row in range(start, start + steps):
            observation, reward, terminated, *_ = environment.step(logged.actions[row])
            assert abs(reward - logged.rewards[row]) <= 1e-3
            assert terminated == logged.terminals[row]
            if not logged.last[row]:
                np.testing.assert_allclose(observation, logged.following[row, : len(observation)], rtol=0, atol=1e-3)


def sampled_episodes(task: str, policy: Any, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns and lengths of a tanh-Gaussian policy whose actions are drawn, as D4RL drew its data."""
    environment, returns, lengths = make_environment(get_task(task)), np.zeros(episodes), np.zeros(episodes)
    for seed in range(episodes):
        rng, done = np.random.default_rng(seed), False
        observation, _ = environment.reset(seed=seed)
        while not done:
            x = observation.astype(np.float32)
            for layer in ("0", "1"):
                x = np.maximum(x @ policy["w" + layer] + policy["b" + layer], 0)
            mean, log_std = (x @ policy[f"w_{head}"] + policy[f"b_{head}"] for head in ("mean", "log_std"))
            action = np.tanh(mean + np.exp(np.clip(log_std, -20, 2)) * rng.standard_normal(mean.shape, np.float32))
            observation, reward, terminated, truncated, _ = environment.step(action)
            returns[seed] += reward
            lengths[seed] += 1
            done = terminated or truncated
    return returns, lengths


@pytest.mark.parametrize(
    # mean returns of D4RL's files; of Ant's none is published, but its 10^6 rows are 1203 episodes
    ("robot", "episodes", "mean_return"),
    [("hopper", 60, 1422.06), ("halfcheetah", 12, 4770.33), ("walker2d", 20, 2852.09), ("ant", 20, None)],
)
def test_d4rl_policies_get_the_returns_of_d4rls_files(
    robot: str, episodes: int, mean_return: float | None, shared: Callable[[str], Path]
) -> None:
    with np.load(shared(f"policies/{robot}-medium-v2-d4rl-sac.npz"), allow_pickle=False) as file:
        policy = dict(file)
    task = get_task(f"{robot}-medium-v2")
    returns, lengths = sampled_episodes(task.name, policy, episodes)
    assert task.samples is not None and task.trajectories is not None
    for found, expected in ((returns, mean_return), (lengths, task.samples / task.trajectories)):
        if expected is not None:
            # another processor rounds, and so draws, other episodes: three standard errors, not to fail there by chance
            assert abs(found.mean() - expected) <= 3 * found.std(ddof=1) / np.sqrt(episodes)


@pytest.mark.parametrize("robot", ROBOTS)
def test_gymnasium_ids_stay_what_gymnasium_makes_of_them(robot: str) -> None:
    name = get_task(f"{robot}-medium-v2").environment
    ours, theirs = make_environment(get_task(f"gym:{name}")), gymnasium.make(str(name))
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(ours.reset(seed=0)[0], theirs.reset(seed=0)[0])
    for _ in range(5):
        action = rng.uniform(-1, 1, theirs.action_space.shape).astype(np.float32)
        np.testing.assert_array_equal(ours.step(action)[0], theirs.step(action)[0])
