"""D4RL's own files load, and each of their known traps is met."""

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.data import Dataset, load_dataset
from c4rl.data.hdf5 import Hdf5, open_hdf5
from c4rl.environments.tasks import Task, get_task

Shared = Callable[[str], Path]


def task(observation_dim: int, action_dim: int) -> Task:
    return replace(get_task("ant-medium"), observation_dim=observation_dim, action_dim=action_dim)


def qlearning_rows(terminals: np.ndarray, timeouts: np.ndarray) -> np.ndarray:
    """The rows D4RL's qlearning_dataset returns for a file without next observations."""
    return np.array([i for i in range(len(terminals) - 1) if not timeouts[i]])


def check_contract(data: Dataset) -> None:
    count = len(data)
    for name, dtype in {
        "observations": np.float32,
        "actions": np.float32,
        "rewards": np.float32,
        "next_observations": np.float32,
        "next_actions": np.float32,
        "terminals": bool,
        "timeouts": bool,
        "next_action_valid": bool,
        "trajectory_ids": np.int32,
    }.items():
        values = getattr(data, name)
        assert values.dtype == dtype and len(values) == count and not values.flags.writeable, name
        assert np.isfinite(values).all(), name
    assert data.rewards.shape == (count,)
    ids = data.trajectory_ids
    last = np.append(ids[1:] != ids[:-1], True)
    assert ids[0] == 0 and set(np.diff(ids)) <= {0, 1}
    assert np.array_equal(data.terminals | data.timeouts, last)
    assert not (data.terminals & data.timeouts).any()
    assert not (data.terminals & data.next_action_valid).any()
    assert not data.next_actions[~data.next_action_valid].any()
    inside = np.flatnonzero(~last)
    assert data.next_action_valid[inside].all()
    assert np.array_equal(data.next_observations[inside], data.observations[inside + 1])
    assert np.array_equal(data.next_actions[inside], data.actions[inside + 1])


def test_every_original_file_loads_with_the_rows_of_qlearning_dataset(shared: Shared) -> None:
    files = sorted(shared("data/d4rl-hdf5").glob("*.hdf5"))
    assert len(files) == 46
    for path in files:
        data = load_dataset(path)
        check_contract(data)
        assert data.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
        with h5py.File(path) as file:
            raw = {name: file[name][()] for name in file if isinstance(file[name], h5py.Dataset)}
            goals = file["infos/goal"][()] if "infos/goal" in file else np.zeros((len(raw["rewards"]), 2))
        terminals, timeouts = raw["terminals"].astype(bool), raw["timeouts"].astype(bool)
        width = data.observation_dim
        if "next_observations" in raw:
            assert len(data) == len(terminals), path.name
            assert np.array_equal(data.next_observations, raw["next_observations"][:, :width].astype(np.float32))
            continue
        resets = np.append((goals[1:] != goals[:-1]).any(axis=1), False)
        rows = qlearning_rows(terminals, timeouts | (resets & ~terminals))
        assert np.array_equal(data.observations, raw["observations"][rows, :width].astype(np.float32)), path.name
        assert np.array_equal(data.rewards, raw["rewards"][rows].astype(np.float32))
        assert np.array_equal(data.terminals, terminals[rows])
        goes_on = ~data.terminals
        following = raw["observations"][rows + 1].astype(np.float32)
        assert np.array_equal(data.next_observations[goes_on], following[goes_on])
        assert np.array_equal(data.next_observations[~goes_on], data.observations[~goes_on])
        # also before a left-out row the next action is known, and it is that row's
        assert np.array_equal(data.next_action_valid, goes_on)
        assert np.array_equal(data.next_actions[goes_on], raw["actions"][rows + 1][goes_on])


def test_column_rewards_and_float_flags_become_vectors(shared: Shared) -> None:
    data = load_dataset(shared("data/d4rl-hdf5/hopper_medium_replay-v1.hdf5"))
    assert data.rewards.shape == (49,)
    assert data.terminals.dtype == bool and data.terminals.sum() == 2
    assert data.rewards.sum() == pytest.approx(42 + 6, abs=1)


def test_stored_successors_keep_timeout_rows_without_a_next_action(shared: Shared) -> None:
    data = load_dataset(shared("data/d4rl-hdf5/halfcheetah_medium-v2.hdf5"))
    assert len(data) == 2000 and np.array_equal(np.flatnonzero(data.timeouts), [999, 1999])
    assert not data.next_action_valid[999]
    assert not np.array_equal(data.next_observations[999], data.observations[1000])


def test_ant_contact_forces_are_cut_only_where_they_are_zero(shared: Shared) -> None:
    zero, used = shared("data/d4rl-hdf5/ant_medium-v2.hdf5"), shared("data/d4rl-hdf5/ant_medium.hdf5")
    data = load_dataset(zero, task=task(27, 8))
    assert data.observation_dim == 27 and "27 to 110" in data.notes[0]
    assert load_dataset(zero, task=task(111, 8)).observation_dim == 111
    assert load_dataset(used).observation_dim == 111
    with pytest.raises(InputError, match="contact forces that are not zero"):
        load_dataset(used, task=task(27, 8))


