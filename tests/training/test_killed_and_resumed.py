"""A job that is killed, crashes or is interrupted, and resumed, ends as if nothing had happened."""

import os
import random
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import c4rl.training.checkpoint as checkpoint_module
import c4rl.training.scorekeeper as scorekeeper
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.training import event_file
from c4rl.training.checkpoint import Progress, load_checkpoint
from c4rl.training.evaluation import HeldOutEvaluation
from c4rl.training.launch import Launch
from tests.cli.support import Arrays, assert_tensorboard_shows_the_metrics, listing, metric_lines, run
from tests.training.jobs import (
    STEADY,
    PowerCut,
    ToBeKilled,
    assert_same_job,
    at_update,
    last_update,
    power_cut,
    start,
    wait_until,
)

UPDATES = 240
Command = Callable[[Path], list[object]]
Commands = dict[str, Command]
Folders = dict[str, Path]
Policies = dict[int, NumpyPolicy]


@pytest.fixture(scope="module")
def commands(plain_data: Path, maze_data: Path) -> Commands:
    """Checkpoints fall between two lines of metrics, so that a resumed job begins with half an average."""
    every = ["--updates", UPDATES, "--log-every", "10", "--eval-every", "60", "--checkpoint-every", "14"]

    def command(*flags: object) -> Command:
        return lambda output: ["train", *flags, *STEADY, *every, "--output", output]

    maze = ("--dataset", maze_data, "--task", "maze2d-open-dense-v0", "--eval-episodes", "2")
    plain = ("--dataset", plain_data, "--task", "none")
    return {
        # steps so large that the best policy comes early: it must outlive the process that found it
        "td3_bc": command("--algorithm", "td3_bc", "--actor-lr", "3e-3", "--select", "held-out", *maze),
        "c4": command("--algorithm", "td3_bc", "--plugins", "c4", "--period", "20", *plain),
        "cql": command("--algorithm", "cql", "--cql-actions", "2", *plain),
    }


@pytest.fixture(scope="module")
def undisturbed(commands: Commands, tmp_path_factory: pytest.TempPathFactory) -> Folders:
    folders = {name: tmp_path_factory.mktemp("undisturbed") / name for name in commands}
    for name, folder in folders.items():
        assert run(*commands[name](folder)) == 0
    return folders


@pytest.mark.parametrize("algorithm", ["td3_bc", "cql"])
def test_killed_at_random_moments(algorithm: str, commands: Commands, undisturbed: Folders, tmp_path: Path) -> None:
    chance = random.Random(algorithm)
    folder = tmp_path / "job"
    command = commands[algorithm](folder)
    kills = 0
    for moment in (0, 60, 180):  # about there; 0 is before or at the first checkpoint
        process = ToBeKilled(*command)
        if wait_until(process, folder, moment):
            time.sleep(chance.uniform(0, 0.1))
            kills += process.poll() is None
            process.kill()
        process.join()
        command = ["train", "--resume", folder]
    assert kills >= 2, "the job was over before it could be killed"
    assert run(*command) == 0
    assert_same_job(folder, undisturbed[algorithm])
    kinds = ("critic_loss", "score", "held_out_action_rmse")
    pairs = [(line["update"], line["seed"], *(kind in line for kind in kinds)) for line in metric_lines(folder)]
    assert len(pairs) == len(set(pairs))
    assert_tensorboard_shows_the_metrics(folder)
    assert not [name for name in listing(folder) if name.endswith(".partial")]


