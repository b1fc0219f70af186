"""Locomotion is D4RL's: equal to gymnasium -v4 bit for bit, and to transitions logged in 2020."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from gymnasium.wrappers import TimeLimit

from c4rl.environments.locomotion import gymnasium_environment
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import get_task

ROBOTS = ["hopper", "halfcheetah", "walker2d", "ant"]


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


@pytest.mark.parametrize("robot", ROBOTS)
def test_making_a_v4_environment_warns_of_nothing(robot: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make_environment(get_task(f"{robot}-medium-v2"))


@pytest.mark.parametrize(
    "dataset", ["hopper-medium-replay-v2", "hopper-expert-v2", "halfcheetah-medium-v2", "walker2d-medium-v2"]
)
def test_logged_d4rl_transitions_are_replayed(dataset: str, shared: Callable[[str], Path]) -> None:
    with np.load(shared(f"data/d4rl-10k/{dataset}.npz"), allow_pickle=False) as file:
        data = dict(file)
    environment = make_environment(get_task(dataset))
    environment.reset(seed=0)
    simulator = environment.unwrapped
    positions = simulator.model.nq - 1  # the first coordinate is not observed and does not matter
    velocities = data["observations"][:, positions:]
    usable = np.flatnonzero((np.abs(velocities) < 10).all(axis=1) | dataset.startswith("halfcheetah"))
    rows = np.random.default_rng(0).choice(usable, 400, replace=False)
    reward_errors, state_errors = [], []
    for row in rows:
        observation = data["observations"][row].astype(np.float64)
        simulator.set_state(np.concatenate(([0.0], observation[:positions])), observation[positions:])
        following, reward, terminated, *_ = environment.step(data["actions"][row])
        assert terminated == data["terminals"][row]
        reward_errors.append(abs(reward - data["rewards"][row]))
        if not data["terminals"][row]:
            state_errors.append(np.abs(following - data["next_observations"][row]).max())
    for errors in (reward_errors, state_errors):
        assert np.median(errors) <= 1e-5
        assert np.quantile(errors, 0.99) <= 1e-3
