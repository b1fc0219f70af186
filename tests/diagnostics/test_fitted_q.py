"""Values of policies from logged data: exact where they can be computed, and a measure of who left the data."""

from typing import Any

import numpy as np
import pytest
import torch

from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.data.dataset import Dataset
from c4rl.diagnostics.fitted_q import Estimates, FittedQConfig, fitted_q_evaluation

STATES, DISCOUNT = 4, 0.8
REWARDS = np.array([[0.0, 1.0], [2.0, -1.0], [0.5, 3.0], [1.0, -2.0]])  # [state, action]
NEXT = np.array([[1, 2], [3, 0], [0, 3], [2, 1]])  # -1: down the first column, 1: the second
END = (3, 1)  # the state and action after which an episode is over


def policy(choices: list[int]) -> NumpyPolicy:
    """Plays -1 or 1 in each state."""
    weights = (50 * np.array(choices, np.float32)[:, None],)
    ones, zeros = np.ones(1, np.float32), np.zeros(STATES, np.float32)
    return NumpyPolicy(weights, (np.zeros(1, np.float32),), zeros, np.ones(STATES, np.float32), -ones, ones)


def exact(choices: list[int], starts: np.ndarray) -> float:
    """By the Bellman equation."""
    actions = [(choice + 1) // 2 for choice in choices]
    P = np.zeros((STATES, STATES))
    for state, action in enumerate(actions):
        P[state, NEXT[state, action]] = 0 if (state, action) == END else 1
    values = np.linalg.solve(np.eye(STATES) - DISCOUNT * P, REWARDS[range(STATES), actions])
    return float(values[starts].mean())


def logged(episodes: int, seed: int = 0, played: tuple[int, ...] = (0, 1)) -> tuple[Dataset, np.ndarray]:
    """Episodes of up to eight steps of random actions, and the states that they begin in."""
    random = np.random.default_rng(seed)
    rows: list[tuple[Any, ...]] = []
    starts = random.integers(0, STATES, episodes)
    for episode, state in enumerate(starts):
        for step in range(8):
            action = random.choice(played)
            end, following = (state, action) == END, NEXT[state, action]
            rows.append((state, action, REWARDS[state, action], following, end, not end and step == 7, episode))
            if end:
                break
            state = following
    states, actions, rewards, nexts, ends, cuts, ids = (np.array(column) for column in zip(*rows, strict=True))
    one_hot = np.eye(STATES, dtype=np.float32)
    signed = (2 * actions - 1).astype(np.float32)[:, None]
    valid = ~(ends | cuts)
    return Dataset(
        observations=one_hot[states],
        actions=signed,
        rewards=rewards.astype(np.float32),
        next_observations=one_hot[nexts],
        terminals=ends,
        timeouts=cuts,
        trajectory_ids=ids.astype(np.int32),
        next_actions=np.where(valid[:, None], np.roll(signed, -1, 0), 0),
        next_action_valid=valid,
        action_low=-np.ones(1, np.float32),
        action_high=np.ones(1, np.float32),
    ), starts


CHOICES = [[1, -1, 1, -1], [-1, -1, -1, -1], [1, 1, 1, 1], [-1, 1, -1, 1]]


def estimates(data: Dataset, choices: list[list[int]] = CHOICES, **options: Any) -> Estimates:
    settings: dict[str, Any] = {"updates": 1000, "resamples": 2, "hidden_width": 32, "critic_lr": 3e-3}
    config = FittedQConfig(**settings | {"discount": DISCOUNT, "batch_size": 64} | options)
    return fitted_q_evaluation(data, [policy(one) for one in choices], config, dtype=torch.float64)


@pytest.fixture(scope="module")
def covered() -> tuple[Dataset, np.ndarray, Estimates]:
    data, starts = logged(60)
    return data, starts, estimates(data)


def test_values_are_exact_on_a_small_tabular_task(covered: tuple[Dataset, np.ndarray, Estimates]) -> None:
    _, starts, found = covered
    expected = np.array([exact(choices, starts) for choices in CHOICES])
    assert np.ptp(expected) > 5  # the policies are worth much different
    np.testing.assert_allclose(found.values, expected, atol=0.02 * np.ptp(expected))
    assert np.abs(found.moved).max() < 0.02 * np.ptp(expected)
    # a resample holds other starts, whose values are as exact
    assert np.ptp(found.resampled, axis=1).min() > 0


def test_a_policy_is_valued_alike_alone_and_in_company(covered: tuple[Dataset, np.ndarray, Estimates]) -> None:
    data, _, _ = covered
    few = estimates(data, CHOICES[:2], updates=100)
    alone = estimates(data, CHOICES[1:2], updates=100)
    np.testing.assert_allclose(alone.values[0], few.values[1], rtol=1e-6)
    np.testing.assert_allclose(alone.resampled[0], few.resampled[1], rtol=1e-6)


def test_distance_from_the_data_tells_who_left_them() -> None:
    """Only action 0 was logged, so that a policy of action 1 is never met."""
    data, _ = logged(20, played=(0,))
    found = estimates(data, [[-1] * STATES, [1] * STATES], updates=100)
    np.testing.assert_allclose(found.distance, [0, 4], atol=1e-6)
    assert found.mean_action_distance == pytest.approx(0, abs=1e-9)


def test_the_logged_value_is_the_mean_discounted_return() -> None:
    data, _ = logged(5)
    returns = []
    for episode in range(5):
        rewards = data.rewards[data.trajectory_ids == episode]
        returns.append(sum(reward * DISCOUNT**t for t, reward in enumerate(rewards)))
    assert estimates(data, CHOICES[:1], updates=100).logged_value == pytest.approx(np.mean(returns))
