"""Training goes on while policies are evaluated, and what comes out is what waiting for each would have given."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import c4rl.training.evaluation as evaluation_module
import c4rl.training.scorekeeper as scorekeeper
from c4rl.training.checkpoint import load_checkpoint
from c4rl.training.evaluation import SimulatorEvaluation, SimulatorScores
from c4rl.training.launch import Launch
from c4rl.training.pending import MOST_PENDING, PendingEvaluations
from tests.cli.support import (
    assert_same_tensors,
    assert_tensorboard_shows_the_metrics,
    metric_lines,
    run,
    summary,
)
from tests.training.jobs import STEADY, PowerCut, at_update, power_cut, wait_until

UPDATES, EVERY = 120, 20  # six evaluations, the last at the end
Lines = list[dict[str, Any]]


@pytest.fixture(scope="module")
def command(maze_data: Path) -> Callable[..., list[object]]:
    job = ["--dataset", maze_data, "--task", "maze2d-open-dense-v0", "--algorithm", "td3_bc", "--actor-lr", "3e-3"]
    every = ["--updates", UPDATES, "--log-every", "5", "--eval-every", EVERY, "--checkpoint-every", "7"]
    every += ["--select", "held-out"]

    def make(output: Path, *flags: object, background: str = "yes") -> list[object]:
        own = ["--eval-episodes", "2", "--eval-in-background", background, "--output", output]
        return ["train", *job, *STEADY, *every, *own, *flags]

    return make


@pytest.fixture(scope="module")
def in_line(command: Callable[..., list[object]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The job that waits for each of its evaluations."""
    folder = tmp_path_factory.mktemp("in_line") / "job"
    assert run(*command(folder, background="no")) == 0
    return folder


def scores_of(lines: Lines) -> Lines:
    return [line for line in lines if "score" in line]


def assert_same_but_for_the_order_of_lines(folder: Path, expected: Path) -> None:
    """Equal in everything but time; scores among themselves, and all other lines, stand in the same order."""
    for name in ("checkpoint", "policy_last", "policy_best", "policy_selected"):
        assert_same_tensors(folder, expected, name)
    ours, theirs = metric_lines(folder), metric_lines(expected)
    assert scores_of(ours) == scores_of(theirs)
    assert [line for line in ours if "score" not in line] == [line for line in theirs if "score" not in line]
    a, b = summary(folder), summary(expected)
    for name in ("last", "best", "selected", "stopped", "seeds", "updates", "dataset"):
        assert a[name] == b[name], name
    assert not list(folder.glob("pending_*"))
    assert load_checkpoint(folder / "checkpoint.safetensors")[1].pending == []
    assert_tensorboard_shows_the_metrics(folder)


