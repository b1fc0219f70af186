"""`--preset published`: every task has settings, they are valid, and they are the publications'."""

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from c4rl.core.errors import InputError
from c4rl.environments.tasks import TASKS
from c4rl.jobs.config import TrainConfig, field_names
from c4rl.jobs.config_file import from_json, to_json
from c4rl.jobs.preset_fields import published_fields
from c4rl.jobs.presets.published import PUBLISHED
from c4rl.jobs.registry import ALGORITHMS

SHORT = {name: re.sub(r"-v\d+$", "", name) for name in TASKS}  # without version


def fields(algorithm: str, task: str) -> dict[str, Any]:
    return published_fields(algorithm, ("none",), task)


def config_of(algorithm: str, task: str) -> TrainConfig:
    unused = Path("unused")
    return TrainConfig(algorithm=algorithm, dataset=unused, task=task, output=unused, **fields(algorithm, task))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestEveryAlgorithmWithPublishedSettings:
    def test_every_task_gets_a_valid_job(self, algorithm: str) -> None:
        for task in TASKS:
            config = config_of(algorithm, task)
            assert from_json(to_json(config), task) == config  # reading back checks every value's type and choices

    def test_a_task_without_its_version_gets_the_same(self, algorithm: str) -> None:
        for task, short in SHORT.items():
            assert fields(algorithm, task) == fields(algorithm, short), task

    def test_names_exist_and_sources_are_given(self, algorithm: str) -> None:
        options = set(ALGORITHMS[algorithm].config_type.__dataclass_fields__)
        training = set(field_names()) - {"algorithm", "dataset", "task", "output", "preset", "plugins", "options"}
        for published in PUBLISHED[algorithm]:
            assert set(published.options) <= options
            assert set(published.training) <= training
            assert len(published.source) > 3

    def test_no_pattern_is_idle(self, algorithm: str) -> None:
        names = [*SHORT, *SHORT.values()]
        for pattern in (pattern for published in PUBLISHED[algorithm] for pattern in published.tasks):
            assert any(fnmatch(name, pattern) for name in names), pattern

    @pytest.mark.parametrize("task", ["none", "gym:Hopper-v4", "gym:Ant-v5"])
    def test_other_tasks_are_refused(self, algorithm: str, task: str) -> None:
        with pytest.raises(InputError, match=f"--preset published: '{algorithm}' has no settings for '{task}'"):
            fields(algorithm, task)


@pytest.mark.parametrize("algorithm", ["a2pr", "doge"])
def test_they_take_a_million_updates_and_raw_observations_in_antmaze_alone(algorithm: str) -> None:
    for task in TASKS:
        config = config_of(algorithm, task)
        assert config.updates == 1_000_000
        assert config.normalize_observations != task.startswith("antmaze")


# algorithm, task, {option: value}, {training field: value}; from the publications
SPOT_VALUES: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    (
        "iql",
        "hopper-medium-v2",
        {"hidden_layers": 2, "actor_lr": 3e-4, "expectile": 0.7, "inverse_temperature": 3.0, "actor_dropout": 0.0},
        {"normalize_observations": False, "normalize_returns": True, "updates": 1_000_000},
    ),
    ("iql", "ant-medium-replay-v2", {"expectile": 0.7, "inverse_temperature": 3.0}, {"normalize_returns": True}),
    (
        "iql",
        "antmaze-large-play-v2",
        {"expectile": 0.9, "inverse_temperature": 10.0},
        {"reward_shift": -1.0, "normalize_observations": False, "normalize_returns": False, "eval_episodes": 100},
    ),
    (
        "iql",
        "maze2d-umaze-v1",
        {"expectile": 0.7, "inverse_temperature": 3.0},
        {"normalize_observations": True, "normalize_returns": False},
    ),
    *(
        (
            "iql",
            task,
            {"expectile": 0.7, "inverse_temperature": 0.5, "actor_dropout": 0.1, "policy": "gaussian"},
            {"normalize_observations": False, "normalize_returns": False},
        )
        for task in ("pen-human-v1", "relocate-cloned-v1", "kitchen-complete-v0")
    ),
    *(
        (
            "bc",
            task,
            {"hidden_layers": 2, "hidden_width": 256, "actor_lr": 3e-4, "loss": "mse"},
            {"normalize_observations": True, "eval_episodes": episodes},
        )
        for task, episodes in (
            ("walker2d-expert-v2", None),
            ("antmaze-umaze-v2", 100),
            ("maze2d-large-v1", 100),
            ("door-expert-v1", None),
            ("kitchen-mixed-v0", None),
        )
    ),
    *(
        (
            "td3_bc",
            task,
            {"alpha": 2.5, "hidden_layers": 2, "actor_lr": 3e-4, "critic_lr": 3e-4, "policy_delay": 2},
            {"normalize_observations": True, "reward_shift": shift},
        )
        for task, shift in (
            ("halfcheetah-medium-v2", None),
            ("antmaze-medium-diverse-v2", -1.0),
            ("maze2d-medium-dense-v1", None),
            ("hammer-cloned-v1", None),
            ("kitchen-partial-v0", None),
        )
    ),
    (
        "cql",
        "hopper-medium-v2",
        {"hidden_layers": 3, "actor_lr": 3e-5, "cql_weight": 10.0, "lagrange": "none", "max_q_backup": "none"},
        {"normalize_observations": True, "normalize_returns": True},
    ),
    ("cql", "hopper-medium-replay-v2", {"actor_lr": 3e-5, "cql_weight": 10.0}, {"normalize_returns": None}),
    ("cql", "hopper-medium-expert-v2", {"actor_lr": 3e-5, "cql_weight": 10.0}, {"normalize_returns": None}),
    (
        "cql",
        "antmaze-umaze-v2",
        {"actor_lr": 1e-4, "cql_weight": 5.0, "lagrange": "raw_gap", "lagrange_threshold": 0.8, "gap_minimum": -200.0}
        | {"max_q_backup": "max_min", "lagrange_initial_log": 1.0},
        {"normalize_observations": False, "reward_scale": 10.0, "reward_shift": -5.0, "eval_episodes": 100},
    ),
    (
        "cql",
        "maze2d-open-v0",
        {"actor_lr": 3e-5, "cql_weight": 10.0, "lagrange": "raw_gap", "lagrange_threshold": 5.0},
        {"normalize_observations": True, "reward_scale": None},
    ),
    ("cql", "pen-expert-v1", {"actor_lr": 1e-4, "cql_weight": 1.0, "lagrange": "none"}, {}),
    (
        "cql",
        "kitchen-complete-v0",
        {"hidden_layers": 3, "hidden_width": 512, "cql_weight": 5.0, "importance_sampling": False, "lagrange": "none"},
        {"normalize_observations": False, "updates": 500_000, "reward_scale": None},
    ),
]


@pytest.mark.parametrize(("algorithm", "task", "options", "training"), SPOT_VALUES)
def test_settings_are_the_publications(
    algorithm: str, task: str, options: dict[str, Any], training: dict[str, Any]
) -> None:
    """None: not set, so the training default (raw rewards, ten episodes) stands."""
    found = fields(algorithm, task)
    assert {name: getattr(found["options"], name) for name in options} == options
    assert {name: found.get(name) for name in training} == training


def test_plugins_chosen_beside_the_preset_are_kept() -> None:
    found = published_fields("iql", ("dr3", "layer_norm"), "pen-human-v1")
    assert found["plugins"] == ("dr3", "layer_norm")
    assert [type(options).__name__ for options in found["plugin_options"]] == ["DR3Config", "LayerNormConfig"]
