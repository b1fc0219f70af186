"""Behaviour cloning learns the logged actions."""

from dataclasses import replace

import numpy as np
import pytest

from c4rl.algorithms.bc import BC, BCConfig
from tests.helpers import advance, make_launch, small_config, small_dataset, with_trajectories


@pytest.mark.parametrize("loss", ["mse", "likelihood"])
def test_cloning_recovers_a_linear_controller(loss: str) -> None:
    data = small_dataset(1000)
    actions = np.tanh(data.observations @ np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2) * 0.5) * 0.9
    data = replace(data, actions=actions.astype(np.float32))
    launch = advance(make_launch(small_config("bc", loss=loss, actor_lr=3e-3, hidden_width=64), data), 400)
    policy = launch.policies(_scaling(data))[0]
    assert np.abs(policy.act(data.observations) - data.actions).mean() < 0.05


def test_the_loss_is_the_mean_over_rows_and_dimensions() -> None:
    launch = make_launch(small_config("bc"))
    launch.step.fill_(1)
    batch = launch.buffer.gather(launch.sampler.rows(launch.streams, 32))
    expected = float(((launch.algorithm.act(batch.observations) - batch.actions) ** 2).mean())
    assert launch.algorithm.update(batch, 1, batch)["actor_loss"].item() == pytest.approx(expected)


def test_the_best_trajectories_are_those_of_the_largest_discounted_return() -> None:
    data = with_trajectories(small_dataset(200), 100)
    rewards = np.zeros(200, np.float32)
    rewards[0], rewards[199] = 1, 1.5  # the second one's comes too late
    chosen = BC.select_rows(BCConfig(top_fraction=0.5), replace(data, rewards=rewards))
    assert np.array_equal(chosen.observations, data.observations[:100])


def _scaling(data):
    from tests.helpers import plain_scaling

    return plain_scaling(data)
