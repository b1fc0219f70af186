"""npz files: real reduced D4RL sets, round trips, recovered trajectories, clear refusals."""

import contextlib
import pickle
import warnings
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.data import Dataset, load_dataset, row_subset, trajectory_subset
from tests.documents import ROOT, blocks

Arrays = dict[str, np.ndarray]
Make = Callable[..., Arrays]
Save = Callable[..., Path]
Shared = Callable[[str], Path]


def test_every_reduced_d4rl_set_loads(shared: Shared) -> None:
    files = sorted(shared("data/d4rl-10k").glob("*-v[02].npz"))
    assert len(files) == 9
    for path in files:
        data, raw = load_dataset(path), np.load(path)
        assert np.array_equal(data.trajectory_ids, raw["traj_id"]), path.name
        assert np.array_equal(data.next_action_valid, raw["next_action_valid"])
        valid = data.next_action_valid
        assert (
            np.array_equal(data.next_actions[valid], raw["next_actions"][valid]) and not data.next_actions[~valid].any()
        )
        ends = np.append(np.diff(data.trajectory_ids) > 0, True)
        assert np.array_equal(data.timeouts, ends & ~data.terminals)


def test_trajectories_are_recovered_from_breaks_when_nothing_marks_them(shared: Shared, save: Save) -> None:
    for name in ("hopper-medium-replay-v2", "antmaze-umaze-v0"):
        path = shared(f"data/d4rl-10k/{name}.npz")
        raw = dict(np.load(path))
        bare = {key: raw[key] for key in ("observations", "actions", "rewards", "next_observations", "terminals")}
        recovered, marked = load_dataset(save(bare)), load_dataset(path)
        assert np.array_equal(recovered.trajectory_ids, marked.trajectory_ids)
        assert np.array_equal(recovered.next_action_valid, marked.next_action_valid)
        assert "told apart" in recovered.notes[0]


def test_unclipped_demonstrations_are_refused_for_their_keys(shared: Shared) -> None:
    with pytest.raises(InputError, match=r"door-human-v1.npz: 'actions' is missing among \['actions_raw'"):
        load_dataset(shared("data/d4rl-10k/door-human-v1.npz"))


@pytest.mark.parametrize("cut", [lambda d: d, lambda d: trajectory_subset(d, 31, 3), lambda d: row_subset(d, 20, 3)])
def test_a_dataset_written_by_its_fields_reads_back_the_same(
    dataset: Dataset, tmp_path: Path, cut: Callable[[Dataset], Dataset]
) -> None:
    original = replace(cut(dataset), action_low=np.full(2, -1.5, np.float32))
    stored = {f.name: getattr(original, f.name) for f in fields(original)}
    arrays = {name: value for name, value in stored.items() if isinstance(value, np.ndarray)}
    np.savez(tmp_path / "again.npz", **arrays)
    again = load_dataset(tmp_path / "again.npz")
    for name, value in arrays.items():
        assert np.array_equal(getattr(again, name), value), name


def test_successors_are_shifted_where_the_file_has_none(arrays: Make, save: Save) -> None:
    raw = arrays([4, 3], [False, True])
    data = load_dataset(save(raw, next_observations=None))
    assert len(data) == 6  # the cut row is left out, the terminal row stays
    assert np.array_equal(data.next_observations[:3], raw["observations"][1:4])
    assert np.array_equal(data.next_actions[2], raw["actions"][3]) and data.next_action_valid[2]
    assert data.terminals[5] and not data.next_action_valid[5]
    assert np.array_equal(data.next_observations[5], data.observations[5])


def test_rows_without_any_mark_are_one_trajectory(arrays: Make, save: Save) -> None:
    data = load_dataset(save(arrays([9]), next_observations=None, terminals=None, trajectory_ids=None))
    assert len(data) == 8 and not data.trajectory_ids.any() and data.timeouts.sum() == 1
    assert "one trajectory" in data.notes[0]


def test_arrays_with_other_names_are_named(arrays: Make, save: Save) -> None:
    raw = arrays([9])
    other = {"next_observation": raw["next_observations"], "do\nnes": raw["terminals"]}
    path = save(raw, next_observations=None, **other)
    assert load_dataset(path).notes[0] == r"Arrays with other names are not read: ['do\nnes', 'next_observation']."
    assert not load_dataset(save(arrays([4, 3]), action_low=-1, traj_id=np.zeros(7))).notes


def test_a_terminal_ends_a_trajectory_whatever_the_ids_say(arrays: Make, save: Save) -> None:
    data = load_dataset(save(arrays([4, 3], [True, False]), trajectory_ids=np.zeros(7, dtype=int)))
    assert np.array_equal(data.trajectory_ids, [0, 0, 0, 0, 1, 1, 1]) and not data.next_action_valid[3]


