"""Whole jobs with --sweep: their files, their names, resumed, with a run that fails, and what is refused."""

from pathlib import Path

import numpy as np
import pytest
import torch

import c4rl
from c4rl.core.errors import InputError
from c4rl.training.launch import Launch
from c4rl.training.restore import restore
from tests.cli.support import SMALL, SMALL_OF_ANY_WIDTH, assert_same_tensors, metric_lines, run, summary, tensors

SWEEP = ["--sweep", "alpha=1,4", "hidden_width=16,32", "--seeds", "0", "3"]
NAMES = [f"alpha={a},hidden_width={w},seed={s}" for a in ("1.0", "4.0") for w in (16, 32) for s in (0, 3)]
EVERY = ["--updates", "40", "--log-every", "10", "--eval-every", "20", "--checkpoint-every", "14", "--threads", "1"]


def command(data: Path, output: Path, *flags: object) -> list[object]:
    small = SMALL_OF_ANY_WIDTH if "hidden_width=16,32" in flags else SMALL
    return ["train", "--dataset", data, "--task", "none", "--output", output, *small, *EVERY, "--device", "cpu", *flags]


@pytest.fixture(scope="module")
def job(plain_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("swept") / "job"
    assert run(*command(plain_data, folder, *SWEEP)) == 0
    return folder


def cut_off_at_25(*words: object) -> None:
    """Run a job that dies before its 25th update."""
    update = Launch.update

    def cut(self: Launch, step: int) -> None:
        if step == 25:
            raise RuntimeError("power cut")
        update(self, step)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Launch, "update", cut)
        with pytest.raises(RuntimeError, match="power cut"):
            run(*words)


