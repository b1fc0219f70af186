"""`c4rl ope` on jobs: a ranking with intervals, scores beside it, and what is refused."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import c4rl
from c4rl.data.dataset import Dataset
from c4rl.diagnostics.fitted_q import Estimates
from c4rl.results import off_policy, provenance
from c4rl.results.statistics import student_quantile
from c4rl.results.worth_of_estimates import measure, worth
from c4rl.training import records
from tests.cli.support import SMALL, listing, logged_arrays, run, save_npz

ROOT = Path(__file__).parents[2]
QUICK = ["--updates", "100", "--resamples", "2", "--hidden-layers", "1", "--hidden-width", "16", "--device", "cpu"]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    data = save_npz(folder / "logs.npz")
    command = ["train", "--algorithm", "bc", "--task", "none", "--dataset", data, "--output", folder / "job"]
    assert run(*command, "--updates", "20", "--seeds", "0", "1", "2", *SMALL) == 0
    return folder / "job"


def judged(*arguments: object, output: Path) -> dict[str, Any]:
    assert run("ope", *arguments, *QUICK, "--json", output) == 0
    return json.loads(output.read_text())


def test_policies_are_ranked_by_their_values_with_intervals(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(job)
    found = judged(job, output=tmp_path / "a.json")
    rows = found["policies"]
    assert {row["policy"] for row in rows} == {"seed_0", "seed_1", "seed_2"}
    values = [row["value"] for row in rows]
    assert values == sorted(values, reverse=True) and [row["rank"] for row in rows] == [1, 2, 3]
    assert all(row["interval"][0] < row["value"] < row["interval"][1] for row in rows)
    assert found["dataset"]["rows"] == 240  # those held out from training too
    arrays = logged_arrays()
    for row in rows:
        actions = c4rl.load_policy(job, run=row["policy"]).act(arrays["next_observations"])
        apart = np.square(actions - np.roll(arrays["actions"], -1, 0))[~arrays["timeouts"]].mean()
        assert row["action_distance"] == pytest.approx(apart, rel=1e-4)
    out = capsys.readouterr().out
    assert "rank correlation of values with simulator scores:" not in out  # there are none
    assert f"what such a ranking was worth on {len(found['measured_elsewhere']['sets'])} D4RL sets" in out
    assert out.index(rows[0]["policy"]) < out.index(rows[2]["policy"])
    assert listing(job) == before
    assert judged(job, output=tmp_path / "b.json") == found  # the same again


def test_simulator_scores_stand_beside_the_values(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores in the order of the values: a rank correlation of 1; turned around: -1."""
    order = [row["policy"] for row in judged(job, output=tmp_path / "order.json")["policies"]]
    for sign in (1, -1):
        scores = {name: -sign * float(place) for place, name in enumerate(order)}
        # the job has no simulator
        monkeypatch.setattr(off_policy, "_score", lambda *found, known=scores: known[f"seed_{found[2].seed}"])
        found = judged(job, output=tmp_path / f"{sign}.json")
        assert found["rank_correlation"] == pytest.approx(sign)
        assert [row["score"] for row in found["policies"]] == [scores[name] for name in order]
        assert f"rank correlation of values with simulator scores: {sign:.2f} of the ranked" in capsys.readouterr().out
    scores[order[0]] = None  # two say nothing
    assert judged(job, output=tmp_path / "two.json")["rank_correlation"] is None


@pytest.mark.parametrize("reward", [1, -1])
def test_values_that_still_rise_or_fall_are_not_called_settled(job: Path, reward: int, tmp_path: Path) -> None:
    data = save_npz(tmp_path / "alike.npz", rewards=np.full(240, reward, np.float32))
    rows = judged(job, "--dataset", data, output=tmp_path / "m.json")["policies"]
    assert all(any("not settled: moved by" in sentence for sentence in row["warnings"]) for row in rows)
    assert all(row["value"] * reward > 0 for row in rows)


