"""Smaller datasets from larger ones: whole trajectories, single rows, a held-out part, the best trajectories.

The last three functions leave much of the task out of the data: covered thinly, badly, or in one place.

Every draw is a function of its seed alone. Rows keep their values; trajectory ids are numbered from 0 again, and a note
says what was taken. `source` and `sha256` still name the file the rows come from.
"""

import random
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial

import numpy as np

from c4rl.core.array import Array
from c4rl.core.errors import InputError
from c4rl.core.subset_kinds import SubsetKind
from c4rl.data.assembly import ends_of, number_trajectories
from c4rl.data.checks import row_blocks
from c4rl.data.dataset import Dataset


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

    One without a terminal met a time limit, which makes all of them equally long, or was cut: by the end of a file, by
    a subset, between rows that do not join. It counts as whole if it is about as long as most of them, by rows.
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
    metadata = {**dataset.metadata, "subset": [*dataset.metadata.get("subset", ()), note]}
    return replace(dataset, **per_row, notes=(*dataset.notes, note), metadata=metadata)


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

    The authors' release draws its reduced sets this way, with Python's own generator. A trajectory may be drawn several
    times; here each copy is a trajectory of its own. `index_drift` reproduces how the release finds rows: it takes a
    trajectory's position among all logged rows and applies it to arrays without time-out rows. So it returns rows that
    come later by one for each earlier time-out, and fewer of them at the end of the data. It never draws a last
    trajectory without a terminal, because it does not see its end.
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
    datasets = []
    for name, chosen in (("kept for training", order[held_count:]), ("held out", order[:held_count])):
        rows = _rows_of(dataset, np.sort(chosen))
        note = f"{len(chosen)} of {count} trajectories {name} with seed {seed}."
        datasets.append(_take(dataset, rows, ends_of(dataset.trajectory_ids[rows]), note))
    return datasets[0], datasets[1]


def _hold_out_by_time(dataset: Dataset, fraction: float) -> tuple[Dataset, Dataset]:
    count = len(dataset)
    if count < 2:
        raise InputError(f"{dataset.source}: found 1 row, of which none can be held out; expected at least 2.")
    kept = min(max(1, count - round(fraction * count)), count - 1)
    datasets = []
    for name, rows in (("first", np.arange(kept)), ("last", np.arange(kept, count))):
        note = f"The {name} {len(rows)} of {count} rows, which are one trajectory: its end is held out."
        datasets.append(_take(dataset, rows, ends_of(dataset.trajectory_ids[rows]), note))
    return _without_last_next_action(datasets[0]), datasets[1]


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


# -- splits that leave much of the task out of the data

REGIONS = 64


def _scaled(observations: Array) -> Array:
    """Each column in units of its standard deviation; constant columns become 0."""
    spread = observations.std(axis=0, dtype=np.float64)
    out, spread = np.empty(observations.shape, np.float32), np.where(spread > 0, spread, np.inf)
    for rows in row_blocks(len(out)):
        out[rows] = observations[rows] / spread
    return out


def _distances(states: Array, centre: int) -> Array:
    """Of each state from one of them; in blocks that stay in the cache."""
    return np.concatenate(
        [np.linalg.norm(states[rows] - states[centre], axis=1) for rows in row_blocks(len(states), 1 << 13)]
    )


def _pieces(dataset: Dataset, rows: Array, note: str) -> Dataset:
    """Ascending rows; those that follow each other in a trajectory stay one."""
    joined = (np.diff(rows) == 1) & (np.diff(dataset.trajectory_ids[rows]) == 0)
    return _take(dataset, rows, np.append(~joined, True), note)


def thinned_subset(dataset: Dataset, size: int, seed: int) -> Dataset:
    """`size` rows, drawn so that no region of states keeps more than a common number: well-covered ones are thinned.

    A region is what lies nearest to one of 64 states, each as far as possible from those before it, so that regions are
    about equally large; the first is drawn with the seed. Distances are in standard deviations.
    """
    _check_size(dataset, size)
    generator, states = _generator(seed), _scaled(dataset.observations)
    nearest, distances = np.zeros(len(dataset), np.int64), np.full(len(dataset), np.inf)
    centre = int(generator.integers(len(dataset)))
    for region in range(REGIONS):
        to_centre = _distances(states, centre)
        nearest[to_centre < distances] = region
        distances = np.minimum(distances, to_centre)
        centre = int(np.argmax(distances))
    counts = np.bincount(nearest)
    most = 1 + bisect_left(range(1, len(dataset)), size, key=lambda most: int(np.minimum(counts, most).sum()))
    place = np.empty(len(dataset), np.int64)  # of a row among those of its region, in random order
    order = generator.permutation(len(dataset))
    order = order[np.argsort(nearest[order], kind="stable")]
    place[order] = np.arange(len(dataset)) - np.repeat(np.cumsum(counts) - counts, counts)
    kept = np.flatnonzero(place < most)
    last = generator.permutation(kept[place[kept] == most - 1])[: len(kept) - size]  # more than wanted, by a few
    kept = np.setdiff1d(kept, last)
    full = int((counts > most).sum())
    note = (
        f"{size} of {len(dataset)} rows, thinned with seed {seed}: at most {most} in each of {len(counts)} regions of "
    )
    return _pieces(dataset, kept, note + f"states; {full} had more, the fullest {counts.max()}.")


def low_return_subset(dataset: Dataset, size: int, seed: int) -> Dataset:
    """`size` rows of the worst trajectories that hold half of the rows, drawn as in `trajectory_subset`.

    Trajectories that were cut by accident do not count: their returns say nothing.
    """
    starts, stops = trajectory_slices(dataset)
    whole = np.flatnonzero(whole_trajectories(dataset))
    returns, lengths = trajectory_returns(dataset)[whole], (stops - starts)[whole]
    order = np.argsort(returns, kind="stable")
    count = 1 + int(np.searchsorted(np.cumsum(lengths[order]), lengths.sum() / 2))
    worst = order[:count]
    rows = _rows_of(dataset, np.sort(whole[worst]))
    best = returns[worst].max()
    note = f"The worst {count} of {len(whole)} whole trajectories, with returns of at most {best:.6g}."
    half = _take(dataset, rows, ends_of(dataset.trajectory_ids[rows]), note)
    if not 1 <= size <= len(half):
        found = f"'size' is {size}; expected 1 to {len(half)}, the rows of the trajectories with a low return"
        raise InputError(f"{dataset.source}: {found}.")
    return trajectory_subset(half, size, seed)


def narrow_subset(dataset: Dataset, size: int, seed: int) -> Dataset:
    """The `size` rows whose states lie nearest to one row's, which is drawn with the seed."""
    _check_size(dataset, size)
    states, centre = _scaled(dataset.observations), int(_generator(seed).integers(len(dataset)))
    distances = _distances(states, centre)
    rows = np.sort(np.argsort(distances, kind="stable")[:size])
    note = f"The {size} of {len(dataset)} rows nearest to row {centre}, drawn with seed {seed}: within "
    return _pieces(dataset, rows, note + f"{distances[rows].max():.3g} standard deviations.")


# how rows are chosen -> (data, rows, seed) -> fewer data
SUBSETS: dict[SubsetKind, Callable[[Dataset, int, int], Dataset]] = {
    "trajectories": trajectory_subset,
    "rows": row_subset,
    "with_replacement": subset_with_replacement,
    "authors": partial(subset_with_replacement, index_drift=True),
    "thinned": thinned_subset,
    "low_return": low_return_subset,
    "narrow": narrow_subset,
}
CUTS_TRAJECTORIES = ("rows", "thinned", "narrow")  # their returns say nothing
