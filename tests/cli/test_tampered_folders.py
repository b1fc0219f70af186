"""A run folder whose files were edited, mixed up or planted: refused in one sentence, and left as it is."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from c4rl.core.errors import InputError
from c4rl.results.policies import load_policy
from tests.cli.support import SMALL, assert_same_tensors, listing, logged_arrays, run, save_npz

Damage = Callable[[Path], object]
TASK = "maze2d-open-dense-v0"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interrupted and resumed, so that every kind of file is there; scored in a simulator."""
    folder = tmp_path_factory.mktemp("whole")
    data = save_npz(folder / "good.npz", **logged_arrays(rows=120, observation_dim=4))
    flags = ["--dataset", data, "--task", TASK, "--output", folder / "job", "--seeds", "4", "5", "--threads", "1"]
    every = ["--updates", "4", "--log-every", "1", "--eval-episodes", "1", "--checkpoint-every", "2"]
    assert run("train", *flags, *every, *SMALL, "--plugins", "c4", "--period", "2", "--K", "2") == 0
    return folder / "job"


@pytest.fixture
def copy(job: Path, tmp_path: Path) -> Path:
    shutil.copytree(job, tmp_path / "copy")
    return tmp_path / "copy"


def header(path: Path) -> dict[str, str]:
    with safe_open(path, "np") as file:
        return file.metadata()


def with_tensors(name: str, change: Callable[[dict[str, np.ndarray]], object]) -> Damage:
    """A file whose tensors are changed in place; its header stays."""

    def damage(folder: Path) -> None:
        path = folder / name
        metadata, tensors = header(path), load_file(path)
        change(tensors)
        save_file(tensors, path, metadata)

    return damage


def with_header(name: str, field: str, change: Callable[[Any], Any]) -> Damage:
    def damage(folder: Path) -> None:
        path = folder / name
        metadata, tensors = header(path), load_file(path)
        metadata[field] = json.dumps(change(json.loads(metadata[field])))
        save_file(tensors, path, metadata)

    return damage


def with_config(**values: Any) -> Damage:
    def damage(folder: Path) -> None:
        stored = json.loads((folder / "config.json").read_text())
        options = {name: stored["options"][name] for name in values if name in stored["options"]}
        stored["options"] |= {name: values[name] for name in options}
        stored |= {name: value for name, value in values.items() if name not in options}
        (folder / "config.json").write_text(json.dumps(stored))

    return damage


