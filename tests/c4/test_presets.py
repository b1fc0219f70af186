"""Presets: what they set for which task, that flags win over them, and that a job remembers its preset."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from c4rl.core.errors import InputError
from c4rl.environments.tasks import TASKS
from c4rl.jobs.config import TrainConfig, empty_config
from c4rl.jobs.config_file import from_json, to_json
from c4rl.jobs.preset_fields import preset_fields
from c4rl.jobs.presets.c4 import PRESETS, preset
from c4rl.plugins.c4.plugin import C4Config
from tests.cli.support import SMALL, assert_same_tensors, listing, run, save_npz, summary

BASE = ["--updates", "5", "--size", "200", "--task", "none", *SMALL]
SHORT = [*BASE, "--period", "2"]  # two refits
LAMBDAS = {
    # the paper's table
    "hopper-medium-v2": 0.3,
    "walker2d-medium-replay-v2": 0.5,
    "halfcheetah-medium-expert-v2": 0.1,
    # the rule for the rest
    "ant-expert-v2": 0.1,
    "hopper-full-replay-v2": 0.5,
    "antmaze-medium-play-v2": 0.5,
    "maze2d-medium-dense-v1": 0.5,
    "pen-human-v1": 0.1,
    "door-cloned-v1": 0.5,
    "relocate-expert-v1": 0.1,
    "kitchen-complete-v0": 0.1,
    "kitchen-mixed-v0": 0.5,
    "hopper-medium": 0.3,  # a name without its version
    "gym:Hopper-v4": 0.3,
    "none": 0.3,
}


def stored(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "config.json").read_text())


def config_of(name: str, algorithm: str = "cql", task: str = "hopper-medium-v2") -> TrainConfig:
    unused = Path("unused")
    return TrainConfig(algorithm, unused, task, unused, **preset_fields(name, algorithm, None, task))


def c4_of(config: TrainConfig) -> C4Config:
    return config.plugin_options[config.plugins.index("c4")]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return save_npz(tmp_path / "d.npz")


@pytest.mark.parametrize("name", PRESETS)
class TestEveryPreset:
    def test_trains_repeats_and_resumes(self, name: str, data: Path, tmp_path: Path) -> None:
        first, second = tmp_path / "first", tmp_path / "second"
        assert run("train", "--preset", name, "--dataset", data, "--output", first, *SHORT) == 0
        config = stored(first)
        assert (config["preset"], config["algorithm"]) == (name, "cql")
        assert summary(first)["plugins"] == config["plugins"] == list(preset(name, "cql", "none").plugins)
        assert run("train", "--config", first, "--output", second) == 0
        assert stored(second) == config | {"output": str(second)}
        assert_same_tensors(first, second)
        assert run("train", "--resume", second) == 0

    def test_flags_beside_it_win(self, name: str, data: Path, tmp_path: Path) -> None:
        flags = [
            "--plugins",
            "layer_norm",
            "c4",
            "--K",
            "2",
            "--lambda",
            "auto",
            "--cql-weight",
            "7",
            "--subset",
            "rows",
        ]
        command = ["train", f"--preset={name}", "--dataset", data, "--output", tmp_path / "job", *SHORT, *flags]
        assert run(*command) == 0
        config, fields = stored(tmp_path / "job"), preset_fields(name, "cql", ("layer_norm", "c4"), "none")
        assert config["plugins"] == ["layer_norm", "c4"] and config["subset"] == "rows"
        options, c4 = fields["options"], fields["plugin_options"][1]
        expected = dataclasses.replace(options, cql_weight=7.0, hidden_layers=2, hidden_width=32, batch_size=64)
        read = from_json(config, "here")
        assert read.options == expected
        assert read.plugin_options[1] == dataclasses.replace(c4, K=2, lambda_="auto", period=2)

    def test_without_its_plugins_the_base_algorithm_keeps_its_values(
        self, name: str, data: Path, tmp_path: Path
    ) -> None:
        command = ["train", "--preset", name, "--plugins", "none", "--dataset", data, "--output", tmp_path / "job"]
        assert run(*command, *BASE) == 0
        config = stored(tmp_path / "job")
        assert config["plugins"] == ["none"] and config["plugin_options"] == []
        assert config["options"]["cql_weight"] == config_of(name, task="none").options.cql_weight  # type: ignore[attr-defined]

    def test_fits_every_task_and_gives_its_reasons(self, name: str) -> None:
        for task in TASKS:
            config = config_of(name, task=task)
            assert from_json(to_json(config), "here") == config
            _, *tables = preset(name, "cql", task)
            assert all(setting.source for table in tables for setting in table.values())


def test_a_job_forgets_the_preset_whose_values_it_drops(data: Path, tmp_path: Path) -> None:
    first = tmp_path / "first"
    assert run("train", "--preset", "authors", "--dataset", data, "--output", first, *SHORT) == 0
    other_algorithm = ["--algorithm", "td3_bc", "--divergence-weight", "0"]
    for number, flags in enumerate((["--plugins", "c4"], other_algorithm, ["--preset", "none"])):
        output = tmp_path / str(number)
        assert run("train", "--config", first, *flags, "--output", output, "--updates", "1") == 0
        assert stored(output)["preset"] == "none"


@pytest.mark.parametrize(
    ("flags", "fragments"),
    [
        (["--preset", "papers"], ["--preset", "'papers'", "paper, paper-divergence, authors, authors-fixed"]),
        (["--preset", "authors", "--algorithm", "td3_bc"], ["--preset authors", "td3_bc", "expected cql"]),
        (["--preset", "authors-fixed", "--algorithm", "td3_bc"], ["--preset authors-fixed", "td3_bc", "expected cql"]),
        (["--preset", "paper", "--algorithm", "bc"], ["--preset paper", "critic", "'bc' has none"]),
        (["--preset", "paper", "--task", "hoper-medium-v2"], ["hoper-medium-v2", "did you mean"]),
        (["--preset", "paper", "--sampler", "soft", "--trajectory-tails"], ["--trajectory-tails", "--sampler hard"]),
    ],
)
def test_what_cannot_be_preset_is_refused(
    flags: list[str], fragments: list[str], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(tmp_path)
    # one update: a job that is not refused is to end soon
    job = ["--task", "none", *flags, "--dataset", data, "--output", tmp_path / "job", "--updates", "1"]
    assert run("train", *job) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and all(fragment in err for fragment in fragments), err
    assert listing(tmp_path) == before


def test_a_preset_beside_a_config_is_refused(data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("train", "--preset", "paper", "--dataset", data, "--output", tmp_path / "job", *SHORT) == 0
    capsys.readouterr()
    assert run("train", "--config", tmp_path / "job", "--preset", "authors", "--output", tmp_path / "other") == 2
    assert "--preset: found with --config" in capsys.readouterr().err


def test_help_shows_the_presets_values(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        run("train", "--preset", "authors", "--help")
    assert stop.value.code == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(default: authors)" in out and "(default: 0.2)" in out and "--trajectory-tails" in out


# -- paper


@pytest.mark.parametrize("task", LAMBDAS)
@pytest.mark.parametrize("algorithm", ["cql", "td3_bc"])
def test_the_papers_lambda_follows_the_kind_of_data(task: str, algorithm: str) -> None:
    assert c4_of(config_of("paper", algorithm, task)).lambda_ == LAMBDAS[task]


def test_the_paper_is_what_c4_does_by_default_except_for_features_directions_and_the_actors_rows() -> None:
    """The paper's values are the defaults of the flags, but it has features instead of gradients, the mixture is on y
    itself, not on 16 directions of it, and the actor trains on the critics' rows."""
    config, on_all = config_of("paper"), (C4Config(mode="proxy", directions=None, actor_rows="cluster"),)
    given: dict[str, Any] = {"dataset": config.dataset, "task": config.task, "output": config.output}
    plain = empty_config("cql", ("c4",), plugin_options=on_all, **given)
    assert config == dataclasses.replace(plain, preset="paper", updates=300_000)


