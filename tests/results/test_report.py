"""`c4rl report`: one page on a job or several, complete, small and quick, whatever state the jobs are in."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from c4rl.environments.making import make_environment
from c4rl.environments.tasks import get_task, missing
from c4rl.results.report.policies import RENDERED
from tests.cli.support import SMALL, listing, logged_arrays, run, save_npz
from tests.diagnostics.browser import visit
from tests.diagnostics.folders import make_folder


def plots_of(page: Path) -> list[dict[str, Any]]:
    found = re.search(r'id="plots">(.*?)</script>', page.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def sections_of(page: Path) -> list[str]:
    return re.findall(r"<h2[^>]*>(.*?)</h2>", page.read_text("utf-8"))


def test_a_finished_job_with_its_diagnostics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, job, page = save_npz(tmp_path / "data.npz"), tmp_path / "job", tmp_path / "page.html"
    flags = ["--updates", "20", "--eval-every", "10", "--log-every", "5", "--seeds", "0", "1", "--threads", "1"]
    usual = ["train", "--dataset", data, "--task", "none", "--plugins", "c4", "--period", "10", *SMALL]
    assert run(*usual, *flags, "--output", job) == 0
    assert run("diagnose", job, "--size", "60", "--save") == 0
    assert run("report", job, "--output", page) == 0
    assert "MB" in capsys.readouterr().out
    expected = ["Scores", "Inside the critic", "Clusters over time", "Q health", "Timings", "Settings", "Datasets"]
    assert [section for section in sections_of(page) if section in expected] == expected
    text = page.read_text("utf-8")
    assert "late held out action error" in text and "No sign of divergence" in text
    assert '<th class="words" scope="row">rows</th><td>240</td>' in text  # the dataset's card
    assert "run-updates per second" in text


def test_a_comparison_orders_by_score_and_names_what_differs(tmp_path: Path) -> None:
    worse = make_folder(tmp_path / "worse", slope=1.0, seeds=(0, 1, 2))
    better = make_folder(tmp_path / "better", slope=2.0, seeds=(0, 1, 2), alpha=7.5, missing=("c4_effective_K",))
    page = tmp_path / "page.html"
    assert run("report", worse, better, "--output", page) == 0
    text = page.read_text("utf-8")
    (row, *_) = re.findall(r"<tr><th[^>]*>better</th>(.*?)</tr>", text)
    # late: the mean of 2 * (6, ..., 10) over three seeds that differ by 1; Student's half width is 4.303 / sqrt 3
    assert re.findall(r">([^<>]+)</td>", row)[:3] == ["3", "17", "14.52 to 19.48"]
    curves = plots_of(page)[0]["series"]
    assert [series["name"] for series in curves] == ["better", "worse"]
    assert curves[0]["y"][0] == 3.0 and (curves[0]["low"][0], curves[0]["high"][0]) == (2.0, 4.0)
    assert "options.alpha</th>" in text and "7.5</td>" in text
    assert "no longer readable" in text  # the dataset of these made-up jobs
    (clusters,) = [plot for plot in plots_of(page) if plot["label"].startswith("Clusters with 2%")]
    assert [(series["name"], series["colour"]) for series in clusters["series"]] == [("worse", 1)]  # its colour stays


def test_a_run_that_blew_up_is_named(tmp_path: Path) -> None:
    job = make_folder(tmp_path / "job", lines=12)
    lines = [json.loads(line) for line in (job / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["update"] >= 900 and "critic_loss" in line:
            line["critic_loss"] = "nan"
    (job / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run("report", job, "--output", tmp_path / "page.html") == 0
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "job at update 916: the critic&#x27;s loss is not finite." in text
    assert "†" not in text


def test_scores_of_other_kinds_stand_apart(tmp_path: Path) -> None:
    """Scores in a simulator, and errors where there is none: no common order, table, plot or correlation."""
    jobs = [
        make_folder(tmp_path / name, slope=slope, seeds=(0, 1, 2), task=task)
        for name, slope, task in (("a", 1, "none"), ("b", 3, "none"), ("c", 2, "maze2d-umaze-v1"))
    ]
    for job in jobs[:2]:  # were trained without a simulator
        text = (job / "metrics.jsonl").read_text().replace('"score"', '"held_out_action_rmse"')
        (job / "metrics.jsonl").write_text(text)
    new = make_folder(tmp_path / "new", seeds=(0,))
    new_lines = [json.loads(line) for line in (new / "metrics.jsonl").read_text().splitlines()]
    for line in new_lines:
        if "score" in line:
            line |= {"held_out_action_rmse": "nan", "failed_at": 500}
            del line["score"]
        else:
            line |= dict.fromkeys(("td_A", "td_B", "td_C"), "inf")
    (new / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in new_lines))
    page = tmp_path / "page.html"
    assert run("report", *jobs, new, "--output", page) == 0
    text, plots = page.read_text("utf-8"), plots_of(page)
    (scores,) = (plot for plot in plots if plot["label"].startswith("Learning curves: normalised score"))
    (errors,) = (plot for plot in plots if plot["label"].startswith("Learning curves: held out action error"))
    assert [one["name"] for one in scores["series"]] == ["c"]
    assert [one["name"] for one in errors["series"]] == ["a", "b"], "the least error first"
    (of_errors,) = re.findall(r"<table><thead>(?:(?!</table>).)*late held out action error.*?</table>", text)
    assert re.findall(r'scope="row">(.*?)</th>', of_errors) == ["a", "b", "new †"], "without any, last"
    assert "†: some runs failed" in text


def test_terms_are_shown_with_scores_and_their_rank_correlation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_folder(tmp_path / "job", seeds=tuple(range(5)))  # a later seed scores more
    found = {
        "cosines": {"td_cosine_with_variance": 0.9, "td_cosine_with_mean": 0.1},
        "q": {"bound": "inf"} | {kind: {"mean": "nan"} for kind in ("data", "policy", "random")},
    }
    terms = {"variance": 1, "cross_share": 1, "base_variance": 1, "by_step": [], "gap_order": None, "B": 3.0}
    runs = [found | {"run": f"seed_{i}", "terms": terms | {"A": 10.0 + i, "C": 1.0 - i}} for i in range(5)]
    (job / "diagnostics.json").write_text(json.dumps({"runs": runs}))
    assert run("report", job, "--output", tmp_path / "page.html") == 0
    text = (tmp_path / "page.html").read_text("utf-8")
    assert "over 5 runs: A +1.00, B +0.00, C -1.00." in text
    assert ">job, seed_3</th><td>11</td><td>13</td>" in text
    runs[3]["q"]["bound"] = "edited"
    (job / "diagnostics.json").write_text(json.dumps({"runs": runs}))
    assert run("report", job, "--output", tmp_path / "again.html") == 2
    assert "field 'q.bound' is 'edited', expected a number" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "field"),
    [
        ("summary.json", {"device": "cpu"}, "algorithm"),
        ("summary.json", {"algorithm": "td3_bc", "seeds": [0], "updates": 1000, "device": "cpu"}, "dataset"),
        ("diagnostics.json", {"runs": [{"run": "seed_0"}]}, "terms.A"),
    ],
)
def test_a_file_of_another_version_is_refused(
    name: str, content: dict[str, Any], field: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_folder(tmp_path / "job")
    (job / name).write_text(json.dumps(content))
    assert run("report", job, "--output", tmp_path / "page.html") == 2
    assert f"{name}: field '{field}' is" in capsys.readouterr().err
    assert not (tmp_path / "page.html").exists()


def test_policies_of_a_maze_are_drawn_and_recorded_rows_keep_their_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, job, page = tmp_path / "maze.npz", tmp_path / "job", tmp_path / "page.html"
    assert run("data", "record", "maze2d-umaze-dense-v1", "--size", "300", "--output", data) == 0
    usual = ["--dataset", data, "--task", "maze2d-umaze-dense-v1", "--updates", "2", "--eval-every", "2"]
    assert run("train", *usual, "--eval-episodes", "1", *SMALL, "--threads", "1", "--output", job) == 0
    assert run("report", job, "--output", page) == 0
    assert "Policies" in sections_of(page) and "data:image/png;base64," in page.read_text("utf-8")
    name = "c4rl/maze2d-umaze-dense"
    assert f"trained on {name}\n" in re.sub(" +\n", "\n", capsys.readouterr().out), "below the table of train"
    assert f'<th class="words" scope="row">name</th><td class="words">{name}</td>' in page.read_text("utf-8")
    assert run("export", job, "--output", tmp_path / "policy.npz") == 0
    assert f"| name | `{name}` |" in (tmp_path / "policy.npz.md").read_text()


def test_frames_of_a_robot_are_drawn_where_mujoco_renders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="MuJoCo is not installed")
    data, job, page = (
        save_npz(tmp_path / "data.npz", **logged_arrays(60, 11, 3)),
        tmp_path / "job",
        tmp_path / "page.html",
    )
    usual = [
        "--dataset",
        data,
        "--task",
        "hopper-medium-v2",
        "--algorithm",
        "bc",
        "--updates",
        "2",
        "--eval-every",
        "1",
    ]
    few = ["--eval-episodes", "1", *SMALL, "--threads", "1", "--select", "held-out"]
    assert run("train", *usual, *few, "--output", job) == 0
    assert run("report", job, "--output", page) == 0
    text = page.read_text("utf-8")
    assert "data:image/png;base64," in text or "MuJoCo cannot render here" in text
    assert "Held-out selection" in sections_of(page) and "Held out action rmse" in text
    monkeypatch.setenv("MUJOCO_GL", "nothing")
    assert run("report", job, "--output", tmp_path / "again.html") == 0
    text = (tmp_path / "again.html").read_text("utf-8")
    assert "No frames of hopper-medium-v2: MuJoCo cannot render here" in text and "data:image/png" not in text


@pytest.mark.parametrize("name", ["hopper-medium-v2", "antmaze-umaze-v2", "pen-human-v1", "kitchen-mixed-v0"])
def test_frames_can_be_drawn_of_a_task_of_each_domain(name: str) -> None:
    """Drawing needs MuJoCo's model and state of the environment."""
    task = get_task(name)
    assert task.domain in RENDERED
    if (reason := missing(task)) is not None:
        pytest.skip(reason)
    simulator: Any = make_environment(task).unwrapped
    assert simulator.data.qpos.shape == (simulator.model.nq,)


