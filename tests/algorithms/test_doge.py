"""DOGE: the learnt distance, its multiplier, and the details people get wrong."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from c4rl.algorithms.doge import DOGE
from c4rl.core.buffer import Batch
from c4rl.core.errors import InputError
from c4rl.jobs.preset_fields import published_fields
from c4rl.training.launch import Launch
from tests.helpers import advance, batch_at, flat, make_launch, small_config, small_dataset


def algorithm_of(**options) -> tuple[DOGE, Launch]:
    launch = make_launch(small_config("doge", **options))
    assert isinstance(launch.algorithm, DOGE)
    return launch.algorithm, launch


# -- the distance

STATE_ACTIONS = {1.0: (-0.6, 0.2, 0.4), -1.0: (0.5,)}  # two states and the actions logged there, equally often


@pytest.fixture(scope="module")
def toy() -> DOGE:
    """Trained on one-dimensional data without any Q term: what remains is g and the policy that minimises it."""
    rows = 600
    states = np.repeat([1.0, -1.0], rows // 2)
    actions = np.concatenate([np.resize(logged, rows // 2) for logged in STATE_ACTIONS.values()])
    column = states.astype(np.float32)[:, None]
    data = replace(
        small_dataset(rows, 1, 1),
        observations=column,
        next_observations=column,
        actions=actions.astype(np.float32)[:, None],
    )
    # many rows and few random actions each: what is noisy is which logged action a row has
    size = {"hidden_layers": 1, "hidden_width": 64, "batch_size": 256, "negative_actions": 3}
    config = small_config("doge", alpha=0.0, distance_updates=1200, actor_lr=1e-3, **size)
    launch = advance(make_launch(config, data, torch.float32), 1200)
    assert isinstance(launch.algorithm, DOGE)
    return launch.algorithm


def distances(algorithm: DOGE, state: float, actions: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        pairs = torch.stack([torch.full_like(actions, state), actions], dim=1)
        return algorithm.distance.at(pairs.unsqueeze(0)).q[0, 0]


@pytest.mark.parametrize("state", STATE_ACTIONS)
def test_the_distance_is_the_mean_distance_to_the_actions_logged_at_the_state(toy: DOGE, state: float) -> None:
    grid = torch.linspace(-1.4, 1.4, 29)
    logged = torch.tensor(STATE_ACTIONS[state])
    expected = (grid.unsqueeze(1) - logged).abs().mean(1)
    assert (distances(toy, state, grid) - expected).abs().max() < 0.05


@pytest.mark.parametrize("state", STATE_ACTIONS)
def test_far_from_the_data_the_distance_grows_by_one_per_unit(toy: DOGE, state: float) -> None:
    """Beyond the action box too: the random actions reach 1.5."""
    left, right = distances(toy, state, torch.tensor([-1.4, -1.0])), distances(toy, state, torch.tensor([1.0, 1.4]))
    assert (left[0] - left[1]) / 0.4 == pytest.approx(1.0, abs=0.1)
    assert (right[1] - right[0]) / 0.4 == pytest.approx(1.0, abs=0.1)


def test_the_least_distance_is_at_the_median_where_cloning_would_find_the_mean(toy: DOGE) -> None:
    policy = toy.act(torch.tensor([[[1.0], [-1.0]]])).flatten()
    assert policy[0] == pytest.approx(0.2, abs=0.08)  # the mean is 0
    assert policy[1] == pytest.approx(0.5, abs=0.08)
    # nearer than the data on average: the constraint holds and its multiplier has come down, slowly
    assert toy.state()["excess_distance"].item() < 0
    assert 4.5 < toy.multiplier.item() < 5


def test_the_distance_loss_equals_the_formula() -> None:
    """Euclidean, not squared and not per dimension; every random action against its own row's logged one."""
    algorithm, launch = algorithm_of(negative_actions=3)
    batch = batch_at(launch, 1)
    u = launch.streams.uniform("negative_actions", 32, 3, 2)
    errors = []
    with torch.no_grad():
        for row in range(32):
            for k in range(3):
                random_action = 3 * (u[0, row, k] - 0.5)
                pair = torch.cat([batch.observations[0, row], random_action])
                predicted = algorithm.distance.at(pair.view(1, 1, -1)).q.item()
                errors.append((predicted - math.dist(random_action.tolist(), batch.actions[0, row].tolist())) ** 2)
    assert algorithm.update(batch, 1, batch)["distance_loss"].item() == pytest.approx(np.mean(errors))


@pytest.mark.parametrize("reach", [1.5, 1.0])
def test_random_actions_fill_the_enlarged_action_box(reach: float) -> None:
    algorithm, launch = algorithm_of(negative_range=reach, negative_actions=500)
    negatives = algorithm._negative_actions(batch_at(launch, 1))
    assert negatives.shape == (1, 32, 500, 2)
    assert 0.99 * reach < negatives.amax() < reach and -reach <= negatives.amin() < -0.99 * reach
    assert negatives.mean().abs() < 0.03 * reach


def test_the_distance_is_trained_on_the_first_updates_only() -> None:
    algorithm, launch = algorithm_of(distance_updates=3)
    advance(launch, 2)
    second = flat(algorithm.distance)
    advance(launch, 1, start=2)
    third = flat(algorithm.distance)
    assert not torch.equal(second, third)
    advance(launch, 5, start=3)
    assert torch.equal(flat(algorithm.distance), third)
    assert [algorithm.phase(step) for step in (2, 3, 4, 5)] == [
        (True, True),
        (False, True),
        (True, False),
        (False, False),
    ]


