"""Which jobs the table of all algorithms on locomotion has, and that they stop and go on."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from c4rl.core.errors import InputError
from c4rl.core.files import write_json
from c4rl.jobs.config import to_json
from c4rl.training.checkpoint import load_checkpoint
from tests.locomotion_table.support import HOPPER, cells, collect, finish, planned, script


def test_the_sets_of_a_shape_share_a_job_each_with_its_own_published_settings(folders: SimpleNamespace) -> None:
    jobs = {config.output.name: config for config in planned(folders)}
    assert len(jobs) == 2 * len(script.PAPER)
    assert jobs["td3_bc-hopper-expert_medium-expert_medium-replay"].task == HOPPER
    others = tuple(task for task in script.SETS if task not in HOPPER)
    name = "td3_bc-halfcheetah-expert_medium-replay_medium-walker2d-medium-expert_medium"
    assert jobs[name].task == others
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