@pytest.mark.parametrize(
    ("number", "word"), [(signal.SIGINT, "interrupted"), (signal.SIGTERM, "terminated")], ids=["SIGINT", "SIGTERM"]
)
def test_asked_to_stop_it_saves_and_says_how_to_go_on(
    number: int, word: str, commands: Commands, undisturbed: Folders, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    process = start(*commands["c4"](folder))
    assert wait_until(process, folder, 40)
    os.killpg(process.pid, number)
    _, error = process.communicate()
    assert process.returncode == 130
    match = re.fullmatch(rf"c4rl: {word}: saved at update (\d+) of 240; continue with: (c4rl .*)\n", error)
    assert match is not None, error
    assert match[2] == f"c4rl train --resume {folder}"
    saved = load_checkpoint(folder / "checkpoint.safetensors")[1].update
    assert saved == int(match[1]) >= last_update(folder)
    assert not (folder / "summary.json").exists()
    assert run(*match[2].split()[1:]) == 0
    assert_same_job(folder, undisturbed["c4"])


def test_asked_to_stop_during_an_evaluation(
    commands: Commands, undisturbed: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the message says is saved is saved, and the folder is free again in the same process."""
    folder = tmp_path / "job"
    evaluate = HeldOutEvaluation.__call__

    def interrupted(self: HeldOutEvaluation, launches: list[Launch]) -> dict[int, dict[str, Any]]:
        os.kill(os.getpid(), signal.SIGINT)
        return evaluate(self, launches)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(HeldOutEvaluation, "__call__", interrupted)
        assert run(*commands["c4"](folder)) == 130
    assert "interrupted: saved at update 61 of 240" in capsys.readouterr().err
    assert load_checkpoint(folder / "checkpoint.safetensors")[1].update == 61
    assert run("train", "--resume", folder) == 0
    assert_same_job(folder, undisturbed["c4"])
    assert_tensorboard_shows_the_metrics(folder)


def test_two_processes_on_one_folder(
    commands: Commands, undisturbed: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "job"
    process = ToBeKilled(*commands["c4"](folder))
    assert wait_until(process, folder, 20) and process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)  # it must not end before the other tries
    assert run("train", "--resume", folder) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and str(folder) in error and "in use by another c4rl process" in error
    process.kill()
    process.join()
    assert run("train", "--resume", folder) == 0  # the lock died with its holder
    assert_same_job(folder, undisturbed["c4"])


def _during_an_update(monkeypatch: pytest.MonkeyPatch, at: int = 155) -> None:
    at_update(monkeypatch, at, power_cut)


def _while_a_checkpoint_is_half_written(monkeypatch: pytest.MonkeyPatch) -> None:
    write = checkpoint_module.save_file

    def cut(arrays: Arrays, path: Path, metadata: dict[str, str]) -> None:
        write(arrays, path, metadata)
        if '"update": 154' in metadata.get("progress", ""):
            path.write_bytes(path.read_bytes()[:5000])
            raise PowerCut

    monkeypatch.setattr(checkpoint_module, "save_file", cut)


def _between_the_policies_and_the_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the third evaluation, whose policies are then newer than the checkpoint."""
    save = scorekeeper.save_policies

    def cut(path: Path, policies: Policies, update: dict[int, int], failed: dict[int, str]) -> None:
        save(path, policies, update, failed)
        if path.name == "policy_last.safetensors" and 180 in update.values():
            raise PowerCut

    monkeypatch.setattr(scorekeeper, "save_policies", cut)


@pytest.mark.parametrize(
    ("cut", "method"),
    [
        (_during_an_update, "c4"),
        (_during_an_update, "cql"),
        (_while_a_checkpoint_is_half_written, "c4"),
        (_between_the_policies_and_the_checkpoint, "c4"),
    ],
)
def test_a_power_cut(
    cut: Callable[[pytest.MonkeyPatch], None], method: str, commands: Commands, undisturbed: Folders, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    with pytest.MonkeyPatch.context() as monkeypatch:
        cut(monkeypatch)
        with pytest.raises(PowerCut):
            run(*commands[method](folder))
    load_checkpoint(folder / "checkpoint.safetensors")  # whole
    assert run("train", "--resume", folder) == 0
    assert_same_job(folder, undisturbed[method])


def test_remains_of_half_written_files_do_no_harm(commands: Commands, undisturbed: Folders, tmp_path: Path) -> None:
    folder = tmp_path / "job"
    with pytest.MonkeyPatch.context() as patched:
        _during_an_update(patched)
        with pytest.raises(PowerCut):
            run(*commands["c4"](folder))
    whole = (folder / "checkpoint.safetensors").read_bytes()
    (folder / ".checkpoint.safetensors.1234.partial").write_bytes(whole[: len(whole) // 2])
    (folder / ".policy_last.safetensors.1234.partial").write_bytes(b"")
    (folder / ".metrics.jsonl.partial").write_text('{"update": 1')
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"update": 160, "seed": 0, "critic_lo')
    assert run("train", "--resume", folder) == 0
    assert_same_job(folder, undisturbed["c4"])
    assert not list(folder.glob(".*.partial"))


def test_tensorboard_shows_each_metric_once_whatever_the_clock_says(
    commands: Commands, undisturbed: Folders, tmp_path: Path
) -> None:
    """Event files are named after the time; each process here seems to begin an hour before the one it continues."""
    folder = tmp_path / "job"
    command = commands["c4"](folder)
    for hours, at in enumerate((95, 165, None)):
        with pytest.MonkeyPatch.context() as monkeypatch:
            now = time.time() - 3600 * hours
            monkeypatch.setattr(event_file, "time", SimpleNamespace(time=lambda now=now: now))
            if at is None:
                assert run(*command) == 0
            else:
                _during_an_update(monkeypatch, at)
                with pytest.raises(PowerCut):
                    run(*command)
        command = ["train", "--resume", folder]
    assert_same_job(folder, undisturbed["c4"])
    assert_tensorboard_shows_the_metrics(folder)


def test_tensorboard_shows_each_metric_once_after_a_kill_within_a_record(
    commands: Commands, undisturbed: Folders, tmp_path: Path
) -> None:
    folder = tmp_path / "job"
    with pytest.MonkeyPatch.context() as monkeypatch:
        _during_an_update(monkeypatch, at=165)
        with pytest.raises(PowerCut):
            run(*commands["c4"](folder))
    for seed, length in ((0, 5), (1, 20)):  # within the record's length, within what it holds
        (events,) = (folder / "tensorboard" / f"seed_{seed}").iterdir()
        whole = events.read_bytes()
        events.write_bytes(whole + whole[:length])
    assert run("train", "--resume", folder) == 0
    assert_same_job(folder, undisturbed["c4"])
    assert_tensorboard_shows_the_metrics(folder)


def test_checkpoints_hold_tensors_however_they_lie_in_memory(tmp_path: Path) -> None:
    """The factors of a matrix often lie transposed."""
    matrix = torch.arange(6.0).view(2, 3)
    state = {
        "rows first": matrix,
        "columns first": matrix.T.contiguous().T,
        "part": matrix[:, 1],
        "number": matrix[1, 1],
    }
    checkpoint_module.save_checkpoint(tmp_path / "c.safetensors", {4: state}, Progress(update=7))
    states, progress = load_checkpoint(tmp_path / "c.safetensors")
    assert progress == Progress(update=7) and states.keys() == {4}
    for name, tensor in state.items():
        assert torch.equal(states[4][name], tensor), name


def test_resuming_a_finished_job_changes_nothing(undisturbed: Folders, capsys: pytest.CaptureFixture[str]) -> None:
    folder = undisturbed["td3_bc"]
    before = listing(folder)
    assert run("train", "--resume", folder) == 0
    assert listing(folder) == before
    assert "last" in capsys.readouterr().out