def test_unflagged_antmaze_reset_ends_a_trajectory(shared: Shared) -> None:
    for name in ("umaze-diverse", "medium-play", "large-play", "large-diverse"):
        data = load_dataset(shared(f"data/d4rl-hdf5/antmaze-{name}-v0.hdf5"))
        assert any("infos/goal" in note and "row 1000" in note for note in data.notes)
        # no transition is as long as the jump to the new start
        steps = np.linalg.norm(data.next_observations[:, :2] - data.observations[:, :2], axis=1)
        assert steps.max() < 1.0, name
        assert np.array_equal(np.unique(data.trajectory_ids, return_counts=True)[1], [998, 1, 996])
    umaze = load_dataset(shared("data/d4rl-hdf5/antmaze-umaze-v0.hdf5"))
    assert not any("infos/goal" in note for note in umaze.notes)


def test_task_of_other_dimensions_is_refused(shared: Shared) -> None:
    path = shared("data/d4rl-hdf5/hopper_medium-v2.hdf5")
    with pytest.raises(InputError, match=r"'observations' has 11 columns; expected 17 for task"):
        load_dataset(path, task=task(17, 3))
    with pytest.raises(InputError, match=r"'actions' has 3 columns; expected 6 for task"):
        load_dataset(path, task=task(11, 6))


def write_hdf5(path: Path, count: int = 6, **changes: object) -> Path:
    fields: dict[str, object] = {
        "observations": np.arange(count * 2.0).reshape(count, 2),
        "actions": np.linspace(-1, 1, count)[:, None],
        "rewards": np.ones(count),
        "terminals": np.zeros(count, dtype=bool),
        "timeouts": np.zeros(count, dtype=bool),
    }
    with h5py.File(path, "w") as file:
        for name, values in (fields | changes).items():
            if values is not None:
                file[name] = values
    return path


def test_missing_timeouts_are_recovered_from_stored_successors(tmp_path: Path) -> None:
    following = np.arange(12.0).reshape(6, 2) + 2
    following[2] = 99.0
    with_successors = load_dataset(write_hdf5(tmp_path / "a", timeouts=None, next_observations=following))
    assert np.array_equal(with_successors.trajectory_ids, [0, 0, 0, 1, 1, 1])
    without = load_dataset(write_hdf5(tmp_path / "b", timeouts=None))
    assert len(without) == 5 and "no 'timeouts'" in without.notes[0]


def test_the_row_before_a_left_out_one_keeps_its_next_action(tmp_path: Path) -> None:
    timeouts = np.array([0, 0, 1, 0, 0, 1], dtype=bool)
    data = load_dataset(write_hdf5(tmp_path / "a", timeouts=timeouts))
    actions = np.linspace(-1, 1, 6, dtype=np.float32)
    assert np.allclose(data.actions[:, 0], actions[[0, 1, 3, 4]])
    assert np.allclose(data.next_actions[:, 0], actions[[1, 2, 4, 5]]) and data.next_action_valid.all()
    assert np.array_equal(data.trajectory_ids, [0, 0, 1, 1])
    assert np.array_equal(data.timeouts, [False, True, False, True])


def test_a_goal_that_moves_ends_no_trajectory(tmp_path: Path) -> None:
    moving = {"infos/goal": np.arange(12.0).reshape(6, 2), "next_observations": np.arange(12.0).reshape(6, 2) + 2}
    assert not load_dataset(write_hdf5(tmp_path / "a", **moving)).trajectory_ids.any()


