"""`describe`: numbers that are right, warnings that fire for a reason and only then."""

import io
import json
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from c4rl.data import Dataset, describe, load_dataset, observation_statistics, render
from c4rl.environments.tasks import get_task

Shared = Callable[[str], Path]
Make = Callable[..., dict[str, np.ndarray]]
Save = Callable[..., Path]
HOPPER = get_task("hopper-expert-v2")


def text_of(description: dict, width: int = 100) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(render(description))
    return console.export_text()


def test_real_data_is_described_as_published(shared: Shared) -> None:
    description = describe(load_dataset(shared("data/d4rl-10k/hopper-expert-v2.npz"), task=HOPPER), HOPPER)
    assert description["rows"] == 9803 and description["trajectories"] == 10 and description["terminals"] == 1
    assert description["normalised_returns"]["mean"] == pytest.approx(109.7, abs=0.05)
    assert description["valid_next_actions"] == 9793 and description["duplicates"] == 0
    assert description["warnings"] == []
    json.dumps(description, allow_nan=False)
    text = text_of(description)
    for part in (
        "9,803 in 10 trajectories",
        "1 terminal, 9 time-outs",
        "hopper-expert-v2",
        "[-1, 1]",
        "normalised return",
    ):
        assert part in text


def test_wide_rows_are_described_in_little_memory(arrays: Make, save: Save) -> None:
    wide = np.random.default_rng(0).random((8000, 500), dtype=np.float32)
    data = load_dataset(save(arrays([8000]), observations=wide, next_observations=wide))
    tracemalloc.start()
    describe(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 * wide.nbytes


def test_returns_leave_out_one_row_pieces(shared: Shared) -> None:
    description = describe(load_dataset(shared("data/d4rl-10k/halfcheetah-medium-v2.npz")))
    assert description["returns"]["min"] > 4500 and description["normalised_returns"] is None
    assert description["warnings"] == ["9 of 18 trajectories have a single row."]
    assert "one-row pieces left out" in text_of(description)


def test_every_real_file_can_be_described_and_shown(shared: Shared) -> None:
    for path in sorted(shared("data/d4rl-hdf5").glob("*.hdf5")):
        description = describe(load_dataset(path))
        json.dumps(description, allow_nan=False)
        assert not any("differ from the following row" in warning for warning in description["warnings"]), path.name
        assert max(map(len, text_of(description, width=70).splitlines())) <= 70


def test_healthy_data_has_no_warnings(arrays: Make, save: Save) -> None:
    description = describe(load_dataset(save(arrays([40, 50], [True, False]))))
    assert description["warnings"] == []
    assert description["lengths"] == {"min": 40.0, "mean": 45.0, "max": 50.0, "one_row": 0}


def spoiled(arrays: Make, **changes: object) -> dict[str, np.ndarray]:
    """Arrays of two trajectories with fields replaced; a function changes a copy of its field."""
    raw = arrays([60, 60], [True, False])
    for name, change in changes.items():
        raw[name] = change(raw[name].copy()) if callable(change) else change
    return raw


def set_to(index: object, value: object) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[index] = value
        return array

    return change


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {name: set_to(np.s_[:, 1], 3.0) for name in ("observations", "next_observations")},
            "1 observation columns never change (columns 1).",
        ),
        ({"rewards": np.zeros(120)}, "All rewards are 0"),
        ({"actions": set_to(np.s_[:, 0], 0.25)}, "1 action components never change (components 0)."),
        ({"actions": lambda a: a * np.float32([1, 0.01])}, "Action components 1 use less than 10% of their bounds"),
        ({"actions": np.sign}, "look discrete"),
        ({"actions": np.sign}, "100% of the action numbers lie at their bounds"),
        ({"rewards": set_to(5, 3e7)}, "'rewards' holds values as large as 3.0e+07."),
        (
            {name: lambda s: s * np.float32([1, 1, 1e5]) for name in ("observations", "next_observations")},
            "--normalize-observations, the default",
        ),
        (
            {name: lambda s: s * np.float32([1, 1, 1e-6]) for name in ("observations", "next_observations")},
            "Observations vary by less than 0.0001 in columns 2.",
        ),
        (
            {name: lambda s: s + np.float32([0, 1e7, 0]) for name in ("observations", "next_observations")},
            "float32 rounds away most of what varies in columns 1 of the observations",
        ),
        ({"next_observations": set_to(7, 0.0)}, "1 next observations differ from the following row"),
        ({"trajectory_ids": np.repeat([0, 1, 2], [60, 59, 1])}, "1 of 3 trajectories have a single row."),
        (
            {"trajectory_ids": np.zeros(120), "terminals": np.zeros(120)},
            "No terminal and no time-out is marked before the last row",
        ),
    ],
)
def test_what_looks_wrong_is_said(arrays: Make, save: Save, changes: dict[str, object], sentence: str) -> None:
    description = describe(load_dataset(save(spoiled(arrays, **changes))))
    assert any(sentence in warning for warning in description["warnings"]), description["warnings"]
    assert sentence[:20] in text_of(description)


def test_columns_that_normalising_lets_be_seen_are_not_called_faint(arrays: Make, save: Save) -> None:
    raw = spoiled(arrays, observations=lambda s: s * np.float32([1, 1, 1e-3]) + np.float32([0, 0, 5]))
    raw["observations"][:, 1] = 3.0  # constant: it has a finding of its own
    warnings = describe(load_dataset(save(raw)))["warnings"]
    assert not any("vary by less" in warning for warning in warnings), warnings


def test_duplicate_rows_are_counted(dataset: Dataset) -> None:
    assert describe(dataset)["duplicates"] == 0
    names = "observations actions rewards next_observations terminals timeouts next_actions next_action_valid"
    repeated = {name: np.concatenate([getattr(dataset, name)] * 2) for name in names.split()}
    ids = np.concatenate([dataset.trajectory_ids, dataset.trajectory_ids + 5])
    twice = describe(replace(dataset, **repeated, trajectory_ids=ids))
    assert twice["duplicates"] == 60
    assert "60 rows (50.0%) repeat an earlier row exactly." in twice["warnings"]
    nearly = replace(dataset, **repeated | {"rewards": np.arange(120, dtype=np.float32)}, trajectory_ids=ids)
    assert describe(nearly)["duplicates"] == 0


def test_state_statistics_are_exact_far_from_zero() -> None:
    rng = np.random.default_rng(0)
    observations = (1e4 + rng.normal(size=(200_000, 3)) * [1, 0.01, 0]).astype(np.float32)
    mean, std = observation_statistics(observations)
    exact = observations.astype(np.float64)
    assert mean.dtype == std.dtype == np.float32
    assert np.allclose(mean, exact.mean(axis=0), rtol=1e-7)
    assert np.allclose(std[:2], exact.std(axis=0)[:2] + 1e-3, rtol=1e-6)
    assert std[2] == np.float32(1 + 1e-3)  # a policy may see another value of it, which must not be a thousand
