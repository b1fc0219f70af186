"""What finished jobs leave in the results, and what the page says about them beside the paper."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from c4rl.core.files import write_json
from tests.locomotion_table.support import HOPPER, cells, collect, finish, planned, script


def test_numbers_are_those_of_the_paper(shared: Callable[[str], Path]) -> None:
    text = shared("paper.tex").read_text()
    short = {"expert": "e", "medium": "m", "medium-replay": "mr", "medium-expert": "me"}
    for task in script.SETS:
        robot, quality = task.removesuffix("-v2").split("-", 1)
        rows = re.findall(rf"^{robot.capitalize()}-{short[quality]} +&(.*?)\\\\", text, flags=re.MULTILINE)
        columns = ["td3_bc", "cql", "iql", "doge", "bppo", "tsrl", "a2pr"]
        main = next(row for row in rows if r"\pm" in row).replace(r"$\pm$", " ± ").split("&")
        assert [cell.strip() for cell in main[:7]] == [str(script.PAPER[name][task]) for name in columns]
        small = [row.split("&")[0].strip() for row in rows if r"\pm" not in row]  # begins with BC
        assert [str(script.PAPER["bc"][task])] == small[:1] if small else task not in script.PAPER["bc"]
    assert script.PAPER["sorl"] == {}


def test_without_results_every_cell_is_open_and_the_papers_columns_are_there(folders: SimpleNamespace) -> None:
    folders.output.mkdir()
    assert collect(folders) == 0
    assert cells(folders, "TD3+BC")["hopper-expert-v2"] == "not run yet / 53.6 ± 17.1"
    assert cells(folders, "BC")["hopper-expert-v2"] == "not run yet / –"
    page = folders.page.read_text()
    assert page.count("not run yet /") == len(script.PAPER) * len(script.SETS)
    assert "100,000 (planned)" in page and "None so far." in page and " † /" not in page
    assert not (folders.results / "explanations.json").exists()


def test_scores_are_collected_and_those_beyond_two_deviations_marked(folders: SimpleNamespace) -> None:
    (hopper,) = planned(folders, algorithms=["td3_bc"], sets=list(HOPPER))
    # the paper: 53.6 ± 17.1, 22.6 ± 13.9 (27.8 is two of them), 11.3 ± 4.7 (9.4 is)
    finish(hopper, {HOPPER[0]: [50.0, 53.0, 59.0], HOPPER[1]: [-5.1, -6.1, -4.1], HOPPER[2]: [19.8, 20.8, 21.8]})
    assert collect(folders) == 0
    row = cells(folders, "TD3+BC")
    assert row[HOPPER[0]] == "54.0 ± 4.6 / 53.6 ± 17.1"
    assert row[HOPPER[1]] == "-5.1 ± 1.0 / 22.6 ± 13.9"
    assert row[HOPPER[2]] == "20.8 ± 1.0 † / 11.3 ± 4.7"
    assert row["walker2d-medium-v2"] == "not run yet / 11.2 ± 19.2"
    page = folders.page.read_text()
    assert "- † TD3+BC, hopper medium-replay, 20.8 ± 1.0 / 11.3 ± 4.7: no explanation yet" in page
    assert "seeds 0, 1, 2; budget: 100,000 critic updates" in page and "10 evaluation episodes" in page


def test_jobs_with_faster_products_are_named(folders: SimpleNamespace) -> None:
    for name, precision in (("bc", "fp32"), ("doge", "bf16x3"), ("cql", "bf16x3")):
        (job,) = planned(folders, algorithms=[name], sets=["hopper-expert-v2"], precision=precision)
        finish(job, {"hopper-expert-v2": [50.0, 53.0, 59.0]})
    assert collect(folders) == 0
    assert "- matrix products: fp32; bf16x3: DOGE, CQL\n" in folders.page.read_text()


def test_results_hold_raw_scores_and_settings_but_no_paths(folders: SimpleNamespace) -> None:
    (job,) = planned(folders, algorithms=["iql"], sets=["walker2d-medium-v2"])
    data = {"path": str(job.dataset[0]), "rows": 7, "sha256": "ab"}
    finish(job, {"walker2d-medium-v2": [1.5, 2.5, 3.5]}, dataset=data, last={"returns": [[1.0, 2.0]]})
    assert collect(folders) == 0
    text = (folders.results / "iql.json").read_text()
    assert str(folders.data) not in text and str(folders.output) not in text
    stored = json.loads(text)["jobs"]["iql-walker2d-medium"]
    assert stored["summary"]["dataset"] == {"path": "walker2d-medium-v2.npz", "rows": 7, "sha256": "ab"}
    assert stored["summary"]["last"]["returns"] == [[1.0, 2.0]]
    assert stored["config"]["options"]["expectile"] == 0.7 and stored["stages"] == [["training", 100_000, 1_000_000]]


def test_results_tell_when_a_run_was_lost(folders: SimpleNamespace) -> None:
    (job,) = planned(folders, algorithms=["iql"], sets=["walker2d-medium-v2"])
    finish(job, {"walker2d-medium-v2": [1.5, 2.5, 3.5]})
    lines: list[dict[str, Any]] = [{"update": 0, "seed": 0, "score": 3.0}]
    lines += [{"update": 500 * i, "seed": 0, "critic_loss": 1.23456 * i, "q": 2.0**i} for i in range(1, 24)]
    lines.append({"update": 12_000, "seed": 0, "critic_loss": None, "q": float("nan")})
    (job.output / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert collect(folders) == 0
    (found,) = json.loads((folders.results / "iql.json").read_text())["jobs"]["iql-walker2d-medium"]["curves"].values()
    assert found["update"] == [1000 * i for i in range(1, 13)]
    assert found["critic_loss"][0] == 2.469 and found["q"][:2] == [4.0, 16.0]
    assert found["critic_loss"][-1] is None and found["q"][-1] is None


def test_collecting_twice_changes_nothing_and_explanations_stay(folders: SimpleNamespace) -> None:
    (job,) = planned(folders, algorithms=["cql"], sets=["halfcheetah-expert-v2"])
    finish(job, {"halfcheetah-expert-v2": [50.0, 51.0, 52.0]})
    assert collect(folders) == 0
    places = json.loads((folders.results / "explanations.json").read_text())
    assert places == {"cql halfcheetah-expert-v2": ""}
    write_json(
        folders.results / "explanations.json", {"cql halfcheetah-expert-v2": "More of the moon.", "other": "kept"}
    )
    assert collect(folders) == 0
    assert "51.0 ± 1.0 / 5.8 ± 1.3: More of the moon." in folders.page.read_text()
    files = [folders.page, *sorted(folders.results.iterdir())]
    before = [(file.read_bytes(), file.stat().st_mtime_ns) for file in files[1:]], folders.page.read_bytes()
    assert collect(folders) == 0
    after = [(file.read_bytes(), file.stat().st_mtime_ns) for file in files[1:]], folders.page.read_bytes()
    assert after == before
    assert b"kept" in (folders.results / "explanations.json").read_bytes()


def test_other_scores_of_a_set_and_other_budgets_are_refused(folders: SimpleNamespace) -> None:
    one = {"algorithms": ["bc"], "sets": ["hopper-expert-v2"]}
    (job,) = planned(folders, **one)
    finish(job, {"hopper-expert-v2": [1.0, 2.0, 3.0]})
    assert collect(folders) == 0
    before = (folders.results / "bc.json").read_bytes(), folders.page.read_bytes()
    assert planned(folders, **one) == []  # collected already
    again = SimpleNamespace(**vars(folders) | {"output": folders.output.with_name("again")})
    (other,) = planned(again, **one, updates=50)
    finish(other, {"hopper-expert-v2": [4.0, 5.0, 6.0]})
    assert collect(again) == 2
    mixed = SimpleNamespace(**vars(folders) | {"output": folders.output.with_name("mixed")})
    (other,) = planned(mixed, algorithms=["iql"], sets=["hopper-expert-v2"], updates=50)
    finish(other, {"hopper-expert-v2": [4.0, 5.0, 6.0]})
    assert collect(mixed) == 2
    assert ((folders.results / "bc.json").read_bytes(), folders.page.read_bytes()) == before
    assert not (folders.results / "iql.json").exists()


def test_scores_of_different_physics_are_never_put_together(folders: SimpleNamespace) -> None:
    (job,) = planned(folders, algorithms=["bc"], sets=["hopper-expert-v2"])
    finish(job, {"hopper-expert-v2": [1.0, 2.0, 3.0]})  # of before summaries said it
    assert collect(folders) == 0
    assert "- scored on: **gymnasium's -v4 physics, not D4RL's**" in folders.page.read_text()
    before = folders.page.read_bytes()
    mixed = SimpleNamespace(**vars(folders) | {"output": folders.output.with_name("mixed")})
    (job,) = planned(mixed, algorithms=["iql"], sets=["hopper-expert-v2"])
    finish(job, {"hopper-expert-v2": [4.0, 5.0, 6.0]}, environment="d4rl-1, mujoco 3.11.0")
    assert collect(mixed) == 2
    assert folders.page.read_bytes() == before and not (folders.results / "iql.json").exists()
    apart = SimpleNamespace(**vars(mixed) | {"results": folders.results.with_name("apart")})
    (job,) = planned(apart, algorithms=["bc"], sets=["hopper-expert-v2"])
    finish(job, {"hopper-expert-v2": [7.0, 8.0, 9.0]}, environment="d4rl-1, mujoco 4.0.0")  # the same on every MuJoCo
    assert collect(apart) == 0
    assert "- scored on: D4RL's physics (d4rl-1)\n" in folders.page.read_text()


def test_runs_that_were_stopped_early_are_named(folders: SimpleNamespace) -> None:
    (job,) = planned(folders, algorithms=["bppo"], sets=["hopper-expert-v2"])
    why = {"update": 9000, "failed_at": 9731, "reason": "loss is not finite"}
    finish(job, {"hopper-expert-v2": [80.0, 90.0, 85.0]}, stopped={"1": why})
    assert collect(folders) == 0
    page = folders.page.read_text()
    row = f"BPPO (acceptance {job.options.acceptance})"  # type: ignore[attr-defined]
    assert f"- {row}, hopper expert, seed 1: stopped at update 9,731 (loss is not finite), scored as of 9,000" in page
    assert f"| {row} | value | 2,000,000 | 2,000,000 |" in page


def test_claimed_relations_are_held_not_held_or_not_run(folders: SimpleNamespace) -> None:
    replay = ["halfcheetah-medium-replay-v2", "hopper-medium-replay-v2"]
    scores = {"bc": (30.0, 20.0), "iql": (28.0, 26.0)}
    for job in planned(folders, algorithms=["bc", "iql"], sets=replay):
        (task,) = job.task
        finish(job, {task: [scores[job.algorithm][replay.index(task)]] * 3})
    for job in planned(folders, algorithms=["tsrl", "td3_bc"], sets=["hopper-expert-v2"]):
        finish(job, {"hopper-expert-v2": [70.0 if job.algorithm == "tsrl" else 50.0] * 3})
    assert collect(folders) == 0
    lines = folders.page.read_text().splitlines()
    for line in (
        "| IQL > BC | halfcheetah medium-replay | 28.0 ± 0.0 : 30.0 ± 0.0 | not held | 34.1 ± 6.3 : 25.2 | held |",
        "| IQL > BC | hopper medium-replay | 26.0 ± 0.0 : 20.0 ± 0.0 | held | 16.2 ± 3.0 : 19.7 | not held |",
        "| IQL > BC | **mean** | 27.0 : 25.0 | held | 25.1 : 22.4 | held |",
        "| TSRL > TD3+BC | hopper expert | 70.0 ± 0.0 : 50.0 ± 0.0 | held | 76.7 ± 20.4 : 53.6 ± 17.1 | held |",
        "| TSRL > TD3+BC | **mean** | – | not run | 46.0 : 24.1 | held |",
        "| DOGE > TD3+BC | hopper expert | – | not run | 62.2 ± 21.7 : 53.6 ± 17.1 | held |",
    ):
        assert line in lines
