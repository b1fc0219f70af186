"""Jobs to be disturbed: their commands, their processes, and what must come out the same."""

import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from c4rl.cli.main import main
from c4rl.training.launch import Launch
from tests.cli.support import SMALL, assert_same_tensors, metric_lines, summary

# one thread: the same rounding in every process
STEADY = [*SMALL, "--seeds", "0", "1", "--threads", "1", "--device", "cpu"]


def start(*arguments: object) -> subprocess.Popen[str]:
    """c4rl ARGUMENTS as a process of its own, in a group of its own like a terminal's."""
    return subprocess.Popen(
        [sys.executable, "-m", "c4rl", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def at_update(monkeypatch: pytest.MonkeyPatch, at: int, do: Callable[[Launch], None]) -> None:
    """Do this just before update `at`, in the first of the launches."""
    update, done = Launch.update, []

    def doing(self: Launch, step: int) -> None:
        if step == at and not done:
            done.append(step)
            do(self)
        update(self, step)

    monkeypatch.setattr(Launch, "update", doing)


class PowerCut(Exception):
    """Ends a job as a kill would: nothing handles it."""


def power_cut(_: Launch) -> None:
    raise PowerCut


_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["c4rl.cli.main", "c4rl.training.loop"])


class ToBeKilled(_forks.Process):
    """c4rl ARGUMENTS as a process that is spared the seconds which importing PyTorch takes: a fork of one that has."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(target=_run_silently, args=([*map(str, arguments)],), daemon=True)
        self.start()

    def poll(self) -> int | None:
        return self.exitcode


def _run_silently(arguments: list[str]) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    sys.exit(main(arguments))


def last_update(folder: Path) -> int:
    """The update of the last whole line of metrics.jsonl."""
    path = folder / "metrics.jsonl"
    whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
    return int(whole.rpartition('{"update": ')[2].partition(",")[0]) if whole else 0


def wait_until(process: subprocess.Popen[str] | ToBeKilled, folder: Path, update: int) -> bool:
    """Whether the job got to this update (0: to its config.json) before its process ended."""
    deadline = time.monotonic() + 120
    while process.poll() is None:
        if (folder / "config.json").exists() and last_update(folder) >= update:
            return True
        assert time.monotonic() < deadline, "the job does not get on"
        time.sleep(0.002)
    return False


def assert_same_job(first: Path, second: Path) -> None:
    """Equal in everything but time: tensors and policies bit for bit, metrics line for line, scores."""
    assert_same_tensors(first, second)
    assert_same_tensors(first, second, "policy_last")
    assert metric_lines(first) == metric_lines(second)
    a, b = summary(first), summary(second)
    for name in ("last", "best", "stopped", "seeds", "updates", "dataset"):
        assert a[name] == b[name], name
    if a["best"] is not None:
        assert_same_tensors(first, second, "policy_best")
    assert a.get("selected") == b.get("selected")
    if "selected" in a:
        assert_same_tensors(first, second, "policy_selected")