class TestASweptJob:
    def test_every_run_is_the_job_of_its_own(self, job: Path, plain_data: Path, tmp_path: Path) -> None:
        assert {name.split("/")[0] for name in tensors(job)} == set(NAMES)
        for alpha, width in (("1.0", 32), ("4.0", 16)):
            folder = tmp_path / f"{alpha}-{width}"
            flags = ["--alpha", alpha, "--hidden-width", width, "--seeds", "3"]
            assert run(*command(plain_data, folder, *flags)) == 0
            name = f"alpha={alpha},hidden_width={width},seed=3"
            for file in ("checkpoint", "policy_last"):
                ours, theirs = tensors(job, file), tensors(folder, file)
                for key, values in theirs.items():
                    own = ours[key.replace("seed_3/", f"{name}/")]
                    np.testing.assert_allclose(own, values, rtol=1e-3, atol=1e-5, err_msg=key)
            lines = [line for line in metric_lines(job) if line.pop("run") == name]
            assert all(line.pop("values") == {"alpha": float(alpha), "hidden_width": width} for line in lines)
            expected = metric_lines(folder)
            assert [line.keys() for line in lines] == [line.keys() for line in expected]
            for line, other in zip(lines, expected, strict=True):
                assert list(line.values()) == pytest.approx(list(other.values()), rel=1e-3, abs=1e-5)

    def test_the_summary_lists_runs_and_groups(self, job: Path) -> None:
        result = summary(job)
        assert [entry["name"] for entry in result["runs"]] == NAMES
        assert result["runs"][3]["values"] == {"alpha": 1.0, "hidden_width": 32} and result["runs"][3]["seed"] == 3
        assert [group["name"] for group in result["groups"]] == [name.rpartition(",")[0] for name in NAMES[::2]]
        assert "last" not in result and "best" not in result
        for i, group in enumerate(result["groups"]):
            last = group["last"]["held_out_td_rmse"]
            assert last == [result["runs"][2 * i + s]["last"]["held_out_td_rmse"] for s in (0, 1)]
        assert result["seeds"] == [0, 3] and result["stopped"] == {}

    def test_each_run_has_its_tensorboard_folder(self, job: Path) -> None:
        assert {path.name for path in (job / "tensorboard").iterdir()} == set(NAMES)

    def test_policies_are_found_by_name(self, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        observations = np.ones((4, 5), np.float32)
        name = NAMES[5]
        assert run("export", job, "--run", name, "--output", tmp_path / "p.npz") == 0
        launch, preparation, _ = restore(job, run=name)
        assert launch.keys == [name]
        scaling = preparation.scaling
        normalised = torch.tensor((observations - scaling.observation_mean) / scaling.observation_std)
        expected = launch.algorithm.act(normalised.unsqueeze(0))[0]
        np.testing.assert_allclose(c4rl.load_policy(job, run=name).act(observations), expected, rtol=1e-4, atol=1e-5)
        for flags, fragments in (
            (["--seed", "3"], ["4 runs of seed 3", "--run NAME", NAMES[1]]),
            (["--run", "alpha=9,seed=0"], ["no run 'alpha=9,seed=0'", NAMES[0]]),
        ):
            capsys.readouterr()
            assert run("export", job, *flags) == 2
            error = capsys.readouterr().err
            assert all(fragment in error for fragment in fragments), error
        with pytest.raises(InputError, match="no run named"):
            restore(job)

    def test_the_stored_config_repeats_it(self, job: Path, tmp_path: Path) -> None:
        assert run("train", "--config", job, "--output", tmp_path / "again") == 0
        assert_same_tensors(tmp_path / "again", job)
        assert metric_lines(tmp_path / "again") == metric_lines(job)

    def test_resumed_it_ends_the_same(self, job: Path, plain_data: Path, tmp_path: Path) -> None:
        folder = tmp_path / "job"
        cut_off_at_25(*command(plain_data, folder, *SWEEP))
        assert run("train", "--resume", folder) == 0
        assert_same_tensors(folder, job)
        assert_same_tensors(folder, job, "policy_last")
        assert metric_lines(folder) == metric_lines(job)
        assert summary(folder)["runs"] == summary(job)["runs"]


def test_c4_resumed_with_runs_of_different_K(plain_data: Path, tmp_path: Path) -> None:
    flags = ["--plugins", "c4", "--period", "10", "--sweep", "K=1,4", "lambda=0.1,0.3"]
    straight, folder = tmp_path / "straight", tmp_path / "job"
    assert run(*command(plain_data, straight, *flags)) == 0
    cut_off_at_25(*command(plain_data, folder, *flags))
    assert run("train", "--resume", folder) == 0
    assert_same_tensors(folder, straight)
    assert metric_lines(folder) == metric_lines(straight)


def test_a_run_that_fails_is_named_and_the_others_go_on(
    plain_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, well = tmp_path / "job", tmp_path / "well"
    flags = ["--plugins", "c4", "--period", "5"]
    failed = [f"critic_lr=0.1,K={k},seed=0" for k in (2, 3)]
    update = Launch.update

    def poisoned(self: Launch, step: int) -> None:
        update(self, step)
        for place, key in enumerate(self.keys):
            if step == 3 and key in failed:
                self.algorithm.actor.mlp.weights[0].data[place, 0, 0, 0] = float("nan")

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Launch, "update", poisoned)
        assert run(*command(plain_data, folder, *flags, "--sweep", "critic_lr=3e-4,0.1", "K=2,3")) == 1
    out = capsys.readouterr().out
    assert set(summary(folder)["stopped"]) == set(failed)
    for name in failed:
        assert f"{name}: " in out and "stopped, kept as of update 0" in out
    assert run(*command(plain_data, well, *flags, "--K", "2", "--critic-lr", "3e-4")) == 0
    ours = tensors(folder)
    assert all(np.isfinite(values).all() for values in ours.values())
    for key, values in tensors(well).items():
        own = ours[key.replace("seed_0/", "critic_lr=0.0003,K=2,seed=0/")]
        np.testing.assert_allclose(own, values, rtol=1e-3, atol=1e-5, err_msg=key)


def test_a_sweep_over_the_rows_that_are_cloned(plain_data: Path, tmp_path: Path) -> None:
    flags = ["--algorithm", "bc", "--sweep", "top_fraction=0.25,1"]
    assert run(*command(plain_data, tmp_path / "job", *flags)) == 0
    assert run(*command(plain_data, tmp_path / "alone", "--algorithm", "bc", "--top-fraction", "0.25")) == 0
    rows = [facts["rows"] for facts in summary(tmp_path / "job")["dataset"]]
    assert rows[0] == summary(tmp_path / "alone")["dataset"]["rows"] < rows[1]
    ours, theirs = tensors(tmp_path / "job"), tensors(tmp_path / "alone")
    for key, values in theirs.items():
        own = ours[key.replace("seed_0/", "top_fraction=0.25,seed=0/")]
        np.testing.assert_allclose(own, values, rtol=1e-3, atol=1e-5, err_msg=key)


# -- input

BAD: dict[str, tuple[list[str], list[str]]] = {
    "unknown option": (["gamma=0.9,0.99"], ["--sweep gamma=0.9,0.99", "no option is called 'gamma'", "discount", "K"]),
    "option of the job": (["size=10,20"], ["--sweep size=10,20", "setting of the whole job", "alpha"]),
    "no values": (["alpha="], ["--sweep", "'alpha='", "FLAG=VALUE,VALUE"]),
    "no flag": (["0.1,0.3"], ["--sweep", "'0.1,0.3'", "FLAG=VALUE,VALUE"]),
    "no number": (["alpha=1,much"], ["--sweep alpha=1,much", "'much'", "a number"]),
    "no whole number": (["K=1,2.5"], ["--sweep K=1,2.5", "'2.5'", "a whole number"]),
    "NaN": (["alpha=1,nan"], ["'nan'", "a number"]),
    "neither number nor auto": (
        ["lambda=0.1,automatic"],
        ["'automatic'", "a number at least 0, at most 1,000,000 or auto"],
    ),
    "no such choice": (["mode=proxy,fast"], ["'fast'", "one of proxy, exact"]),
    "a value that its option refuses": (["K=0,5"], ["--sweep K=0,5", "--K: found 0", "a whole number at least 1"]),
    "a value that the job refuses": (
        ["actor_lr=-1,1e-3"],
        ["--sweep actor_lr=-1,1e-3", "--actor-lr", "above 0, at most 1"],
    ),
    "a value twice": (["alpha=1,1.0"], ["--sweep alpha=1,1.0", "twice"]),
    "an option twice": (["actor-lr=1e-4", "actor_lr=1e-3"], ["'actor_lr' twice", "each option once"]),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_sweeps_are_refused_in_one_sentence(
    name: str, plain_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep, fragments = BAD[name]
    assert run(*command(plain_data, tmp_path / "job", "--plugins", "c4", "--sweep", *sweep)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1
    missing = [fragment for fragment in fragments if fragment not in err]
    assert not missing, f"{missing} not in: {err}"
    assert not (tmp_path / "job").exists()
