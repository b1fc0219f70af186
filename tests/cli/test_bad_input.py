"""Whatever is wrong with the input: exit code 2, one sentence that names it, and nothing written."""

import json
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from tests.cli.support import SMALL, listing, logged_arrays, run, save_npz

Build = Callable[[Path], list[object]]


def train(folder: Path, *flags: object, dataset: Path | None = None, task: str = "none") -> list[object]:
    """A command that would train, were it not for what the flags or the dataset do to it."""
    dataset = dataset or save_npz(folder / "good.npz")
    base = ["train", "--dataset", dataset, "--task", task, "--output", folder / "job", "--updates", "1", *SMALL]
    return [*base, *flags]


def with_arrays(**changes: object) -> Build:
    """Train on a file with some fields changed (None: left out)."""
    return lambda folder: train(folder, dataset=save_npz(folder / "bad.npz", **changes))


def with_flags(*flags: object, task: str = "none") -> Build:
    return lambda folder: train(folder, *flags, task=task)


def with_bytes(content: bytes, name: str = "bad.npz") -> Build:
    def build(folder: Path) -> list[object]:
        (folder / name).write_bytes(content)
        return train(folder, dataset=folder / name)

    return build


def spoiled(field: str, value: float, row: int = 7) -> dict[str, np.ndarray]:
    values = logged_arrays()[field].astype(np.float32)
    values[row] = value
    return {field: values}


def truncated_npz(folder: Path) -> list[object]:
    path = save_npz(folder / "bad.npz")
    path.write_bytes(path.read_bytes()[:-300])
    return train(folder, dataset=path)


def truncated_hdf5(folder: Path) -> list[object]:
    path = folder / "bad.hdf5"
    with h5py.File(path, "w") as file:
        for name, values in logged_arrays().items():
            file[name] = values
    path.write_bytes(path.read_bytes()[:3000])
    return train(folder, dataset=path)


def empty_folder_as_dataset(folder: Path) -> list[object]:
    (folder / "no-minari").mkdir()
    return train(folder, dataset=folder / "no-minari")


def existing_output(folder: Path) -> list[object]:
    (folder / "job").mkdir()
    (folder / "job" / "precious").write_text("keep me")
    return train(folder)


def output_under_a_file(folder: Path) -> list[object]:
    (folder / "file").write_text("a file")
    return [*train(folder), "--output", folder / "file" / "job"]


def with_config(content: str | dict[str, object]) -> Build:
    def build(folder: Path) -> list[object]:
        text = content if isinstance(content, str) else json.dumps(content)
        (folder / "config.json").write_text(text)
        return ["train", "--config", folder / "config.json", "--output", folder / "job"]

    return build


STORED: dict[str, object] = {"version": 1, "algorithm": "bc", "dataset": "d.npz", "task": "none", "output": "o"}


def existing_file_for_recording(folder: Path) -> list[object]:
    (folder / "have.npz").write_bytes(b"precious")
    return ["data", "record", "maze2d-umaze-v1", "--output", folder / "have.npz"]


