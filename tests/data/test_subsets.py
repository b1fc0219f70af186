"""Subsets: exact sizes, whole trajectories, no row twice, one result per seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from c4rl.core.errors import InputError
from c4rl.data import Dataset, hold_out, row_subset, top_fraction, trajectory_returns, trajectory_subset


def numbered(lengths: list[int], rewards: np.ndarray | None = None) -> Dataset:
    """A dataset whose observation is the row number; every other trajectory ends in a terminal."""
    count = sum(lengths)
    ids = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    ends = np.append(ids[1:] != ids[:-1], True)
    rows = np.arange(count, dtype=np.float32)[:, None]
    valid = ~ends
    return Dataset(
        observations=rows,
        actions=rows / count,
        rewards=np.zeros(count, dtype=np.float32) if rewards is None else np.float32(rewards),
        next_observations=rows + 1,
        terminals=ends & (ids % 2 == 1),
        timeouts=ends & (ids % 2 == 0),
        trajectory_ids=ids,
        next_actions=np.where(valid[:, None], (rows + 1) / count, 0).astype(np.float32),
        next_action_valid=valid,
        action_low=np.array([-1.0], dtype=np.float32),
        action_high=np.array([1.0], dtype=np.float32),
        source="made up",
        sha256="0" * 64,
        notes=("Read.",),
    )


def rows_of(data: Dataset) -> np.ndarray:
    return data.observations[:, 0].astype(int)


def check_rows(part: Dataset, whole: Dataset, changed: slice = slice(0)) -> None:
    """Every row of the part is a row of the whole; only `changed` rows may have lost their next action."""
    rows = rows_of(part)
    assert len(np.unique(rows)) == len(rows)
    for name in ("actions", "rewards", "next_observations", "terminals"):
        assert np.array_equal(getattr(part, name), getattr(whole, name)[rows]), name
    same = np.ones(len(rows), dtype=bool)
    same[changed] = False
    assert np.array_equal(part.next_action_valid[same], whole.next_action_valid[rows][same])
    assert np.array_equal(part.next_actions[same], whole.next_actions[rows][same])
    ids = part.trajectory_ids
    assert ids.dtype == np.int32 and ids[0] == 0 and set(np.diff(ids)) <= {0, 1}
    assert np.array_equal(part.terminals | part.timeouts, np.append(ids[1:] != ids[:-1], True))
    assert (part.source, part.sha256) == (whole.source, whole.sha256)
    assert part is whole or (part.notes[0] == "Read." and len(part.notes) == 2)


lengths_strategy = st.lists(st.integers(1, 12), min_size=1, max_size=12)
seeds = st.integers(0, 2**32)


@given(lengths_strategy, seeds, st.data())
def test_trajectory_subset_holds_exactly_the_rows_asked_for(lengths: list[int], seed: int, data: st.DataObject) -> None:
    whole = numbered(lengths)
    size = data.draw(st.integers(1, len(whole)))
    part = trajectory_subset(whole, size, seed)
    assert len(part) == size
    check_rows(part, whole, changed=slice(-1, None))
    assert np.array_equal(rows_of(trajectory_subset(whole, size, seed)), rows_of(part))
    for k in range(part.trajectory_ids[-1] + 1):
        mine = rows_of(part)[part.trajectory_ids == k]
        original = np.flatnonzero(whole.trajectory_ids == whole.trajectory_ids[mine[0]])
        assert np.array_equal(mine, original[: len(mine)])  # first rows first
        if len(mine) < len(original):  # only the last may be cut
            assert k == part.trajectory_ids[-1]
            assert part.timeouts[-1] and not part.next_action_valid[-1] and not part.next_actions[-1].any()


@given(lengths_strategy, seeds, st.data())
def test_row_subset_makes_each_row_its_own_trajectory(lengths: list[int], seed: int, data: st.DataObject) -> None:
    whole = numbered(lengths)
    size = data.draw(st.integers(1, len(whole)))
    part = row_subset(whole, size, seed)
    assert len(part) == size == part.trajectory_ids[-1] + 1
    check_rows(part, whole)
    assert np.array_equal(rows_of(row_subset(whole, size, seed)), rows_of(part))


@given(lengths_strategy.filter(lambda lengths: len(lengths) > 1), st.floats(0.01, 0.99), seeds)
def test_held_out_trajectories_are_whole_and_complete_the_rest(lengths: list[int], fraction: float, seed: int) -> None:
    whole = numbered(lengths)
    train, held = hold_out(whole, fraction, seed)
    for part in (train, held):
        check_rows(part, whole)
    assert np.array_equal(np.sort(np.concatenate([rows_of(train), rows_of(held)])), np.arange(len(whole)))
    of_train = set(whole.trajectory_ids[rows_of(train)])
    assert of_train.isdisjoint(whole.trajectory_ids[rows_of(held)])
    held_count = held.trajectory_ids[-1] + 1
    assert abs(held_count - fraction * len(lengths)) <= 0.5 or held_count in (1, len(lengths) - 1)
    assert np.array_equal(rows_of(hold_out(whole, fraction, seed)[1]), rows_of(held))


def test_seeds_choose_different_trajectories() -> None:
    whole = numbered([5] * 40)
    chosen = {tuple(rows_of(trajectory_subset(whole, 50, seed))) for seed in range(10)}
    assert len(chosen) == 10
    firsts = [rows_of(trajectory_subset(whole, 5, seed))[0] // 5 for seed in range(400)]
    assert len(set(firsts)) > 35  # every trajectory has its chance


def test_a_subset_of_whole_trajectories_says_nothing_of_a_cut() -> None:
    assert "cut" not in trajectory_subset(numbered([5] * 4), 10, 0).notes[-1]
    assert (
        "3 of 4 trajectories drawn with seed 0, the last one cut."
        in trajectory_subset(numbered([5] * 4), 11, 0).notes[-1]
    )


def test_the_whole_is_its_own_subset() -> None:
    whole = numbered([5, 6])
    assert trajectory_subset(whole, 11, 0) is whole


@pytest.mark.parametrize("size", [0, -3, 12])
def test_sizes_that_cannot_be_had_are_refused(size: int) -> None:
    whole = numbered([5, 6])
    for subset in (trajectory_subset, row_subset):
        with pytest.raises(InputError, match=f"'size' is {size}; expected 1 to 11"):
            subset(whole, size, 0)


def test_fractions_that_make_no_sense_are_refused() -> None:
    whole = numbered([5, 6])
    for fraction in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="'fraction'"):
            hold_out(whole, fraction, 0)
    with pytest.raises(InputError, match="'fraction'"):
        top_fraction(whole, 1.5)
    with pytest.raises(InputError, match="found 1 row, of which none can be held out; expected at least 2"):
        hold_out(numbered([1]), 0.5, 0)


@given(st.integers(2, 60), st.sampled_from([0.01, 0.1, 0.5, 0.99]))
def test_the_end_of_one_long_log_is_held_out(length: int, fraction: float) -> None:
    whole = numbered([length])
    train, held = hold_out(whole, fraction, 0)
    assert np.array_equal(np.concatenate([rows_of(train), rows_of(held)]), np.arange(length))
    assert len(held) == min(max(1, round(fraction * length)), length - 1)
    assert train.timeouts[-1] and not train.next_action_valid[-1] and not train.next_actions[-1].any()
    check_rows(held, whole)


@given(lengths_strategy, st.sampled_from([0.9, 0.99, 1.0]), st.integers(0, 1000))
def test_discounted_returns_are_the_sum_over_each_trajectory(lengths: list[int], discount: float, seed: int) -> None:
    rewards = np.random.default_rng(seed).normal(size=sum(lengths)).astype(np.float32)
    whole = numbered(lengths, rewards)
    expected = [
        sum(discount**t * float(r) for t, r in enumerate(rewards[whole.trajectory_ids == k]))
        for k in range(len(lengths))
    ]
    assert np.allclose(trajectory_returns(whole, discount), expected)


def test_top_fraction_keeps_the_best_trajectories() -> None:
    lengths = [4] * 30
    rewards = np.repeat(np.random.default_rng(0).permutation(30), 4)
    whole = numbered(lengths, rewards)
    best = top_fraction(whole, 0.1)
    check_rows(best, whole)
    assert set(best.rewards) == {27, 28, 29} and best.trajectory_ids[-1] == 2
    assert set(top_fraction(whole, 0.001).rewards) == {29}
    assert len(top_fraction(whole, 1.0)) == len(whole)
    assert top_fraction(numbered([2] * 100), 0.29).trajectory_ids[-1] == 28  # 0.29 * 100 is below 29 in floating point


def test_top_fraction_ranks_by_discounted_return() -> None:
    early, late = [1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 1.2]
    whole = numbered([4, 4], np.array(early + late))
    assert rows_of(top_fraction(whole, 0.5, 1.0))[0] == 4
    assert rows_of(top_fraction(whole, 0.5, 0.9))[0] == 0


def test_one_row_pieces_are_not_the_best_trajectories() -> None:
    whole = numbered([1, 5, 1], np.array([10.0, 1, 1, 1, 1, 1, 10.0]))
    assert np.array_equal(rows_of(top_fraction(whole, 0.5)), [1, 2, 3, 4, 5])
    assert len(top_fraction(numbered([1, 1, 1]), 0.5)) == 1
    assert np.array_equal(rows_of(top_fraction(numbered([5, 2], np.array([0.0] * 5 + [1] * 2)), 0.5)), [5, 6])