def test_the_papers_divergence_is_the_authors() -> None:
    paper, with_divergence, authors = (c4_of(config_of(n)) for n in ("paper", "paper-divergence", "authors"))
    assert with_divergence == dataclasses.replace(paper, divergence="kl_data", divergence_weight=4.0)
    assert (authors.divergence, authors.divergence_weight) == ("kl_data", 4.0)
    with pytest.raises(InputError, match="'kl_data' compares densities and a deterministic policy has none"):
        config_of("paper-divergence", "td3_bc")


def test_cql_takes_its_settings_by_domain() -> None:
    found = {
        domain: config_of("paper", task=task)
        for domain, task in {
            "locomotion": "ant-medium-v2",
            "antmaze": "antmaze-umaze-v2",
            "maze2d": "maze2d-large-v1",
            "adroit": "pen-human-v1",
            "kitchen": "kitchen-partial-v0",
            "none": "none",
        }.items()
    }
    options: dict[str, Any] = {domain: config.options for domain, config in found.items()}
    weights = {domain: option.cql_weight for domain, option in options.items()}
    assert weights == {"locomotion": 10, "antmaze": 5, "maze2d": 10, "adroit": 1, "kitchen": 5, "none": 10}
    assert {domain for domain, option in options.items() if option.lagrange == "raw_gap"} == {"antmaze", "maze2d"}
    assert options["antmaze"].lagrange_threshold == 0.8 and options["maze2d"].lagrange_threshold == 5
    assert options["antmaze"].max_q_backup == "max_min" and options["antmaze"].gap_minimum == -200
    assert (found["antmaze"].reward_scale, found["antmaze"].reward_shift) == (10, -5)
    assert {domain for domain, config in found.items() if not config.normalize_observations} == {"antmaze", "kitchen"}
    assert all(
        (option.hidden_layers, option.actor_lr, option.critic_lr) == (4, 1e-4, 3e-4) for option in options.values()
    )


