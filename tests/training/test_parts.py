"""A job in parts, one run folder per launch, joined: the folder that one process would have left."""

from pathlib import Path

import pytest
from rich.console import Console

from c4rl.cli.train import config_of
from c4rl.training.launch import Launch
from c4rl.training.loop import resume, train
from c4rl.training.parts import join, parts_of
from c4rl.training.preparation import in_any_folder, prepare_all
from c4rl.training.run_directory import RunDirectory
from tests.cli.support import (
    SMALL,
    SMALL_OF_ANY_WIDTH,
    assert_same_tensors,
    assert_tensorboard_shows_the_metrics,
    metric_lines,
    run,
    summary,
)
from tests.helpers import CPU

EVERY = ["--updates", "40", "--log-every", "10", "--eval-every", "15", "--checkpoint-every", "9"]
JOBS = {
    "two launches of several runs": ["--plugins", "c4", "--period", "10", "--sweep", "K=1,3", "hidden_width=16,32"],
    "a run each, and ensembles": [
        "--algorithm",
        "cql",
        "--cql-actions",
        "2",
        "--ensemble",
        "2",
        "--eval-episodes",
        "1",
    ],
    "a launch of one run, as asked": ["--algorithm", "bc", "--runs-per-launch", "1"],
    "selected and kept checkpoints, and ensembles": [
        *("--algorithm", "td3_bc", "--runs-per-launch", "1", "--select", "held-out", "--keep-checkpoints", "2"),
        *("--ensemble", "2", "--eval-episodes", "1"),
    ],
}


@pytest.mark.parametrize("case", JOBS)
def test_joined_parts_are_the_job_in_one_process(case: str, plain_data: Path, maze_data: Path, tmp_path: Path) -> None:
    on_maze = ["--dataset", maze_data, "--task", "maze2d-open-dense-v0"]
    data = on_maze if "ensembles" in case else ["--dataset", plain_data, "--task", "none"]
    small = SMALL_OF_ANY_WIDTH if "hidden_width=16,32" in JOBS[case] else SMALL
    flags = [*small, *EVERY, *JOBS[case], *data, "--seeds", "0", "3", "--threads", "1", "--device", "cpu"]
    assert run("train", *flags, "--output", tmp_path / "here") == 0
    assert apart(tmp_path / "apart", *flags) == 2
    assert_equal(tmp_path / "apart", tmp_path / "here")
    assert run("train", "--resume", tmp_path / "apart", "--updates", "50") == 0  # an ordinary folder


def test_a_launch_whose_runs_all_fail_is_joined_with_the_others(
    plain_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    update = Launch.update

    def spoiled(self: Launch, step: int) -> None:
        update(self, step)
        if step == 20 and 3 in self.seeds:
            self.algorithm.state()["actor/mlp.weights.0"].fill_(float("nan"))

    monkeypatch.setattr(Launch, "update", spoiled)
    data = ["--dataset", plain_data, "--algorithm", "cql", "--cql-actions", "2", "--seeds", "0", "3"]
    flags = [*SMALL, *EVERY, *data, "--threads", "1", "--device", "cpu"]
    assert run("train", *flags, "--output", tmp_path / "here") == 1
    apart(tmp_path / "apart", *flags)
    assert summary(tmp_path / "apart")["failed"] == [3]
    assert_equal(tmp_path / "apart", tmp_path / "here")


@pytest.mark.parametrize("at", [5, 20])
def test_what_is_kept_and_selected_outlives_a_launch_that_failed(
    at: int, maze_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It failed before the first evaluation, or after it."""
    update = Launch.update

    def spoiled(self: Launch, step: int) -> None:
        update(self, step)
        if step == at and 3 in self.seeds:
            self.algorithm.state()["actor/mlp.weights.0"].fill_(float("nan"))

    monkeypatch.setattr(Launch, "update", spoiled)
    data = ["--dataset", maze_data, "--task", "maze2d-open-dense-v0", "--eval-episodes", "1", "--seeds", "0", "3"]
    how = ["--runs-per-launch", "1", "--select", "held-out", "--keep-checkpoints", "4", "--threads", "1"]
    flags = [*SMALL, *EVERY, *data, *how, "--device", "cpu"]
    assert run("train", *flags, "--output", tmp_path / "here") == 1
    apart(tmp_path / "apart", *flags)
    here, joined = (RunDirectory(tmp_path / name) for name in ("here", "apart"))
    assert joined.kept_checkpoints() == here.kept_checkpoints() != []
    assert metric_lines(tmp_path / "apart") == metric_lines(tmp_path / "here")


def test_joining_again_after_a_crash(plain_data: Path, tmp_path: Path) -> None:
    flags = [*SMALL, *EVERY, "--dataset", plain_data, "--algorithm", "cql", "--cql-actions", "2", "--seeds", "0", "3"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("c4rl.training.parts.summarise", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            apart(tmp_path / "apart", *flags, "--threads", "1", "--device", "cpu")
    apart(tmp_path / "apart", *flags, "--threads", "1", "--device", "cpu", trained=True)
    assert [one["name"] for one in summary(tmp_path / "apart")["runs"]] == ["seed_0", "seed_3"]
    assert not (tmp_path / "apart" / "launches").exists()
    assert len(list((tmp_path / "apart" / "tensorboard").iterdir())) == 2


def test_joining_after_a_crash_launches_that_were_trained_on(plain_data: Path, tmp_path: Path) -> None:
    flags = [*SMALL, *EVERY, "--dataset", plain_data, "--algorithm", "cql", "--cql-actions", "2", "--seeds", "0", "3"]
    flags += ["--threads", "1", "--device", "cpu"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("c4rl.training.parts.summarise", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            apart(tmp_path / "apart", *flags)
    for part in sorted((tmp_path / "apart" / "launches").iterdir()):
        resume(part, Console(quiet=True), updates=50)
    RunDirectory(tmp_path / "apart").change(updates=50)
    longer = [*flags, "--updates", "50"]
    apart(tmp_path / "apart", *longer, trained=True)
    assert summary(tmp_path / "apart")["updates"] == 50
    assert_tensorboard_shows_the_metrics(tmp_path / "apart")


def apart(output: Path, *flags: object, trained: bool = False) -> int:
    """Train the parts and join them; how many there were."""
    config = in_any_folder(config_of([*map(str, flags), "--output", str(output)]))
    preparations = prepare_all(config)
    directory, parts = RunDirectory(output), parts_of(config, preparations, CPU)
    if trained:
        directory.reopen(config)
    else:
        directory.create(config)
        for part in parts:
            train(part, Console(quiet=True))
    join(directory, config, [p.without_rows() for p in preparations], parts)
    directory.close()
    return len(parts)


def assert_equal(first: Path, second: Path) -> None:
    """In all but time."""
    for name in ("checkpoint", "policy_last"):
        assert_same_tensors(first, second, name)
    assert metric_lines(first) == metric_lines(second)
    a, b = summary(first), summary(second)
    assert {name: v for name, v in a.items() if name != "timing"} == {n: v for n, v in b.items() if n != "timing"}
    assert {path.name for path in first.iterdir()} == {path.name for path in second.iterdir()}