NAN, INF = float("nan"), float("inf")
BAD_DATA: dict[str, tuple[Build, list[str]]] = {
    "NaN in observations": (with_arrays(**spoiled("observations", NAN)), ["bad.npz", "'observations'", "nan", "row 7"]),
    "NaN in next observations": (
        with_arrays(**spoiled("next_observations", NAN)),
        ["bad.npz", "'next_observations'", "nan", "row 7"],
    ),
    "NaN in actions": (with_arrays(**spoiled("actions", NAN)), ["bad.npz", "'actions'", "nan", "row 7", "finite"]),
    "NaN in rewards": (with_arrays(**spoiled("rewards", NAN)), ["bad.npz", "'rewards'", "nan", "1 of 240 rows"]),
    "NaN in terminals": (with_arrays(**spoiled("terminals", NAN)), ["bad.npz", "'terminals'", "nan", "0 or 1"]),
    "NaN in time-outs": (with_arrays(**spoiled("timeouts", NAN)), ["bad.npz", "'timeouts'", "nan", "0 or 1"]),
    "infinite reward": (with_arrays(**spoiled("rewards", -INF)), ["bad.npz", "'rewards'", "-inf", "finite"]),
    "reward beyond float32": (
        with_arrays(rewards=np.full(240, 1e300)),
        ["bad.npz", "'rewards'", "inf", "range of float32"],
    ),
    "observations without columns": (with_arrays(observations=np.ones(240)), ["bad.npz", "(240,)", "[N, s]"]),
    "fewer rewards": (with_arrays(rewards=np.ones(239)), ["bad.npz", "'rewards'", "239 rows", "240"]),
    "fewer actions": (with_arrays(actions=np.full((9, 2), 0.5)), ["bad.npz", "'actions'", "9 rows", "240"]),
    "fewer next observations": (
        with_arrays(next_observations=np.ones((240, 4))),
        ["bad.npz", "'next_observations'", "(240, 4)", "(240, 5)"],
    ),
    "two rewards per row": (with_arrays(rewards=np.ones((240, 2))), ["bad.npz", "'rewards'", "(240, 2)", "[N]"]),
    "action out of bounds": (
        with_arrays(**spoiled("actions", 1.5)),
        ["bad.npz", "'actions'", "1.5", "[-1, 1]", "--clip-actions"],
    ),
    "empty file": (with_bytes(b""), ["bad.npz", "empty", "expected an npz file"]),
    "zero rows": (
        with_arrays(**{name: values[:0] for name, values in logged_arrays().items()}),
        ["bad.npz", "no rows", "at least one row"],
    ),
    "truncated npz": (truncated_npz, ["bad.npz", "not readable as an npz file", "undamaged"]),
    "truncated hdf5": (truncated_hdf5, ["bad.hdf5", "not readable", "undamaged"]),
    "text file": (with_bytes(b"state,action,reward\n1,2,3\n", "bad.csv"), ["bad.csv", "no known format", "npz"]),
    "picture": (with_bytes(b"\x89PNG\r\n\x1a\n" + bytes(99)), ["bad.npz", "no known format", "expected"]),
    "pickle": (with_bytes(b"\x80\x04\x95" + bytes(20), "bad.pkl"), ["bad.pkl", "pickle, which is never opened"]),
    "pickle in an npz": (
        with_arrays(rewards=np.array([{"a": 1}] * 240, dtype=object)),
        ["bad.npz", "'rewards'", "unpickled, which is refused"],
    ),
    "missing field": (with_arrays(rewards=None), ["bad.npz", "'rewards' is missing", "'observations'"]),
    "missing file": (
        lambda folder: train(folder, dataset=folder / "absent.npz"),
        ["absent.npz", "no such file", "expected"],
    ),
    "folder that is no Minari dataset": (empty_folder_as_dataset, ["no-minari", "main_data.hdf5", "expected"]),
    "discrete actions": (
        with_arrays(actions=np.ones((240, 1), np.int64)),
        ["bad.npz", "int64", "discrete actions are not supported"],
    ),
    "image observations": (
        with_arrays(observations=np.zeros((240, 8, 8, 3), np.uint8)),
        ["bad.npz", "(240, 8, 8, 3)", "image observations are not supported"],
    ),
    "one row, none to hold out": (
        with_arrays(**{name: values[:1] for name, values in logged_arrays().items()}),
        ["bad.npz", "found 1 row", "at least 2"],
    ),
}
BAD_FLAGS: dict[str, tuple[Build, list[str]]] = {
    "observations that do not fit the task": (
        with_flags(task="maze2d-umaze-v1"),
        ["good.npz", "'observations' has 5 columns", "4 for task maze2d-umaze-v1"],
    ),
    "actions that do not fit the task": (
        with_flags(task="hopper-medium-v2"),
        ["good.npz", "'actions' has 2 columns", "3 for task hopper-medium-v2"],
    ),
    "unknown task": (with_flags(task="hoper-medium-v2"), ["task", "hoper-medium-v2", "did you mean hopper-medium-v2"]),
    "unknown gymnasium id": (with_flags(task="gym:NoSuch-v0"), ["gym:NoSuch-v0", "cannot make it"]),
    "gymnasium id with discrete actions": (
        with_flags(task="gym:CartPole-v1"),
        ["gym:CartPole-v1", "Discrete(2)", "expected a flat float Box"],
    ),
    "unknown algorithm": (with_flags("--algorithm", "sarsa"), ["--algorithm", "'sarsa'", "td3_bc"]),
    "unknown plug-in": (with_flags("--plugins", "magic"), ["--plugins", "'magic'", "layer_norm"]),
    "the same plug-in twice": (with_flags("--plugins", "layer_norm", "layer_norm"), ["--plugins", "at most once"]),
    "plug-in without a critic": (
        with_flags("--algorithm", "bc", "--plugins", "layer_norm"),
        ["--plugins", "'layer_norm' acts on a critic", "'bc' has none"],
    ),
    "output folder exists": (existing_output, ["--output", "job", "exists already", "nothing is overwritten"]),
    "output under a file": (output_under_a_file, ["--output", "'", "file' is not a folder"]),
    "more rows than there are": (with_flags("--size", "5000"), ["good.npz", "'size' is 5000", "expected 1 to"]),
    "size 0": (with_flags("--size", "0"), ["--size", "found 0", "a whole number at least 1"]),
    "a seed twice": (with_flags("--seeds", "3", "1", "3"), ["--seeds", "[3, 1, 3]", "each seed once"]),
    "too few runs for an ensemble": (
        with_flags("--seeds", "0", "1", "--ensemble", "2", "--only", "seed_1", task="hopper-medium-v2"),
        ["--only", "fewer than 2 runs", "--ensemble"],
    ),
    "negative seed": (with_flags("--seeds", "-1"), ["--seeds", "found -1", "a whole number at least 0"]),
    "negative subset seed": (with_flags("--subset-seed", "-1"), ["--subset-seed", "found -1", "at least 0"]),
    "negative evaluation seed": (with_flags("--eval-seed", "-1"), ["--eval-seed", "found -1", "at least 0"]),
    "no updates": (with_flags("--updates", "0"), ["--updates", "found 0", "at least 1, at most 1,000,000,000"]),
    "reward scale that is no number": (
        with_flags("--reward-scale", "nan"),
        ["--reward-scale", "found 'nan'", "a number at least -1,000,000"],
    ),
    "hold everything out": (with_flags("--hold-out", "1"), ["--hold-out", "found 1", "a number at least 0, below 1"]),
    "a precision nobody proved": (
        with_flags("--precision", "tf32"),
        ["--precision", "found 'tf32'", "expected one of fp32, bf16x3"],
    ),
    "best trajectories beyond all": (
        with_flags("--algorithm", "bc", "--top-fraction", "2"),
        ["--top-fraction", "found 2", "above 0, at most 1"],
    ),
    "no such device": (with_flags("--device", "tpu"), ["--device", "'tpu'", "expected auto, cpu, cuda"]),
    "device that is not there": (with_flags("--device", "cuda:99"), ["--device", "'cuda:99'", "CUDA devices"]),
    "bounds the wrong way round": (
        with_flags("--action-low", "1", "--action-high", "-1"),
        ["good.npz", "'action_low' is 1", "below the upper one"],
    ),
    "wrong number of bounds": (
        with_flags("--action-low", "-1", "-1", "-1"),
        ["good.npz", "'action_low' has shape (3,)", "one number or 2"],
    ),
    "infinite bounds": (
        with_flags("--action-low=-inf"),
        ["--action-low", "found -inf", "a number at least -1,000,000,000"],
    ),
}
BAD_CONFIGS: dict[str, tuple[Build, list[str]]] = {
    "no config file": (
        lambda folder: ["train", "--config", folder / "none.json", "--output", folder / "job"],
        ["none.json", "no such file"],
    ),
    "config is not JSON": (with_config("algorithm: td3_bc"), ["config.json", "not JSON", "expected"]),
    "config is a list": (with_config("[1, 2]"), ["config.json", "found a list", "expected the object"]),
    "config of another version": (
        with_config(STORED | {"version": 99}),
        ["config.json", "'version' is 99", "expected 1"],
    ),
    "config with an unknown field": (
        with_config(STORED | {"colour": "red"}),
        ["config.json", "unknown field 'colour'"],
    ),
    "config with an unknown option": (
        with_config(STORED | {"options": {"momentum": 0.9}}),
        ["config.json", "unknown field 'momentum' for BCConfig"],
    ),
    "config without a dataset": (
        with_config({name: value for name, value in STORED.items() if name != "dataset"}),
        ["config.json", "field 'dataset' is missing"],
    ),
    "config with text for a number": (
        with_config(STORED | {"updates": "many"}),
        ["config.json", "field 'updates' is 'many'", "expected a whole number at least 1"],
    ),
    "config with a number for a list": (
        with_config(STORED | {"seeds": 3}),
        ["config.json", "field 'seeds' is 3", "expected a whole number at least 0", "each"],
    ),
    "config with options that are no object": (
        with_config(STORED | {"options": [1]}),
        ["config.json", "found [1]", "fields of BCConfig"],
    ),
    "config with plug-in options too few": (
        with_config(STORED | {"algorithm": "td3_bc", "plugins": ["layer_norm"], "plugin_options": []}),
        ["config.json", "'plugin_options'", "layer_norm"],
    ),
}
BAD_FOLDERS: dict[str, tuple[Build, list[str]]] = {
    "resume what is not there": (
        lambda folder: ["train", "--resume", folder / "absent"],
        ["absent", "no such folder", "c4rl train"],
    ),
    "resume what is no job": (lambda folder: ["train", "--resume", folder], ["config.json", "no such file"]),
    "resume with further flags": (
        lambda folder: ["train", "--resume", folder, "--seeds", "9"],
        ["--seeds: found with --resume, which takes only --address, --allow-import, --dataset, --device,"],
    ),
    "resume with an option of the algorithm": (
        lambda folder: ["train", "--resume", folder, "--alpha", "9"],
        ["--alpha: found with --resume, which takes only "],
    ),
    "evaluate what is no job": (lambda folder: ["evaluate", folder], ["config.json", "no such file"]),
    "export what is no job": (lambda folder: ["export", folder], ["config.json", "no such file"]),
    "record an unknown task": (
        lambda folder: ["data", "record", "maze2d-moon-v1", "--output", folder / "new.npz"],
        ["maze2d-moon-v1", "did you mean"],
    ),
    "record a task without a script": (
        lambda folder: ["data", "record", "gym:Pendulum-v1", "--output", folder / "new.npz"],
        ["policy: found none", "gym:Pendulum-v1", "only Maze2D, AntMaze, Kitchen and locomotion"],
    ),
    "record onto a file": (existing_file_for_recording, ["have.npz", "exists already"]),
    "record nothing": (
        lambda folder: ["data", "record", "maze2d-umaze-v1", "--output", folder / "new.npz", "--size", "0"],
        ["size", "found 0", "at least 1"],
    ),
    "a size that leaves no row to hold out": (
        with_flags("--size", "240"),
        ["--size", "found 240", "at most 220 rows", "20 of 240 are held out (--hold-out)"],
    ),
    "best without a task": (
        lambda folder: ["train", "--preset", "best", "--dataset", save_npz(folder / "good.npz"), "--task"],
        ["--task", "found none", "one for all datasets"],
    ),
    "describe a missing file": (lambda folder: ["data", "info", folder / "absent.npz"], ["absent.npz", "no such file"]),
    "describe a file of another task": (
        lambda folder: ["data", "info", save_npz(folder / "good.npz"), "--task", "maze2d-umaze-v1"],
        ["good.npz", "5 columns", "expected 4"],
    ),
    "describe a file with bad actions": (
        lambda folder: ["data", "info", save_npz(folder / "bad.npz", **spoiled("actions", 1.5)), "--json"],
        ["bad.npz", "1.5", "[-1, 1]"],
    ),
}
CASES = BAD_DATA | BAD_FLAGS | BAD_CONFIGS | BAD_FOLDERS


