"""Datasets out and in again: npz, D4RL's HDF5, Minari and d3rlpy's dumps hold the same rows, bit for bit."""

import json
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.data import Dataset, load_dataset, row_subset
from c4rl.data.writing import write_dataset
from c4rl.environments.tasks import get_task
from tests.cli.support import run
from tests.data.conftest import logged_arrays

OUTPUTS = {"npz": "out.npz", "hdf5": "out.hdf5", "minari": "folder-v0", "d3rlpy": "out.h5"}


def assert_equal_rows(found: Dataset, expected: Dataset) -> None:
    for field in fields(Dataset):
        value = getattr(expected, field.name)
        if isinstance(value, np.ndarray):
            np.testing.assert_array_equal(getattr(found, field.name), value, err_msg=field.name, strict=True)
    assert found.metadata == expected.metadata


@pytest.mark.parametrize("format", OUTPUTS)
def test_rows_ends_and_metadata_come_back(format: str, dataset: Dataset, tmp_path: Path) -> None:
    described = replace(dataset, metadata={"name": "c4rl/made-up", "behaviour": [{"rows": 60}]})
    path = write_dataset(described, str(tmp_path / OUTPUTS[format]), format)
    found = load_dataset(path)
    assert_equal_rows(found, described)
    assert found.terminals.sum() == 2 and found.timeouts.sum() == 3  # cuts stay cuts


@pytest.mark.parametrize("format", OUTPUTS)
def test_bounds_and_next_actions_of_its_own_come_back(format: str, save: Callable[..., Path], tmp_path: Path) -> None:
    arrays = logged_arrays([5, 7, 3], [False, True, False])
    rng = np.random.default_rng(1)
    valid = ~arrays["terminals"]
    valid[2] = False
    own = {"next_actions": rng.uniform(-1, 1, (15, 2)).astype(np.float32), "next_action_valid": valid}
    source = load_dataset(save(arrays, action_low=[-1.5, -2], action_high=[1, 3], **own))
    assert source.next_action_valid[4]  # after the last row of the first trajectory
    assert_equal_rows(load_dataset(write_dataset(source, str(tmp_path / OUTPUTS[format]), format)), source)


@pytest.mark.parametrize("format", OUTPUTS)
@pytest.mark.parametrize("name", ["antmaze-large-play-v0", "pen-human-v1", "hopper_medium-v2"])
def test_d4rls_files_come_back(name: str, format: str, shared: Callable[[str], Path], tmp_path: Path) -> None:
    source = load_dataset(shared(f"data/d4rl-hdf5/{name}.hdf5"))
    assert_equal_rows(load_dataset(write_dataset(source, str(tmp_path / OUTPUTS[format]), format)), source)


def test_the_d4rl_layout_is_d4rls(dataset: Dataset, tmp_path: Path) -> None:
    with h5py.File(write_dataset(dataset, str(tmp_path / "a.hdf5"))) as file:
        flat = {name: (file[name].shape, file[name].dtype) for name in ("observations", "actions", "rewards")}
        assert flat == {"observations": ((60, 3), "f4"), "actions": ((60, 2), "f4"), "rewards": ((60,), "f4")}
        assert file["terminals"].dtype == file["timeouts"].dtype == bool
        np.testing.assert_array_equal(file["next_observations"][:], dataset.next_observations)


