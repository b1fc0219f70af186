"""Every algorithm as a whole job: trained, scored in a simulator, and killed within and between its stages."""

import random
from pathlib import Path
from typing import Any

import pytest

from c4rl.jobs.registry import ALGORITHMS
from tests.cli.support import metric_lines, run, summary
from tests.helpers import SMALL as SMALL_OPTIONS
from tests.training.jobs import STEADY, ToBeKilled, assert_same_job, wait_until

TASK = "maze2d-open-dense-v0"
# flags that make an algorithm's own networks small and its stages about as long as the critic's
STAGES: dict[str, dict[str, Any]] = {
    "tsrl": {"dynamics_updates": 60, "encoder_ode_from": 20},
    "bppo": {"value_updates": 40, "cloning_updates": 40, "improvement_updates": 40},
    "sorl": {"style_rounds": 3, "style_steps": 20},
}


def flags(algorithm: str, plugins: str = "none", **values: Any) -> list[object]:
    options = SMALL_OPTIONS.get(algorithm, {}) | STAGES.get(algorithm, {}) | values
    out: list[object] = ["--algorithm", algorithm, "--plugins", plugins]
    if plugins == "c4":
        out += ["--period", 20, "--K", 3]
    for name, value in options.items():
        out += [f"--{name.replace('_', '-')}", *(value if isinstance(value, tuple) else (value,))]
    return out


@pytest.mark.parametrize("plugins", ["none", "c4"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_job_is_trained_and_scored(algorithm: str, plugins: str, maze_data: Path, tmp_path: Path) -> None:
    if plugins == "c4" and not ALGORITHMS[algorithm].has_critic:
        pytest.skip("no critic to plug into")
    data = ["--dataset", maze_data, "--task", TASK, "--eval-episodes", 1, "--eval-every", 1000, "--log-every", 10]
    job = ["train", *flags(algorithm, plugins, updates=40), *STEADY, *data, "--output", tmp_path / "job"]
    assert run(*job) == 0
    found, lines = summary(tmp_path / "job"), metric_lines(tmp_path / "job")
    assert len(found["last"]["scores"]) == 2 and not found["stopped"]
    assert all(abs(score) < 1e6 for score in found["last"]["scores"])
    if ALGORITHMS[algorithm].has_critic:
        assert sum("critic_loss" in line for line in lines) == 2 * 4, "means of ten updates, of both seeds"
    if plugins == "c4":
        assert any("c4_effective_K" in line for line in lines)
    assert run("evaluate", tmp_path / "job", "--episodes", "1") == 0


def test_a_stage_that_ends_between_two_lines_of_the_log_is_logged_to_its_end(plain_data: Path, tmp_path: Path) -> None:
    data = ["--dataset", plain_data, "--task", "none", "--log-every", 4, "--eval-every", 100]
    job = ["train", *flags("tsrl", dynamics_updates=6, updates=6), *STEADY, *data, "--output", tmp_path / "job"]
    assert run(*job) == 0
    found = {kind: [] for kind in ("dynamics_loss", "critic_loss")}
    for line in metric_lines(tmp_path / "job"):
        for kind in found.keys() & line.keys() if line["seed"] == 0 else ():
            found[kind].append(line["update"])
    assert found == {"dynamics_loss": [4, 6], "critic_loss": [8, 12]}


@pytest.mark.parametrize("algorithm", STAGES)
def test_killed_within_and_between_stages(algorithm: str, plain_data: Path, tmp_path: Path) -> None:
    every = ["--log-every", 10, "--eval-every", 30, "--checkpoint-every", 7]
    data = ["--dataset", plain_data, "--task", "none"]
    command = ["train", *flags(algorithm, "c4", updates=120), *STEADY, *data, *every]
    assert run(*command, "--output", tmp_path / "undisturbed") == 0
    total = sum(length for name, length in STAGES[algorithm].items() if name.endswith("_updates")) + 120
    chance, kills = random.Random(algorithm), 0
    words = [*command, "--output", tmp_path / "job"]
    for moment in sorted(chance.sample(range(5, total - 80), 4)):  # the rest is for being noticed in
        process = ToBeKilled(*words)
        if wait_until(process, tmp_path / "job", moment):
            kills += process.poll() is None
            process.kill()
        process.join()
        words = ["train", "--resume", tmp_path / "job"]
    assert kills >= 2, "the job was over before it could be killed"
    assert run(*words) == 0
    assert_same_job(tmp_path / "job", tmp_path / "undisturbed")
