"""Small made-up datasets whose rows can be told apart."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from c4rl.data import Dataset, load_dataset

Arrays = dict[str, np.ndarray]


def logged_arrays(lengths: list[int], terminal: list[bool] | None = None, seed: int = 0) -> Arrays:
    """Arrays of an npz file with the given trajectory lengths; every observation is unique."""
    rng = np.random.default_rng(seed)
    terminal = terminal or [False] * len(lengths)
    pieces = [rng.normal(size=(length + 1, 3)).astype(np.float32) for length in lengths]
    ends = np.cumsum(lengths) - 1
    count = sum(lengths)
    terminals = np.zeros(count, dtype=bool)
    terminals[ends] = terminal
    return {
        "observations": np.concatenate([piece[:-1] for piece in pieces]),
        "next_observations": np.concatenate([piece[1:] for piece in pieces]),
        "actions": rng.uniform(-1, 1, (count, 2)).astype(np.float32),
        "rewards": rng.normal(size=count).astype(np.float32),
        "terminals": terminals,
        "trajectory_ids": np.repeat(np.arange(len(lengths)), lengths),
    }


@pytest.fixture
def arrays() -> Callable[..., Arrays]:
    return logged_arrays


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Write arrays to an npz file; a field given as None is left out."""

    def write(fields: Arrays, **changes: object) -> Path:
        path = tmp_path / "data.npz"
        np.savez(path, **{name: value for name, value in (fields | changes).items() if value is not None})
        return path

    return write


@pytest.fixture
def dataset(save: Callable[..., Path]) -> Dataset:
    """60 rows in five trajectories, two of them ended by a terminal."""
    return load_dataset(save(logged_arrays([12, 1, 20, 7, 20], [True, False, False, True, False])))
