"""A job goes on from another working folder, with moved data, on another device, and beyond its planned end."""

import errno
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tensorboard.summary.writer.record_writer import RecordWriter

import c4rl.training.preparation as preparation
import c4rl.training.trainer as trainer
from c4rl.core.array import Array
from c4rl.environments.tasks import Task
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import RunKey
from c4rl.training import evaluation, event_file
from c4rl.training.checkpoint import load_checkpoint, load_progress, policy_facts, policy_updates
from c4rl.training.launch import Launch
from c4rl.training.run_directory import RunDirectory
from tests.cli.support import assert_same_tensors, listing, metric_lines, run, summary
from tests.training.jobs import STEADY, PowerCut, at_update, power_cut, start, wait_until


def begin(folder: Path, *flags: object, at: int | None = None) -> None:
    """Train in this folder; at: the update at which the power fails."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        every = ["--updates", "30", "--log-every", "10", "--checkpoint-every", "10"]
        words = ["train", *STEADY, *every, "--output", folder, *flags]
        if at is None:
            assert run(*words) == 0
        else:
            at_update(monkeypatch, at, power_cut)
            with pytest.raises(PowerCut):
                run(*words)


@pytest.fixture(scope="module")
def straight(plain_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight") / "job"
    begin(folder, "--dataset", plain_data)
    return folder


def test_from_another_working_folder(
    straight: Path, plain_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(plain_data, tmp_path / "near.npz")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    begin(Path("job"), "--dataset", "near.npz", at=15)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run("train", "--resume", Path("..") / "job") == 0
    assert_same_tensors(tmp_path / "job", straight)


def test_with_data_that_moved(
    straight: Path, plain_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = shutil.copy(plain_data, tmp_path / "first.npz")
    folder, moved = tmp_path / "job", tmp_path / "moved.npz"
    begin(folder, "--dataset", first, "--device", "auto", at=15)
    first.rename(moved)
    before = listing(folder)
    assert run("train", "--resume", folder) == 2
    assert "first.npz: there is no such file" in capsys.readouterr().err
    (tmp_path / "other.npz").write_bytes(moved.read_bytes() + b"\0")
    assert run("train", "--resume", folder, "--dataset", tmp_path / "other.npz") == 2
    assert "other.npz: its bytes changed since the job began" in capsys.readouterr().err
    assert run("train", "--resume", folder, "--dataset", moved, plain_data) == 2
    assert "--dataset: found files that name the runs" in capsys.readouterr().err
    assert listing(folder) == before
    assert run("train", "--resume", folder, "--dataset", moved, "--threads", "1", "--device", "cpu") == 0
    assert_same_tensors(folder, straight)
    stored = json.loads((folder / "config.json").read_text())
    assert (stored["dataset"], stored["threads"], stored["device"]) == (str(moved), 1, "cpu")
    assert run("train", "--resume", folder) == 0  # the new place is remembered


@pytest.mark.parametrize(("load", "threads"), [(0.0, 8), (0.5, 4), (0.97, 1), (3.0, 1)])
def test_threads_are_as_many_as_cores_are_free(load: float, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "ALL_THREADS", 8)
    monkeypatch.setattr(os, "getloadavg", lambda: (load * (os.cpu_count() or 1), 0.0, 0.0))
    assert preparation.free_threads.__wrapped__() == threads


def test_with_the_threads_it_began_with_whatever_the_load_is_now(
    straight: Path,
    plain_data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Another number of threads would round differently."""
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    monkeypatch.setattr(trainer, "ALL_THREADS", 2)
    monkeypatch.setattr(trainer, "free_threads", lambda: 1)
    stored = json.loads((straight / "config.json").read_text()) | {"threads": None}
    (tmp_path / "config.json").write_text(json.dumps(stored))
    assert run("train", "--config", tmp_path / "config.json", "--output", tmp_path / "job", "--updates", "2") == 0
    assert "1 of 2 threads, since other processes were busy when it began" in capsys.readouterr().out
    monkeypatch.setattr(trainer, "free_threads", lambda: 2)
    assert run("train", "--resume", tmp_path / "job") == 0
    assert run("train", "--resume", tmp_path / "job", "--threads", "2") == 0
    before = torch.get_num_threads()  # each job gives them back
    assert used == [1, before, 1, before, 2, before]


