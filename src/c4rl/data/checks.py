"""Checks of logged data, before any training; every finding is one sentence (InputError)."""

import math
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from c4rl.core.array import Array
from c4rl.core.errors import InputError
from c4rl.environments.tasks import Task

# Rounding to float32 may push an action at its bound this far outside, relative to the range: moved back silently.
ROUNDING = 1e-6
# Larger numbers leave float32 once a loss squares them and sums over a batch.
LARGEST = 1e15
# No array unpacks to more than this many times its file: deflate reaches 1,032.
EXPANSION = 1100
NAMED = 12  # names that a message lists


def problem(source: object, field: str, found: str, expected: str) -> InputError:
    """An error in the form of every finding: source, field, what was found, what was expected."""
    found = found if len(found) <= 300 else f"{found[:300]}..."
    return InputError(f"{source}: '{field[:100]}' {found}; expected {expected}.")


def reason(error: BaseException) -> str:
    """Another library's error message, shortened."""
    return (str(error) or type(error).__name__).splitlines()[0][:200]


def some(names: list[str]) -> str:
    """For a sentence: a file of episodes may have thousands."""
    shown = [name[:100] for name in names[:NAMED]]
    return f"{shown}" + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


class Allowance:
    """How many bytes the arrays of one file may unpack to. Every array passes `take` before it is read."""

    def __init__(self, path: Path) -> None:
        self.path, self.stored = path, path.stat().st_size
        self.left = min(EXPANSION * self.stored, _memory())

    def take(self, field: str, dtype: np.dtype, shape: tuple[int, ...] | None) -> None:
        self.left -= self.check(field, dtype, shape)

    def check(self, field: str, dtype: np.dtype, shape: tuple[int, ...] | None) -> int:
        """Refuse anything but real numbers (shape None: no array) that the file can hold. Returns their bytes."""
        if dtype.kind not in "fiub":
            raise problem(self.path, field, f"has dtype {dtype}", "real numbers")
        if shape is None or min(shape, default=0) < 0:
            raise problem(self.path, field, "is no array" if shape is None else f"has shape {shape}", "an array")
        needed = math.prod(shape) * dtype.itemsize
        if needed > self.left:
            found = f"has shape {shape}, {needed:,} bytes, in a file of {self.stored:,}"
            raise problem(self.path, field, found, "an array that its file and this machine's memory can hold")
        return needed


def _memory() -> int:
    """Bytes of this machine's memory; no limit if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return sys.maxsize


def row_blocks(count: int, size: int = 1 << 16) -> Iterator[slice]:
    """Slices that cover `count` rows: work on a million rows without a temporary of a million rows."""
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


def check_shapes(source: object, observations: Any, actions: Any) -> None:
    """Refuse images, discrete actions, and what is not [N, s] and [N, a]. Takes arrays or HDF5 datasets, unread."""
    if observations.ndim > 2:
        found = f"has shape {observations.shape} and dtype {observations.dtype}"
        raise problem(source, "observations", f"{found}: image observations are not supported", "vectors [N, s]")
    if actions.dtype.kind in "iub":
        found = f"has dtype {actions.dtype}: discrete actions are not supported"
        raise problem(source, "actions", found, "continuous actions, floats of shape [N, a]")
    expected = {"observations": "[N, s]", "actions": "[N, a], also where a is 1 (discrete actions are not supported)"}
    for field, values in (("observations", observations), ("actions", actions)):
        if values.ndim != 2 or 0 in values.shape[1:]:
            raise problem(source, field, f"has shape {values.shape}", expected[field])
    if len(observations) == 0:
        raise problem(source, "observations", "has no rows", "at least one row")


def check_widths(source: object, observations: Array, actions: Array, task: Task) -> None:
    """Rows must be as wide as the task says."""
    expected = {"actions": (actions, task.action_dim), "observations": (observations, task.observation_dim)}
    for field, (values, width) in expected.items():
        if width is not None and values.shape[1] != width:
            raise problem(source, field, f"has {values.shape[1]} columns", f"{width} for task {task.name}")


def check_same_length(source: object, reference: Array, **fields: Array | None) -> None:
    """Every field has one entry per row of `observations`."""
    for field, values in fields.items():
        if values is not None and len(values) != len(reference):
            raise problem(source, field, f"has {len(values)} rows", f"{len(reference)} as in 'observations'")


def check_finite(source: object, **fields: Array | None) -> None:
    """No NaN, no infinity and nothing near it; min and max see all of them without a temporary."""
    for field, values in fields.items():
        if values is None or (float(values.min()) >= -LARGEST and float(values.max()) <= LARGEST):
            continue
        with np.errstate(invalid="ignore"):  # of a signalling NaN
            good = (np.abs(values.astype(np.float64)) <= LARGEST).reshape(len(values), -1)
        row = int(np.argmin(good.all(axis=1)))
        worst = values[row].flat[int(np.argmin(good[row]))]
        found = f"holds {worst:g} first in row {row}, in {int((~good.all(axis=1)).sum())} of {len(good)} rows"
        expected = f"finite numbers, at most {LARGEST:g} in size to stay in the range of float32"
        raise problem(source, field, found, expected)


def as_column(source: object, field: str, values: Any) -> Any:
    """[N] from [N] or [N, 1] (an [N, 1] column broadcasts against [N] to [N, N])."""
    if values.ndim == 2 and values.shape[1] == 1:
        values = values.reshape(-1)
    if values.ndim != 1:
        raise problem(source, field, f"has shape {values.shape}", "one number per row, [N]")
    return values


def as_flags(source: object, field: str, values: Any) -> Array:
    """[N] bool from flags of any number type; a float file holds 0.0 and 1.0."""
    values = as_column(source, field, values)
    flags = values.astype(bool)
    if values.dtype != bool and not np.array_equal(values, flags):
        row = int(np.argmax(values != flags))
        raise problem(source, field, f"holds {values[row]} in row {row}", "0 or 1")
    return flags


def as_ids(source: object, field: str, values: Any) -> Array:
    """[N] whole numbers, of any number type."""
    values = as_column(source, field, values)
    if values.dtype.kind == "f" and len(values):
        check_finite(source, **{field: values})
        if (fractions := values != np.round(values)).any():
            row = int(np.argmax(fractions))
            raise problem(source, field, f"holds {values[row]} in row {row}", "whole numbers")
    return values


def as_float32(values: Array) -> Array:
    """float32, without a copy where it is that already; an overflow becomes inf, which `check_finite` names."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.ascontiguousarray(values, dtype=np.float32)


