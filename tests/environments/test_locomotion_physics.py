"""Locomotion is D4RL's: equal to gymnasium -v4 bit for bit, and to transitions logged in 2020."""

import warnings
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.environments.evaluation import episode_return
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import get_task

ROBOTS = ["hopper", "halfcheetah", "walker2d", "ant"]


@pytest.mark.parametrize("robot", ROBOTS)
def test_steps_equal_gymnasium_bit_for_bit(robot: str) -> None:
    task = get_task(f"{robot}-medium-v2")
    assert task.environment is not None
    ours, theirs = make_environment(task), gymnasium.make(task.environment)
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
    ("dataset", "tolerance"),
    [
        ("hopper-medium-replay-v2", 1e-3),
        ("hopper-expert-v2", 1e-3),
        ("halfcheetah-medium-v2", 1e-2),
        ("walker2d-medium-v2", 5e-3),
    ],
)
def test_logged_d4rl_transitions_are_replayed(dataset: str, tolerance: float, shared: Callable[[str], Path]) -> None:
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
        following, reward, *_ = environment.step(data["actions"][row])
        reward_errors.append(abs(reward - data["rewards"][row]))
        if not data["terminals"][row]:
            state_errors.append(np.abs(following - data["next_observations"][row])[:positions].max())
    assert np.median(reward_errors) <= tolerance
    assert np.median(state_errors) <= tolerance


def test_a_d4rl_policy_gets_its_known_return(shared: Callable[[str], Path]) -> None:
    stored = np.load(shared("policies/hopper-medium-v2-d4rl-sac.npz"), allow_pickle=False)
    policy = NumpyPolicy(
        weights=(stored["w0"], stored["w1"], stored["w_mean"]),
        biases=(stored["b0"], stored["b1"], stored["b_mean"]),
        observation_mean=stored["obs_mean"],
        observation_std=stored["obs_std"],
        action_low=stored["action_low"],
        action_high=stored["action_high"],
    )
    environment = make_environment(get_task("hopper-medium-v2"))
    returns = [episode_return(environment, policy, seed) for seed in range(1000, 1010)]
    assert abs(np.mean(returns) - 1471) < 150