def test_arrays_with_other_names_are_named_and_flags_are_numbers(tmp_path: Path) -> None:
    switches = np.arange(12).reshape(6, 2) % 3 == 0
    path = write_hdf5(tmp_path / "a", observations=switches, trajectory_ids=np.zeros(6))
    data = load_dataset(path)
    assert data.notes[0] == "Arrays with other names are not read: ['trajectory_ids']."
    assert data.observations.dtype == np.float32 and np.array_equal(data.observations, switches[:-1])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"actions": None}, "'actions' is missing among"),
        ({"terminals": np.array([0, 0, 0.5, 0, 0, 0])}, "'terminals' holds 0.5 in row 2; expected 0 or 1"),
        ({"rewards": np.ones(5)}, "'rewards' has 5 rows; expected 6"),
        ({"rewards": np.ones((6, 2))}, r"'rewards' has shape \(6, 2\)"),
        ({"timeouts": np.ones(6, dtype=bool)}, "none followed by another row"),
        ({"next_observations": np.ones((6, 3))}, r"'next_observations' has shape \(6, 3\)"),
        ({"actions": np.arange(6)}, "discrete actions are not supported"),
        ({"observations": np.zeros((6, 8, 8, 3), dtype=np.uint8)}, "image observations are not supported"),
        ({"observations": np.array([b"x"] * 6)}, "expected real numbers"),
        ({"rewards": h5py.Empty("f4")}, "'rewards' is no array"),
        ({"terminals": 1.0}, "'terminals' is no array"),
        ({"timeouts": h5py.SoftLink("/nowhere")}, "'timeouts' is a link to nothing"),
        ({"infos/goal": 1.0}, "'infos/goal' is no array"),
        ({"terminals": np.zeros(6, h5py.enum_dtype({"GO": 0, "END": 1}, "i1"))}, "'terminals' holds .* of its own"),
        ({"actions": np.array([["x"]] * 6, h5py.string_dtype())}, "'actions' has dtype object"),
    ],
)
def test_unusable_hdf5_is_refused_by_name(tmp_path: Path, changes: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        load_dataset(write_hdf5(tmp_path / "bad.hdf5", **changes))


@pytest.mark.parametrize("how", [{}, {"compression": "gzip"}, {"shuffle": True}, {"fletcher32": True}, None])
@pytest.mark.parametrize("chunks", [(1, 1), (4, 2), (7, 3), (1000, 1000), True])
@pytest.mark.parametrize("dtype", ["f4", ">f8", "f2", "i2", "u1", "?"])
def test_chunks_of_any_layout_read_as_hdf5_reads_them(
    tmp_path: Path, how: dict[str, object] | None, chunks: tuple[int, int] | bool, dtype: str
) -> None:
    how = {"compression": "gzip", "shuffle": True, "fletcher32": True} if how is None else how
    rng = np.random.default_rng(0)
    values = (rng.normal(size=(45, 5)) * 100).astype(dtype)
    with h5py.File(tmp_path / "file", "w") as file:
        options = {"chunks": chunks, "maxshape": (None, None), "fillvalue": 1, **how}
        stored = file.create_dataset("observations", (45, 5), dtype, **options)
        stored[:30] = values[:30]  # some chunks are never written
        expected = stored[()]
    with open_hdf5(tmp_path / "file") as opened:
        found = opened.array("observations", "numbers")
        assert np.array_equal(found.read(), expected) and np.array_equal(expected[:30], values[:30])
        assert np.array_equal(found.read(np.float32, 3), expected[:, :3].astype(np.float32))


def test_a_chunk_that_skips_a_filter_is_read(tmp_path: Path) -> None:
    """HDF5 leaves out a filter that a chunk has no use for."""
    values = np.arange(12.0).reshape(6, 2)
    with h5py.File(tmp_path / "file", "w") as file:
        stored = file.create_dataset("observations", (6, 2), "f8", chunks=(3, 2), compression="gzip")
        stored.id.write_direct_chunk((3, 0), values[3:].tobytes(), filter_mask=1)
        stored[:3] = values[:3]
    with open_hdf5(tmp_path / "file") as opened:
        assert np.array_equal(opened.array("observations", "numbers").read(), values)


def test_wide_rows_are_read_in_small_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system reads at most 2 GiB at once."""
    rows = np.arange(2**16 * 40.0).reshape(2**16, 40)
    with h5py.File(tmp_path / "wide.hdf5", "w") as file:
        file["observations"] = rows
    sizes, read = [], Hdf5.bytes
    monkeypatch.setattr(Hdf5, "bytes", lambda self, at, size: sizes.append(size) or read(self, at, size))
    with open_hdf5(tmp_path / "wide.hdf5") as opened:
        np.testing.assert_array_equal(opened.array("observations", "numbers").read(), rows)
    assert len(sizes) == 2 and max(sizes) <= 2**24 + rows[0].nbytes


def test_a_packing_that_cannot_be_checked_is_refused(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a", rewards=None)
    with h5py.File(path, "a") as file:
        file.create_dataset("rewards", data=np.ones(6), compression="lzf")
    with pytest.raises(
        InputError, match="'rewards' is packed by the HDF5 filter 32000; expected no compression, or gzip"
    ):
        load_dataset(path)


@pytest.mark.parametrize("chunks", [None, (50, 3)])
def test_a_call_may_read_less_than_it_was_asked_for(
    chunks: tuple[int, int] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Linux does beyond 2 GiB."""
    steps, pread = np.arange(300), os.pread
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file.create_dataset("observations", data=np.random.default_rng(0).random((300, 3)), chunks=chunks)
        for name, values in {"rewards": steps * 0.1, "terminals": steps < 0, "timeouts": steps % 30 == 29}.items():
            file[name] = values
        file["actions"] = np.full((300, 1), 0.5)
    whole = load_dataset(tmp_path / "a.hdf5")
    monkeypatch.setattr(os, "pread", lambda descriptor, size, at: pread(descriptor, min(size, 700), at))
    found = load_dataset(tmp_path / "a.hdf5")
    assert np.array_equal(found.observations, whole.observations) and np.array_equal(found.rewards, whole.rewards)
