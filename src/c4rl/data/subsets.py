"""Smaller datasets from larger ones: whole trajectories, single rows, a held-out part, the best trajectories.

Every draw is a function of its seed alone. Rows keep their values; trajectory ids are numbered from 0 again, and a note
says what was taken. `source` and `sha256` still name the file the rows come from.
"""

import random
from dataclasses import fields, replace

import numpy as np

from c4rl.core.errors import InputError
from c4rl.data.assembly import ends_of, number_trajectories
from c4rl.data.dataset import Array, Dataset


def trajectory_slices(dataset: Dataset) -> tuple[Array, Array]:
    """The first row and the row after the last of each trajectory, [trajectories] int64 each."""
    stops = np.flatnonzero(ends_of(dataset.trajectory_ids)) + 1
    return np.concatenate([[0], stops[:-1]]), stops


def trajectory_returns(dataset: Dataset, discount: float = 1.0) -> Array:
    """The discounted return of each trajectory from its first row, [trajectories] float64."""
    starts, stops = trajectory_slices(dataset)
    rewards = dataset.rewards.astype(np.float64)
    if discount != 1.0:
        rewards *= discount ** (np.arange(len(dataset)) - np.repeat(starts, stops - starts))
    return np.add.reduceat(rewards, starts)


def whole_trajectories(dataset: Dataset) -> Array:
    """Which trajectories were not cut by accident, [trajectories] bool; all of them where fewer than two are whole.

    One without a terminal met a time limit, which leaves all equally long, or was cut: by the end of a file, by a
    subset, between rows that do not join. It is whole if it is about as long as those that most such rows are part of.
    """
    starts, stops = trajectory_slices(dataset)
    lengths, ended = stops - starts, dataset.terminals[stops - 1]
    cut = lengths[~ended]
    whole = ended | (lengths >= 0.9 * np.median(np.repeat(cut, cut))) if len(cut) else ended
    return whole if whole.sum() > 1 else np.ones_like(whole)


def _rows_of(dataset: Dataset, trajectories: Array) -> Array:
    """The rows of the given trajectories, one trajectory after the other."""
    starts, stops = trajectory_slices(dataset)
    return np.concatenate([np.arange(starts[k], stops[k]) for k in trajectories])


def _take(dataset: Dataset, rows: Array, ends: Array, note: str) -> Dataset:
    """The given rows in the given order; a trajectory ends where `ends` says, by a time-out if not by a terminal."""
    per_row = {
        field.name: value[rows]
        for field in fields(dataset)
        if isinstance(value := getattr(dataset, field.name), np.ndarray) and not field.name.startswith("action_")
    }
    per_row["timeouts"] = ends & ~per_row["terminals"]
    per_row["trajectory_ids"] = number_trajectories(ends)
    return replace(dataset, **per_row, notes=(*dataset.notes, note))


def _check_size(dataset: Dataset, size: int) -> None:
    if not 1 <= size <= len(dataset):
        raise InputError(f"{dataset.source}: 'size' is {size}; expected 1 to {len(dataset)}, the rows of the dataset.")


def _check_fraction(dataset: Dataset, fraction: float, closed: bool) -> None:
    if not (0.0 < fraction < 1.0 or (closed and fraction == 1.0)):
        expected = "above 0 and at most 1" if closed else "between 0 and 1"
        raise InputError(f"{dataset.source}: 'fraction' is {fraction}; expected a number {expected}.")


def _generator(seed: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(seed))


def trajectory_subset(dataset: Dataset, size: int, seed: int) -> Dataset:
    """Exactly `size` rows: whole trajectories, drawn in random order without replacement.

    The last one is cut to its first rows where it is too long; the cut is a time-out, without a valid next action.
    """
    _check_size(dataset, size)
    if size == len(dataset):
        return dataset
    starts, stops = trajectory_slices(dataset)
    order = _generator(seed).permutation(len(starts))
    needed = int(np.searchsorted(np.cumsum(stops[order] - starts[order]), size)) + 1
    rows = _rows_of(dataset, order[:needed])
    cut = len(rows) > size
    rows = rows[:size]
    ends = ends_of(dataset.trajectory_ids[rows])
    note = f"{size} of {len(dataset)} rows: {needed} of {len(starts)} trajectories drawn with seed {seed}"
    subset = _take(dataset, rows, ends, note + (", the last one cut." if cut else "."))
    return _without_last_next_action(subset) if cut else subset


def _without_last_next_action(dataset: Dataset) -> Dataset:
    next_actions, valid = dataset.next_actions.copy(), dataset.next_action_valid.copy()
    next_actions[-1], valid[-1] = 0.0, False
    return replace(dataset, next_actions=next_actions, next_action_valid=valid)


