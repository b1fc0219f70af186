"""A run that leaves the finite numbers is stopped at its last good state; the others go on without it."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import c4rl.training.trainer as trainer
from c4rl.data.packing import pack_datasets
from c4rl.jobs.runs import runs_of
from c4rl.training.checkpoint import Progress, load_checkpoint, policy_updates
from c4rl.training.launch import Launch, RunState, launches_of
from c4rl.training.records import best_records
from tests.cli.support import (
    SMALL,
    assert_tensorboard_shows_the_metrics,
    listing,
    metric_lines,
    run,
    save_npz,
    summary,
    tensors,
)
from tests.helpers import CPU, plain_scaling, small_config, small_dataset
from tests.training.jobs import PowerCut, at_update, power_cut

Update = Callable[[Launch, int], None]
REASON = "a loss or weight was not finite"
EVERY = ["--updates", "60", "--log-every", "10", "--eval-every", "25", "--checkpoint-every", "14"]


def command(dataset: Path, output: Path, *flags: object, task: str = "none") -> list[object]:
    return ["train", "--dataset", dataset, "--task", task, "--output", output, *SMALL, *EVERY, *flags]


@pytest.fixture(autouse=True)
def checkpoints_are_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every checkpoint that is ever written is looked through."""
    save = trainer.save_checkpoint

    def checked(path: Path, states: dict[int, RunState], progress: Progress) -> None:
        bad = [(s, n) for s, state in states.items() for n, t in state.items() if not torch.isfinite(t).all()]
        assert not bad, f"not finite at update {progress.update}: {bad}"
        save(path, states, progress)

    monkeypatch.setattr(trainer, "save_checkpoint", checked)


def poison(monkeypatch: pytest.MonkeyPatch, seed: int, at: int) -> None:
    """After update `at`, one weight of one run's policy is NaN."""
    update = Launch.update

    def poisoned(self: Launch, step: int) -> None:
        update(self, step)
        if step == at and seed in self.seeds:
            self.algorithm.actor.mlp.weights[0].data[self.seeds.index(seed), 0, 0, 0] = float("nan")

    monkeypatch.setattr(Launch, "update", poisoned)