class Slow:
    """Makes evaluations look unfinished for as long as a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.update = 0  # of the training
        self.until: Callable[[int], bool] = lambda number: True  # whether the evaluation of this number is done by now
        self.submitted = 0
        submit, done, update = SimulatorEvaluation.submit, SimulatorScores.done, Launch.update

        def numbered(evaluation: SimulatorEvaluation, policies: Any) -> SimulatorScores:
            scores = submit(evaluation, policies)
            scores.number = self.submitted  # type: ignore[attr-defined]
            self.submitted += 1
            return scores

        def patient(scores: SimulatorScores) -> bool:
            if not self.until(scores.number):  # type: ignore[attr-defined]
                return False
            scores.result()  # not a matter of chance
            return done(scores)

        def counting(launch: Launch, step: int) -> None:
            self.update = step
            update(launch, step)

        monkeypatch.setattr(SimulatorEvaluation, "submit", numbered)
        monkeypatch.setattr(SimulatorScores, "done", patient)
        monkeypatch.setattr(Launch, "update", counting)


@pytest.fixture
def slow() -> Iterator[Slow]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        yield Slow(monkeypatch)


def test_the_same_results_as_waiting(command: Callable[..., list[object]], in_line: Path, tmp_path: Path) -> None:
    assert run(*command(tmp_path / "job")) == 0
    assert_same_but_for_the_order_of_lines(tmp_path / "job", in_line)


def test_a_slow_first_evaluation_delays_no_update_and_no_order(
    command: Callable[..., list[object]], in_line: Path, slow: Slow, tmp_path: Path
) -> None:
    slow.until = lambda number: number > 0 or slow.update >= 75
    assert run(*command(tmp_path / "job")) == 0
    lines = metric_lines(tmp_path / "job")
    before_scores = [line["update"] for line in lines[: lines.index(scores_of(lines)[0])]]
    assert max(before_scores) == 75  # training went on through the next two evaluations
    assert [line["update"] for line in scores_of(lines)] == [u for u in range(20, 121, 20) for _ in (0, 1)]
    assert_same_but_for_the_order_of_lines(tmp_path / "job", in_line)


def test_training_waits_when_too_many_evaluations_are_under_way(
    command: Callable[..., list[object]], in_line: Path, slow: Slow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow.until = lambda number: False
    under_way = []
    add = PendingEvaluations.add

    def counted(self: PendingEvaluations, *arguments: Any) -> None:
        under_way.append(len(self))
        add(self, *arguments)

    monkeypatch.setattr(PendingEvaluations, "add", counted)
    assert run(*command(tmp_path / "job")) == 0
    assert under_way == [0, 1, 2, 3, 4, 4] and MOST_PENDING == 4
    lines = metric_lines(tmp_path / "job")
    assert lines[lines.index(scores_of(lines)[0]) - 1]["update"] == 100  # the fifth waited for the first
    assert_same_but_for_the_order_of_lines(tmp_path / "job", in_line)


def test_a_worker_that_dies_costs_its_episode_alone(
    command: Callable[..., list[object]], in_line: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = SimulatorEvaluation.submit
    killed = []

    def submit_and_kill(self: SimulatorEvaluation, policies: Any) -> SimulatorScores:
        scores = submit(self, policies)
        (pool,) = self._pools.values()
        worker = pool._processes[0]
        if worker is not None:
            worker.process.kill()
            killed.append(worker)
        return scores

    monkeypatch.setattr(SimulatorEvaluation, "submit", submit_and_kill)
    assert run(*command(tmp_path / "job")) == 0
    assert len(killed) >= 3
    assert_same_but_for_the_order_of_lines(tmp_path / "job", in_line)


def test_scores_logged_after_the_last_checkpoint_are_logged_once(
    command: Callable[..., list[object]], in_line: Path, slow: Slow, tmp_path: Path
) -> None:
    """The checkpoint of update 42 waits for the evaluations of 20 and 40; they are logged, then the process dies."""
    folder = tmp_path / "job"
    slow.until = lambda number: slow.update >= 44
    with pytest.MonkeyPatch.context() as monkeypatch:
        at_update(monkeypatch, 48, power_cut)
        with pytest.raises(PowerCut):
            run(*command(folder))
    assert load_checkpoint(folder / "checkpoint.safetensors")[1].pending == [20, 40]
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    written = scores_of(metric_lines(folder))
    assert [line["update"] for line in written] == [20, 20, 40, 40]
    last = max(i for i, line in enumerate(lines) if '"score"' in line)
    (folder / "metrics.jsonl").write_text("".join(lines[:last]) + lines[last][:30])  # it died within the last of them
    assert run("train", "--resume", folder) == 0
    assert_same_but_for_the_order_of_lines(folder, in_line)


SLOW_JOB = """
import sys, time
from c4rl.cli.main import main
from c4rl.training.evaluation import SimulatorScores
from c4rl.training.launch import Launch