def test_a_job_that_lost_its_checkpoint_is_left_alone(
    plain_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It would be trained from the start, and its results be lost."""
    folder = tmp_path / "job"
    begin(folder, "--dataset", plain_data, "--updates", "4")
    (folder / "checkpoint.safetensors").unlink()
    before = listing(folder)
    assert run("train", "--resume", folder) == 2
    assert "checkpoint.safetensors: found policy_last.safetensors without it, expected" in capsys.readouterr().err
    assert listing(folder) == before


def test_beyond_the_planned_end(straight: Path, plain_data: Path, tmp_path: Path) -> None:
    """Bit for bit what a longer job would have given, even if the power fails in between."""
    folder = tmp_path / "job"
    begin(folder, "--dataset", plain_data, "--updates", "15")
    assert summary(folder)["updates"] == 15
    update = Launch.update

    def cut(self: Launch, step: int) -> None:
        if step == 25:
            raise PowerCut
        update(self, step)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Launch, "update", cut)
        with pytest.raises(PowerCut):
            run("train", "--resume", folder, "--updates", "30")
    assert not (folder / "summary.json").exists()  # that of the shorter job would look like the end of this one
    assert run("train", "--resume", folder) == 0
    assert_same_tensors(folder, straight)
    assert summary(folder)["last"] == summary(straight)["last"] and summary(folder)["updates"] == 30
    losses = [[one for one in metric_lines(job) if "critic_loss" in one] for job in (folder, straight)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("eval_every", [8, 100])
def test_an_end_before_the_planned_one(eval_every: int, straight: Path, plain_data: Path, tmp_path: Path) -> None:
    """The last score is that of the last weights, even where no evaluation was due there, or none so far."""
    folder = tmp_path / "job"
    begin(folder, "--dataset", plain_data, "--eval-every", eval_every, "--updates", "30", at=15)
    assert run("train", "--resume", folder, "--updates", "10") == 0
    begin(tmp_path / "planned", "--dataset", plain_data, "--updates", "10")
    assert summary(folder)["last"] == summary(tmp_path / "planned")["last"]
    assert_same_tensors(folder, tmp_path / "planned", "policy_last")
    before = listing(folder)
    assert run("train", "--resume", folder) == 0
    assert listing(folder).keys() == before.keys()


def test_an_end_before_policies_that_were_scored(plain_data: Path, tmp_path: Path) -> None:
    """The last policies are written anew."""
    folder = tmp_path / "job"
    begin(folder, "--dataset", plain_data, "--eval-every", "2", at=17)
    assert policy_updates(folder / "policy_last.safetensors") == {0: 16, 1: 16}
    assert run("train", "--resume", folder, "--updates", "10") == 0
    assert policy_updates(folder / "policy_last.safetensors") == {0: 10, 1: 10}
    begin(tmp_path / "planned", "--dataset", plain_data, "--updates", "10")
    assert_same_tensors(folder, tmp_path / "planned", "policy_last")


def test_killed_while_the_end_was_scored(plain_data: Path, tmp_path: Path) -> None:
    """Its evaluation is in metrics.jsonl, and no checkpoint has counted it."""
    folder, every = tmp_path / "job", ["--dataset", plain_data, "--eval-every", "8", "--monitor"]
    begin(folder, *every, at=15)

    def cut(self: trainer.Trainer, step: int, forced: bool = False) -> None:
        raise PowerCut

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(trainer.Trainer, "_save", cut)
        with pytest.raises(PowerCut):
            run("train", "--resume", folder, "--updates", "10")
    assert metric_lines(folder)[-1]["update"] == 10
    assert run("train", "--resume", folder) == 0
    begin(tmp_path / "planned", *every, "--updates", "10")
    assert metric_lines(folder) == metric_lines(tmp_path / "planned")
    assert summary(folder)["last"] == summary(tmp_path / "planned")["last"]


@pytest.mark.parametrize("updates", ["10", "30"])
def test_the_best_and_selected_policies_are_those_of_the_scores(
    updates: str, maze_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were replaced after the last checkpoint, and the resumed job, on another device, does not get as far."""
    found, sign = iter(range(1000)), 1.0

    def measure(self: evaluation.HeldOutEvaluation, launches: list[Launch]) -> dict[RunKey, dict[str, float]]:
        return {key: {"held_out_action_rmse": -sign * next(found)} for launch in launches for key in launch.keys}

    def score(task: Task, returns: np.ndarray) -> dict[str, Any]:
        return {"score": sign * next(found), "returns": [0.0]}

    def killed(self: trainer.Trainer) -> None:
        self.directory.close()
        raise PowerCut

    monkeypatch.setattr(evaluation.HeldOutEvaluation, "__call__", measure)
    monkeypatch.setattr(evaluation, "score_record", score)
    folder, straight = tmp_path / "job", tmp_path / "straight"
    flags = ["--task", "maze2d-open-dense-v0", "--dataset", maze_data, "--eval-episodes", "1", "--eval-every", "2"]
    begin(straight, *flags, "--select", "held-out", "--updates", "10")
    begin(folder, *flags, "--select", "held-out", at=17)
    for which in ("best", "selected"):
        assert policy_updates(folder / f"policy_{which}.safetensors") == {0: 16, 1: 16}
    sign, shown = -1.0, list[list[float]]()
    monkeypatch.setattr(
        trainer.Display, "finished", lambda self: shown.append([run["best"] for run in self.runs.values()])
    )
    with monkeypatch.context() as patched, pytest.raises(PowerCut):  # killed again, as soon as it had begun
        patched.setattr(trainer.Trainer, "run", killed)
        run("train", "--resume", folder, "--updates", updates)
    assert run("train", "--resume", folder) == 0
    for which in ("best", "selected"):
        assert summary(folder)[which]["updates"] == [10, 10]
        assert policy_updates(folder / f"policy_{which}.safetensors") == {0: 10, 1: 10}
        assert_same_tensors(folder, straight, f"policy_{which}")
    assert not list(folder.glob("pending_*"))
    assert shown == [summary(folder)["best"]["scores"]]  # in the live table


def test_the_best_policy_is_not_marked_by_a_failure_after_the_end(
    maze_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run diverged after the checkpoint that the job ends at: the file of its best policy was written again."""
    falling, update = iter(range(1000)), Launch.update

    def diverge(self: Launch, step: int) -> None:
        if step == 13:
            with torch.no_grad():
                for parameter in self.algorithm.networks["actor"].parameters():
                    parameter[1].fill_(torch.nan)
        update(self, step)

    monkeypatch.setattr(evaluation, "score_record", lambda task, returns: {"score": -next(falling), "returns": [0.0]})
    folder = tmp_path / "job"
    flags = ["--task", "maze2d-open-dense-v0", "--dataset", maze_data, "--eval-episodes", "1", "--eval-every", "2"]
    with monkeypatch.context() as patched:
        patched.setattr(Launch, "update", diverge)
        begin(folder, *flags, at=15)
    path = folder / "policy_best.safetensors"
    assert any(fact.failed for fact in policy_facts(path).values())
    assert run("train", "--resume", folder, "--updates", "10") == 0
    assert not any(fact.failed for fact in policy_facts(path).values())
    assert not any(one["failed"] for one in summary(folder)["runs"])


def test_a_best_policy_of_an_update_after_the_end_is_refused(
    maze_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It took the place of the one that the job should have, and no copy of that is left."""
    rising = iter(range(1000))
    monkeypatch.setattr(evaluation, "score_record", lambda task, returns: {"score": next(rising), "returns": [0.0]})
    folder = tmp_path / "job"
    flags = ["--task", "maze2d-open-dense-v0", "--dataset", maze_data, "--eval-episodes", "1", "--eval-every", "2"]
    begin(folder, *flags, at=17)
    (folder / "pending_best.safetensors").unlink()
    before = listing(folder)
    assert run("train", "--resume", folder, "--updates", "10") == 2
    assert "policy_best.safetensors: found a policy of update 16" in capsys.readouterr().err
    assert listing(folder) == before


def test_no_evaluation_stays_pending_after_the_end(
    maze_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, flags = tmp_path / "job", ["--task", "maze2d-open-dense-v0", "--dataset", maze_data, "--eval-episodes", "1"]
    with monkeypatch.context() as patched:
        patched.setattr(evaluation.SimulatorScores, "done", lambda self: False)
        begin(folder, *flags, "--eval-every", "2", "--eval-in-background", "yes", at=17)
    assert list(folder.glob("pending_*"))
    assert run("train", "--resume", folder, "--updates", "10") == 0
    assert not list(folder.glob("pending_*"))


def test_a_kept_checkpoint_that_was_about_to_be_copied(
    plain_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, keep = tmp_path / "job", trainer.Trainer._keep_checkpoint

    def cut(self: trainer.Trainer, step: int) -> None:
        raise PowerCut

    monkeypatch.setattr(trainer.Trainer, "_keep_checkpoint", cut)
    with pytest.raises(PowerCut):
        begin(folder, "--dataset", plain_data, "--keep-checkpoints", "2")
    monkeypatch.setattr(trainer.Trainer, "_keep_checkpoint", keep)
    assert run("train", "--resume", folder) == 0
    assert RunDirectory(folder).kept_checkpoints() == [15, 30]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("log", ["metrics.jsonl", "tensorboard"])
def test_when_the_disk_was_full(
    log: str, straight: Path, plain_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, create = tmp_path / "job", RunDirectory.create

    def on_a_full_disk(self: RunDirectory, config: TrainConfig) -> None:
        create(self, config)
        self._metrics = open("/dev/full", "a")  # noqa: SIM115 - the folder closes it

    with pytest.MonkeyPatch.context() as monkeypatch, open("/dev/full", "wb", buffering=0) as full:
        if log == "tensorboard":
            monkeypatch.setattr(event_file, "RecordWriter", lambda file: RecordWriter(full))
        else:
            monkeypatch.setattr(RunDirectory, "create", on_a_full_disk)
        stored = ["train", "--config", straight, "--output", folder]
        assert run(*stored) == 2
    err = capsys.readouterr().err
    assert "metrics.jsonl: could not be written (No space left on device); once that is fixed, continue with" in err
    assert err.count("\n") == 1
    assert run("train", "--resume", folder) == 0
    assert_same_tensors(folder, straight)


def test_a_disk_too_full_to_begin(
    straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It leaves no folder, so that the same command works once there is room."""
    folder = tmp_path / "job"

    def full(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        assert run("train", "--config", straight, "--output", folder) == 2
    assert capsys.readouterr().err == f"c4rl: {folder}/config.json: No space left on device\n"
    assert not folder.exists()
    assert run("train", "--config", straight, "--output", folder) == 0


def test_stages_that_are_over_keep_their_length(
    plain_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "job"
    flags = ["--algorithm", "bppo", "--value-updates", "2", "--cloning-updates", "2", "--improvement-updates", "2"]
    begin(folder, "--dataset", plain_data, *flags, "--updates", "4")
    before = listing(folder)
    assert run("train", "--resume", folder, "--updates", "6") == 2
    assert "--updates: would change the length of the stages" in capsys.readouterr().err
    assert listing(folder) == before


@pytest.mark.parametrize(
    ("began_on", "code", "words"),
    [
        ("d4rl-0, mujoco 3.1.6", 2, "their scores do not compare"),
        ("d4rl-1, mujoco 0.0.1", 0, "warning"),
        (None, 0, "warning"),
    ],
)
def test_on_another_simulator(
    began_on: str | None, code: int, words: str, maze_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "job"
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(trainer, "simulator", lambda *tasks: began_on)
        flags = ["--dataset", maze_data, "--task", "maze2d-open-dense-v0", "--eval-episodes", "1"]
        begin(folder, *flags, "--updates", "12", at=11)
    before = listing(folder)
    capsys.readouterr()
    assert run("train", "--resume", folder) == code
    out, err = capsys.readouterr()
    sentence = f"began with the simulator {began_on or 'unknown'} and continues with d4rl-1, mujoco"
    assert sentence in out + err and words in out + err
    assert (listing(folder) == before) == (code == 2)
    assert load_progress(folder / "checkpoint.safetensors").environment == (
        began_on if code == 2 else summary(folder)["environment"]
    )


def test_asked_to_stop_while_an_environment_hangs(
    maze_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first request tells what the job waits for."""

    def hanging(returns: Future[Array], check: Callable[[], None]) -> Array:
        for _ in range(100):
            check()
        os.kill(os.getpid(), signal.SIGINT)
        return hanging(returns, check)

    monkeypatch.setattr(evaluation, "wait_for", hanging)
    flags = ["--dataset", maze_data, "--task", "maze2d-open-dense-v0", "--eval-episodes", "1", *STEADY]
    folder = tmp_path / "my job"
    assert run("train", *flags, "--updates", "2", "--output", folder) == 130
    out, err = capsys.readouterr()
    told = "interrupted: waiting for the evaluation on maze2d-open-dense-v0 to end; interrupt again to stop without it"
    assert [line for line in out.splitlines() if "interrupt" in line] == [told]
    advice = f"c4rl train --resume '{folder}'\n"  # for a shell
    assert err == f"c4rl: interrupted twice: left as of the last checkpoint; continue with: {advice}"
    assert run("train", *flags, "--output", folder) == 2
    assert capsys.readouterr().err.endswith(f"; to continue that job: {advice}")


def test_asked_to_stop_again_and_again_it_ends_cleanly(maze_data: Path, tmp_path: Path) -> None:
    """During an evaluation that would take minutes, like someone who holds Ctrl-C."""
    folder = tmp_path / "job"
    flags = ["--dataset", maze_data, "--task", "maze2d-open-dense-v0", "--eval-episodes", "100000"]
    process = start("train", *flags, *STEADY, "--updates", "20", "--log-every", "1", "--output", folder)
    assert wait_until(process, folder, 20)  # logged right before it is evaluated
    for _ in range(6000):  # until it is over, and so fast that one comes while the last words are printed
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.005)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    advice = f"interrupted twice: left as of the last checkpoint; continue with: c4rl train --resume {folder}"
    assert err == f"c4rl: {advice}\n"
    assert "Traceback" not in out
    load_checkpoint(folder / "checkpoint.safetensors")