def test_policies_that_leave_the_data_are_named(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same states with actions near one value: the policies of the job are farther from them than their mean."""
    fixed = (0.9 + 0.01 * logged_arrays()["actions"]).astype(np.float32)
    data = save_npz(tmp_path / "other.npz", actions=fixed)
    found = judged(job, "--dataset", data, output=tmp_path / "o.json")
    assert all("leaves the data" in row["warnings"][0] for row in found["policies"])
    assert [row["rank"] for row in found["policies"]] == [None] * 3
    assert capsys.readouterr().out.count("leaves the data") == 3


def test_without_a_logged_next_action_the_distance_is_not_known(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = save_npz(tmp_path / "steps.npz", timeouts=np.ones(len(logged_arrays()["rewards"]), bool))
    found = judged(job, "--dataset", data, output=tmp_path / "s.json")
    assert found["mean_action_distance"] is None
    assert all(
        row["action_distance"] is None and "may leave the data" in row["warnings"][0] for row in found["policies"]
    )
    assert "nan" not in capsys.readouterr().out


def test_one_trajectory_gives_no_interval_and_few_give_wider_ones(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its resamples are all alike, so that they would only show the noise of training."""
    once = np.arange(len(logged_arrays()["rewards"]))
    found = judged(job, "--dataset", save_npz(tmp_path / "one.npz", timeouts=once < 0), output=tmp_path / "1.json")
    assert all(row["interval"] is None and "has no interval" in row["warnings"][0] for row in found["policies"])
    assert "nan" not in capsys.readouterr().out

    def estimates(data: Dataset, *others: Any, **options: Any) -> Estimates:
        return Estimates(np.zeros(3), np.tile([-1.0, 1.0], (3, 1)), np.zeros(3), np.zeros(3), 1.0, 0.0)

    monkeypatch.setattr(off_policy, "fitted_q_evaluation", estimates)
    data = save_npz(tmp_path / "two.npz", timeouts=once == 99)
    low, high = judged(job, "--dataset", data, output=tmp_path / "2.json")["policies"][0]["interval"]
    assert high == -low == pytest.approx(student_quantile(0.975, 1) * np.sqrt(2) * np.sqrt(2 / (2 - 1)))


def test_the_metrics_of_a_job_are_read_once(job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Path] = []
    monkeypatch.setattr(
        provenance, "read_metrics", lambda path, runs: read.append(path) or records.read_metrics(path, runs)
    )
    judged(job, output=tmp_path / "once.json")
    assert read == [job / "metrics.jsonl"]


def test_only_policies_that_stay_with_the_data_are_ranked(job: Path, tmp_path: Path) -> None:
    """One of three jobs' policies plays the upper bound, whatever it sees."""
    from safetensors.numpy import load_file, safe_open, save_file

    odd = tmp_path / "odd"
    shutil.copytree(job, odd)
    path = odd / "policy_last.safetensors"
    arrays = load_file(path)
    with safe_open(path, "np") as file:
        metadata = file.metadata()
    arrays["seed_1/b2"] = np.full_like(arrays["seed_1/b2"], 50)
    save_file(arrays, path, metadata)
    rows = judged(odd, output=tmp_path / "r.json")["policies"]
    assert [row["rank"] for row in rows] == [1, 2, None] and rows[2]["policy"] == "seed_1"


def test_what_rankings_were_worth_follows_from_the_measured_policies() -> None:
    policies = json.loads((ROOT / "results" / "ope" / "policies.json").read_text())
    assert worth() == measure(policies)
    page = (ROOT / "docs" / "ope.md").read_text()
    for own in worth()["sets"].values():
        assert " | ".join(f"{own[name]:.2f}" for name in ("value", "value_of_clones", "nearness")) in page
    turned = copy.deepcopy(policies)
    for own in turned["sets"].values():
        own["policies"] = [[*row[:4], -row[4]] for row in own["policies"]]
    for task, own in measure(turned)["sets"].items():
        assert own["value"] == pytest.approx(-worth()["sets"][task]["value"])


def test_of_a_job_on_several_datasets_only_runs_on_the_given_one_are_judged(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [save_npz(tmp_path / f"{name}.npz", rewards=logged_arrays()["rewards"] + i) for i, name in enumerate("ab")]
    both = tmp_path / "both"
    command = ["train", "--algorithm", "bc", "--task", "none", "--dataset", *data, "--output", both]
    assert run(*command, "--updates", "2", "--seeds", "0", "1", *SMALL) == 0
    found = judged(both, job, "--dataset", data[1], output=tmp_path / "j.json")
    names = {row["policy"] for row in found["policies"]}
    assert names == {f"{both}: b,seed={seed}" for seed in range(2)} | {f"{job}: seed_{seed}" for seed in range(3)}
    assert found["dataset"]["path"] == str(data[1])
    capsys.readouterr()
    for arguments, message in (([], "expected one, or --dataset FILE"), (["--dataset", job], "trained on")):
        assert run("ope", both, *arguments) == 2
        assert message in capsys.readouterr().err


def test_what_cannot_be_judged_is_refused_before_anything_is_fitted(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = {name: logged_arrays()[name][:, :3] for name in ("observations", "next_observations")}
    data = save_npz(tmp_path / "narrow.npz", **narrow)
    taken = tmp_path / "taken.json"
    taken.write_text("")
    for arguments, message in (
        ([job, "--dataset", data], "found 3 observations and 2 actions, expected 5 and 2"),
        ([job, job], "expected each folder once"),
        ([job, job.parent / "." / ".." / job.parent.name / job.name], "expected each folder once"),
        ([tmp_path / "absent"], "no such folder"),
        ([job, "--checkpoint", "best"], "--checkpoint: found best, expected last, which"),
        ([job, "--json", taken], "exists already"),
        ([job, "--resamples", "1"], "--resamples: found 1, expected a whole number at least 2"),
        ([], "FOLDERS"),
    ):
        assert run("ope", *arguments) == 2, arguments
        err = capsys.readouterr().err
        assert message in err and err.count("\n") == 1, err
