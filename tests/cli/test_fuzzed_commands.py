"""Run folders, configs and command lines, spoiled in every way we could think of: success, or a sentence and no trace.

`make test` tries 150 of them, `make fuzz` half as many as C4RL_FUZZ says; the same ones every time.
"""

import dataclasses
import io
import json
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load, save

from c4rl.cli import bench, data, demo, evaluate, export, table, tasks, train, train_behaviour
from c4rl.core.declarations import flag_of
from c4rl.jobs.behaviour_config import BehaviourConfig
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.registry import ALGORITHMS, PLUGINS
from c4rl.training.launch import Launch
from tests.cli.support import SMALL, listing, run, save_npz
from tests.data.test_fuzzed_files import damaged_bytes, fuzz


class Enough(BaseException):
    """A job that trains was not refused."""


@pytest.fixture(scope="module", autouse=True)
def little_work() -> Iterator[None]:
    """Edited jobs may be long, and ask for any number of threads."""
    update = Launch.update

    def some(self: Launch, step: int) -> None:
        if step > 8:
            raise Enough
        update(self, step)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Launch, "update", some)
        monkeypatch.setattr(torch, "set_num_threads", lambda number: None)
        yield


def outcome(words: list[str], folder: Path) -> int | None:
    """The command's exit code: success, or 2 with one sentence and the folder as it was."""
    before = listing(folder)
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err, warnings.catch_warnings():
        warnings.simplefilter("error")  # they would be further lines on stderr
        try:
            code: Any = run(*words)
        except SystemExit as stop:
            code = stop.code
            assert code == 0 and {"-h", "--help"} & set(words), words
        except Enough:
            return None
    said = err.getvalue()
    if code == 2:
        assert said.startswith("c4rl: ") and said.endswith("\n") and said[:-1].isprintable() and len(said) < 1500, said
        assert out.getvalue() == "", f"{words}: {out.getvalue()}"
        assert listing(folder) == before, f"{words}: {said}"
    else:
        assert code in (0, 1) and (said == "") == (code == 0), f"{words}: {code} {said}"
    return code


# -- values of any kind, where a valid one stood

NUMBERS = [0, 1, -1, 2, 5, 2**31, 2**63, 10**30, -(10**400), 0.5, -0.5, 1e308, 5e-324]
WORDS = [
    "",
    "none",
    "tanh",
    "nan",
    "inf",
    "0",
    "9" * 30,
    "../..",
    "/dev/null",
    "gym:os:X-v0",
    "c4",
    "cql",
    "a=1",
    "\ud800",
    "\0",
]
ANYTHING = st.one_of(
    st.sampled_from([None, True, False, [], {}, [[]], *NUMBERS, *WORDS]),
    st.recursive(
        st.sampled_from([None, *NUMBERS, *WORDS]), lambda some: st.lists(some) | st.dictionaries(st.text(), some)
    ),
)


@st.composite
def edited(draw: st.DrawFn, value: Any) -> Any:
    """A JSON value in which one place, at any depth, is changed, left out or new."""
    value = json.loads(json.dumps(value))
    here = value
    while True:
        places = list(here) if isinstance(here, dict) else list(range(len(here)))
        if not places:
            return draw(ANYTHING)
        place = draw(st.sampled_from(places))
        if isinstance(here[place], dict | list) and here[place] and draw(st.booleans()):
            here = here[place]
            continue
        how = draw(st.sampled_from(["change", "change", "drop", "new", "double"]))
        if how == "change":
            here[place] = draw(ANYTHING)
        elif how == "drop":
            del here[place]
        elif isinstance(here, dict):
            here[draw(st.sampled_from([*WORDS[:-2], "extra"]))] = draw(ANYTHING)
        else:
            here.append(here[place])
        return value


@st.composite
def edited_tensors(draw: st.DrawFn, tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    tensors = dict(tensors)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(tensors)))
        array, how = tensors[name], draw(st.sampled_from(["drop", "rename", "shape", "kind", "fill", "swap"]))
        if how == "drop":
            del tensors[name]
        elif how == "rename":
            tensors[draw(st.sampled_from(["x", "seed_9/x", "/", "seed_4/", f"{name}.1", name.replace("4", "5")]))] = (
                array
            )
        elif how == "shape":
            tensors[name] = draw(
                st.sampled_from([array[None], array.reshape(-1), array.reshape(-1)[1:], np.float32(1)[()]])
            )
            tensors[name] = np.ascontiguousarray(tensors[name])
        elif how == "kind":
            kind = draw(st.sampled_from(["f2", "f8", "i8", "i4", "u1", "?"]))
            with np.errstate(all="ignore"):
                tensors[name] = array.astype(kind)
        elif how == "fill":
            value = draw(st.sampled_from([np.nan, np.inf, -1, 0, 1e30, 10**6]))
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tensors[name] = np.full_like(array, np.array(value).astype(array.dtype))
        else:
            tensors[name] = tensors[draw(st.sampled_from(sorted(tensors)))]
    return tensors


# -- run folders


class Files(dict[str, bytes]):
    """Name -> content."""

    def __repr__(self) -> str:
        return f"files of {[len(content) for content in self.values()]} bytes"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Files:
    """The files of a finished job."""
    folder = tmp_path_factory.mktemp("fuzzed")
    flags = ["--dataset", save_npz(folder / "good.npz"), "--task", "none", "--output", folder / "job"]
    every = ["--seeds", "4", "5", "--updates", "4", "--log-every", "2", "--checkpoint-every", "2", "--threads", "1"]
    tiny = ["--hidden-width", "8", "--hidden-layers", "1", "--plugins", "c4", "--period", "2", "--K", "2"]
    assert run("train", *flags, *every, *SMALL, *tiny) == 0
    shutil.rmtree(folder / "job" / "tensorboard")
    return Files({path.name: path.read_bytes() for path in (folder / "job").iterdir()})


