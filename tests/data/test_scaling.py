"""How logged numbers enter the networks: normalised states, actions in [-1, 1], scaled rewards; and the way back."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from c4rl.core.buffer import Batch
from c4rl.core.errors import InputError
from c4rl.data.loading import load_dataset
from c4rl.data.packing import pack_datasets
from c4rl.data.subsets import whole_trajectories
from c4rl.environments.tasks import get_task
from c4rl.training.launch import Launch
from c4rl.training.preparation import Preparation, prepare
from tests.data.conftest import logged_arrays
from tests.helpers import CPU, small_config

Prepare = Callable[..., Preparation]
LENGTHS = [12, 5, 20, 7, 20, 16]


@pytest.fixture
def prepared(save: Callable[..., Path]) -> Prepare:
    """A file with large, shifted observations and actions in [0, 40], as a training job prepares it."""
    fields = logged_arrays(LENGTHS, [True, False, False, True, False, True])
    for name in ("observations", "next_observations"):
        fields[name] = (fields[name] * [1.0, 50.0, 0.1] + [5.0, -300.0, 0.0]).astype(np.float32)
    path = save(fields, actions=(fields["actions"] + 1) * 20)

    def make(algorithm: str = "td3_bc", **values: Any) -> Preparation:
        bounds = {"action_low": (0.0,), "action_high": (40.0,)}
        return prepare(small_config(algorithm, dataset=path, **(bounds | values)))

    return make


def packed(preparation: Preparation) -> Batch:
    buffer = pack_datasets([(preparation.train, preparation.scaling)], CPU, torch.float64)
    return buffer.unpack(buffer.packed)


def test_states_are_centred_and_scaled_with_the_statistics_of_observations_alone(prepared: Prepare) -> None:
    preparation = prepared()
    train, batch = preparation.train, packed(preparation)
    mean, std = train.observations.mean(0, dtype=np.float64), train.observations.std(0, dtype=np.float64)
    for found, raw in ((batch.observations, train.observations), (batch.next_observations, train.next_observations)):
        np.testing.assert_allclose(found.numpy(), (raw - mean) / (std + 1e-3), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(batch.observations.mean(0), 0, atol=1e-4)


def test_states_stay_as_they_are_on_request(prepared: Prepare) -> None:
    preparation = prepared(normalize_observations=False)
    batch = packed(preparation)
    np.testing.assert_array_equal(batch.observations.float(), preparation.train.observations)
    np.testing.assert_array_equal(batch.next_observations.float(), preparation.train.next_observations)


def test_the_normaliser_sees_the_rows_trained_on_and_the_whole_file_only_if_asked(prepared: Prepare) -> None:
    subset, full = prepared(size=20), prepared(size=20, observation_statistics="full")
    assert len(subset.train) == len(full.train) == 20
    np.testing.assert_array_equal(subset.train.observations, full.train.observations)
    np.testing.assert_allclose(subset.scaling.observation_mean, subset.train.observations.mean(0), rtol=1e-5)
    assert not np.allclose(full.scaling.observation_mean, subset.scaling.observation_mean, rtol=1e-3)
    assert full.held_out is not None
    everything = np.concatenate([prepared().train.observations, full.held_out.observations])
    np.testing.assert_allclose(full.scaling.observation_mean, everything.mean(0), rtol=1e-5)


def test_actions_and_next_actions_are_mapped_onto_the_unit_box(prepared: Prepare) -> None:
    preparation = prepared()
    train, batch = preparation.train, packed(preparation)
    np.testing.assert_allclose(batch.actions, train.actions / 20 - 1, atol=1e-6)
    valid = train.next_action_valid
    next_actions = batch.next_state_actions[:, train.observation_dim :].numpy()
    np.testing.assert_allclose(next_actions[valid], train.next_actions[valid] / 20 - 1, atol=1e-6)
    inside = np.flatnonzero(valid)
    np.testing.assert_allclose(next_actions[inside], batch.actions[inside + 1], atol=1e-6)


def test_terminals_and_missing_next_actions_are_marked(prepared: Prepare) -> None:
    preparation = prepared()
    train, batch = preparation.train, packed(preparation)
    np.testing.assert_array_equal(batch.continues, 1 - train.terminals)
    np.testing.assert_array_equal(batch.next_valid, train.next_action_valid)
    assert 0 < train.terminals.sum() < (~train.next_action_valid).sum()


def test_rewards_are_scaled_then_shifted(prepared: Prepare) -> None:
    preparation = prepared(reward_scale=10.0, reward_shift=-5.0)
    np.testing.assert_allclose(packed(preparation).rewards, 10 * preparation.train.rewards - 5, rtol=1e-6)


def test_returns_are_spread_over_a_thousand_and_the_shift_comes_after(prepared: Prepare) -> None:
    preparation = prepared(normalize_returns=True, reward_scale=2.0, reward_shift=0.5)
    train = preparation.train
    rewards = (packed(preparation).rewards.numpy() - 0.5) / 2
    rows = [train.trajectory_ids == i for i in np.unique(train.trajectory_ids)]
    returns = [rewards[own].sum() for own in rows if own.sum() != 5]  # the one that was cut, not ended
    assert max(returns) - min(returns) == pytest.approx(1000, rel=1e-5)


@pytest.mark.parametrize("pieces", [[1, 1, 1], [7], [1, 44, 3, 1], [30] * 8, [88]])
def test_pieces_that_were_cut_do_not_decide_the_scale_of_returns(save: Callable[..., Path], pieces: list[int]) -> None:
    """Whole ones met a time limit of 100 rows: nothing says that a piece was cut but that it is shorter."""
    lengths, per_row = [100, 100, *pieces, 100, 100, 60], [5.0, 5.1, *[5.0] * len(pieces), 5.2, 5.3, 8.7]
    fields = logged_arrays(lengths, [*[False] * (len(lengths) - 1), True])
    path = save(fields, actions=fields["actions"][:, :1], rewards=np.repeat(per_row, lengths).astype(np.float32))
    whole = whole_trajectories(load_dataset(path, task=get_task("none")))
    assert [length for length, one in zip(lengths, whole, strict=True) if one] == [100, 100, 100, 100, 60]
    config = small_config("iql", dataset=path, task="gym:Pendulum-v1", normalize_returns=True)  # nothing is held out
    assert prepare(config).scaling.reward_scale == pytest.approx(1000 / (530 - 500), rel=1e-4)


def test_data_of_pieces_alone_are_all_counted(save: Callable[..., Path]) -> None:
    path = save(logged_arrays([50, 20]))
    assert whole_trajectories(load_dataset(path, task=get_task("none"))).all()


def test_one_row_pieces_of_real_data_do_not_decide_the_scale_of_returns(shared: Callable[[str], Path]) -> None:
    """Episodes of 1,000 rows in blocks that are shifted by one: every second piece has one row."""
    data = load_dataset(shared("data/d4rl-10k/halfcheetah-expert-v2.npz"), task=get_task("halfcheetah-expert-v2"))
    lengths = np.bincount(data.trajectory_ids)
    assert (lengths == 1).sum() == 9
    np.testing.assert_array_equal(whole_trajectories(data), lengths > 900)


def test_rewards_too_large_once_scaled_are_refused(save: Callable[..., Path]) -> None:
    fields = logged_arrays([10, 10, 10, 10])
    path = save(fields, rewards=np.full(40, 2e13, np.float32))
    prepare(small_config("td3_bc", dataset=path))
    sentence = r"'rewards' is as large as 2e\+19 once scaled for training; expected at most 1e\+15"
    with pytest.raises(InputError, match=sentence):
        prepare(small_config("td3_bc", dataset=path, reward_scale=-1e6))


def test_next_states_far_beyond_the_normaliser_are_refused(save: Callable[..., Path]) -> None:
    fields = logged_arrays([10, 10, 10, 10])
    fields["observations"][:, 0] *= 1e-12
    fields["next_observations"][3, 0] = 1e14
    with pytest.raises(InputError, match=r"'next_observations' is as large as 1e\+17 once scaled"):
        prepare(small_config("td3_bc", dataset=save(fields)))


def test_returns_without_spread_cannot_be_normalised(save: Callable[..., Path]) -> None:
    fields = logged_arrays([10, 10, 10, 10])
    path = save(fields, rewards=np.ones(40, np.float32))
    with pytest.raises(InputError, match="--normalize-returns needs returns that differ, found only 10"):
        prepare(small_config("td3_bc", dataset=path, normalize_returns=True))


@pytest.mark.parametrize("algorithm", ["bc", "td3_bc", "cql"])
def test_a_policy_takes_raw_states_and_answers_in_the_logged_units(prepared: Prepare, algorithm: str) -> None:
    """The way back: normaliser and bounds travel with the policy."""
    preparation = prepared(algorithm)
    train = preparation.train
    buffer = pack_datasets([(train, preparation.scaling)], CPU)
    launch = Launch(small_config(algorithm), [0], buffer, CPU)
    inside = launch.algorithm.act(buffer.unpack(buffer.packed.unsqueeze(0)).observations)[0].numpy()
    outside = launch.policies(preparation.scaling)[0].act(train.observations)
    np.testing.assert_allclose(outside, (inside + 1) * 20, rtol=1e-4, atol=1e-3)
    assert outside.min() >= 0 and outside.max() <= 40 and outside.std() > 0