@pytest.mark.parametrize("name", CASES)
def test_bad_input_is_one_sentence_and_leaves_nothing_behind(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build, fragments = CASES[name]
    command = build(tmp_path)
    before = listing(tmp_path)
    assert run(*command) == 2
    out, err = capsys.readouterr()
    assert err.startswith("c4rl: ") and err.endswith("\n") and err.count("\n") == 1, err
    missing = [fragment for fragment in fragments if fragment not in err]
    assert not missing, f"{missing} not in: {err}"
    assert out == ""
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("train --sedes 1", "--sedes: found where a known flag was expected; did you mean --seeds?"),
        ("train --learning_rte 1", "--learning_rte: found where a known flag was expected; `c4rl train --help` shows"),
        ("train --top-fraction 0.1", "--top-fraction: found where a known flag was expected"),  # of another algorithm
        ("train --clip-actions=maybe", "--clip-actions: found 'maybe', expected the flag alone"),
        ("train --updates", "--updates: found no value, expected a whole number at least 1"),
        ("train --updates --seeds 1", "--updates: found no value, expected a whole number"),
        ("train --updates many", "--updates: found 'many', expected a whole number"),
        ("train --updates 5.5", "--updates: found '5.5', expected a whole number"),
        ("train --seeds one", "--seeds: found 'one', expected a whole number"),
        ("train --seeds", "--seeds: found none, expected one or more: a whole number"),
        ("train --plugins", "--plugins: found none, expected one or more: one of c4, layer_norm"),
        ("train --sweep tau=0.1 --sweep alpha=1", "--sweep: found 2 times, expected it once, with all"),
        ("train --seeds=1 --seeds=2", "--seeds: found 2 times, expected it once, with all its words"),
        (
            "data convert in.npz out.npz --subset rows",
            "--subset: found rows without --size, expected the number of rows",
        ),
        ("train --subset columns", "--subset: found 'columns', expected one of trajectories, rows"),
        (
            "train --size much",
            "--size: found 'much', expected a whole number at least 1, at most 1,000,000,000 or None",
        ),
        ("table main --far --score", "--score: found no value, expected"),
        ("train --config", "--config: found no value, expected a path or None"),
        ("train --algorithm", "--algorithm: found no value, expected"),
        ("train --alpha 3 --sweep alpha=1,2", "--alpha: found in --sweep too, expected"),
        ("train --alpha 3 --by-dataset alpha=1", "--alpha: found in --by-dataset too, expected"),
        ("data info", "DATASET: found nothing, expected text"),
        (
            "data info --dataset a.npz",
            "--dataset: found where a known flag was expected; `c4rl data info --help` shows",
        ),
        ("data info a.npz b.npz", "DATASET: found 'a.npz b.npz', expected text, one word (quote a name"),
        ("data record maze2d-open-v0", "--output (a path): not given"),
        ("data record maze2d-open-v0 --output new.npz --size x", "--size: found 'x', expected a whole number"),
        ("evaluate", "FOLDER: found nothing, expected a path"),
        ("evaluate --seed 3", "FOLDER: found nothing, expected a path"),
        ("evaluate absent.npz --task hopper-medium-v2", "absent.npz: there is no such file"),
        ("evaluate absent.npz --checkpoint best", "absent.npz: found a file with --checkpoint, --run or --ensemble"),
        ("bench table overhead --methods CQL", "--methods: found CQL, expected none: 'overhead' is a table of speed"),
        ("evaluate job --episodes 0", "--episodes: found 0, expected a whole number at least 1"),
        ("evaluate job --allow-import=--help", "--allow-import: found '--help', expected the flag alone"),
        ("train --no-monitor=yes", "--no-monitor: found 'yes', expected the flag alone"),
        ("export job --checkpoint first", "--checkpoint: found 'first', expected one of last, best"),
        ("tasks --jsn", "--jsn: found where a known flag was expected; did you mean --json?"),
        ("demo --size 0", "--size: found 0, expected a whole number at least 1"),
        ("bench speed --seconds never", "--seconds: found 'never', expected a number above 0"),
        ("trian --fast", "found 'trian --fast', expected one of the commands demo, data record,"),
        ("bench sped", "found 'bench sped', expected one of the commands"),
        ("data", None),
    ],
)
def test_a_wrong_command_line_is_one_sentence(
    command: str,
    sentence: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    words = command.split()
    if words[0] == "train":
        words = [str(word) for word in train(tmp_path, *words[1:])]
    before = listing(tmp_path)
    code = run(*words)
    out, err = capsys.readouterr()
    if sentence is None:  # `c4rl data` alone asks what there is
        assert code == 0 and "c4rl data info" in out and "c4rl train" not in out
        return
    assert code == 2 and out == ""
    assert err.startswith(f"c4rl: {sentence}") and err.count("\n") == 1, err
    assert listing(tmp_path) == before


def test_flags_that_are_needed_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--algorithm", "bc") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "--dataset (a path each): not given" in err
