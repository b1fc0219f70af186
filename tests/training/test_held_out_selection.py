"""--select keeps, of every run, the checkpoint that held-out trajectories prefer, beside the last."""

import re
from pathlib import Path

import numpy as np
import pytest

import c4rl
from c4rl.results import tables
from c4rl.results.differences import difference_rows
from c4rl.results.entries import entries_of
from c4rl.results.selection_criteria import criteria_rows
from c4rl.results.store import Entry, Store
from c4rl.results.tables import Cell, Method, ResultTable
from c4rl.training.checkpoint import load_policies
from c4rl.training.records import selected_records
from tests.cli.support import SMALL, metric_lines, run, save_npz, summary

MAZE = ["--task", "maze2d-open-dense-v0", "--eval-episodes", "1"]
EVERY = ["--updates", "60", "--eval-every", "10", "--log-every", "60", "--checkpoint-every", "60", "--threads", "1"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Actions that follow the observation and much noise: a clone with large steps overfits within 60 updates."""
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(120, 5)).astype(np.float32)
    actions = np.clip(0.5 * observations[:, :2] + rng.normal(0, 0.5, (120, 2)), -1, 1).astype(np.float32)
    fields = {"observations": observations, "next_observations": observations, "actions": actions}
    others = {"rewards": actions[:, 0], "terminals": np.zeros(120, bool), "timeouts": np.arange(120) % 10 == 9}
    return save_npz(tmp_path_factory.mktemp("data") / "noisy.npz", **fields, **others)


@pytest.fixture(scope="module")
def plain(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    job = tmp_path_factory.mktemp("jobs") / "plain"
    flags = ["--algorithm", "bc", "--actor-lr", "1e-2", "--dataset", data, "--task", "none", "--hold-out", "0.3"]
    assert run("train", *flags, *SMALL, *EVERY, "--seeds", "0", "1", "--select", "held-out", "--output", job) == 0
    return job


def test_the_least_held_out_error_is_kept(plain: Path) -> None:
    lines = [line for line in metric_lines(plain) if "held_out_action_rmse" in line]
    chosen = summary(plain)["selected"]
    assert chosen["criterion"] == "held_out_action_rmse"
    for place, seed in enumerate((0, 1)):
        errors = {line["update"]: line["held_out_action_rmse"] for line in lines if line["seed"] == seed}
        assert chosen["updates"][place] == min(errors, key=lambda update: errors[update]) < 60
        assert chosen["values"][place] == min(errors.values()) < errors[60]
        assert summary(plain)["runs"][place]["selected"] == chosen["updates"][place]


def test_of_equal_errors_the_first_is_kept() -> None:
    records = [{"seed": 0, "update": update, "error": error} for update, error in enumerate((0.5, 0.2, 0.3, 0.2))]
    (chosen,) = selected_records(records, "error").values()
    assert chosen["update"] == 1


def test_it_is_the_policy_of_that_update_and_what_is_taken_by_default(plain: Path, data: Path, tmp_path: Path) -> None:
    """A job that ends at the selected update has it as its last policy."""
    update = summary(plain)["selected"]["updates"][0]
    flags = ["--config", plain, "--updates", update, "--seeds", "0", "--output", tmp_path / "short"]
    assert run("train", *flags) == 0
    seen = np.random.default_rng(1).normal(size=(7, 5))
    ended = load_policies(tmp_path / "short" / "policy_last.safetensors")[0].act(seen)
    np.testing.assert_array_equal(c4rl.load_policy(plain, seed=0).act(seen), ended)
    assert not np.allclose(c4rl.load_policy(plain, "last", seed=0).act(seen), ended)
    assert run("export", plain, "--seed", "0") == 0
    card = (plain / "policy_selected_seed_0.npz.md").read_text()
    assert "selected checkpoint" in card and "least error on held-out trajectories (uses no simulator)" in card


def test_only_checkpoints_that_the_job_keeps_are_offered(plain: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("export", plain, "--checkpoint", "best") == 2  # that of the simulator
    assert "--checkpoint: found best, expected last or selected, which" in capsys.readouterr().err


def test_with_a_simulator_the_scores_have_no_say(
    maze_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job"
    flags = ["--algorithm", "td3_bc", "--dataset", maze_data, *MAZE, *SMALL, *EVERY, "--seeds", "0", "1"]
    assert run("train", *flags, "--updates", "30", "--select", "held-out-td", "--ensemble", "2", "--output", job) == 0
    assert "selected, held out" in capsys.readouterr().out
    found, lines = summary(job), metric_lines(job)
    for place, seed in enumerate((0, 1)):
        own = [line for line in lines if line["seed"] == seed]
        errors = {line["update"]: line["held_out_td_rmse"] for line in own if "held_out_td_rmse" in line}
        scores = {line["update"]: line["score"] for line in own if "score" in line}
        update = min(errors, key=lambda update: errors[update])
        assert errors.keys() == scores.keys() == {10, 20, 30}
        assert found["selected"]["updates"][place] == update
        assert found["selected"]["scores"][place] == scores[update]
    assert found["dataset"]["rows"] < found["dataset"]["file_rows"], "held-out rows are not trained on"
    assert found["ensemble"]["checkpoint"] == "selected"
    assert run("evaluate", job, "--episodes", "1", "--seed", "10000", "--json", tmp_path / "scores.json") == 0
    assert "selected checkpoint" in capsys.readouterr().out
    store = Store(tmp_path / "store")
    store.add(entries_of(job))
    singles = sorted(store, key=lambda entry: entry.seed)
    assert [e.selected for e in singles] == pytest.approx(found["selected"]["scores"], abs=1e-2)
    assert all(len(e.curve("held_out_td_rmse")[0]) == 3 for e in singles)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--algorithm", "bc", "--select", "held-out-td"], "--select: found held-out-td with bc, expected held-out"),
        (["--select", "held-out", "--hold-out", "0"], "--select: found it with --hold-out 0, expected a share"),
        (["--select", "best"], "--select: found 'best', expected one of none, held-out, held-out-td"),
    ],
)
def test_what_cannot_be_selected_is_refused(
    flags: list[str], words: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("train", "--dataset", data, "--task", "none", *flags, "--output", tmp_path / "job") == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "job").exists()


def made_up_entry(scores: list[float], action_errors: list[float], td_errors: list[float], seed: int) -> Entry:
    """Selected by the action error; a task without references: its scores are returns."""
    updates = list(range(1, len(scores) + 1))
    watched = {"held_out_action_rmse": action_errors, "held_out_td_rmse": td_errors}
    chosen = int(np.argmin(action_errors))
    data = {
        "run": {"task": "gym:Pendulum-v1", "seed": seed},
        "curve": [[update, [score]] for update, score in zip(updates, scores, strict=True)],
        "watched": {
            name: [list(pair) for pair in zip(updates, values, strict=True)] for name, values in watched.items()
        },
        "selected": {"criterion": "held_out_action_rmse", "update": updates[chosen], "value": action_errors[chosen]},
    }
    return Entry(data, "made up")


def test_the_table_of_differences_shows_what_a_part_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = ("gym:Pendulum-v1", "gym:MountainCarContinuous-v0")
    plain, whole = Method("plain", "bc"), Method("whole", "bc", against="plain")
    table = ResultTable("made-up", "Made up", (plain, whole), tasks)
    monkeypatch.setattr(tables, "datasets", lambda: {task: {} for task in tasks})

    def cell(*scores: float) -> Cell:
        """Means of the second half; the last score is another one."""
        curves = ([0, 0, score - 9 * seed, score + 9 * seed] for seed, score in enumerate(scores))
        return Cell(tuple(made_up_entry(curve, [0.1] * 4, [1] * 4, seed) for seed, curve in enumerate(curves)))

    filled = {("plain", tasks[0]): cell(10, 20, 30), ("whole", tasks[0]): cell(40, 50, 60)}
    _, row = difference_rows(table, filled)
    assert row == ["whole", "plain", "+30.0 ± 22.7", "–", "–", "–"]  # the other set has not been measured
    filled |= {("plain", tasks[1]): cell(5, 5, 5), ("whole", tasks[1]): cell(4, 4, 4)}
    _, row = difference_rows(table, filled)
    assert row[2:4] == ["+30.0 ± 22.7", "-1.0 ± 0.0"] and row[4].startswith("+14.5 [") and row[5] == "27.0"
    low, high = map(float, re.findall(r"[+-][\d.]+", row[4])[1:])
    assert 2 < low < 10 < 19 < high < 27
    assert difference_rows(table.only(["whole"]), filled)[1:] == []  # nothing to compare with


def test_the_table_of_criteria_shows_what_each_is_worth(monkeypatch: pytest.MonkeyPatch) -> None:
    task = "gym:Pendulum-v1"
    method = Method("BC", "bc", job={"select": "held-out"})
    table = ResultTable("made-up", "Made up", (method,), (task,))
    monkeypatch.setattr(tables, "datasets", lambda: {task: {}})
    entries = (
        made_up_entry([10, 50, 30, 20], [0.5, 0.2, 0.1, 0.4], [4, 1, 2, 3], 0),
        made_up_entry([20, 60, 40, 20], [0.5, 0.2, 0.3, 0.4], [1, 2, 3, 4], 1),
    )
    _, *rows = criteria_rows(table, {("BC", task): Cell(entries)})
    found = {row[1]: (row[2], row[-1]) for row in rows}
    assert found["last"] == ("20.0", "–") and found["best in the simulator"] == ("55.0", "–")
    assert found["least held-out action error"] == ("45.0", "71%")  # 30 and 60: 25 of the gap of 35
    assert found["least held-out TD error"] == ("35.0", "43%")
    assert found["mean of the second half"][0] == "27.5"
    ended_best = (made_up_entry([10, 50], [0.2, 0.1], [2, 1], 0),)
    assert {row[-1] for row in criteria_rows(table, {("BC", task): Cell(ended_best)})[1:]} == {"–"}  # there is no gap
    table = ResultTable("made-up", "Made up", (method,), (task, "gym:Other-v0"))
    monkeypatch.setattr(tables, "datasets", lambda: {name: {} for name in table.tasks})
    filled = {("BC", task): Cell(entries), ("BC", "gym:Other-v0"): Cell(entries[:1])}  # one run more of one set
    assert [row[:4] for row in criteria_rows(table, filled)[1:2]] == [["BC", "last", "20.0", "20.0"]]