def test_minari_loads_what_we_wrote(dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    minari = pytest.importorskip("minari")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_dataset(replace(dataset, metadata={"task": "maze2d-open-v0"}), "minari:c4rl/made-up-v3")
    loaded = minari.load_dataset("c4rl/made-up-v3")
    assert (loaded.total_episodes, loaded.total_steps) == (5, 60)
    assert loaded.action_space.shape == (2,)
    episodes = list(loaded.iterate_episodes())
    assert [len(episode.rewards) for episode in episodes] == [12, 1, 20, 7, 20]
    np.testing.assert_array_equal(episodes[2].observations[1:], dataset.next_observations[13:33])
    assert [bool(episode.terminations[-1]) for episode in episodes] == [True, False, False, True, False]
    assert [bool(episode.truncations[-1]) for episode in episodes] == [False, True, True, False, True]
    environment = loaded.recover_environment()
    assert environment.reset(seed=0)[0].shape == (4,)
    assert minari.get_normalized_score(loaded, np.float64(20.66)) == pytest.approx(1)
    np.testing.assert_array_equal(load_dataset("minari:c4rl/made-up-v3").rewards, dataset.rewards)


def test_a_dump_of_d3rlpys_own_is_read(dataset: Dataset, tmp_path: Path) -> None:
    """Without next observations: the last row of a cut episode is no transition, as in d3rlpy."""
    path = write_dataset(dataset, str(tmp_path / "a.h5"), "d3rlpy")
    with h5py.File(path, "a") as file:
        assert [bool(file[f"terminated_{i}"][()]) for i in range(5)] == [True, False, False, True, False]
        assert file["rewards_2"].shape == (20, 1) and file["num_episodes"][()] == 5
        del file["c4rl"]
    found = load_dataset(path)
    kept = ~dataset.timeouts
    assert len(found) == 57 and found.terminals.sum() == 2
    for name in ("observations", "actions", "rewards", "terminals"):
        np.testing.assert_array_equal(getattr(found, name), getattr(dataset, name)[kept])
    inside = kept & ~dataset.terminals
    np.testing.assert_array_equal(found.next_observations[~found.terminals], dataset.next_observations[inside])
    # the rows before those left out keep their true next actions, and trajectories that were cut end cut
    np.testing.assert_array_equal(found.next_action_valid, inside[kept])
    np.testing.assert_array_equal(found.next_actions[~found.terminals], dataset.next_actions[inside])
    assert found.timeouts.sum() == 2  # the trajectory of one row is gone


def test_d3rlpy_loads_what_we_wrote_and_we_what_it_dumps(dataset: Dataset, tmp_path: Path) -> None:
    d3rlpy = pytest.importorskip("d3rlpy", reason="reading dumps in d3rlpy itself needs the package d3rlpy")
    path = write_dataset(dataset, str(tmp_path / "ours.h5"), "d3rlpy")
    with path.open("rb") as file:
        buffer = d3rlpy.dataset.ReplayBuffer.load(file, d3rlpy.dataset.InfiniteBuffer())
    # d3rlpy drops the second one, which has one row and is cut: it holds no transition
    assert [bool(episode.terminated) for episode in buffer.episodes] == [True, False, True, False]
    rows = dataset.observations[dataset.trajectory_ids != 1]
    np.testing.assert_array_equal(np.concatenate([episode.observations for episode in buffer.episodes]), rows)
    assert buffer.transition_count == 57
    with (tmp_path / "theirs.h5").open("w+b") as file:
        buffer.dump(file)
    with h5py.File(path, "a") as file:
        del file["c4rl"]
    assert_equal_rows(load_dataset(tmp_path / "theirs.h5"), load_dataset(path))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_episodes", 6, r"'observations_5' is missing among .* and 12 more"),
        ("num_episodes", 0, "'num_episodes' is 0 in a file of 24 names"),
        ("num_episodes", [1], r"'num_episodes' has shape \(1,\)"),
        ("terminated_1", 0.5, "'terminated_1' has shape .* and dtype float64; expected 0 or 1"),
        ("rewards_0", np.zeros(3), "'rewards' has 3 rows"),
        ("actions_4", np.zeros((20, 3)), r"'actions' have the widths \[2, 3\]"),
        ("observations_2", np.zeros((20, 3, 8, 8)), "observations"),
        ("c4rl/next_observations", np.zeros((60, 2)), "'c4rl/next_observations' has shape"),
    ],
)
def test_damaged_dumps_are_refused(name: str, value: object, message: str, dataset: Dataset, tmp_path: Path) -> None:
    path = write_dataset(dataset, str(tmp_path / "a.h5"), "d3rlpy")
    with h5py.File(path, "a") as file:
        del file[name]
        file[name] = value
    with pytest.raises(InputError, match=message):
        load_dataset(path)


