"""Each fault of a broken dataset is found and named; sound data raise none."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.data.info import describe_with_findings
from c4rl.data.loading import load_dataset
from c4rl.diagnostics.soundness import Finding, check_soundness
from c4rl.environments.tasks import get_task
from tests.diagnostics.broken_copies import FAULTS, REFUSED, Arrays, sound_arrays

RAW_DEMONSTRATIONS = "door-human-v1.npz"  # not a dataset: its actions must be clipped and replayed first


def found(path: Path, task: str = "none") -> list[Finding]:
    dataset, chosen = load_dataset(path), get_task(task)
    return check_soundness(dataset, *describe_with_findings(dataset), chosen)


def faults(path: Path, task: str = "none") -> set[str]:
    return {finding.name for finding in found(path, task) if finding.level == "fault"}


def save(folder: Path, arrays: Arrays) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def test_sound_data_raise_no_fault(tmp_path: Path) -> None:
    assert faults(save(tmp_path, sound_arrays()), "hopper-medium-v2") == set()


@pytest.mark.parametrize("name", REFUSED)
def test_the_reader_refuses(name: str, tmp_path: Path) -> None:
    spoil, words = REFUSED[name]
    arrays = sound_arrays()
    spoil(arrays)
    with pytest.raises(InputError, match=words):
        load_dataset(save(tmp_path, arrays))


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_found(name: str, tmp_path: Path) -> None:
    spoil, fault = FAULTS[name]
    arrays = sound_arrays()
    spoil(arrays)
    assert fault in faults(save(tmp_path, arrays), "hopper-medium-v2")


def test_one_row_pieces_are_a_note(tmp_path: Path) -> None:
    arrays = sound_arrays()
    arrays["trajectory_ids"] = arrays["trajectory_ids"] * 2
    arrays["trajectory_ids"][: len(arrays["rewards"]) - 1][np.diff(arrays["trajectory_ids"]) != 0] += 1
    arrays["observations"][np.flatnonzero(arrays["trajectory_ids"] % 2)] += 0.01  # pieces of other episodes
    one_row = [finding for finding in found(save(tmp_path, arrays)) if finding.name == "one_row"]
    assert [finding.level for finding in one_row] == ["note"]


def test_findings_count_rows_and_name_the_first(tmp_path: Path) -> None:
    def sentence(fault: str, name: str) -> str:
        arrays = sound_arrays()
        FAULTS[fault][0](arrays)
        if fault == "a placeholder observation":
            arrays["observations"][12, 3] = arrays["next_observations"][11, 3] = -999  # the same row
        return next(one.sentence for one in found(save(tmp_path, arrays)) if one.name == name)

    last = int(np.flatnonzero(sound_arrays()["trajectory_ids"] == 1)[-1])  # its end is missing
    assert f"(first in row {last})" in sentence("a missing end", "jumps")
    assert "(first after row 49)" in sentence("time-outs inside episodes", "ends_inside_episodes")
    outlying = sentence("a placeholder observation", "outlying_observations")
    assert outlying.startswith("1 rows of 'observations'") and "-999 in row 12 column 1." in outlying


def test_what_sound_data_may_hold_is_no_fault(tmp_path: Path) -> None:
    """A jump of one column alone, a terminal in every tenth row, one small action, and actions at their bounds."""
    limit = int(np.flatnonzero(sound_arrays()["trajectory_ids"] == 1)[-1])  # reached by its last row

    def jump(arrays: Arrays, columns: int) -> None:
        arrays["next_observations"][limit, :columns] += 50

    def leap(arrays: Arrays, times: float) -> None:
        here, there = arrays["observations"], arrays["next_observations"]
        usual = np.quantile(np.abs(there - here), 0.99, axis=0)
        there[limit, :2] = here[limit, :2] + times * usual[:2]

    def terminals(arrays: Arrays, share: float) -> None:
        arrays["terminals"] = np.arange(len(arrays["rewards"])) % 10 < 10 * share

    def narrow(arrays: Arrays, columns: int) -> None:
        arrays["actions"][:, :columns] *= 0.02

    def clip(arrays: Arrays, bound: float) -> None:
        np.clip(2 * arrays["actions"], -bound, bound, out=arrays["actions"])

    for spoil, sound, wrong, name in (
        (jump, 1, 2, "jumps"),
        (leap, 5.7, 6.3, "jumps"),
        (terminals, 0.1, 0.6, "too_many_terminals"),
        (narrow, 1, 3, "narrow_actions"),
        (clip, 1.0, 0.5, "clipped_actions"),
    ):
        for value, is_fault in ((sound, False), (wrong, True)):
            arrays = sound_arrays()
            spoil(arrays, value)  # type: ignore[operator]
            assert (name in faults(save(tmp_path, arrays))) == is_fault, (name, value)


@pytest.mark.parametrize("stored", [True, False])
def test_logs_of_one_length_may_end_both_ways(stored: bool, tmp_path: Path) -> None:
    """Without stored next observations the last row of those that were cut is left out."""
    arrays = sound_arrays()
    rows = np.arange(len(arrays["rewards"]) // 50 * 50)
    ends, terminal = rows % 50 == 49, rows // 50 % 2 == 0
    arrays = {
        "observations": np.random.default_rng(0).normal(size=(len(rows), 3)),
        "actions": arrays["actions"][rows],
        "rewards": arrays["rewards"][rows],
        "terminals": ends & terminal,
        "timeouts": ends & ~terminal,
    }
    if stored:
        following = np.roll(arrays["observations"], -1, 0)
        arrays["next_observations"] = np.where(ends[:, None], arrays["observations"] + 1, following)
    assert "terminals_at_time_limit" not in faults(save(tmp_path, arrays))
    arrays["terminals"], arrays["timeouts"] = ends, np.zeros(len(rows), bool)
    assert "terminals_at_time_limit" in faults(save(tmp_path, arrays))


def test_an_episode_of_the_full_length_lacks_no_time_out(tmp_path: Path) -> None:
    arrays = sound_arrays()
    arrays["trajectory_ids"] = np.arange(len(arrays["rewards"])) // 1000
    arrays["next_observations"][:-1] = arrays["observations"][1:]
    arrays["terminals"][:] = False
    for rows, missing in ((1000, False), (1001, True)):
        one = {name: values[:rows] for name, values in arrays.items()} | {"trajectory_ids": np.zeros(rows, np.int64)}
        assert ("missing_timeouts" in faults(save(tmp_path, one), "hopper-medium-v2")) == missing


def test_without_a_task_what_may_be_meant_is_a_note(tmp_path: Path) -> None:
    """Goals may change without a reset, and demonstrations may have any length."""
    for name in ("time-outs inside episodes", "falls without a terminal"):
        arrays = sound_arrays()
        FAULTS[name][0](arrays)
        levels = {finding.name: finding.level for finding in found(save(tmp_path, arrays))}
        assert levels[FAULTS[name][1]] == "note"


def test_real_data_raise_no_fault(shared: Callable[[str], Path]) -> None:
    files = sorted(shared("data/d4rl-10k").glob("*.npz")) + sorted(shared("data/d4rl-hdf5").glob("*.hdf5"))
    assert len(files) > 50
    for path in files:
        if path.name != RAW_DEMONSTRATIONS:
            task = path.stem.replace("umaze-v0", "umaze-v2") if path.suffix == ".npz" else "none"
            assert faults(path, task) == set(), path.name


def test_real_data_broken_on_purpose(shared: Callable[[str], Path], tmp_path: Path) -> None:
    path = shared("data/d4rl-10k/hopper-medium-replay-v2.npz")
    with np.load(path) as file:
        stored = {name: file[name] for name in file.files}
    stored["trajectory_ids"] = stored.pop("traj_id").astype(np.int64)
    for name in ("next_actions", "next_action_valid"):
        del stored[name]  # those of the sound rows
    limits = ("time limits as terminals",)  # this set has none
    for name, (spoil, fault) in FAULTS.items():
        if name not in limits:
            arrays = {key: values.copy() for key, values in stored.items()}
            spoil(arrays)
            assert fault in faults(save(tmp_path, arrays), "hopper-medium-replay-v2"), name