def as_bound(source: object, field: str, value: ArrayLike) -> Array:
    """A bound from a file, a flag or JSON, which may hold anything."""
    try:
        with np.errstate(over="ignore"):
            return np.asarray(value, dtype=np.float64).astype(np.float32)
    except (ValueError, TypeError, OverflowError) as error:
        raise problem(source, field, f"is no number ({error})", "one number or one per action component") from None


def action_bounds(source: object, width: int, low: ArrayLike | None, high: ArrayLike | None) -> tuple[Array, Array]:
    """The bounds of each action component, [a] each; a number holds for all of them, and [-1, 1] is the default."""
    bounds = []
    for field, value, default in (("action_low", low, -1.0), ("action_high", high, 1.0)):
        bound = as_bound(source, field, default if value is None else value)
        if bound.shape not in ((), (1,), (width,)):
            raise problem(source, field, f"has shape {bound.shape}", f"one number or {width}, one per action component")
        if not (np.abs(bound) <= LARGEST).all():
            raise problem(source, field, f"is {bound.tolist()}", f"finite bounds, at most {LARGEST:g} in size")
        bounds.append(np.broadcast_to(bound, (width,)).copy())
    lower, upper = bounds
    if (lower >= upper).any():
        j = int(np.argmax(lower >= upper))
        found = f"is {lower[j]:g} where 'action_high' is {upper[j]:g} (component {j})"
        raise problem(source, "action_low", found, "a lower bound below the upper one")
    return lower, upper


def keep_actions_in_bounds(source: object, field: str, actions: Array, low: Array, high: Array, clip: bool) -> int:
    """Refuse actions outside their bounds or, with `clip`, clip them in place; how many numbers were clipped."""
    slack = ROUNDING * (high - low)
    smallest, largest = actions.min(axis=0), actions.max(axis=0)
    outside = 0
    if (smallest < low - slack).any() or (largest > high + slack).any():
        beyond = (actions < low - slack) | (actions > high + slack)
        outside = int(beyond.sum())
        if not clip:
            excess = np.maximum(low - smallest, largest - high)
            j = int(np.argmax(excess))
            worst = smallest[j] if low[j] - smallest[j] > largest[j] - high[j] else largest[j]
            found = (
                f"has {outside} of {actions.size} numbers outside their bounds, the worst {worst:g} in component {j} "
                f"bounded by [{low[j]:g}, {high[j]:g}]"
            )
            expected = (
                "actions within bounds (--clip-actions clips them, --action-low and --action-high set the bounds)"
            )
            raise problem(source, field, found, expected)
    if (smallest < low).any() or (largest > high).any():
        np.clip(actions, low, high, out=actions)
    return outside