def test_rows_that_do_not_join_are_no_minari_episodes(save: Callable[..., Path], tmp_path: Path) -> None:
    arrays = logged_arrays([6, 6])
    arrays["next_observations"][2] += 1
    source = load_dataset(save(arrays))
    with pytest.raises(
        InputError, match=r"differs from the following row's observation at row 2 .*expected joined rows"
    ):
        write_dataset(source, str(tmp_path / "folder"), "minari")
    assert not (tmp_path / "folder").exists()
    path = write_dataset(row_subset(source, 12, 0), str(tmp_path / "single-rows"), "minari")
    assert len(load_dataset(path)) == 12


def test_a_folder_has_an_id_that_minari_takes(dataset: Dataset, tmp_path: Path) -> None:
    """Recordings of gym:MODULE:ID have a colon in their names."""
    recorded = replace(dataset, metadata={"name": "c4rl/my_robots:Arm-random"})
    path = write_dataset(recorded, str(tmp_path / "arm"), "minari")
    assert json.loads((path / "data" / "metadata.json").read_text())["dataset_id"] == "c4rl/my_robots-Arm-random-v0"
    assert load_dataset(path).metadata == recorded.metadata


def test_the_command_converts_and_takes_subsets(save: Callable[..., Path], tmp_path: Path) -> None:
    source = save(logged_arrays([30, 30, 30]))
    subset = ["--size", 20, "--subset", "thinned", "--subset-seed", 3]
    assert run("data", "convert", source, tmp_path / "thin.hdf5", *subset) == 0
    found = load_dataset(tmp_path / "thin.hdf5")
    assert len(found) == 20
    (note,) = found.metadata["subset"]
    assert note.startswith("20 of 90 rows, thinned with seed 3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["IN"], "FILES: found 1, expected two: IN and OUT"),
        (["IN", "IN"], "exists already and is not overwritten"),
        (["IN", "new.npz", "--size", "61"], "'size' is 61; expected 1 to 60"),
        (["IN", "new.npz", "--task", "hopper-medium"], "expected 3 for task hopper-medium-v2"),
        (["IN", "minari:no version"], "found the Minari id 'no version'"),
        (["absent.npz", "new.npz"], "there is no such file"),
    ],
)
def test_bad_conversions_are_refused(
    words: list[str], message: str, save: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    source = save(logged_arrays([30, 30]))
    assert run("data", "convert", *(str(source) if word == "IN" else word for word in words)) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["data.npz"]


def test_metadata_of_another_kind_is_refused(save: Callable[..., Path]) -> None:
    texts = [b"[1, 2]", b"{", b"[" * 10**5, b'{"name": 3}', b'{"task": ["a"]}', b'{"subset": "a"}', b'{"subset": [1]}']
    for bad in (*(np.frombuffer(text, np.uint8) for text in texts), np.zeros((2, 2)), np.zeros(3)):
        with pytest.raises(InputError, match=r"'metadata' (is no|has a) .*expected the metadata that c4rl writes"):
            load_dataset(save(logged_arrays([5]), metadata=bad))


def test_every_task_but_ultra_has_a_published_file() -> None:
    from c4rl.data.fetching import published_file
    from c4rl.environments.tasks import TASKS

    for task in TASKS.values():
        if task.environment == "ultra":
            with pytest.raises(InputError, match="no published file"):
                published_file(task)
        else:
            assert published_file(task).url.endswith(".hdf5")
    hopper = published_file(get_task("hopper-medium"))
    assert (hopper.name, hopper.size) == ("hopper_medium-v2.hdf5", 152_756_557)