def test_the_paper_plugs_into_td3_bc(data: Path, tmp_path: Path) -> None:
    command = ["train", "--preset", "paper", "--algorithm", "td3_bc", "--dataset", data, "--output", tmp_path / "job"]
    assert run(*command, *SHORT) == 0
    config = stored(tmp_path / "job")
    assert (config["preset"], config["algorithm"], config["plugins"]) == ("paper", "td3_bc", ["c4"])
    assert config_of("paper", "td3_bc", "antmaze-umaze-v2").reward_shift == -1


# -- authors


def test_the_authors_back_up_entropy_by_the_tasks_name() -> None:
    soft = {task for task in TASKS if config_of("authors", task=task).options.backup_entropy}  # type: ignore[attr-defined]
    assert soft == {name for name, task in TASKS.items() if task.domain in ("maze2d", "adroit", "kitchen")}


def test_what_is_fixed_and_what_is_kept() -> None:
    first, second = (
        to_json(config_of(name))
        | dataclasses.asdict(config_of(name).options)
        | dataclasses.asdict(c4_of(config_of(name)))
        for name in ("authors", "authors-fixed")
    )
    changed = {name: second[name] for name in first if first[name] != second[name]}
    assert {name: value for name, value in changed.items() if name not in ("options", "plugin_options")} == {
        "preset": "authors-fixed",
        "size": None,
        "subset": "trajectories",
        "observation_statistics": "subset",
        "lse_group": 30,
        "lagrange_threshold": pytest.approx(21.5129, abs=1e-4),
        "zero_next_actions": False,
        "mask_invalid": True,
        "next_features": "target",
        "average_critics": False,
    }


def test_other_algorithms_take_their_own_publications_settings_beside_the_papers_c4() -> None:
    fields = preset_fields("paper", "a2pr", None, "antmaze-umaze-v2")
    assert fields["reward_shift"] == -1 and fields["normalize_observations"] is False and fields["updates"] == 300_000
    assert fields["options"].discount == 0.995 and fields["plugins"] == ("c4",)
    assert fields["plugin_options"][0].lambda_ == 0.5
    improved = preset_fields("paper", "bppo", None, "hopper-medium-expert-v2")["options"]
    assert improved.output_relu and improved.acceptance == "never", "published as online_best, which uses the simulator"
