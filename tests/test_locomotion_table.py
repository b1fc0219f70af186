"""The table of all algorithms on locomotion: which jobs there are, what they leave behind, and what the page says."""

import importlib.util
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from c4rl.config import TrainConfig, to_json
from c4rl.errors import InputError
from c4rl.files import write_json
from c4rl.training.checkpoint import load_checkpoint

ROOT = Path(__file__).resolve().parents[1]
SCRIPT, PAGE = ROOT / "benchmarks" / "locomotion_table.py", ROOT / "docs" / "locomotion.md"
HOPPER = ("hopper-expert-v2", "hopper-medium-expert-v2", "hopper-medium-replay-v2")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("locomotion_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(SCRIPT.parent))  # where Python looks when the script is run
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


script: Any = _load()


@pytest.fixture
def folders(tmp_path: Path) -> SimpleNamespace:
    """Data that are there (planning does not read them), the project's page, and nothing else."""
    data = tmp_path / "data"
    data.mkdir()
    for task in script.SETS:
        (data / f"{task}.npz").touch()
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    return SimpleNamespace(data=data, output=tmp_path / "runs", results=tmp_path / "results", page=page)


def planned(folders: SimpleNamespace, **changes: Any) -> list[TrainConfig]:
    given: dict[str, Any] = {
        "algorithms": list(script.PAPER),
        "plugins": ["none"],
        "sets": list(script.SETS),
        "updates": 100_000,
        "seeds": [0, 1, 2],
        "stage_fraction": 1.0,
        "device": "cpu",
        "precision": "fp32",
    }
    return script.plan(SimpleNamespace(**vars(folders) | given | changes))


def finish(config: TrainConfig, scores: dict[str, list[float]], **summary: Any) -> None:
    """A job folder as a finished job leaves it, with these scores per set and seed."""
    several = len(config.task) > 1
    runs = [
        {
            "name": f"{task},seed={seed}" if several else f"seed_{seed}",
            "seed": seed,
            "task": task,
            "dataset": str(path),
            "values": {},
            "last": score,
            "best": score + 1,
        }
        for task, path in zip(config.task, config.dataset, strict=True)
        for seed, score in zip(config.seeds, scores[task], strict=True)
    ]
    facts = {"stopped": {}, "device": "cpu", "versions": {"torch": "2"}, "timing": {"total_seconds": 50.0}}
    config.output.mkdir(parents=True)
    write_json(config.output / "config.json", to_json(config))
    write_json(config.output / "summary.json", {"runs": runs, **facts, **summary})


def collect(folders: SimpleNamespace) -> int:
    words = ["--collect", folders.output, "--results", folders.results, "--page", folders.page]
    return script.main([str(word) for word in words])


def cells(folders: SimpleNamespace, row: str) -> dict[str, str]:
    """A row of the table of scores, by set."""
    (line,) = (
        line for line in folders.page.read_text().splitlines() if line.startswith(f"| {row} | ") and " / " in line
    )
    return dict(zip(script.SETS, line.strip("| ").split(" | ")[1:], strict=True))


# -- the paper's numbers


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


# -- jobs


def test_the_sets_of_a_robot_share_a_job_each_with_its_own_published_settings(folders: SimpleNamespace) -> None:
    jobs = {config.output.name: config for config in planned(folders)}
    assert len(jobs) == 3 * len(script.PAPER)
    assert jobs["td3_bc-hopper-expert_medium-expert_medium-replay"].task == HOPPER
    doge = jobs["doge-hopper-expert_medium-expert_medium-replay"]
    assert doge.by_dataset == ("alpha=7.5,7.5,17.5",), "DOGE has another α for hopper-medium-replay"
    for algorithm in script.PAPER:
        own = [config for config in jobs.values() if config.algorithm == algorithm]
        assert sorted(task for config in own for task in config.task) == sorted(script.SETS)
        assert all(path.stem == task for c in own for path, task in zip(c.dataset, c.task, strict=True))
    assert all(re.fullmatch(r"[\w.-]+", name) for name in jobs)


def test_cheap_algorithms_come_first_and_cql_last(folders: SimpleNamespace) -> None:
    order = [config.algorithm for config in planned(folders, algorithms=["cql", "tsrl", "td3_bc", "bc"])]
    assert list(dict.fromkeys(order)) == ["bc", "td3_bc", "tsrl", "cql"]


def test_settings_are_the_published_ones_but_for_budget_and_evaluation(folders: SimpleNamespace) -> None:
    for config in planned(folders, updates=70_000, seeds=[4, 5]):
        assert config.preset == "published" and config.updates == 70_000 and config.seeds == (4, 5)
        assert config.eval_episodes == 10 and config.eval_every > 10**7
        fields = script.published_fields(config.algorithm, ("none",), config.task[0])
        assert config.normalize_returns == fields.get("normalize_returns", False)
        if config.algorithm == "bppo":
            assert fields["options"].acceptance == "online_best" and config.options.acceptance != "online_best"  # type: ignore[attr-defined]
        else:
            assert config.options == fields["options"]


def test_stage_fraction_scales_stages_longer_than_the_critics(folders: SimpleNamespace) -> None:
    bppo, tsrl = (
        planned(folders, algorithms=[name], sets=["hopper-expert-v2"], stage_fraction=0.1)[0]
        for name in ("bppo", "tsrl")
    )
    assert sys.modules["locomotion_results"].stage_lengths(bppo) == [
        ["critic", 100_000, 2_000_000],
        ["value", 200_000, 2_000_000],
        ["cloning", 50_000, 500_000],
        ["improvement", 1000, 1000],
    ]
    assert sys.modules["locomotion_results"].stage_lengths(tsrl) == [
        ["dynamics model", 35_000, 35_000],
        ["training", 100_000, 1_000_000],
    ]
    with pytest.raises(InputError, match="--stage-fraction: found 0"):
        planned(folders, stage_fraction=0.0)


def test_a_plug_in_makes_jobs_of_its_own(folders: SimpleNamespace) -> None:
    jobs = planned(folders, algorithms=["td3_bc"], plugins=["layer_norm"], sets=["walker2d-medium-v2"])
    assert [(config.output.name, config.plugins) for config in jobs] == [
        ("td3_bc.layer_norm-walker2d-medium", ("layer_norm",))
    ]


def test_a_folder_of_other_settings_is_refused_and_one_of_another_machine_goes_on(folders: SimpleNamespace) -> None:
    (job,) = planned(folders, algorithms=["bc"], sets=["hopper-expert-v2"])
    job.output.mkdir(parents=True)
    write_json(job.output / "config.json", to_json(job))
    with pytest.raises(InputError, match="other settings"):
        planned(folders, algorithms=["bc"], sets=["hopper-expert-v2"], updates=50)
    moved = folders.data.rename(folders.data.with_name("moved"))
    folders.data = moved
    planned(folders, algorithms=["bc"], sets=["hopper-expert-v2"])
    assert json.loads((job.output / "config.json").read_text())["dataset"] == str(moved / "hopper-expert-v2.npz")


def test_missing_data_are_named_before_any_work(folders: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    (folders.data / "hopper-expert-v2.npz").unlink()
    words = ["--data", folders.data, "--output", folders.output, "--results", folders.results]
    assert script.main([str(word) for word in words]) == 2
    assert "no 'hopper-expert-v2.npz'" in capsys.readouterr().err
    assert not folders.output.exists()


def test_what_is_left_is_estimated_from_jobs_of_the_same_algorithm(
    folders: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, other = planned(folders, algorithms=["bc", "iql"], sets=["hopper-expert-v2", "walker2d-medium-v2"])[
        :3
    ]
    finish(first, {"hopper-expert-v2": [1.0, 2.0, 3.0]}, timing={"total_seconds": 120.0})
    assert script.print_left([first, second, other]) == 2
    said = capsys.readouterr().out
    assert "bc-walker2d-medium: 100,000 of 100,000 updates, about 2.0 min" in said
    assert "iql-hopper-expert: 100,000 of 100,000 updates, speed not measured yet" in said
    assert "left: 2 of 3 jobs; about 2.0 min, and 1 jobs not measured yet" in said


# -- results and the page


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


# -- a real run


def test_jobs_stop_when_the_time_is_over_and_go_on_later(
    shared: Callable[[str], Path], folders: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    sets = ["hopper-expert-v2", "hopper-medium-replay-v2"]
    words = ["--data", shared("data/d4rl-10k"), "--output", folders.output, "--results", folders.results]
    words += ["--algorithms", "td3_bc", "bc", "--sets", *sets, "--seeds", 0, "--updates", 20, "--device", "cpu"]

    def visit(minutes: float) -> int:
        return script.main([str(word) for word in (*words, "--minutes", minutes)])

    assert visit(1e-6) == 3
    (begun,) = folders.output.iterdir()
    assert begun.name == "bc-hopper-expert_medium-replay" and not (begun / "summary.json").exists()
    _, progress = load_checkpoint(begun / "checkpoint.safetensors")
    assert 1 <= progress.update < 20
    assert f"{begun.name}: {20 - progress.update} of 20 updates, about" in capsys.readouterr().out
    assert visit(0) == 3 and len(list(folders.output.iterdir())) == 1  # only says what is left
    assert visit(5) == 0
    summaries = sorted(folders.output.glob("*/summary.json"))
    assert [path.parent.name.split("-")[0] for path in summaries] == ["bc", "td3_bc"]
    evaluated = [json.loads(line) for line in (begun / "metrics.jsonl").read_text().splitlines() if '"score"' in line]
    assert {line["update"] for line in evaluated} == {20} and all(len(line["returns"]) == 10 for line in evaluated)
    before = [path.stat().st_mtime_ns for path in summaries]
    assert visit(5) == 0 and [path.stat().st_mtime_ns for path in summaries] == before
    assert collect(folders) == 0
    for summary, row in zip(summaries, ("BC", "TD3+BC"), strict=True):
        for run in json.loads(summary.read_text())["runs"]:
            assert cells(folders, row)[run["task"]].startswith(f"{run['last']:.1f} ")
    assert str(shared("data")) not in (folders.results / "td3_bc.json").read_text()
