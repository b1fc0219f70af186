"""Simulators that fail: one sentence and exit code 1, no traceback."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from c4rl import load_policy
from c4rl.core.action_bounds import ActionBounds
from c4rl.data.loading import load_for_task
from c4rl.environments.tasks import get_task
from tests.cli.support import SMALL, logged_arrays, run, save_npz
from tests.environments.test_parallel_evaluation import BROKEN_ENVIRONMENTS, random_policy


@pytest.mark.parametrize(("name", "words"), [("Raises-v0", "the joint came off"), ("Dies-v0", "exit code 3")])
def test_an_environment_that_fails_is_named(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "environments_that_fail.py").write_text(BROKEN_ENVIRONMENTS)
    monkeypatch.syspath_prepend(tmp_path)
    task = f"gym:environments_that_fail:{name}"
    data = save_npz(tmp_path / "data.npz", **logged_arrays(observation_dim=3, action_dim=1))
    budget = ["--updates", 2, "--eval-every", 2, "--eval-episodes", 1, "--threads", 1, *SMALL]
    assert (
        run("train", "--algorithm", "bc", "--dataset", data, "--task", task, "--output", tmp_path / "job", *budget) == 1
    )
    *printed, sentence = capfd.readouterr().err.splitlines()
    assert sentence.startswith(f"c4rl: task '{task}'") and words in sentence
    assert not any("Traceback" in line for line in printed)


def test_returns_that_are_no_numbers_are_written_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "environments_of_nan.py").write_text(BROKEN_ENVIRONMENTS.replace("1.5", "np.nan"))
    monkeypatch.syspath_prepend(tmp_path)
    task = "gym:environments_of_nan:Talks-v0"
    np.savez(tmp_path / "policy.npz", **random_policy(get_task(task), 0, (8,)).arrays())
    flags = ["--task", task, "--episodes", 2, "--json", tmp_path / "scores.json"]
    assert run("evaluate", tmp_path / "policy.npz", *flags) == 0
    assert json.loads((tmp_path / "scores.json").read_text())["runs"][0]["returns"] == ["nan", "nan"]


UNEVEN = """
import gymnasium
import numpy as np

class Uneven(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))

    def __init__(self, low, high):
        self.action_space = gymnasium.spaces.Box(np.array(low), np.array(high), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3), {}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, np.float64)), action
        return np.zeros(3), 1.0, True, False, {}

gymnasium.register("Half-v0", Uneven, kwargs={"low": [0.0, -np.inf], "high": [1.0, np.inf]}, max_episode_steps=5)
gymnasium.register("Tenth-v0", Uneven, kwargs={"low": [-0.1, -0.1], "high": [0.1, 0.1]}, max_episode_steps=5)
"""


@pytest.mark.parametrize(("name", "low", "high"), [("Half", [0, -1], [1, 1]), ("Tenth", [-0.1] * 2, [0.1] * 2)])
def test_an_environments_bounds_hold_for_each_action_and_are_not_rounded_beyond(
    name: str, low: list[float], high: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "uneven_environments.py").write_text(UNEVEN)
    monkeypatch.syspath_prepend(tmp_path)
    task = f"gym:uneven_environments:{name}-v0"
    logged = logged_arrays(observation_dim=3, action_dim=2)
    logged["actions"] = np.where(logged["actions"] > 0, 0.09, 0.01).astype(np.float32)
    data = save_npz(tmp_path / "data.npz", **logged)
    budget = ["--updates", 2, "--eval-every", 2, "--eval-episodes", 1, "--threads", 1, *SMALL]
    job = tmp_path / "job"
    assert run("train", "--algorithm", "bc", "--dataset", data, "--task", task, "--output", job, *budget) == 0
    policy = load_policy(job)
    assert policy.action_low.tolist() == pytest.approx(low) and policy.action_high.tolist() == pytest.approx(high)
    extreme = replace(policy, biases=(*policy.biases[:-1], np.float32([99, 99])))
    np.savez(tmp_path / "extreme.npz", **extreme.arrays())
    assert run("evaluate", tmp_path / "extreme.npz", "--task", task, "--episodes", 1) == 0


def test_where_an_environment_has_no_bound_the_files_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "uneven_environments.py").write_text(UNEVEN)
    monkeypatch.syspath_prepend(tmp_path)
    logged = logged_arrays(observation_dim=3, action_dim=2)
    logged["actions"] = np.abs(logged["actions"])
    data = save_npz(tmp_path / "data.npz", **logged, action_low=-2.0, action_high=2.0)
    found = load_for_task(data, get_task("gym:uneven_environments:Half-v0"), ActionBounds())
    assert found.action_low.tolist() == [0, -2] and found.action_high.tolist() == [1, 2]
