"""Values of policies from logged data: exact where they can be computed, and a measure of who left the data."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.data.dataset import Dataset
from c4rl.diagnostics.fitted_q import Estimates, FittedQConfig, _falling, _trajectory_counts, fitted_q_evaluation
from tests.helpers import small_dataset

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
    data, starts, found = covered
    expected = np.array([exact(choices, starts) for choices in CHOICES])
    assert np.ptp(expected) > 5  # the policies are worth much different
    np.testing.assert_allclose(found.values, expected, atol=0.02 * np.ptp(expected))
    assert np.abs(found.moved).max() < 0.02 * np.ptp(expected)
    # a resample holds other starts, whose values are as exact
    each = np.array([[exact(choices, starts[[episode]]) for episode in range(60)] for choices in CHOICES])
    counts = _trajectory_counts(data, FittedQConfig(resamples=2))[1:]
    np.testing.assert_allclose(found.resampled, each @ counts.T / 60, atol=0.001 * np.ptp(expected))
    assert np.ptp(found.resampled, axis=1).min() > 0


def test_a_policy_is_valued_alike_alone_and_in_company(covered: tuple[Dataset, np.ndarray, Estimates]) -> None:
    data, _, _ = covered
    few = estimates(data, CHOICES[:2], updates=100)
    alone = estimates(data, CHOICES[1:2], updates=100)
    np.testing.assert_allclose(alone.values[0], few.values[1], rtol=1e-6)
    np.testing.assert_allclose(alone.resampled[0], few.resampled[1], rtol=1e-6)


def test_a_resample_has_as_many_trajectories_and_follows_the_seed() -> None:
    data, _ = logged(30)
    counts, again, other = (_trajectory_counts(data, FittedQConfig(resamples=4, seed=seed)) for seed in (0, 0, 1))
    assert counts.shape == (5, 30) and (counts[0] == 1).all() and (counts.sum(1) == 30).all()
    assert len(np.unique(counts, axis=0)) == 5 and counts.max() > 1
    assert np.array_equal(counts, again) and not np.array_equal(counts, other)
    one, same, another = (estimates(data, CHOICES[:1], updates=100, seed=seed) for seed in (0, 0, 1))
    assert one.values == same.values != another.values


def pairs_of_steps(reward: float, ends: bool = False) -> Dataset:
    """Action 0 leads from state 0 to 1 and from there to 2, where the log stops. ends: each row is an episode."""
    states, second, ids = np.tile([0, 1], 100), np.arange(200) % 2 == 1, np.arange(200, dtype=np.int32)
    over = second | ends
    one_hot = np.eye(STATES, dtype=np.float32)
    actions = -np.ones((200, 1), np.float32)
    return Dataset(
        observations=one_hot[states],
        actions=actions,
        rewards=np.full(200, reward, np.float32),
        next_observations=one_hot[states + 1],
        terminals=np.full(200, ends),
        timeouts=over & (not ends),
        trajectory_ids=ids if ends else ids // 2,
        next_actions=np.where(over[:, None], 0, actions),
        next_action_valid=~over,
        action_low=-np.ones(1, np.float32),
        action_high=np.ones(1, np.float32),
    )


def test_values_stay_between_the_worst_and_the_best_reward_for_ever() -> None:
    """Without rewards all are 0, whatever the critic makes of an action that was never logged (in state 1)."""
    found = estimates(pairs_of_steps(0.0), [[-1, 1, 1, 1]], updates=300)
    np.testing.assert_allclose(found.values, 0, atol=1e-3)


@pytest.mark.parametrize("reward", [1.0, -1.0])
def test_an_end_is_worth_nothing_even_where_every_reward_is_alike(reward: float) -> None:
    found = estimates(pairs_of_steps(reward, ends=True), [[-1] * STATES], updates=300)
    np.testing.assert_allclose(found.values, reward, atol=0.1)


def test_values_and_their_movement_are_in_the_units_of_rewards() -> None:
    small, large, negative = (
        estimates(pairs_of_steps(reward), [[-1] * STATES], updates=100, critic_lr=1e-3) for reward in (0.01, 1, -1)
    )
    np.testing.assert_allclose(100 * small.values, large.values, rtol=1e-5)
    assert 0.1 < large.values[0] < 4  # on its way to 1 / (1 - 0.8)
    assert large.moved[0] > 0 > negative.moved[0]


def test_steps_shrink_to_a_tenth_over_the_last_half() -> None:
    assert [_falling(update, 100) for update in (1, 50, 75, 100)] == pytest.approx([1, 1, 0.55, 0.1])


def test_distances_are_over_all_components_of_the_next_actions_that_were_logged() -> None:
    data = small_dataset(60)
    scale = np.float32([1, 0.1])
    data = replace(data, actions=data.actions * scale + [0, 0.8], next_actions=data.next_actions * scale + [0, 0.8])
    ones, zeros = np.ones(5, np.float32), np.zeros(5, np.float32)
    still = NumpyPolicy((np.zeros((5, 2), np.float32),), (zeros[:2],), zeros, ones, -ones[:2], ones[:2])
    config = FittedQConfig(updates=100, resamples=2, hidden_width=8, batch_size=8)
    found = fitted_q_evaluation(data, [still], config)
    following = data.next_actions[data.next_action_valid]
    assert found.distance == pytest.approx([np.mean(following**2)], rel=1e-5)
    assert found.mean_action_distance == pytest.approx(following.var(0).mean(), rel=1e-5)


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