@pytest.mark.parametrize("without", [(), ("next_observations",)])
def test_flags_alone_make_no_next_actions_across_trajectories(
    arrays: Make, save: Save, without: tuple[str, ...]
) -> None:
    raw = arrays([4, 3], [False, True])
    flags = np.arange(7) != 1
    absent = dict.fromkeys((*without, "next_actions"))
    data = load_dataset(save(raw, next_action_valid=flags, **absent))
    assert data.next_action_valid.tolist() == [True, False, True, *([] if without else [False]), True, True, False]


def test_next_actions_without_flags_end_where_trajectories_do(arrays: Make, save: Save) -> None:
    raw = arrays([4, 3, 2], [False, True, False])
    rolled = np.roll(raw["actions"], -1, axis=0)
    rolled[3] = np.nan  # nothing was played after the cut
    data = load_dataset(save(raw, next_actions=rolled))
    assert data.next_action_valid.tolist() == [True, True, True, False, True, True, False, True, False]
    assert np.array_equal(data.next_actions[:3], raw["actions"][1:4]) and not data.next_actions[3].any()


def test_a_terminal_has_no_next_action_whatever_the_file_says(arrays: Make, save: Save) -> None:
    raw = arrays([4, 3, 2], [False, True, False])
    data = load_dataset(save(raw, next_actions=raw["actions"], next_action_valid=np.ones(9, bool)))
    assert np.array_equal(data.next_action_valid, ~raw["terminals"])  # at a cut one may have been logged
    assert data.next_actions[3].all() and not data.next_actions[6].any()


def test_double_precision_and_column_rewards_are_accepted(arrays: Make, save: Save) -> None:
    raw = arrays([5])
    doubles = {name: value.astype(np.float64) for name, value in raw.items()}
    data = load_dataset(save(doubles, rewards=doubles["rewards"][:, None]))
    assert np.array_equal(data.rewards, raw["rewards"]) and np.array_equal(data.observations, raw["observations"])


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", "i4", "u8", "?"])
def test_observations_of_whole_numbers_are_vectors(arrays: Make, save: Save, dtype: str) -> None:
    whole = np.arange(15).reshape(5, 3).astype(dtype)
    data = load_dataset(save(arrays([5]), observations=whole, next_observations=None))
    assert data.observations.dtype == np.float32 and np.array_equal(data.observations, whole[:-1])


def test_action_bounds_come_from_arguments_then_file_then_default(arrays: Make, save: Save) -> None:
    raw = arrays([5])
    assert np.array_equal(load_dataset(save(raw)).action_high, [1, 1])
    path = save(raw, action_low=np.array([-2.0, -3.0]), action_high=np.array(4.0))
    data = load_dataset(path)
    assert np.array_equal(data.action_low, [-2, -3]) and np.array_equal(data.action_high, [4, 4])
    data = load_dataset(path, action_low=-9)
    assert np.array_equal(data.action_low, [-9, -9]) and np.array_equal(data.action_high, [4, 4])


def test_actions_out_of_bounds_are_refused_or_clipped(arrays: Make, save: Save) -> None:
    raw = arrays([6])
    raw["actions"][2, 1], raw["actions"][4, 0] = 1.25, -1.5
    path = save(raw)
    with pytest.raises(InputError, match=r"2 of 12 numbers.*worst -1\.5 in component 0.*\[-1, 1\].*--clip-actions"):
        load_dataset(path)
    assert load_dataset(path, action_low=-2, action_high=2).actions.max() == 1.25
    clipped = load_dataset(path, clip_actions=True)
    assert clipped.actions[2, 1] == 1 and clipped.actions[4, 0] == -1 and clipped.next_actions[3, 0] == -1
    assert "2 of 12 action components were clipped" in clipped.notes[0]


def test_rounding_at_a_bound_is_no_violation(arrays: Make, save: Save) -> None:
    raw = arrays([6])
    raw["actions"][2, 1] = np.nextafter(np.float32(1), np.float32(2))
    data = load_dataset(save(raw))
    assert data.actions[2, 1] == 1 and not data.notes


