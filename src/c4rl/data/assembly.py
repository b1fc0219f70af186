"""From logged rows to a Dataset: where trajectories end, what follows each row. One place for every file format."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from c4rl.core.array import Array
from c4rl.data.checks import check_finite, check_same_length, keep_actions_in_bounds, problem, row_blocks
from c4rl.data.dataset import Dataset

BOUNDS = ("action_low", "action_high")  # fields of a `Log`


@dataclass
class Log:
    """A file's content, row by row. `assemble` may change the arrays in place."""

    source: str
    observations: Array  # [N, s] float32
    actions: Array  # [N, a] float32
    rewards: Array  # [N] float32
    terminals: Array  # [N] bool
    cuts: Array  # [N] bool: the trajectory stops after this row, other than by a terminal
    next_observations: Array | None = None  # [N, s] float32; None: the following row's observation
    next_actions: Array | None = None  # [N, a] float32; None: the following row's action
    next_action_valid: Array | None = None  # [N] bool; None: wherever the trajectory goes on
    action_low: Array | None = None
    action_high: Array | None = None
    notes: list[str] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)


def breaks(observations: Array, next_observations: Array) -> Array:
    """[N] bool: the following row does not begin where this one ends, so another trajectory starts there."""
    broken = np.zeros(len(observations), dtype=bool)
    for rows in row_blocks(len(observations) - 1):
        following = slice(rows.start + 1, rows.stop + 1)
        broken[rows] = (observations[following] != next_observations[rows]).any(axis=1)
    return broken


def ends_of(trajectory_ids: Array) -> Array:
    """[N] bool: the last row of each trajectory."""
    ends = np.ones(len(trajectory_ids), dtype=bool)
    np.not_equal(trajectory_ids[1:], trajectory_ids[:-1], out=ends[:-1])
    return ends


def number_trajectories(ends: Array) -> Array:
    """[N] int32: 0, 1, ... , one number per trajectory."""
    trajectory_ids = np.zeros(len(ends), dtype=np.int32)
    np.cumsum(ends[:-1], out=trajectory_ids[1:])
    return trajectory_ids


def _compact(values: Array, rows: Array) -> Array:
    """values[rows] for ascending rows, in the memory of `values`: a block never overwrites what is read later."""
    for block in row_blocks(len(rows)):
        values[block] = values[rows[block]]
    return values[: len(rows)]


def _check(log: Log, low: Array, high: Array, clip_actions: bool) -> None:
    """Refuse a log whose values cannot be used; clip actions in place where asked to."""
    per_row = ["actions", "rewards", "terminals", "cuts", "next_observations", "next_actions", "next_action_valid"]
    check_same_length(log.source, log.observations, **{name: getattr(log, name) for name in per_row})
    check_finite(
        log.source,
        observations=log.observations,
        actions=log.actions,
        rewards=log.rewards,
        next_observations=log.next_observations,
    )
    clipped = keep_actions_in_bounds(log.source, "actions", log.actions, low, high, clip_actions)
    if clipped:
        log.notes.append(f"{clipped} of {log.actions.size} action components were clipped to their bounds.")
    if log.next_actions is not None:
        # A terminal has no next action, whatever the file says; values in invalid rows do not matter.
        valid = log.next_action_valid
        if valid is None:  # no row follows the last of a trajectory
            valid = np.append(~log.cuts[:-1], False)
        valid = valid & ~log.terminals
        log.next_actions[~valid] = 0.0
        check_finite(log.source, next_actions=log.next_actions)
        if valid.any():
            used = log.next_actions[valid]
            keep_actions_in_bounds(log.source, "next_actions", used, low, high, clip_actions)
            log.next_actions[valid] = used
        log.next_action_valid = valid


def _following(values: Array, rows: Array, terminals: Array) -> Array:
    """What follows each of the rows: the next row's values, or at a terminal, which nothing follows, its own."""
    result = np.empty((len(rows), *values.shape[1:]), dtype=values.dtype)
    for block in row_blocks(len(rows)):
        result[block] = values[rows[block] + ~terminals[rows[block]]]
    return result


def _rows_with_successor(log: Log, ends: Array) -> Array:
    """The rows that another row of their trajectory follows, and the terminal rows, which need none; ascending.

    The row before one that is left out stays: its next observation and next action are that row's, and true.
    """
    rows = np.flatnonzero(log.terminals | ~ends).astype(np.int32)
    if len(rows) == 0:
        found = f"has {len(ends)} rows, none followed by another row of its trajectory"
        raise problem(log.source, "observations", found, "longer trajectories, or 'next_observations' in the file")
    left_out = f"{len(ends) - len(rows)} of {len(ends)} rows, which no row of their trajectory follows, were left out"
    log.notes.append(
        "The file has no next observations: each is the following row's"
        + (f", and {left_out}." if len(rows) < len(ends) else ".")
    )
    return rows


def assemble(log: Log, low: Array, high: Array, clip_actions: bool, sha256: str) -> Dataset:
    """Check a log and make it a Dataset, in the memory of the log where possible."""
    _check(log, low, high, clip_actions)
    observations, actions, rewards, terminals = log.observations, log.actions, log.rewards, log.terminals
    next_observations, next_actions, next_action_valid = log.next_observations, log.next_actions, log.next_action_valid
    ends = terminals | log.cuts
    ends[-1] = True
    if next_actions is None or next_action_valid is None:
        # whatever the file says, no row follows the last of a trajectory
        next_action_valid = ~ends if next_action_valid is None else next_action_valid & ~ends
    trajectory_ids = number_trajectories(ends)
    if next_observations is None:
        rows = _rows_with_successor(log, ends)
        next_observations = _following(observations, rows, terminals)
        next_action_valid = next_action_valid[rows]
        next_actions = _following(actions, rows, terminals) if next_actions is None else next_actions[rows]
        observations, actions = _compact(observations, rows), _compact(actions, rows)
        rewards, terminals = _compact(rewards, rows), terminals[rows]
        # where the last row was left out, the trajectory ends one earlier
        ends = ends_of(_compact(trajectory_ids, rows))
        trajectory_ids = number_trajectories(ends)
    elif next_actions is None:
        next_actions = np.concatenate([actions[1:], actions[:1]])
    next_actions[~next_action_valid] = 0.0
    return Dataset(
        observations=observations,
        actions=actions,
        rewards=rewards,
        next_observations=next_observations,
        terminals=terminals,
        timeouts=ends & ~terminals,
        trajectory_ids=trajectory_ids,
        next_actions=next_actions,
        next_action_valid=next_action_valid,
        action_low=low,
        action_high=high,
        source=log.source,
        sha256=sha256,
        notes=tuple(log.notes),
        metadata=log.metadata,
    )
