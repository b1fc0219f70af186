"""Loads any supported file as a Dataset, or raises one sentence that says why not."""

import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from c4rl.core.action_bounds import ActionBounds
from c4rl.core.array import Array
from c4rl.core.errors import InputError
from c4rl.core.files import sha256_of
from c4rl.data.arrays import read_arrays
from c4rl.data.assembly import Log, assemble
from c4rl.data.checks import LARGEST, action_bounds, check_widths, reason
from c4rl.data.d3rlpy import COUNT, read_d3rlpy
from c4rl.data.d4rl import read_d4rl
from c4rl.data.dataset import Dataset
from c4rl.data.hdf5 import SIGNATURE, open_hdf5
from c4rl.data.minari import PREFIX, locate, main_file, read_minari
from c4rl.environments.tasks import Task

NPZ, HDF5 = "an npz file", "HDF5"
Bounds = tuple[ArrayLike | None, ArrayLike | None]
EXPECTED = "expected an npz file, a D4RL or d3rlpy HDF5 file, or the folder of a local Minari dataset"
KNOWN_FOREIGN = {
    b"\x93NUMPY": "a single numpy array (.npy)",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x80": "a pickle, which is never opened",
    b"\x1f\x8b": "a gzip archive",
}


def _recognise(path: Path) -> str:
    """The kind of the file, by its first bytes."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise InputError(f"{path}: not a regular file; {EXPECTED}.")
    with path.open("rb") as file:
        head = file.read(8)
    if not head:
        raise InputError(f"{path}: the file is empty; {EXPECTED}.")
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return NPZ
    if head == SIGNATURE:
        return HDF5
    found = next((name for magic, name in KNOWN_FOREIGN.items() if head.startswith(magic)), "in no known format")
    raise InputError(f"{path}: the file is {found}; {EXPECTED}.")


def _read_hdf5(path: Path, task: Task | None) -> Log:
    with open_hdf5(path) as file:
        if file.episodes:
            return read_minari(file)
        return read_d3rlpy(file) if COUNT in file else read_d4rl(file, task)


def load_dataset(
    path: str | Path,
    *,
    task: Task | None = None,
    action_low: ArrayLike | None = None,
    action_high: ArrayLike | None = None,
    clip_actions: bool = False,
) -> Dataset:
    """Read an npz file, a D4RL HDF5 file, a d3rlpy dump or a local Minari dataset (its folder, or `minari:<id>`).

    The content decides the format, not the name. Action bounds come from the arguments, else from the file,
    else they are [-1, 1]; actions outside them are refused, or clipped with `clip_actions`. With a `task`, its
    dimensions must agree. Bad input raises InputError.
    """

    def bounds(log: Log) -> Bounds:
        low, high = log.action_low, log.action_high
        return low if action_low is None else action_low, high if action_high is None else action_high

    return _load(path, task, bounds, clip_actions)


def _load(path: str | Path, task: Task | None, bounds: Callable[[Log], Bounds], clip_actions: bool) -> Dataset:
    """bounds: those of the actions of a log."""
    file, kind = Path(path), "HDF5 or npz"
    try:
        if str(path).startswith(PREFIX):
            file = locate(str(path).removeprefix(PREFIX))
        if file.is_dir():
            file = main_file(file)
        kind = _recognise(file)
        log = read_arrays(file) if kind == NPZ else _read_hdf5(file, task)
        sha256 = sha256_of(file)
    except InputError:
        raise
    except FileNotFoundError as error:
        raise InputError(f"{file}: there is no such file; {EXPECTED}.") from error
    except Exception as error:  # the system's refusals, and what zipfile, NumPy and HDF5 raise for damaged bytes
        if isinstance(error, OSError) and error.filename is not None:
            raise InputError(f"{error.filename}: cannot be read ({error.strerror}); {EXPECTED}.") from error
        found = f"not readable as {kind} ({reason(error)})"
        raise InputError(f"{file}: {found}; expected a complete, undamaged file.") from error
    if task is not None:
        check_widths(file, log.observations, log.actions, task)
    low, high = action_bounds(file, log.actions.shape[1], *bounds(log))
    return assemble(log, low, high, clip_actions, sha256)


def load_for_task(path: str | Path, task: Task, given: ActionBounds) -> Dataset:
    """`load_dataset` for every command: where no bounds are given, those of a task's Gymnasium environment hold."""
    low, high = environment_bounds(task) if task.domain == "gym" else (None, None)

    def bounds(log: Log) -> Bounds:
        return (
            _of_three(given.action_low, low, log.action_low, -1),
            _of_three(given.action_high, high, log.action_high, 1),
        )

    return _load(path, task, bounds, given.clip_actions)


def _of_three(
    given: ArrayLike | None, environments: Array | None, stored: Array | None, default: float
) -> ArrayLike | None:
    """The given bound, else the environment's; actions that it leaves unbounded have the file's, else the default."""
    if given is not None or environments is None:
        return stored if given is None else given
    return np.where(np.isinf(environments), default if stored is None else stored, environments)


def environment_bounds(task: Task) -> list[Array | None]:
    """The lower and upper bounds of its actions, infinite where it has none that can be used; None: nowhere."""
    from c4rl.environments.gym_ids import close  # reading data needs no simulator
    from c4rl.environments.making import make_environment

    environment = make_environment(task)
    space: Any = environment.action_space  # a Box, or `get_task` would have refused it
    close(environment)
    return [_inside(space.low, -1), _inside(space.high, 1)]


def _inside(bound: Array, side: int) -> Array | None:
    """As float32, but never beyond it: it may be float64, and a strict environment refuses such actions."""
    usable, near = np.abs(bound) <= LARGEST, bound.astype(np.float32)
    near = np.where(side * near > side * bound, np.nextafter(near, np.float32(-side * np.inf)), near)
    return np.where(usable, near, np.float32(side * np.inf)) if usable.any() else None
