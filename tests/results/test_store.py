"""The results store and its tables: what is kept of a run, what is refused, and gaps that are filled once."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.data.recording import record
from c4rl.environments.tasks import get_task
from c4rl.results import tables
from c4rl.results.bench_tables import check_data, minutes_of, missing_jobs, run_jobs
from c4rl.results.store import Store, entries_of, identity
from c4rl.results.tables import Method, ResultTable, csv, fill, latex, markdown, score_rows

TASKS = ("maze2d-open-dense-v0", "maze2d-umaze-dense-v1")
SMALL = {"hidden_layers": 1, "hidden_width": 8, "batch_size": 16}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two small recorded sets, known to the tables by their sha256."""
    known = {}
    for task in TASKS:
        path = tmp_path / "data" / f"{task}.npz"
        record(task, 300, 0, path)
        known[task] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "rows": 300}
    monkeypatch.setattr(tables, "datasets", lambda: known)
    monkeypatch.setattr("c4rl.results.bench_tables.datasets", lambda: known)
    return tmp_path / "data"


def small_table(**values: Any) -> ResultTable:
    methods = (
        Method("BC", "bc", options=SMALL),
        Method("TD3+BC", "td3_bc", options=SMALL),
        Method("TD3+BC, alpha 1", "td3_bc", options=SMALL | {"alpha": 1.0}),
    )
    settings = {"tasks": TASKS, "seeds": (0, 1), "updates": 20, "evaluations": 2, "episodes": 2} | values
    return ResultTable("small", "A small table", methods, **settings)


def fill_gaps(table: ResultTable, store: Store, data: Path, output: Path) -> int:
    jobs = missing_jobs(table, store, data, output, device="cpu", threads=1)
    check_data(jobs)
    return run_jobs(jobs, store, minutes=10)


def test_gaps_are_filled_once_and_tables_come_from_the_store_alone(data: Path, tmp_path: Path) -> None:
    table, store = small_table(), Store(tmp_path / "store")
    assert sum(job.runs for job in missing_jobs(table, store, data, tmp_path / "jobs")) == 12
    assert fill_gaps(table, store, data, tmp_path / "jobs") == 0
    assert len(list(store)) == 12 and not missing_jobs(table, store, data, tmp_path / "jobs")
    filled = fill(table, store)
    for (label, task), cell in filled.items():
        assert [entry.seed for entry in cell.entries] == [0, 1]
        for entry in cell.entries:
            assert entry.updates == [10, 20]
            final = np.mean(get_task(task).normalise(np.array(entry.data["curve"][-1][1])))
            assert entry.scores[-1] == pytest.approx(final), label
    rows = score_rows(table, filled, "last")
    assert [row[0] for row in rows] == ["", "BC", "TD3+BC", "TD3+BC, alpha 1"]
    assert [row[-1] for row in rows[1:]] == ["4/4"] * 3
    assert f"{filled['BC', TASKS[0]].last.mean():.1f} ±" in markdown(rows)
    assert r"$\pm$" in latex(rows) and len(csv(table, filled).splitlines()) == 1 + 12

    more = small_table(seeds=(0, 1, 2))
    assert sum(job.runs for job in missing_jobs(more, store, data, tmp_path / "jobs")) == 6, "the third seed alone"
    assert all(minutes_of(job, store) for job in missing_jobs(more, store, data, tmp_path / "jobs"))
    assert [row[-1] for row in score_rows(more, fill(more, store))[1:]] == ["4/6"] * 3
    assert [row[-3] for row in score_rows(more, fill(more, store))[1:]] == ["–"] * 3, "no overall mean of some cells"


def test_the_same_run_is_stored_once(data: Path, tmp_path: Path) -> None:
    table, store = small_table(tasks=TASKS[:1], seeds=(0,)), Store(tmp_path / "store")
    assert fill_gaps(table, store, data, tmp_path / "jobs") == 0
    folder = next((tmp_path / "jobs").iterdir())
    before = sorted((tmp_path / "store").rglob("*.json"))
    assert store.add(entries_of(folder)) == []
    assert sorted((tmp_path / "store").rglob("*.json")) == before
    twin = before[0].with_name(f"again-{before[0].name}")
    twin.write_text(before[0].read_text())
    with pytest.raises(InputError, match=rf"the same run as .*{before[0].name.split('-')[0]}"):
        store.by_identity()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda entry: entry["run"]["options"].update(hidden_width=9), "its settings are those of"),
        (lambda entry: entry["run"].update(sha256="0" * 64), "its settings are those of"),
        (lambda entry: entry["run"].update(seed=5), "its settings are those of"),
        (lambda entry: entry.update(results=0), "field 'results' is 0, expected 1"),
        (lambda entry: entry.update(schema=2), "field 'schema' is 2, expected 1"),
        (lambda entry: entry.pop("versions"), "found other fields than an entry's"),
        (lambda entry: entry.update(run={}), "lacks what determines a run"),
    ],
)
def test_a_changed_entry_is_refused_by_name(change: Any, sentence: str, data: Path, tmp_path: Path) -> None:
    table, store = small_table(tasks=TASKS[:1], seeds=(0,)), Store(tmp_path / "store")
    fill_gaps(replace(table, methods=table.methods[:1]), store, data, tmp_path / "jobs")
    (path,) = (tmp_path / "store").rglob("*.json")
    entry = json.loads(path.read_text())
    change(entry)
    path.write_text(json.dumps(entry))
    with pytest.raises(InputError, match=sentence) as raised:
        store.by_identity()
    assert path.name in str(raised.value)


def test_other_data_are_refused(data: Path, tmp_path: Path) -> None:
    path = data / f"{TASKS[0]}.npz"
    path.write_bytes(path.read_bytes() + b" ")
    jobs = missing_jobs(small_table(), Store(tmp_path / "store"), data, tmp_path / "jobs")
    with pytest.raises(InputError, match=f"{path.name}: its sha256 is"):
        check_data(jobs)
    path.unlink()
    with pytest.raises(InputError, match=f"found no '{path.name}'"):
        check_data(jobs)


def test_an_option_that_came_later_does_not_orphan_a_run(data: Path) -> None:
    table = small_table()
    config = table.config(table.methods[1], TASKS[0], 0, data)
    from c4rl.results.store import determinants

    now = determinants(config, "0" * 64, "d4rl-1, mujoco 3.3.7")
    before = now | {"options": {n: v for n, v in now["options"].items() if n != "actor_first"}}
    assert identity(before) == identity(now)
    assert identity(now | {"options": now["options"] | {"actor_first": True}}) != identity(now)
    assert identity(now) == identity(determinants(config, "0" * 64, "d4rl-1, mujoco 4.0.0"))
    assert identity(now) != identity(determinants(config, "0" * 64, "d4rl-2, mujoco 4.0.0"))


def test_time_that_is_up_leaves_a_job_to_go_on_with(data: Path, tmp_path: Path) -> None:
    table = small_table(tasks=TASKS[:1], seeds=(0,), updates=4000, episodes=1)
    table, store = replace(table, methods=table.methods[1:2]), Store(tmp_path / "store")
    jobs = missing_jobs(table, store, data, tmp_path / "jobs", device="cpu", threads=1)
    assert run_jobs(jobs, store, minutes=0.01) == 3
    assert not list(store) and (jobs[0].config.output / "checkpoint.safetensors").exists()
    assert run_jobs(jobs, store, minutes=10) == 0
    assert len(list(store)) == 1