@pytest.fixture(scope="module")
def without(plain_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job that never had the seed that fails in the others."""
    folder = tmp_path_factory.mktemp("without") / "job"
    assert run(*command(plain_data, folder, "--seeds", "0", "2")) == 0
    return folder


@pytest.mark.parametrize(
    ("at", "failed_at", "kept"),
    [
        pytest.param(35, 36, 28, id="between checkpoints"),
        pytest.param(42, 42, 28, id="just before a checkpoint"),
        pytest.param(50, 50, 42, id="just before an evaluation"),
        pytest.param(60, 60, 56, id="in the last update"),
    ],
)
def test_one_of_three(
    at: int,
    failed_at: int,
    kept: int,
    plain_data: Path,
    without: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "job"
    with pytest.MonkeyPatch.context() as monkeypatch:
        poison(monkeypatch, seed=1, at=at)
        assert run(*command(plain_data, folder, "--seeds", "0", "1", "2")) == 1
    out, err = capsys.readouterr()
    failure = {"update": kept, "failed_at": failed_at, "reason": REASON}
    assert f"seed 1: {REASON} at update {failed_at}; stopped, kept as of update {kept}" in out
    assert err == "c4rl: 1 of 3 runs failed: seed_1\n"
    found = summary(folder)
    assert found["stopped"] == {"1": failure} and found["failed"] == [1]
    assert [one["failed"] for one in found["runs"]] == [None, failure, None]
    assert_tensorboard_shows_the_metrics(folder)  # and the update of the failure among them
    marked = [line["update"] for line in metric_lines(folder) if line.get("failed_at") == failed_at]
    assert marked and min(marked) >= failed_at and marked[-1] == 60
    # the seed that failed: as of its last good checkpoint, in every file
    assert run(*command(plain_data, tmp_path / "short", "--seeds", "0", "1", "2", "--updates", kept)) == 0
    ours, short = tensors(folder), tensors(tmp_path / "short")
    own = [name for name in short if name.startswith("seed_1/")]
    assert own and all(np.array_equal(ours[name], short[name]) for name in own)
    last, short_last = tensors(folder, "policy_last"), tensors(tmp_path / "short", "policy_last")
    assert all(np.array_equal(last[name], short_last[name]) for name in last if name.startswith("seed_1/"))
    assert all(np.isfinite(array).all() for array in last.values())
    # the others: nothing happened
    for name, values in tensors(without).items():
        np.testing.assert_allclose(ours[name], values, rtol=1e-3, atol=1e-5, err_msg=name)
    lines = [line for line in metric_lines(folder) if line["seed"] != 1]
    expected = metric_lines(without)
    assert [line.keys() for line in lines] == [line.keys() for line in expected]
    for line, other in zip(lines, expected, strict=True):
        assert list(line.values()) == pytest.approx(list(other.values()), rel=1e-3, abs=1e-5)
    losses = [line["update"] for line in metric_lines(folder) if line["seed"] == 1 and "critic_loss" in line]
    assert losses == list(range(10, failed_at, 10))


def test_the_others_go_on_in_the_company_they_were_in() -> None:
    """Sums over other stacks round differently, and a resumed job is to be bit-equal to an uninterrupted one."""
    config, data = small_config("td3_bc", seeds=(0, 1, 2), runs_per_launch=2), small_dataset()
    buffer, sound = pack_datasets([(data, plain_scaling(data))], CPU), runs_of(config)[1:]
    assert [launch.seeds for launch in launches_of(config, buffer, CPU)] == [[0, 1], [2]]
    assert [launch.seeds for launch in launches_of(config, buffer, CPU, sound)] == [[1], [2]]


def test_a_stopped_run_stays_stopped_when_the_job_is_resumed(plain_data: Path, tmp_path: Path) -> None:
    jobs = {name: tmp_path / name for name in ("straight", "resumed")}
    for name, folder in jobs.items():
        with pytest.MonkeyPatch.context() as monkeypatch:
            poison(monkeypatch, seed=0, at=15)
            if name == "resumed":
                at_update(monkeypatch, 45, power_cut)
            try:
                run(*command(plain_data, folder, "--seeds", "0", "1"))
            except PowerCut:
                assert name == "resumed"
    states, progress = load_checkpoint(jobs["resumed"] / "checkpoint.safetensors")
    assert set(states) == {0, 1} and progress.update == 42 and set(progress.frozen) == {"0"}
    assert run("train", "--resume", jobs["resumed"]) == 1  # without the poison: seed 0 could go on, and must not
    assert summary(jobs["resumed"])["stopped"] == summary(jobs["straight"])["stopped"]
    assert summary(jobs["resumed"])["stopped"]["0"]["update"] == 14
    assert summary(jobs["resumed"])["last"] == summary(jobs["straight"])["last"]
    straight, resumed = tensors(jobs["straight"]), tensors(jobs["resumed"])
    assert all(np.array_equal(resumed[name], values) for name, values in straight.items())


def test_a_stopped_run_is_scored_as_it_was_kept(
    maze_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--eval-every", "30", "--eval-episodes", "1", "--seeds", "1", "0", "--ensemble", "1"]
    folder = tmp_path / "job"
    with pytest.MonkeyPatch.context() as monkeypatch:
        poison(monkeypatch, seed=1, at=33)
        assert run(*command(maze_data, folder, *flags, task="maze2d-open-dense-v0")) == 1
    out = capsys.readouterr().out
    assert re.search(r"last +│ +[-.\d]+† +│ +[-.\d]+ │ +[-.\d]+† │ +[-.\d]+ │", out), out
    short = tmp_path / "short"
    assert run(*command(maze_data, short, *flags, "--updates", "28", task="maze2d-open-dense-v0")) == 0
    result, kept = summary(folder), summary(short)
    assert result["last"]["returns"][0] == kept["last"]["returns"][0]
    assert result["last"]["returns"][1] != kept["last"]["returns"][1]
    assert policy_updates(folder / "policy_last.safetensors") == {1: 28, 0: 60}
    assert result["ensemble"]["scores"] == pytest.approx(result["last"]["scores"][1:])  # of sound runs alone
    assert np.isfinite(result["last"]["mean"]) and np.isfinite(result["best"]["mean"])
    capsys.readouterr()
    assert run("evaluate", folder, "--episodes", "1", "--json", tmp_path / "scores.json") == 1
    out = capsys.readouterr().out
    failure = f"{REASON} at update 34; stopped, kept as of update 28"
    assert re.search(r"1 │ +[-.\d]+† │ +- │", out) and re.search(r"0 │ +[-.\d]+ │ +- │", out), out
    assert failure in " ".join(out.split())
    failed = {one["seed"]: one["failed"] for one in json.loads((tmp_path / "scores.json").read_text())["runs"]}
    assert failed == {1: failure, 0: None}
    # only a sound run is exported
    for which in (["--seed", "1"], ["--run", "seed_1"]):
        assert run("export", folder, *which, "--output", tmp_path / "failed.npz") == 2
        assert f"seed 1 failed ({failure}), expected one of seed_0" in capsys.readouterr().err
        assert not (tmp_path / "failed.npz").exists()
    assert run("export", folder, "--output", tmp_path / "sound.npz") == 0
    assert f"skipped seed_1, which failed: {failure}" in capsys.readouterr().out
    weights, sound = np.load(tmp_path / "sound.npz"), tensors(folder, "policy_last")
    assert np.array_equal(weights["w0"], sound["seed_0/w0"]) and not np.array_equal(weights["w0"], sound["seed_1/w0"])


@pytest.mark.parametrize("algorithm", ["td3_bc", "cql"])
def test_when_all_runs_fail(
    algorithm: str,
    plain_data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "job"
    for seed in (0, 1):
        poison(monkeypatch, seed, at=1)
    assert run(*command(plain_data, folder, "--algorithm", algorithm, "--seeds", "0", "1")) == 1
    out = capsys.readouterr().out
    for seed in (0, 1):
        assert f"seed {seed}: {REASON} at update 2; stopped, kept as of update 0" in out
    assert set(summary(folder)["stopped"]) == {"0", "1"}
    _, progress = load_checkpoint(folder / "checkpoint.safetensors")
    assert progress.update == 10 and set(progress.frozen) == {"0", "1"}
    assert all(np.isfinite(array).all() for array in tensors(folder).values())
    before = listing(folder)
    assert run("train", "--resume", folder) == 1
    assert listing(folder) == before
    capsys.readouterr()
    assert run("export", folder, "--output", tmp_path / "policy.npz") == 2
    assert "found only runs that failed" in capsys.readouterr().err
    assert not (tmp_path / "policy.npz").exists()


def test_a_run_that_fails_before_its_first_update_is_kept_as_it_began(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No row has a next action: there is nothing to fit a mixture to."""
    folder, data = tmp_path / "job", save_npz(tmp_path / "steps.npz", timeouts=np.ones(240, bool))
    assert run(*command(data, folder, "--plugins", "c4", "--seeds", "0")) == 1
    assert "seed 0: the Gaussian mixture could not be fitted (too few rows with a next" in capsys.readouterr().out
    assert summary(folder)["runs"][0]["failed"]["update"] == 0
    assert all(np.isfinite(array).all() for array in tensors(folder).values())


def test_a_score_that_is_no_number_is_never_the_best() -> None:
    """Of an environment that gives none while the policy is bad."""
    records = [{"seed": 0, "update": i, "score": score} for i, score in enumerate([np.nan, 3.0, 5.0, np.nan, 4.0])]
    (best,) = best_records(records).values()
    assert best["score"] == 5


def test_of_equal_scores_the_first_is_the_best() -> None:
    """Success rates are often equal."""
    records = [{"seed": 0, "update": i, "score": score} for i, score in enumerate([0.5, 1.0, 1.0])]
    assert best_records(records)[0]["update"] == 1