def metadata_of(content: bytes) -> dict[str, str]:
    """Of a safetensors file."""
    return json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]


def with_metadata(content: bytes, metadata: dict[str, str]) -> bytes:
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length]) | {"__metadata__": metadata}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


@st.composite
def spoiled(draw: st.DrawFn, job: Files) -> Files:
    """One or two of the files are changed."""
    files = Files(job)
    whole = sorted(name for name in job if name not in (".lock", "summary.json"))
    for name in draw(st.lists(st.sampled_from(whole), min_size=1, max_size=2, unique=True)):
        content, how = job[name], draw(st.sampled_from(["inside", "inside", "inside", "bytes", "drop", "other"]))
        if how == "bytes":
            files[name] = draw(damaged_bytes(content))
        elif how == "drop":
            del files[name]
        elif how == "other":
            files[name] = draw(st.sampled_from([b"", b"[]", b"{}", b"null", *(job[other] for other in whole)]))
        elif name == "config.json":
            files[name] = json.dumps(draw(edited(json.loads(content)))).encode()
        elif name == "metrics.jsonl":
            lines = content.split(b"\n")
            at = draw(st.integers(0, len(lines) - 2))
            lines[at] = json.dumps(draw(edited(json.loads(lines[at])))).encode()
            files[name] = b"\n".join(lines)
        elif draw(st.booleans()):
            field = "progress" if name.startswith("checkpoint") else "facts"
            change = draw(edited(json.loads(metadata_of(content)[field])))
            files[name] = with_metadata(content, metadata_of(content) | {field: json.dumps(change)})
        else:
            files[name] = save(draw(edited_tensors(load(content))), metadata_of(content))
    return files


@fuzz
@given(st.data())
def test_run_folders(job: Files, data: st.DataObject) -> None:
    files = data.draw(spoiled(job))
    command = data.draw(st.sampled_from([["train", "--resume"], ["train", "--resume"], ["export"]]))
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        outcome([*command, folder], Path(folder))


# -- configs


@fuzz
@given(st.data())
def test_configs(job: Files, data: st.DataObject) -> None:
    """On a dataset that is not there, so that nothing is trained."""
    config = json.loads(job["config.json"]) | {"dataset": "absent.npz"}
    for _ in range(data.draw(st.integers(1, 3))):
        changed = data.draw(edited(config))
        config = changed if isinstance(changed, dict) and changed else config
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.json"
        path.write_text(json.dumps(config))
        assert outcome(["train", "--config", str(path), "--output", f"{folder}/job"], Path(folder)) == 2


# -- command lines

JOB = [TrainConfig, ALGORITHMS["td3_bc"].config_type, PLUGINS["c4"][0], train._Sources]
VALUES = [
    *("0", "1", "-1", "0.5", "-0.5", "1e9", "1e400", "nan", "inf", "9" * 30, "True", "None", "none", "auto", "last"),
    *(
        "c4",
        "layer_norm",
        "dr3",
        "td3_bc",
        "cql",
        "bppo",
        "lambda=0,1",
        "K=1,2",
        "alpha=x",
        "=",
        "--",
        "-",
        "-x",
        "---",
    ),
    *("absent", "absent.npz", "/dev/null", ".", "", " ", "é", "\ud800", "a\nb", "[red]", "--no-monitor", "--help"),
]
# the beginning of a command that finds nothing to work on, and what declares its flags
COMMANDS: list[tuple[list[str], list[type]]] = [
    (["train", "--dataset", "absent.npz", "--task", "none", "--output", "job", "--plugins", "c4"], JOB),
    (["train", "--resume", "absent"], JOB),
    (["train", "--config", "absent"], JOB),
    (["evaluate", "absent"], [evaluate.Flags]),
    (["export", "absent"], [export.Flags]),
    (["data", "info", "absent.npz"], [data.InfoFlags]),
    (["data", "record", "absent", "--output", "new.npz"], [data.RecordFlags]),
    (["data", "train-behaviour", "absent", "--output", "new"], [train_behaviour.Flags, BehaviourConfig]),
    (["demo", "--task", "absent", "--output", "job"], [demo.Flags]),
    (["table", "absent"], [table.Flags]),
    (["bench", "table", "absent"], [bench.TableFlags]),
    *((words, [tasks.Flags]) for words in (["tasks"], ["data"], ["bench"], ["absent"], [])),
]


@st.composite
def command_lines(draw: st.DrawFn) -> list[str]:
    command, kinds = draw(st.sampled_from(COMMANDS[:1] * 4 + COMMANDS))
    fields = [field for kind in kinds for field in dataclasses.fields(kind)]
    flags = sorted({f"--{flag_of(field.name)}" for field in fields} - {"--task", "--options", "--plugin-options"})
    words = []
    for _ in range(draw(st.integers(0, 4))):
        flag, values = draw(st.sampled_from(flags)), draw(st.lists(st.sampled_from(VALUES), max_size=2))
        spelt = draw(st.sampled_from([flag, flag, flag, flag.replace("-", "_"), flag[:-1], flag + "s", flag.upper()]))
        words += [f"{spelt}={values[0]}", *values[1:]] if values and draw(st.booleans()) else [spelt, *values]
    return [*command, *words]


@fuzz
@given(command_lines())
def test_command_lines(words: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(folder)
        outcome(words, Path(folder))