# -- the multiplier and the actor


def excess_by_hand(algorithm: DOGE, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        at_policy = algorithm.distance(batch.observations, algorithm.actor(batch.observations)).q[:, 0]
        return (at_policy - algorithm.distance(batch.observations, batch.actions).q[:, 0]).mean(1)


def test_losses_equal_the_formulas() -> None:
    """The actor's loss is -α Q1 / mean|Q1| + λ(Δ - ε), with λ after its own step; neither g nor Q moves here."""
    algorithm, launch = algorithm_of(distance_updates=0, critic_lr=1e-300, multiplier_lr=0.1, distance_threshold=0.3)
    batch = batch_at(launch, 2)
    s, a, s2 = batch.observations, batch.actions, batch.next_observations
    with torch.no_grad():
        noise = (launch.streams.normal("target_noise", 32, 2) * 0.2).clamp(-0.5, 0.5)
        target_q = algorithm.target_critic(s2, (algorithm.target_actor(s2) + noise).clamp(-1, 1)).q
        y = batch.rewards + 0.99 * batch.continues * torch.minimum(target_q[:, 0], target_q[:, 1])
        online = algorithm.critic(s, a).q
        critic_loss = ((online[:, 0] - y) ** 2).mean() + ((online[:, 1] - y) ** 2).mean()
        q1 = algorithm.critic(s, algorithm.actor(s)).q[0, 0]
        excess = excess_by_hand(algorithm, batch)[0]
        multiplier = 5 + 0.1 * 5 * (excess - 0.3)
        actor_loss = -7.5 / q1.abs().mean() * q1.mean() + multiplier * (excess - 0.3)
    metrics = algorithm.update(batch, 2, batch)
    torch.testing.assert_close(metrics["critic_loss"][0], critic_loss)
    torch.testing.assert_close(metrics["excess_distance"][0], excess)
    torch.testing.assert_close(metrics["multiplier"][0], multiplier)
    torch.testing.assert_close(metrics["actor_loss"][0], actor_loss)


def test_each_run_has_its_own_multiplier_that_moves_in_proportion_to_itself() -> None:
    algorithm, launch = algorithm_of(seeds=(0, 1), distance_updates=0)
    algorithm.multiplier.copy_(torch.tensor([5.0, 50.0]))
    batch = batch_at(launch, 2)
    excess = excess_by_hand(algorithm, batch)
    assert excess[0] != excess[1]
    expected = torch.tensor([5.0, 50.0], dtype=excess.dtype) * (1 + 3e-4 * excess)
    torch.testing.assert_close(algorithm.update(batch, 2, batch)["multiplier"], expected)
    algorithm.update(batch, 3, batch)  # not an actor step
    torch.testing.assert_close(algorithm.multiplier, expected)


@pytest.mark.parametrize(("threshold", "bound"), [(10.0, 1.0), (-10.0, 100.0)])
def test_the_multiplier_stays_between_its_bounds(threshold: float, bound: float) -> None:
    """A constraint met by far drives it to the floor, one that cannot be met to the ceiling, and never beyond."""
    algorithm, launch = algorithm_of(distance_threshold=threshold, multiplier_lr=0.05)
    seen = []
    for step in range(1, 41):
        advance(launch, 1, start=step - 1)
        seen.append(algorithm.multiplier.item())
    assert seen[-1] == bound
    assert all(1 <= value <= 100 for value in seen)
    assert any(1 < value < 100 for value in seen)


def test_an_actor_far_from_the_data_raises_the_multiplier() -> None:
    """Saturated actions are farther from the data than the data themselves, once g knows the distance."""
    algorithm, launch = algorithm_of(distance_updates=400, distance_lr=3e-3, actor_lr=1e-9, multiplier_lr=0.01)
    with torch.no_grad():
        algorithm.actor.mlp.biases[-1].fill_(5.0)
    advance(launch, 400)
    before = algorithm.multiplier.clone()
    advance(launch, 10, start=400)
    assert launch.read_metrics()[0]["excess_distance"] > 0.1
    assert (algorithm.multiplier > before).all()


# -- settings


def test_published_settings_of_single_tasks() -> None:
    def options(task: str):
        return published_fields("doge", (), task)["options"]

    alphas = {name: options(f"hopper-{name}-v2").alpha for name in ("medium", "medium-replay", "medium-expert")}
    assert alphas == {"medium": 17.5, "medium-replay": 17.5, "medium-expert": 7.5}
    assert options("hopper-medium").alpha == 17.5
    antmaze = options("antmaze-umaze-v2")
    assert (antmaze.critic_lr, antmaze.distance_lr, antmaze.distance_updates) == (1e-3, 1e-4, 1_000_000)
    assert (antmaze.discount, antmaze.alpha, antmaze.multiplier_initial) == (0.995, 5.0, 1.0)
    assert options("pen-human-v1").alpha == 2.5


@pytest.mark.parametrize(
    "wrong",
    [
        {"negative_actions": 0},
        {"negative_range": 0.0},
        {"multiplier_initial": 0.5},
        {"multiplier_initial": 101.0},
        {"multiplier_minimum": 0.0},
    ],
)
def test_settings_without_meaning_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=r"--(negative|multiplier)"):
        small_config("doge", **wrong)
