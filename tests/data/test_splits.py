"""Splits that leave much of the task out of the data: thinned, of low return, narrow."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.core.subset_kinds import SubsetKind
from c4rl.data import Dataset, load_dataset, trajectory_returns
from c4rl.data.subsets import SUBSETS
from tests.data.conftest import logged_arrays

KINDS = ["thinned", "low_return", "narrow"]


@pytest.fixture
def uneven(save: Callable[..., Path]) -> Dataset:
    """1000 rows: nine tenths of the states are crowded in one place, one tenth lies spread far around it.

    The return of a trajectory is its number.
    """
    arrays = logged_arrays([50] * 20)
    arrays["observations"] *= np.where(np.arange(1000) % 10 < 9, 0.05, 3.0)[:, None]
    arrays["rewards"] = np.repeat(np.arange(20), 50) / np.float32(50)
    arrays["next_observations"] = np.roll(arrays["observations"], -1, axis=0)
    return load_dataset(save(arrays))


def crowded(data: Dataset) -> float:
    return float((np.linalg.norm(data.observations, axis=1) < 0.3).mean())


def test_well_covered_regions_are_thinned(uneven: Dataset) -> None:
    thinned = SUBSETS["thinned"](uneven, 200, 0)
    assert len(thinned) == 200
    assert crowded(uneven) > 0.88 > 0.75 > crowded(thinned)
    assert crowded(SUBSETS["rows"](uneven, 200, 0)) > 0.85


@pytest.mark.parametrize("size", [300, 777, 1000])
def test_no_region_keeps_more_than_the_others_have_to(size: int, save: Callable[..., Path]) -> None:
    """64 places far apart in a grid, whose sides are measured in different units: each is a region."""
    counts = np.arange(1, 65)
    place = np.repeat(np.random.default_rng(0).permutation(64), counts)
    arrays = logged_arrays([len(place)])
    grid = np.stack([place // 8, 1000 * (place % 8), 0 * place], 1) * 10
    arrays["observations"] = (grid + arrays["observations"] * [0.1, 100, 0]).astype(np.float32)
    arrays["next_observations"] = np.roll(arrays["observations"], -1, axis=0)
    data = load_dataset(save(arrays))
    thinned = SUBSETS["thinned"](data, size, 0)
    left = np.rint(thinned.observations[:, 0] / 10) * 8 + np.rint(thinned.observations[:, 1] / 10_000)
    own = place[np.sort(np.unique(place, return_index=True)[1])]  # places from the emptiest to the fullest
    kept = np.bincount(left.astype(int), minlength=64)[own]
    most = kept.max()
    assert kept.sum() == size and (kept <= counts).all()
    assert (kept[counts < most] == counts[counts < most]).all() and (kept[counts >= most] >= most - 1).all()
    assert f"at most {most} in each of 64 regions of states; {64 - most} had more, the fullest 64." in thinned.notes[-1]


def test_low_return_takes_the_worst_trajectories_alone(uneven: Dataset) -> None:
    low = SUBSETS["low_return"](uneven, 300, 0)
    assert len(low) == 300 and len(trajectory_returns(low)) == 6
    assert trajectory_returns(low).max() <= 9
    with pytest.raises(InputError, match=r"'size' is 501; expected 1 to 500, the rows of the trajectories with a low"):
        SUBSETS["low_return"](uneven, 501, 0)


def test_a_low_return_of_a_trajectory_that_was_cut_says_nothing(save: Callable[..., Path]) -> None:
    """A tenth as long as the others, which met a time limit."""
    per_row = [3.0, 1.0, -50.0, 2.0, 4.0]
    lengths = [100, 100, 10, 100, 100]
    data = load_dataset(save(logged_arrays(lengths), rewards=np.repeat(per_row, lengths).astype(np.float32)))
    low = SUBSETS["low_return"](data, 200, 0)
    assert set(low.rewards) == {1, 2}
    assert "The worst 2 of 4 whole trajectories, with returns of at most 200." in low.notes


def test_narrow_takes_the_rows_nearest_to_the_one_it_names(uneven: Dataset) -> None:
    data = replace(uneven, observations=uneven.observations * np.float32([1, 1000, 0.001]))
    narrow = SUBSETS["narrow"](data, 100, 1)
    named = re.search(r"nearest to row (\d+), drawn with seed 1: within ([\d.]+) standard", narrow.notes[-1])
    assert named is not None
    units = data.observations.astype(np.float64) / data.observations.std(0, dtype=np.float64)
    distance = np.sqrt(np.square(units - units[int(named[1])]).sum(1))
    nearest = np.sort(np.argsort(distance)[:100])
    np.testing.assert_array_equal(narrow.observations, data.observations[nearest])
    assert float(named[2]) == pytest.approx(distance[nearest].max(), rel=0.01)


def test_narrow_takes_what_lies_near_one_state(uneven: Dataset) -> None:
    narrow = SUBSETS["narrow"](uneven, 100, 1)
    assert len(narrow) == 100
    assert (narrow.observations.std(axis=0) < 0.1 * uneven.observations.std(axis=0)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_splits_follow_their_seed_and_say_what_they_are(kind: SubsetKind, uneven: Dataset) -> None:
    first, again, other = (SUBSETS[kind](uneven, 120, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first.observations, again.observations)
    assert not np.array_equal(first.observations, other.observations)
    assert "seed 3" in first.metadata["subset"][-1] and first.notes[-1] == first.metadata["subset"][-1]
    assert "subset" not in uneven.metadata


@pytest.mark.parametrize("kind", KINDS)
def test_rows_keep_their_values_and_pieces_stay_joined(kind: SubsetKind, uneven: Dataset) -> None:
    split = SUBSETS[kind](uneven, 120, 0)
    rows = {uneven.observations[i].tobytes(): i for i in range(len(uneven))}
    chosen = np.array([rows[state.tobytes()] for state in split.observations])
    for name in ("actions", "rewards", "next_observations", "terminals"):
        np.testing.assert_array_equal(getattr(split, name), getattr(uneven, name)[chosen])
    inside = np.diff(split.trajectory_ids) == 0
    assert (np.diff(chosen)[inside] == 1).all()
    assert (np.diff(uneven.trajectory_ids[chosen])[inside] == 0).all()


def test_every_kind_of_subset_can_be_had() -> None:
    assert set(SUBSETS) == set(get_args(SubsetKind))
