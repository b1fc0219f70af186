"""Checkpoints are written while training goes on, and hold one moment of it."""

import os
import resource
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import c4rl.training.scorekeeper as scorekeeper
import c4rl.training.trainer as trainer
from c4rl.data.packing import pack_datasets
from c4rl.plugins.c4.plugin import C4Config
from c4rl.training.checkpoint import Progress, load_checkpoint, load_progress, save_checkpoint
from c4rl.training.launch import Launch
from c4rl.training.snapshot import GoodStates, RunState
from tests.cli.support import metric_lines, run, summary, tensors
from tests.helpers import advance, make_launch, plain_scaling, small_config, small_dataset
from tests.training.jobs import STEADY, assert_same_job, at_update

States = dict[Any, RunState]
EVERY = ["--updates", "60", "--log-every", "10", "--eval-every", "25", "--checkpoint-every", "14"]


def command(dataset: Path, output: Path, *flags: object) -> list[object]:
    return ["train", "--dataset", dataset, "--task", "none", "--output", output, *STEADY, *EVERY, *flags]


@pytest.fixture(scope="module")
def undisturbed(plain_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("undisturbed") / "job"
    assert run(*command(plain_data, folder)) == 0
    return folder


def written(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The updates of the checkpoints that reach the disk."""
    updates: list[int] = []

    def noting(path: Path, states: States, progress: Progress) -> None:
        save_checkpoint(path, states, progress)
        updates.append(progress.update)

    monkeypatch.setattr(trainer, "save_checkpoint", noting)
    return updates


def test_training_goes_on_while_one_is_written_and_does_not_show_in_it(
    plain_data: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of update 28 is not begun before update 36."""
    got_on = threading.Event()

    def late(path: Path, states: States, progress: Progress) -> None:
        assert threading.current_thread() is not threading.main_thread()
        if progress.update == 28:
            assert got_on.wait(60), "training waits for the checkpoint"
            save_checkpoint(tmp_path / "checkpoint.safetensors", states, progress)
        save_checkpoint(path, states, progress)

    monkeypatch.setattr(trainer, "save_checkpoint", late)
    at_update(monkeypatch, 36, lambda launch: got_on.set())
    assert run(*command(plain_data, tmp_path / "job")) == 0
    assert_same_job(tmp_path / "job", undisturbed)
    monkeypatch.undo()
    assert run(*command(plain_data, tmp_path / "short", "--updates", "28")) == 0
    expected, found = tensors(tmp_path / "short"), tensors(tmp_path)
    networks = [name for name in expected if "metrics/" not in name]  # the short job has read its last means
    assert networks and all(np.array_equal(found[name], expected[name]) for name in networks)


def test_each_is_written_where_no_seconds_are_asked_for(
    plain_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    updates = written(monkeypatch)
    assert run(*command(plain_data, tmp_path / "job")) == 0  # on a CPU the default
    assert updates == [0, 14, 28, 42, 56, 60]


def test_seconds_between_them(
    plain_data: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job asked to stop saves at once, however soon after the last checkpoint, and so does one that ends."""
    updates, folder = written(monkeypatch), tmp_path / "job"
    with pytest.MonkeyPatch.context() as context:
        at_update(context, 33, lambda launch: os.kill(os.getpid(), signal.SIGINT))
        assert run(*command(plain_data, folder, "--checkpoint-seconds", "1000")) == 130
    assert updates == [0, 33]
    assert run("train", "--resume", folder) == 0
    assert updates == [0, 33, 42, 60]  # a process's first is due at once
    assert_same_job(folder, undisturbed)


def test_no_second_one_begins_before_the_first_is_written(
    plain_data: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk so slow that, by the clock, others would be due meanwhile: they are left out, not waited for."""
    updates, got_on = [], threading.Event()

    def slow(path: Path, states: States, progress: Progress) -> None:
        if progress.update > 0:
            assert got_on.wait(60), "training waits for the checkpoint"
        save_checkpoint(path, states, progress)
        updates.append(progress.update)

    monkeypatch.setattr(trainer, "save_checkpoint", slow)
    at_update(monkeypatch, 57, lambda launch: got_on.set())
    assert run(*command(plain_data, tmp_path / "job", "--checkpoint-seconds", "1e-9")) == 0
    assert len(updates) == 3 and updates[0] == 0 and updates[2] == 60
    assert_same_job(tmp_path / "job", undisturbed)


def test_a_full_disk_is_reported_and_the_job_can_go_on(
    plain_data: Path, undisturbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "job"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_up(launch: Launch) -> None:
        """Once the last checkpoint is on disk, no file may grow beyond this: the next one does not fit."""
        deadline = time.monotonic() + 60
        while load_progress(folder / "checkpoint.safetensors").update < 14:
            assert time.monotonic() < deadline, "the checkpoint of update 14 is not written"
            time.sleep(0.002)
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))

    with pytest.MonkeyPatch.context() as monkeypatch:
        at_update(monkeypatch, 20, fill_up)
        try:
            assert run(*command(plain_data, folder)) == 2
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    error = capsys.readouterr().err
    assert error.count("\n") == 1, error
    assert f"{folder}/checkpoint.safetensors: could not be written" in error
    assert f"continue with: c4rl train --resume {folder}" in error
    assert load_checkpoint(folder / "checkpoint.safetensors")[1].update == 14
    assert not list(folder.glob(".*.partial"))
    assert run("train", "--resume", folder) == 0
    assert_same_job(folder, undisturbed)


def test_after_an_error_nothing_is_written_that_could_count_on_it(
    plain_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policies of update 25 are not saved: no checkpoint may say that they were."""

    class Broken(Exception):
        pass

    queued = threading.Event()

    def broken(*_: Any) -> None:
        assert queued.wait(60), "training waits for the policies"
        raise Broken

    updates = written(monkeypatch)
    at_update(monkeypatch, 29, lambda launch: queued.set())  # the checkpoint of update 28 comes next
    monkeypatch.setattr(scorekeeper, "save_policies", broken)
    with pytest.raises(Broken):
        run(*command(plain_data, tmp_path / "job"))
    assert updates == [0, 14]


@pytest.mark.parametrize("flags", [(), ("--checkpoint-seconds", "1000")], ids=["all written", "one written"])
def test_a_run_that_fails_is_kept_as_of_the_last_snapshot(
    flags: tuple[str, ...], plain_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is kept depends on its updates alone, not on when a file was written: it fails at 35, so at 28."""

    def poison(launch: Launch) -> None:
        launch.algorithm.actor.mlp.weights[0].data[1, 0, 0, 0] = float("nan")

    at_update(monkeypatch, 35, poison)
    assert run(*command(plain_data, tmp_path / "job", *flags)) == 1
    assert [stopped["update"] for stopped in summary(tmp_path / "job")["stopped"].values()] == [28]
    monkeypatch.undo()
    assert run(*command(plain_data, tmp_path / "short", "--updates", "28")) == 0
    ours, short = tensors(tmp_path / "job"), tensors(tmp_path / "short")
    own = [name for name in short if name.startswith("seed_1/") and "metrics/" not in name]
    assert own and all(np.array_equal(ours[name], short[name]) for name in own)
    last = [line for line in metric_lines(tmp_path / "job") if line["seed"] == 1][-1]
    assert np.isfinite(last["held_out_action_rmse"])


def test_good_states_follow_the_runs_that_train_and_keep_the_others() -> None:
    first, second = make_launch(small_config("td3_bc", seeds=(0, 1))), make_launch(small_config("td3_bc", seeds=(2,)))
    good = GoodStates().advanced(0, [first, second])
    beginning = {run: {n: t.clone() for n, t in state.items()} for run, state in good.states().items()}
    advance(first, 3), advance(second, 3)
    assert_equal(good.states(), beginning)  # a snapshot is a copy
    alone = make_launch(small_config("td3_bc", seeds=(1,)))
    alone.load(first.run_states())
    later = good.advanced(3, [alone, second])
    assert (good.update, later.update) == (0, 3)
    assert_equal(later.states([0]), {0: beginning[0]})
    assert_equal(later.states(), {0: beginning[0]} | alone.run_states() | second.run_states())
    assert_equal(good.states(), beginning)  # one that is being written does not change


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine")


def gpu_launch(seeds: tuple[int, ...]) -> Launch:
    gpu, data = torch.device("cuda"), small_dataset(600)
    config = small_config("cql", ("c4",), seeds, hidden_width=256, plugin_options=(C4Config(K=3, period=1000),))
    return Launch(config, list(seeds), pack_datasets([(data, plain_scaling(data))], gpu), gpu)


@on_a_gpu
def test_snapshots_leave_the_gpu_while_graphs_are_captured_and_replayed() -> None:
    launch, other = gpu_launch((0, 1, 2)), gpu_launch((3, 4))
    advance(launch, 10)
    good = GoodStates().advanced(10, [launch])
    expected = {run: {n: t.clone() for n, t in state.items()} for run, state in launch.run_states().items()}
    over = threading.Event()

    def copy_again_and_again() -> int:
        copies = 0
        while not over.is_set():
            assert_equal(good.states(), expected)
            copies += 1
        return copies

    with ThreadPoolExecutor(1) as thread:
        copying = thread.submit(copy_again_and_again)
        try:
            advance(other, 10)  # captures its graph
            advance(launch, 200, start=10)
        finally:
            over.set()
        assert copying.result() > 0
    assert not launch.failures() and not other.failures()


@on_a_gpu
def test_taking_a_snapshot_does_not_wait_for_the_gpu() -> None:
    launch = advance(gpu_launch((0, 1)), 10)
    torch.cuda.set_sync_debug_mode("error")
    try:
        GoodStates().advanced(10, [launch]).advanced(10, [launch])
    finally:
        torch.cuda.set_sync_debug_mode("default")


def assert_equal(found: States, expected: States) -> None:
    assert found.keys() == expected.keys()
    for key, state in expected.items():
        assert found[key].keys() == state.keys()
        assert all(torch.equal(found[key][name], tensor) for name, tensor in state.items()), key