update, until = Launch.update, int(sys.argv[1])
SimulatorScores.done = lambda self: False
Launch.update = lambda self, step: update(self, step) if step <= until else time.sleep(600)
main(sys.argv[2:])
"""


def start(until: int, *arguments: object) -> "subprocess.Popen[str]":
    """c4rl ARGUMENTS as a process of its own whose evaluations do not finish, and which gets to this update only."""
    return subprocess.Popen(
        [sys.executable, "-c", SLOW_JOB, str(until), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


def test_evaluations_under_way_outlive_a_kill(
    command: Callable[..., list[object]], in_line: Path, tmp_path: Path
) -> None:
    """Killed twice: what the second process took over from the first is pending again when it dies."""
    folder = tmp_path / "job"
    arguments = command(folder)
    for until in (52, 73):
        process = start(until, *arguments)
        assert wait_until(process, folder, until // 5 * 5)
        process.kill()
        process.communicate()
        progress = load_checkpoint(folder / "checkpoint.safetensors")[1]
        assert progress.pending == list(range(20, progress.update + 1, 20))
        assert not scores_of(metric_lines(folder))
        assert len(list(folder.glob("pending_*"))) >= len(progress.pending) >= 2
        arguments = ["train", "--resume", folder]
    assert run(*arguments) == 0
    assert_same_but_for_the_order_of_lines(folder, in_line)


def test_asked_to_stop_it_waits_for_the_scores(
    command: Callable[..., list[object]], in_line: Path, slow: Slow, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    slow.until = lambda number: False
    with pytest.MonkeyPatch.context() as monkeypatch:
        at_update(monkeypatch, 65, lambda launch: os.kill(os.getpid(), signal.SIGINT))
        assert run(*command(folder)) == 130
    progress = load_checkpoint(folder / "checkpoint.safetensors")[1]
    assert (progress.update, progress.pending) == (65, [])
    assert [line["update"] for line in scores_of(metric_lines(folder))] == [20, 20, 40, 40, 60, 60]
    assert not list(folder.glob("pending_*"))
    slow.until = lambda number: True
    assert run("train", "--resume", folder) == 0
    assert_same_but_for_the_order_of_lines(folder, in_line)


def test_asked_to_stop_twice_it_waits_no_more_and_loses_nothing(
    command: Callable[..., list[object]],
    in_line: Path,
    slow: Slow,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "job"
    slow.until = lambda number: False

    def interrupted(returns: Any, check: Callable[[], None]) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        check()

    with pytest.MonkeyPatch.context() as monkeypatch:
        at_update(monkeypatch, 65, lambda launch: os.kill(os.getpid(), signal.SIGINT))
        monkeypatch.setattr(evaluation_module, "wait_for", interrupted)
        assert run(*command(folder)) == 130
    assert "c4rl: interrupted twice: left as of the last checkpoint; continue with: c4rl" in capsys.readouterr().err
    progress = load_checkpoint(folder / "checkpoint.safetensors")[1]
    assert (progress.update, progress.pending) == (65, [20, 40, 60])
    slow.until = lambda number: True
    assert run("train", "--resume", folder) == 0
    assert_same_but_for_the_order_of_lines(folder, in_line)


def test_a_run_that_fails_is_scored_before_and_after_as_it_was(
    command: Callable[..., list[object]], slow: Slow, tmp_path: Path
) -> None:
    """It fails while its first two evaluations are under way; those are of the run as it was then."""
    folders = {background: tmp_path / background for background in ("no", "yes")}
    saved: dict[str, list[tuple[str, dict[Any, int]]]] = {"no": [], "yes": []}
    save = scorekeeper.save_policies
    slow.until = lambda number: slow.update >= 90
    with pytest.MonkeyPatch.context() as monkeypatch:
        update = Launch.update

        def poisoned(self: Launch, step: int) -> None:
            update(self, step)
            if step == 52:
                self.algorithm.actor.mlp.weights[0].data[1, 0, 0, 0] = float("nan")

        monkeypatch.setattr(Launch, "update", poisoned)
        for background, folder in folders.items():

            def saving(path: Path, policies: Any, updates: Any, failed: Any, background: str = background) -> None:
                saved[background].append((path.name, updates))
                save(path, policies, updates, failed)

            monkeypatch.setattr(scorekeeper, "save_policies", saving)
            assert run(*command(folder, background=background)) == 1
    frozen = next(iter(summary(folders["yes"])["stopped"].values()))
    assert frozen["update"] == 49
    assert saved["yes"] == saved["no"]
    assert [updates[1] for name, updates in saved["yes"] if "last" in name] == [20, 40, 49, 49, 49, 49]
    assert_same_but_for_the_order_of_lines(folders["yes"], folders["no"])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine")
def test_on_a_gpu_evaluations_are_in_the_background_unless_told_otherwise(
    command: Callable[..., list[object]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is copied off the GPU each seven updates meanwhile; none of it shows in the results."""
    results = {}
    for background in ("auto", "no"):
        submitted: list[int] = []
        submit = SimulatorEvaluation.submit

        def counted(self: SimulatorEvaluation, policies: Any, submit: Any = submit, seen: Any = submitted) -> Any:
            seen.append(len(policies))
            return submit(self, policies)

        with monkeypatch.context() as context:
            context.setattr(SimulatorEvaluation, "__call__", None)  # what waits
            context.setattr(SimulatorEvaluation, "submit", counted)
            if background == "no":
                context.undo()
            flags = ("--device", "cuda", "--plugins", "c4", "--period", "30", "--checkpoint-seconds", "0")
            assert run(*command(tmp_path / background, *flags, background=background)) == 0
        assert submitted == ([2] * 6 if background == "auto" else [])
        results[background] = scores_of(metric_lines(tmp_path / background))
    assert results["auto"] == results["no"]
