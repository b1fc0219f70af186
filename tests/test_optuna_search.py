"""examples/optuna_search.py with the real Optuna: batches of trials are jobs, and no setting is trained twice."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from c4rl.training.launch import Launch
from tests.cli.support import save_npz, summary

optuna = pytest.importorskip("optuna", reason="the search needs the package optuna: make test-ray")
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "optuna_search.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("optuna_search", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def trials(folder: Path) -> list[Any]:
    storage = optuna.storages.JournalStorage(optuna.storages.journal.JournalFileBackend(str(folder / "study.log")))
    return optuna.load_study(study_name="c4rl", storage=storage).trials


def test_a_killed_search_goes_on_and_repeats_no_trial(
    example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, output = save_npz(tmp_path / "data.npz"), tmp_path / "search"
    update = Launch.update

    def search(batches: int, objective: str = "held_out_td_rmse") -> None:
        flags = ["--batches", batches, "--batch", "3", "--updates", "6", "--seeds", "0"]
        words = [EXAMPLE, data, "--objective", objective, "--output", output, *flags]
        monkeypatch.setattr(sys, "argv", [*map(str, words)])
        example.main()

    def cut(self: Launch, step: int) -> None:
        if step == 4 and "batch_1" in str(self.config.output):
            raise RuntimeError("power cut")
        update(self, step)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Launch, "update", cut)
        with pytest.raises(RuntimeError, match="power cut"):
            search(2)
    assert [trial.state.name for trial in trials(output)] == ["COMPLETE"] * 3 + ["RUNNING"] * 3
    search(2)
    search(3)
    found = trials(output)
    points = [json.dumps(trial.user_attrs["point"]) for trial in found]
    assert len(found) == len(set(points)) == 9
    assert [trial.user_attrs["batch"] for trial in found] == [0] * 3 + [1] * 3 + [2] * 3
    assert sorted(path.name for path in output.iterdir()) == ["batch_0", "batch_1", "batch_2", "study.log"]
    for trial in found:  # each has the number of its own runs
        groups = summary(output / f"batch_{trial.user_attrs['batch']}")["groups"]
        (own,) = [group for group in groups if group["values"] == trial.user_attrs["point"]]
        assert [trial.value] == own["last"]["held_out_td_rmse"]
    with pytest.raises(SystemExit, match="--objective: found held_out_action_rmse, expected held_out_td_rmse"):
        search(3, "held_out_action_rmse")


def test_simulator_objectives_are_labelled_as_such(example: ModuleType) -> None:
    group = {"failed": [], "late": {"mean": 40.0}, "last": {"held_out_td_rmse": [1.0, 2.0]}}
    assert example.value_of(group, "simulator") == 40 and "simulator" in example.LABELS["simulator"]
    assert example.value_of(group, "held_out_td_rmse") == 1.5
    assert example.value_of(group | {"failed": [0]}, "simulator") is None
