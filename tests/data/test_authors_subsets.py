"""Subsets as the authors' release draws them: trajectories with replacement, and its drifting index."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.data.dataset import Dataset
from c4rl.data.subsets import subset_with_replacement
from tests.cli.support import SMALL, run, save_npz, summary
from tests.data.test_subsets import rows_of
from tests.helpers import small_dataset, with_trajectories


def numbered(trajectories: int, length: int, terminal: bool = False) -> Dataset:
    """A dataset whose first observation is the row's number."""
    data = small_dataset(trajectories * length, 1, 1)
    place = np.arange(len(data), dtype=np.float32)[:, None]
    return with_trajectories(replace(data, observations=place), length, terminal)


def seed_that_draws(trajectory: int, count: int) -> int:
    return next(seed for seed in range(10_000) if int(random.Random(seed).random() * count) == trajectory)


def test_trajectories_with_replacement_come_twice() -> None:
    whole = numbered(20, 10)
    part = subset_with_replacement(whole, 195, seed=0)
    rows = rows_of(part)
    assert len(part) == 195 and len(np.unique(rows)) < 195
    assert part.trajectory_ids[-1] == 19  # each copy is a trajectory of its own, the last one cut
    generator = random.Random(0)
    chosen = [generator.choices(range(20), weights=[10] * 20, k=1)[0] for _ in range(20)]
    assert np.array_equal(rows, np.concatenate([np.arange(10 * k, 10 * k + 10) for k in chosen])[:195])
    assert np.array_equal(part.terminals | part.timeouts, np.append(np.diff(part.trajectory_ids) > 0, True))
    assert np.array_equal(part.next_action_valid, whole.next_action_valid[rows])
    assert np.array_equal(rows_of(subset_with_replacement(whole, 195, seed=0)), rows)
    assert not np.array_equal(rows_of(subset_with_replacement(whole, 195, seed=1)), rows)


def test_longer_trajectories_are_likelier_and_small_data_can_grow() -> None:
    data = small_dataset(100, 1, 1)
    ids = np.where(np.arange(100) < 10, 0, 1).astype(np.int32)
    ends = np.isin(np.arange(100), (9, 99))
    whole = replace(data, trajectory_ids=ids, timeouts=ends, observations=np.arange(100, dtype=np.float32)[:, None])
    part = subset_with_replacement(whole, 20_000, seed=3)
    assert len(part) == 20_000
    starts = rows_of(part)[np.flatnonzero(np.diff(part.trajectory_ids, prepend=-1))]
    assert np.mean(starts == 10) == pytest.approx(0.9, abs=0.06)
    with pytest.raises(InputError, match="'size' is 0"):
        subset_with_replacement(whole, 0, seed=0)


@pytest.mark.parametrize(("asked", "of_it", "of_the_next"), [(0, 98, 1), (50, 48, 51), (98, 0, 99)])
def test_the_drifting_index_returns_later_rows(asked: int, of_it: int, of_the_next: int) -> None:
    """100 time-limited trajectories, the last of which the release never closes: as a halfcheetah file, in small."""
    whole = numbered(100, 99)
    part = subset_with_replacement(whole, 99, seed_that_draws(asked, 99), index_drift=True)
    of = whole.trajectory_ids[rows_of(part)]
    assert [int((of == k).sum()) for k in (asked, asked + 1)] == [of_it, of_the_next]
    assert np.array_equal(np.diff(rows_of(part)), np.ones(98))
    assert part.trajectory_ids[-1] == (of_it > 0 and of_the_next > 0)  # two episodes stay two


def test_rows_beyond_the_end_are_missing() -> None:
    whole = numbered(100, 3)  # so short that the drift leaves the file
    part = subset_with_replacement(whole, 300, seed=0, index_drift=True)
    assert len(part) < 300 and rows_of(part).max() < 300


def test_terminals_do_not_drift() -> None:
    whole = numbered(50, 20, terminal=True)
    plain, drifted = (subset_with_replacement(whole, 400, 5, index_drift=drift) for drift in (False, True))
    assert np.array_equal(rows_of(plain), rows_of(drifted))


def test_the_commands_subset_is_the_authors(tmp_path: Path) -> None:
    data = save_npz(tmp_path / "d.npz")
    for kind, size, rows in (("with_replacement", 500, 500), ("authors", 150, 150)):
        flags = ["--subset", kind, "--size", size, "--task", "none", "--updates", "1", *SMALL]
        assert run("train", "--dataset", data, "--output", tmp_path / kind, *flags) == 0
        assert summary(tmp_path / kind)["dataset"]["rows"] == rows