class Payload:
    """Touches a file when unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return (Path.touch, (self.path,))


def test_nothing_left_out_is_not_mentioned(arrays: Make, save: Save) -> None:
    for terminal, left_out in ((True, 0), (False, 1)):
        notes = load_dataset(save(arrays([4, 3], [True, terminal]), next_observations=None)).notes
        assert (f"{left_out} of 7 rows" in notes[-1]) is bool(left_out) and "no next observations" in notes[-1]


def test_pickled_content_is_never_opened(arrays: Make, save: Save, tmp_path: Path) -> None:
    trap = np.array([Payload(tmp_path / "opened")], dtype=object)
    with pytest.raises(InputError, match=r"'rewards' holds Python objects .* unpickled, which is refused"):
        load_dataset(save(arrays([4]), rewards=trap))
    (tmp_path / "data.pkl").write_bytes(pickle.dumps(Payload(tmp_path / "opened")))
    with pytest.raises(InputError, match="a pickle, which is never opened"):
        load_dataset(tmp_path / "data.pkl")
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"rewards": None}, "'rewards' is missing among"),
        ({"actions": np.zeros(7, dtype=np.int64)}, "discrete actions are not supported"),
        ({"actions": np.zeros((7, 1), dtype=np.int32)}, "discrete actions are not supported"),
        ({"actions": np.arange(7.0)}, "discrete actions are not supported"),
        ({"actions": np.linspace(0, 1, 7)}, r"'actions' has shape \(7,\); expected \[N, a\], also where a is 1"),
        ({"observations": np.zeros((7, 4, 4))}, "image observations are not supported"),
        ({"observations": np.zeros((0, 3)), "actions": np.zeros((0, 2))}, "'observations' has no rows"),
        ({"observations": np.zeros((7, 3), dtype=complex)}, "dtype complex128; expected real numbers"),
        ({"actions": np.zeros((6, 2))}, "'actions' has 6 rows; expected 7"),
        ({"terminals": np.zeros(8, dtype=bool)}, "'terminals' has 8 rows; expected 7"),
        ({"next_observations": np.zeros((7, 4))}, r"'next_observations' has shape \(7, 4\)"),
        ({"trajectory_ids": np.array([0, 0, 1, 1, 0, 0, 2])}, "rows of trajectory 0 in several places"),
        ({"action_low": np.array([1.0, -1.0])}, r"'action_low' is 1 where 'action_high' is 1 \(component 0\)"),
        ({"action_low": np.array([-1.0, -1.0, -1.0])}, r"'action_low' has shape \(3,\)"),
        ({"action_low": np.array(-np.inf)}, "'action_low' is -inf; expected finite bounds"),
        ({"action_low": np.array("low")}, "'action_low' has dtype <U3; expected real numbers"),
        ({"rewards": np.full(7, 1e300)}, "'rewards' holds inf first in row 0"),
        ({"rewards": np.full(7, 1e20)}, r"'rewards' holds 1e\+20 first in row 0, in 7 of 7 .* at most 1e\+15 in size"),
        ({"trajectory_ids": np.array([0, 0, np.nan, 1, 1, 1, 1])}, "'trajectory_ids' holds nan first in row 2"),
        ({"trajectory_ids": np.array([0, 0, 0, 0, 0, np.inf, np.inf])}, "'trajectory_ids' holds inf first in row 5"),
        ({"trajectory_ids": np.array([0, 0, 0, 0, 0, 1, np.nan], "f2")}, "'trajectory_ids' holds nan first in row 6"),
        ({"trajectory_ids": np.array([0, 0, 0.5, 1, 1, 1, 1])}, "holds 0.5 in row 2; expected whole numbers"),
        ({"action_low": np.array(-3e38), "action_high": np.array(3e38)}, "'action_low' is -3.0.*e.38; expected finite"),
        ({"action_low": np.array(1j)}, "'action_low' has dtype complex128"),
    ],
)
def test_unusable_arrays_are_refused_by_name(
    arrays: Make, save: Save, change: dict[str, np.ndarray | None], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence), warnings.catch_warnings():
        warnings.simplefilter("error")
        load_dataset(save(arrays([4, 3]), **change))


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "next_observations"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_located(arrays: Make, save: Save, field: str, value: float) -> None:
    raw = arrays([4, 3])
    raw[field][5] = value
    with pytest.raises(InputError, match=f"'{field}' holds {value} first in row 5, in 1 of 7 rows"):
        load_dataset(save(raw))


def test_the_page_turns_a_table_with_broken_rows_into_steps_that_were_taken(tmp_path: Path) -> None:
    (page,) = (block.code for block in blocks((ROOT / "docs/data.md").read_text()) if block.language == "python")
    lines = ["day,minute,level,wanted,demand,valve,reward"]
    lines += [f"{day},{t},{100 * day + t},50,{t % 3},{t / 10},{-t}" for day in range(2) for t in range(10)]
    lines[4] = lines[4].replace(",50,", ",,")  # day 0, minute 3: nothing was measured
    lines[15] = lines[15].rsplit(",", 1)[0] + ",nan"  # day 1, minute 4
    (tmp_path / "log.csv").write_text("\n".join(lines))
    with contextlib.chdir(tmp_path):
        exec(compile(page, "docs/data.md", "exec"), {})
    data = load_dataset(tmp_path / "log.npz")
    assert data.next_observations[:, 0].tolist() == (data.observations[:, 0] + 1).tolist()
    levels = [data.observations[data.trajectory_ids == i, 0].tolist() for i in range(4)]
    assert levels == [[0, 1], [4, 5, 6, 7, 8], [100, 101, 102], [105, 106, 107, 108]]
    assert data.trajectory_ids.max() == 3 and data.rewards[:2].tolist() == [0, -1]