def subset_with_replacement(dataset: Dataset, size: int, seed: int, index_drift: bool = False) -> Dataset:
    """`size` rows: trajectories drawn with replacement, likelier the longer they are, the last one cut. Next actions
    stay as they were stored.

    Authors' release: its reduced sets are drawn so, by Python's own generator, and one trajectory may come more than
    once. Each time it is a trajectory of its own here. `index_drift` adds how the release finds the rows: it looks a
    trajectory up by its place among all logged rows in arrays from which every time-out row was taken out, and so
    returns rows that lie later by one for each time-out so far, and fewer where they would lie beyond the end. A last
    trajectory without a terminal is never drawn then, because the release does not see its end.
    """
    if size < 1:
        raise InputError(f"{dataset.source}: 'size' is {size}; expected 1 or more.")
    starts, stops = trajectory_slices(dataset)
    lengths = stops - starts
    if index_drift:
        starts = starts + np.cumsum(dataset.timeouts[stops - 1])
        if dataset.timeouts[-1] and len(starts) > 1:
            starts, lengths = starts[:-1], lengths[:-1]
    generator, cumulative = random.Random(seed), np.cumsum(lengths).tolist()
    pieces: list[Array] = []
    missing = size
    while missing > 0:
        (k,) = generator.choices(range(len(starts)), cum_weights=cumulative)
        length = min(int(lengths[k]), missing)
        pieces.append(np.arange(starts[k], min(starts[k] + length, len(dataset))))
        missing -= length
    pieces = [piece for piece in pieces if len(piece) > 0]
    if not pieces:
        raise InputError(f"{dataset.source}: no row was drawn; expected longer trajectories, or a larger 'size'.")
    rows = np.concatenate(pieces)
    ends = ends_of(dataset.trajectory_ids[rows])
    ends[np.cumsum([len(piece) for piece in pieces]) - 1] = True
    how = "with replacement and index drift" if index_drift else "with replacement"
    note = f"{len(rows)} rows, {len(np.unique(rows))} of them different: {len(pieces)} trajectories drawn {how}"
    return _take(dataset, rows, ends, f"{note}, seed {seed}.")


def row_subset(dataset: Dataset, size: int, seed: int) -> Dataset:
    """`size` rows drawn uniformly without replacement, in logged order.

    Each row becomes a trajectory of its own (its neighbours are mostly gone); next actions stay as they were stored.
    """
    _check_size(dataset, size)
    rows = np.sort(_generator(seed).choice(len(dataset), size, replace=False))
    note = f"{size} of {len(dataset)} rows drawn one by one with seed {seed}; each is its own trajectory."
    return _take(dataset, rows, np.ones(size, dtype=bool), note)


def hold_out(dataset: Dataset, fraction: float, seed: int) -> tuple[Dataset, Dataset]:
    """(training part, held-out part): about `fraction` of the trajectories, at least one, is held out whole; where
    all rows are one trajectory, its end is."""
    _check_fraction(dataset, fraction, closed=False)
    count = len(trajectory_slices(dataset)[0])
    if count < 2:
        return _hold_out_by_time(dataset, fraction)
    held_count = min(max(1, round(fraction * count)), count - 1)
    order = _generator(seed).permutation(count)
    parts = []
    for name, chosen in (("kept for training", order[held_count:]), ("held out", order[:held_count])):
        rows = _rows_of(dataset, np.sort(chosen))
        note = f"{len(chosen)} of {count} trajectories {name} with seed {seed}."
        parts.append(_take(dataset, rows, ends_of(dataset.trajectory_ids[rows]), note))
    return parts[0], parts[1]


def _hold_out_by_time(dataset: Dataset, fraction: float) -> tuple[Dataset, Dataset]:
    count = len(dataset)
    if count < 2:
        raise InputError(f"{dataset.source}: found 1 row, of which none can be held out; expected at least 2.")
    kept = min(max(1, count - round(fraction * count)), count - 1)
    parts = []
    for name, rows in (("first", np.arange(kept)), ("last", np.arange(kept, count))):
        note = f"The {name} {len(rows)} of {count} rows, which are one trajectory: its end is held out."
        parts.append(_take(dataset, rows, ends_of(dataset.trajectory_ids[rows]), note))
    return _without_last_next_action(parts[0]), parts[1]


def top_fraction(dataset: Dataset, fraction: float, discount: float = 1.0) -> Dataset:
    """The best `fraction` of the trajectories by discounted return, at least one: the data of 10% behaviour cloning.

    One-row pieces are not ranked where there are longer trajectories: their returns say nothing about a behaviour.
    """
    _check_fraction(dataset, fraction, closed=True)
    starts, stops = trajectory_slices(dataset)
    ranked = np.flatnonzero(stops - starts > 1)
    if len(ranked) == 0:
        ranked = np.arange(len(starts))
    count = max(1, int(fraction * len(ranked) + 1e-9))
    returns = trajectory_returns(dataset, discount)[ranked]
    best = ranked[np.argsort(-returns, kind="stable")[:count]]
    rows = _rows_of(dataset, np.sort(best))
    note = f"The best {count} of {len(ranked)} trajectories by return with discount {discount:g}."
    return _take(dataset, rows, ends_of(dataset.trajectory_ids[rows]), note)