def test_a_job_that_has_just_begun(tmp_path: Path) -> None:
    job = make_folder(tmp_path / "job")
    (job / "metrics.jsonl").write_text("")
    assert run("report", job, "--output", tmp_path / "page.html") == 0
    assert "not finished" in (tmp_path / "page.html").read_text("utf-8")


def test_a_sweep_of_300_runs_is_small_and_opens_quickly(tmp_path: Path) -> None:
    rates = ",".join(str(round(0.5 + i / 10, 1)) for i in range(60))
    job = make_folder(tmp_path / "job", lines=40, updates=100_000, seeds=tuple(range(5)), sweep=(f"alpha={rates}",))
    page = tmp_path / "page.html"
    assert run("report", job, "--output", page) == 0
    assert page.stat().st_size < 3e6
    text = page.read_text("utf-8")
    assert all(f">alpha={rate}</th>" in text for rate in rates.split(","))
    seen = visit(page, "return document.querySelectorAll('svg .curve').length")
    assert seen["errors"] == [] and seen["requests"] == [] and seen["found"] >= 8
    assert seen["opened"] < 10_000  # 2,000 on a machine that does nothing else


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "expected one or more folders"),
        (["JOB", "JOB"], "found a folder twice"),
        (["nowhere"], "no such folder"),
        (["JOB", "--output", "JOB/config.json"], "exists already"),
        (["JOB", "--output", "nowhere/page.html"], "is not a folder"),
        (["JOB", "--outpt", "page.html"], "did you mean --output?"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    job = make_folder(tmp_path / "job")
    before = listing(tmp_path)
    assert run("report", *(word.replace("JOB", str(job)) for word in words)) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1
    assert listing(tmp_path) == before