def with_text(name: str, change: Callable[[bytes], bytes]) -> Damage:
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def line(number: int, change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    def changed(text: bytes) -> bytes:
        lines = text.split(b"\n")
        lines[number] = change(lines[number])
        return b"\n".join(lines)

    return changed


CHECKPOINT, LAST, BEST = "checkpoint.safetensors", "policy_last.safetensors", "policy_best.safetensors"
WEIGHT, POOL = "seed_4/critic/mlp.weights.0", "seed_4/plugin.C4/sampler.pool"
DEEP = "[" * 100_000 + "]" * 100_000
# damage -> the commands that must refuse it, and a part of their sentence
RESUME, BOTH = ("train",), ("train", "evaluate", "export")
CASES: dict[str, tuple[Damage, tuple[str, ...], str]] = {
    "tensor missing": (with_tensors(CHECKPOINT, lambda t: t.pop(WEIGHT)), RESUME, f"{WEIGHT}: found nothing"),
    "tensor of another shape": (
        with_tensors(CHECKPOINT, lambda t: t.update({WEIGHT: t[WEIGHT][..., 1:].copy()})),
        RESUME,
        f"{WEIGHT}: found numbers of shape",
    ),
    "tensor of another kind": (
        with_tensors(CHECKPOINT, lambda t: t.update({WEIGHT: t[WEIGHT].astype(np.int64)})),
        RESUME,
        f"{WEIGHT}: found integers",
    ),
    "tensor that is not finite": (
        with_tensors(CHECKPOINT, lambda t: t[WEIGHT].fill(np.inf)),
        RESUME,
        f"{WEIGHT}: found numbers that are not finite",
    ),
    "rows that are not there": (
        with_tensors(CHECKPOINT, lambda t: t[POOL].fill(10**6)),
        RESUME,
        f"{POOL}: found other integers than 0 to",
    ),
    "tensor of nobody": (
        with_tensors(CHECKPOINT, lambda t: t.update({"seed_4/extra": np.ones(3)})),
        RESUME,
        "seed_4/extra: found numbers of shape [3], expected nothing",
    ),
    "run missing in the checkpoint": (
        with_tensors(CHECKPOINT, lambda t: [t.pop(name) for name in list(t) if name.startswith("seed_5/")]),
        RESUME,
        "found the runs seed_4, expected those of config.json: seed_4 seed_5",
    ),
    "updates beyond the end": (
        with_header(CHECKPOINT, "progress", lambda p: p | {"update": 99}),
        RESUME,
        "found 99 updates done, expected at most the job's 4",
    ),
    "progress of another kind": (
        with_header(CHECKPOINT, "progress", lambda p: p | {"update": "many"}),
        BOTH,
        "field 'update' is 'many'",
    ),
    "a failure that says too little": (
        with_header(CHECKPOINT, "progress", lambda p: p | {"frozen": {"4": {"update": 1}}}),
        BOTH,
        "field 'failed_at' is missing",
    ),
    "a failure of nobody": (
        with_header(
            CHECKPOINT, "progress", lambda p: p | {"frozen": {"9": {"update": 1, "failed_at": 1, "reason": ""}}}
        ),
        RESUME,
        "found a failure of no run",
    ),
    "layers that do not fit": (
        with_tensors(LAST, lambda t: t.update({"seed_4/w1": t["seed_4/w1"][1:].copy()})),
        ("evaluate", "export"),
        "found w1 of float32 [31, 32], expected float32 [32, 32]",
    ),
    "layer missing": (
        with_tensors(LAST, lambda t: t.pop("seed_4/w1")),
        ("evaluate", "export"),
        "seed_4/w1 is missing",
    ),
    "weights that are not finite": (
        with_tensors(LAST, lambda t: t["seed_4/b0"].fill(np.nan)),
        ("evaluate", "export"),
        "found b0 with numbers that are not finite",
    ),
    "facts of more layers": (
        with_header(LAST, "facts", lambda f: f | {"4": f["4"] | {"layers": 9}}),
        ("evaluate", "export"),
        "seed_4/w3 is missing",
    ),
    "bogus squash": (
        with_header(LAST, "facts", lambda f: f | {"4": f["4"] | {"squash": "exec"}}),
        ("evaluate", "export"),
        "found 'exec', expected one of tanh, clip",
    ),
    "facts that are a list": (with_header(LAST, "facts", lambda f: [1]), ("evaluate", "export"), "found the runs none"),
    "best policies of other shapes": (
        with_tensors(BEST, lambda t: t.update({"seed_5/b2": np.ones(7, np.float32)})),
        RESUME,
        "found b2 of float32 [7], expected float32 [2]",
    ),
    "edited seeds": (with_config(seeds=[4, 6]), BOTH, "seed_6"),
    "edited widths": (with_config(hidden_width=64), BOTH, "config.json: changed since the job began"),
    "edited size": (with_config(size=60), BOTH, "config.json: changed since the job began"),
    "edited task": (with_config(task="maze2d-umaze-v1"), BOTH, "config.json: changed since the job began"),
    "edited sweep": (with_config(sweep=["alpha=1,2"]), BOTH, "found the runs seed_4 seed_5, expected"),
    "a sweep without end": (
        with_config(sweep=[f"{name}={','.join(f'0.{i}' for i in range(10, 99))}" for name in ("alpha", "tau", "beta")]),
        BOTH,
        "found 1,409,938 runs, expected at most 10,000",
    ),
    "edited updates": (with_config(updates=2), RESUME, "found 4 updates done, expected at most the job's 2"),
    "deep config": (with_text("config.json", lambda text: DEEP.encode()), BOTH, "config.json"),
    "huge config": (
        lambda folder: os.truncate(folder / "config.json", 2**26),
        BOTH,
        "config.json: found 67,108,864 bytes, expected a config.json written by c4rl train of at most 33,554,432",
    ),
    "nested config": (with_config(seeds=json.loads("[" * 30 + "]" * 30)), BOTH, "nested more than 20 deep"),
    "a number of many digits": (with_config(updates=10**4000), BOTH, "expected a whole number at least 1"),
    "config of foreign bytes": (with_text("config.json", lambda text: b"\xff\xfe\x00"), BOTH, "config.json: not JSON"),
    "a broken line in the middle": (
        with_text("metrics.jsonl", line(1, lambda text: text[:20])),
        RESUME,
        "metrics.jsonl: line 2: not JSON",
    ),
    "foreign bytes in the middle": (
        with_text("metrics.jsonl", line(1, lambda text: b"\xff\xfe" + text)),
        RESUME,
        "metrics.jsonl: line 2: not JSON",
    ),
    "an empty line in the middle": (
        with_text("metrics.jsonl", line(1, lambda text: b"")),
        RESUME,
        "metrics.jsonl: line 2: not JSON",
    ),
    "a line of another run": (
        with_text("metrics.jsonl", line(1, lambda text: text.replace(b'"seed": 5', b'"seed": 6'))),
        RESUME,
        "metrics.jsonl: line 2: found the run 6",
    ),
    "a line without an update": (
        with_text("metrics.jsonl", line(1, lambda text: b"{}")),
        RESUME,
        "metrics.jsonl: line 2: found no update",
    ),
    "scores that are words": (
        with_text("metrics.jsonl", lambda text: text.replace(b'"score": ', b'"score": "", "s": ')),
        RESUME,
        "field 'score' is '', expected a number",
    ),
    "evaluations missing": (
        with_text("metrics.jsonl", lambda text: b""),
        RESUME,
        "metrics.jsonl: lacks evaluations",
    ),
    "the last evaluations missing": (
        with_text("metrics.jsonl", lambda text: text[: text.rstrip().rindex(b"\n") + 1]),
        RESUME,
        "metrics.jsonl: lacks evaluations",
    ),
    "a folder for a summary": (
        lambda folder: ((folder / "summary.json").unlink(), (folder / "summary.json").mkdir()),
        RESUME,
        "summary.json: not a regular file",
    ),
    "a pipe for a policy": (
        lambda folder: ((folder / "policy_last.safetensors").unlink(), os.mkfifo(folder / "policy_last.safetensors")),
        RESUME,
        "policy_last.safetensors: not a regular file",
    ),
    "a file for TensorBoard's folder": (
        lambda folder: (shutil.rmtree(folder / "tensorboard"), (folder / "tensorboard").write_text("")),
        RESUME,
        "tensorboard: not a folder",
    ),
    "the summary of another job": (
        with_text("summary.json", lambda text: re.sub(rb'"updates": \d+', b'"updates": 77', text)),
        ("export", "watch"),
        "summary.json: field 'updates' is 77",
    ),
    "a summary of nothing": (with_text("summary.json", lambda text: b"null"), ("export", "watch"), "found a NoneType"),
    "a pipe for a checkpoint": (
        lambda folder: ((folder / CHECKPOINT).unlink(), os.mkfifo(folder / CHECKPOINT)),
        ("evaluate",),
        "no such file, expected the checkpoint",
    ),
    "a pipe for a config": (
        lambda folder: ((folder / "config.json").unlink(), os.mkfifo(folder / "config.json")),
        BOTH,
        "config.json: not a regular file",
    ),
    "a link for a folder": (
        lambda folder: (shutil.rmtree(folder / "tensorboard"), (folder / "tensorboard").symlink_to(folder.parent)),
        RESUME,
        "tensorboard: found a link, expected a run folder without links",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_tampered_folder_is_refused_and_left_as_it_is(
    name: str, copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, commands, sentence = CASES[name]
    damage(copy)
    before = listing(copy)
    for command in commands:
        assert run(command, *(["--resume"] if command == "train" else []), copy) == 2, command
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1 and len(err) < 1500, err
        assert sentence in err, f"{command}: {err}"
        assert listing(copy) == before


def test_a_finished_job_gets_its_lost_policies_back(copy: Path, job: Path) -> None:
    (copy / "policy_last.safetensors").unlink()
    assert run("train", "--resume", copy) == 0
    assert_same_tensors(copy, job, "policy_last")


def test_only_a_torn_last_line_is_forgiven(copy: Path, job: Path) -> None:
    with open(copy / "metrics.jsonl", "ab") as file:
        file.write(b'{"update": 4, "seed\x00\xff')
    assert run("train", "--resume", copy) == 0
    assert (copy / "metrics.jsonl").read_bytes() == (job / "metrics.jsonl").read_bytes()


def test_a_lock_that_is_a_link_never_empties_its_target(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    precious = copy.parent / "precious"
    precious.write_text("keep me")
    (copy / ".lock").unlink()
    (copy / ".lock").symlink_to(precious)
    assert run("train", "--resume", copy) == 2
    assert ".lock: found a link" in capsys.readouterr().err
    assert precious.read_text() == "keep me"


OWN_MODULE = """
import gymnasium
import numpy as np


class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9, 9, (5,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(5, np.float32), {}

    def step(self, action):
        return np.ones(5, np.float32), 1.0, False, False, {}


gymnasium.register("Own-v0", Own, max_episode_steps=3)
"""


class TestModulesThatATaskImports:
    """gym:MODULE:ID runs code: only where the user typed it, or allows it."""

    @pytest.fixture
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """A module that leaves a trace when it is imported."""
        trace = tmp_path / "imported"
        (tmp_path / "planted_module.py").write_text(f"open({str(trace)!r}, 'w').close()\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "planted_module", raising=False)
        return trace

    @pytest.mark.parametrize(
        "command",
        [
            "train --resume COPY",
            "train --config COPY --output NEW",
            "evaluate COPY",
            "ope COPY",
            "report COPY --output NEW",
            "diagnose COPY",
            "clusters COPY --output NEW",
        ],
    )
    def test_are_not_imported_because_a_config_says_so(
        self, command: str, copy: Path, module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with_config(task="gym:planted_module:Trap-v0")(copy)
        words = [word.replace("COPY", str(copy)).replace("NEW", str(tmp_path / "new")) for word in command.split()]
        assert run(*words) == 2
        err = capsys.readouterr().err
        assert "imports and runs the Python module 'planted_module', expected --allow-import" in err
        assert not module.exists()
        assert run(*words, "--allow-import") == 2  # what is imported registers no such environment
        err = capsys.readouterr().err
        assert "--allow-import" not in err and err.count("\n") == 1
        assert module.exists() == (words[0] not in ("evaluate", "ope"))  # they notice first that the config was edited

    def test_are_not_imported_to_take_a_policy_away(self, copy: Path, module: Path, tmp_path: Path) -> None:
        with_config(task="gym:planted_module:Trap-v0")(copy)
        with pytest.raises(InputError, match="changed since the job began"):
            load_policy(copy)
        (copy / CHECKPOINT).unlink()
        assert load_policy(copy).act(np.zeros(4)).shape == (2,)
        assert run("watch", copy, "--once") == 0
        assert not module.exists()

    def test_their_jobs_are_looked_into_where_that_is_allowed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "own_module.py").write_text(OWN_MODULE)
        monkeypatch.syspath_prepend(tmp_path)
        data, job = save_npz(tmp_path / "good.npz"), tmp_path / "job"
        shape = ("--hidden-layers", 1, "--hidden-width", 8, "--batch-size", 8)
        flags = ("--updates", 2, "--eval-every", 2, "--eval-episodes", 1, "--seeds", 0, 1, *shape)
        task = ("--task", "gym:own_module:Own-v0", "--dataset", data)
        assert run("train", "--algorithm", "td3_bc", *task, *flags, "--output", job) == 0
        monkeypatch.delitem(sys.modules, "own_module")
        gymnasium.registry.pop("Own-v0")
        assert run("watch", job, "--once") == 0
        assert run("export", job, "--ensemble", "--distil", 1, "--output", tmp_path / "policy.npz") == 0
        assert "own_module" not in sys.modules
        for command in (
            ("report", job, "--output", tmp_path / "report.html"),
            ("diagnose", job, "--size", 50, "--save"),
            ("clusters", job, "--output", tmp_path / "clusters.html", "--size", 50),
            ("ope", job, "--updates", 100, "--resamples", 2, "--hidden-width", 8),
            ("evaluate", job, "--episodes", 1),
        ):
            assert run(*command) == 2, command
            assert run(*command, "--allow-import") == 0, command

    def test_are_imported_where_the_flag_was_typed(
        self, module: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        data = save_npz(tmp_path / "good.npz")
        assert run("data", "info", data, "--task", "gym:planted_module:Trap-v0") == 2
        assert "gymnasium cannot make it" in capsys.readouterr().err
        assert module.exists()


def test_a_config_does_not_say_where_to_write(copy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with_config(output=str(tmp_path / "elsewhere"))(copy)
    assert run("train", "--config", copy / "config.json") == 2
    assert "--output (a path): not given" in capsys.readouterr().err
    assert run("train", "--resume", copy) == 0
    assert not (tmp_path / "elsewhere").exists()
