"""--points: a list of settings as one job; --only: some runs of a job; and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from c4rl.cli.train import config_of
from c4rl.jobs.runs import launch_groups, runs_of
from tests.cli.support import SMALL, assert_same_tensors, run, summary, tensors
from tests.helpers import CPU

JOB = ["--task", "none", "--plugins", "c4", "--period", "10", *SMALL, "--device", "cpu", "--threads", "1"]
EVERY = ["--updates", "20", "--log-every", "10", "--eval-every", "20"]
POINTS = [{"lambda": 0.1, "K": 3}, {"K": 2, "critic-lr": 1e-3}, {"lambda": 0.5, "hidden_width": 16}]
NAMES = [
    "lambda=0.1,K=3,critic_lr=0.0003,hidden_width=32,seed=0",
    "lambda=0.3,K=2,critic_lr=0.001,hidden_width=32,seed=0",
    "lambda=0.5,K=5,critic_lr=0.0003,hidden_width=16,seed=0",
]


def write(path: Path, points: object) -> Path:
    path.write_text(points if isinstance(points, str) else json.dumps(points))
    return path


def command(data: Path, output: Path, *flags: object) -> list[object]:
    return ["train", "--dataset", data, *JOB, *EVERY, "--output", output, *flags]


@pytest.fixture(scope="module")
def job(plain_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("points")
    file = write(folder / "points.json", POINTS)
    assert run(*command(plain_data, folder / "job", "--points", file)) == 0
    return folder / "job"


def test_a_point_is_the_job_of_its_own_and_unnamed_options_keep_the_jobs_value(
    job: Path, plain_data: Path, tmp_path: Path
) -> None:
    assert [one["name"] for one in summary(job)["runs"]] == NAMES
    flags = ["--K", "2", "--critic-lr", "1e-3"]
    assert run(*command(plain_data, tmp_path / "own", *flags)) == 0
    ours = tensors(job, "policy_last")
    for key, values in tensors(tmp_path / "own", "policy_last").items():
        own = ours[key.replace("seed_0/", f"{NAMES[1]}/")]
        np.testing.assert_allclose(own, values, rtol=1e-3, atol=1e-5, err_msg=key)


def test_points_of_one_shape_share_a_launch(plain_data: Path, tmp_path: Path) -> None:
    lines = "\n".join(map(json.dumps, POINTS))  # JSON lines
    words = command(plain_data, tmp_path / "job", "--points", write(tmp_path / "p.jsonl", lines), "--seeds", "0", "1")
    config = config_of([str(word) for word in words[1:]])
    groups = launch_groups(config, runs_of(config), [200], CPU)
    assert [len(group) for group in groups] == [4, 2]  # apart for their width alone


def test_every_point_meets_every_combination_of_the_sweep(plain_data: Path, tmp_path: Path) -> None:
    points = write(tmp_path / "p.json", [{"lambda": 0.1}, {"lambda": 0.2}])
    words = command(plain_data, tmp_path / "job", "--points", points, "--sweep", "K=2,3")
    names = [run.group for run in runs_of(config_of([str(word) for word in words[1:]]))]
    assert names == [f"lambda={value},K={k}" for value in (0.1, 0.2) for k in (2, 3)]


def test_the_stored_config_repeats_the_job_and_only_some_of_its_runs(job: Path, tmp_path: Path) -> None:
    """Without the file of points; a run alone in its launch is bit-equal."""
    assert run("train", "--config", job, "--output", tmp_path / "one", "--only", NAMES[2]) == 0
    found, whole = tensors(tmp_path / "one"), tensors(job)
    assert found and all(name.startswith(NAMES[2]) for name in found)
    assert all(values.tobytes() == whole[name].tobytes() for name, values in found.items())
    assert [one["name"] for one in summary(tmp_path / "one")["runs"]] == [NAMES[2]]
    assert run("train", "--config", job, "--output", tmp_path / "again") == 0
    assert_same_tensors(tmp_path / "again", job)


LONG = ("lambda", "critic_lr", "actor_lr", "tau", "discount", "policy_noise", "noise_clip", "alpha", "beta")
REFUSED = {
    "no such option": ([{"lambada": 1}], "point 1: no option is called 'lambada', expected one of "),
    "an option of the whole job": ([{"updates": 5}], "point 1: --updates is a setting of the whole job"),
    "a word for a number": ([{"K": 2}, {"K": "many"}], "point 2: field 'K' is \"many\", expected a whole number"),
    "a fraction for a whole number": ([{"K": 2.5}], "point 1: field 'K' is 2.5, expected a whole number"),
    "out of bounds": ([{"lambda": -1}], "--points lambda=-1.0: --lambda: found -1, expected a number"),
    "not a number": ('[{"lambda": NaN}]', "lambda: found 'nan', expected a number"),
    "a list": ([{"K": [1, 2]}], "point 1: field 'K' is [1, 2], expected a whole number"),
    "an option twice": ('[{"K": 2, "K": 3}]', "found 'K' twice"),
    "an option in two spellings": ([{"critic-lr": 1e-3, "critic_lr": 1e-4}], "point 1: found 'critic_lr' twice"),
    "a point twice": ([{"K": 3}, {"K": 2}, {"K": 3, "lambda": 0.3}], "in points 1 and 3"),
    "no points": ([], "found no point"),
    "an empty file": ("\n", "found no point"),
    "an empty point": ([{}], "point 1: found {}, expected an object"),
    "no object": ([3], "point 1: found 3, expected an object"),
    "no JSON": ("K=3", "line 1: not JSON"),
    "a broken line": ('{"K": 3}\n{"K": ', "line 2: not JSON"),
    "too many": ("".join(f'{{"lambda": {i}}}\n' for i in range(10_001)), "found 10,001 runs, expected at most 10,000"),
    "a name too long": ([dict.fromkeys(LONG, 0.123456789123456789)], "expected at most 200"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_points_are_refused(
    case: str, plain_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    points, sentence = REFUSED[case]
    file = write(tmp_path / "points", points)
    assert run(*command(plain_data, tmp_path / "job", "--points", file)) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and sentence in err, err
    assert not (tmp_path / "job").exists()


def test_flags_that_do_not_go_together_are_refused(
    job: Path, plain_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write(tmp_path / "p.json", [{"K": 2}])
    for flags, sentence in (
        (["--points", tmp_path / "absent.json"], "absent.json: no such file"),
        (["--points", file, "--sweep", "K=2,3"], "--points: found K in --sweep too, expected an option in one of them"),
        (["--points", file, "--only", "K=9,seed=0"], "--only: found no run 'K=9,seed=0', expected some of K=2,seed=0"),
        (["--points", file, "--only", "K=2,seed=0", "K=2,seed=0"], "--only: found a run twice"),
    ):
        assert run(*command(plain_data, tmp_path / "job", *flags)) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and sentence in err, err
    assert run("train", "--resume", job, "--points", file) == 2
    capsys.readouterr()
    assert run("train", "--config", job, "--output", tmp_path / "job", "--K", "7") == 2
    assert "--K: found in the points of" in capsys.readouterr().err
    assert not (tmp_path / "job").exists()
