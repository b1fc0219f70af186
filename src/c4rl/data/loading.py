"""One way in: any supported file becomes a Dataset, or one sentence says why not."""

import hashlib
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
from numpy.typing import ArrayLike

from c4rl.core.errors import InputError
from c4rl.data.arrays import read_arrays
from c4rl.data.assembly import Log, assemble
from c4rl.data.checks import TaskLike, action_bounds
from c4rl.data.d4rl import read_d4rl
from c4rl.data.dataset import Dataset
from c4rl.data.minari import PREFIX, locate, main_file, read_minari

Reader = Callable[[Path, TaskLike | None], Log]

EXPECTED = "expected an npz file, a D4RL HDF5 file, or the folder of a local Minari dataset"
# What damaged files raise in zipfile, numpy and HDF5.
DAMAGE = (OSError, EOFError, ValueError, KeyError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)
KNOWN_FOREIGN = {
    b"\x93NUMPY": "a single numpy array (.npy)",
    b"PAR1": "a Parquet file",
    b"ARROW1": "an Arrow file",
    b"\x80": "a pickle, which is never opened",
    b"\x1f\x8b": "a gzip archive",
}


def _recognise(path: Path) -> tuple[str, Reader]:
    """What the file is, by its first bytes, and who reads it."""
    with path.open("rb") as file:
        head = file.read(8)
    if not head:
        raise InputError(f"{path}: the file is empty; {EXPECTED}.")
    if head.startswith(b"PK\x03\x04"):
        return "an npz file", read_arrays
    if head == b"\x89HDF\r\n\x1a\n" or h5py.is_hdf5(path):
        with h5py.File(path, "r") as content:
            in_episodes = any(name.startswith("episode_") for name in content)
        return ("a Minari HDF5 file", read_minari) if in_episodes else ("a D4RL HDF5 file", read_d4rl)
    found = next((name for magic, name in KNOWN_FOREIGN.items() if head.startswith(magic)), "in no known format")
    raise InputError(f"{path}: the file is {found}; {EXPECTED}.")


def load_dataset(
    path: str | Path,
    *,
    task: TaskLike | None = None,
    action_low: ArrayLike | None = None,
    action_high: ArrayLike | None = None,
    clip_actions: bool = False,
) -> Dataset:
    """Read an npz file, a D4RL HDF5 file or a local Minari dataset (its folder, or `minari:<id>`).

    What a file is shows in its content, not in its name. Action bounds come from the arguments, else from the file,
    else they are [-1, 1]; actions outside them are refused, or clipped with `clip_actions`. With a `task`, its
    dimensions must agree. Bad input raises InputError.
    """
    name = str(path)
    file = locate(name.removeprefix(PREFIX)) if name.startswith(PREFIX) else Path(path)
    if file.is_dir():
        file = main_file(file)
    if not file.is_file():
        raise InputError(f"{file}: there is no such file; {EXPECTED}.")
    kind = "HDF5 or npz"
    try:
        kind, read = _recognise(file)
        log = read(file, task)
        with file.open("rb") as content:
            sha256 = hashlib.file_digest(content, "sha256").hexdigest()
    except DAMAGE as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise InputError(f"{file}: not readable as {kind} ({reason}); expected a complete, undamaged file.") from error
    low, high = action_bounds(
        file,
        log.actions.shape[1],
        log.action_low if action_low is None else action_low,
        log.action_high if action_high is None else action_high,
    )
    return assemble(log, low, high, clip_actions, sha256)
