"""The results store: what is kept of a run, what is refused, and gaps that are filled once."""

import errno
import json
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from c4rl.core.errors import InputError
from c4rl.data.writing import write_npz
from c4rl.environments.tasks import get_task
from c4rl.jobs.runs import runs_of
from c4rl.results.bench_minutes import Minutes, cheap_first, list_jobs, minutes_of
from c4rl.results.bench_runs import add_finished, run_jobs
from c4rl.results.bench_tables import check_data, missing_jobs
from c4rl.results.entries import _ensembles, _watched, entries_of
from c4rl.results.speed_tables import Rate, measured_rates
from c4rl.results.store import Store, determinants, identity
from c4rl.results.tables import Method, fill, recording_of
from tests.helpers import small_config
from tests.results.conftest import C4, METHODS, SMALL, TASKS, Trained, fill_gaps, small_table

SPEEDS = Path(__file__).resolve().parents[2] / "results" / "speed"


def test_gaps_are_filled_once(trained: Trained, tmp_path: Path) -> None:
    table, store = small_table(), trained.store
    assert len(list(store)) == 16 and not missing_jobs(table, store, trained.data, trained.jobs)
    for (label, task), cell in fill(table, store).items():
        assert [entry.seed for entry in cell.entries] == [0, 1]
        for entry in cell.entries:
            assert entry.updates == [10, 20]
            final = np.mean(get_task(task).normalise(np.array(entry.data["curve"][-1][1])))
            assert entry.scores[-1] == pytest.approx(final), label
    more = missing_jobs(small_table(seeds=3), store, trained.data, tmp_path)
    assert sum(job.runs for job in more) == 8 and all(job.config.seeds == (2,) for job in more), "the third seed alone"


def test_methods_of_a_series_train_in_one_job(trained: Trained, tmp_path: Path) -> None:
    jobs = missing_jobs(small_table(), Store(tmp_path / "none"), trained.data, tmp_path)
    assert [job.config.sweep for job in jobs] == [(), ("alpha=1.0,2.5",), ()]
    assert [job.runs for job in jobs] == [4, 8, 4]
    assert len({job.config.output for job in jobs}) == 3
    other = missing_jobs(small_table(updates=30), Store(tmp_path / "none"), trained.data, tmp_path)
    assert not {job.config.output for job in jobs} & {job.config.output for job in other}, "another job, another folder"


def test_the_members_of_ensembles_are_not_trained_twice(trained: Trained, tmp_path: Path) -> None:
    alone = replace(METHODS[0], seeds=5)
    together = replace(alone, label="BC, ensembles of 2", members=2, seeds=2)
    table, store = small_table(methods=(alone, together)), Store(tmp_path / "store")
    jobs = missing_jobs(table, store, trained.data, tmp_path)
    assert [(job.config.ensemble, job.config.seeds) for job in jobs] == [(2, (0, 1, 2, 3)), (0, (4,))]
    assert fill_gaps(table, store, trained.data, tmp_path / "jobs") == 0
    assert {key: len(cell.entries) for key, cell in fill(table, store).items()} == {
        (method.label, task): method.seeds for method in table.methods for task in TASKS
    }
    assert not missing_jobs(table, store, trained.data, tmp_path)


def test_how_long_a_job_takes_is_judged_by_the_most_similar_runs(trained: Trained, tmp_path: Path) -> None:
    entries = list(trained.store)
    words = {}
    for method in (C4, METHODS[0]):
        table = small_table(methods=(method,), seeds=3)
        (job,) = missing_jobs(table, trained.store, trained.data, tmp_path, device="cpu")
        for kept in (entries, [e for e in entries if e.data["run"]["plugins"] == []], []):
            found = minutes_of(job, kept, [])
            words[method.label, len(kept)] = found and found.guessed_from
            assert found is None or 0 < found.least <= found.most
    assert words == {
        ("TD3+BC + C4", 16): "", ("TD3+BC + C4", 12): "td3_bc", ("TD3+BC + C4", 0): None,
        ("BC", 16): "", ("BC", 12): "", ("BC", 0): None,
    }  # fmt: skip
    wider = job._replace(config=replace(job.config, options=replace(job.config.options, hidden_width=256)))
    rates = [
        entry.data["made"]["timing"]["run_updates_per_second"]
        for entry in entries
        if entry.data["run"]["algorithm"] == "bc"
    ]
    least, most = (job.run_updates / pick(rates) / 60 for pick in (max, min))
    assert minutes_of(wider, entries, []) == Minutes(least, most, "bc with other networks"), "small ones say little"
    assert minutes_of(job, entries, [])[:2] == (least, least), "the best speed known"
    bc, stages = Rate("bc", [], "fp32", "cuda", {"training": 2.0}), {"dynamics model": 1.0, "training": 4.0}
    assert minutes_of(job, [], [bc]) is None, "a GPU says nothing of a CPU"
    job = job._replace(config=replace(job.config, device="cuda:1"))
    seconds = {rate: job.run_updates / rate / 60 for rate in (2, 3)}
    assert minutes_of(job, entries, [bc]) == (seconds[2], seconds[2], ""), "nor a CPU of a GPU"
    assert minutes_of(job, [], [bc._replace(precision="bf16x3")]) == (seconds[2], seconds[2], "bc")
    assert minutes_of(job, [], [bc, bc._replace(stages={"training": 3.0})]) == (seconds[3], seconds[3], "")
    others = [bc._replace(algorithm="cql"), bc._replace(algorithm="iql", stages={"training": 3.0})]
    assert minutes_of(job, [], others) == (seconds[3], seconds[2], "others"), "never timed: a range"
    table = small_table(methods=(Method("TSRL", "tsrl", options=SMALL | {"dynamics_updates": 8}),))
    (job, *_) = missing_jobs(table, trained.store, trained.data, tmp_path, device="cuda")
    found = minutes_of(job, [], [Rate("tsrl", [], "fp32", "cuda", stages)])
    assert found is not None and found.least == found.most == pytest.approx(job.runs * (8 / 1.0 + 20 / 4.0) / 60)


def test_a_list_of_jobs_counts_launches_and_says_what_is_a_guess(trained: Trained, tmp_path: Path) -> None:
    none, bc = Store(tmp_path / "none"), Rate("bc", [], "fp32", "cuda", {"training": 1.0})

    def listed(device: str, rates: list[Rate]) -> list[str]:
        jobs = missing_jobs(small_table(), none, trained.data, tmp_path, device=device)
        return [line.rpartition(": ")[2] for line in list_jobs(jobs, none, rates).splitlines()]

    first, *_, last = listed("cpu", [bc])
    assert first == "4 runs in 1 launch, 80 updates in all, speed not known"
    assert last == "speed not known"
    slow, fast = (bc._replace(algorithm=name, stages={"training": rate}) for name, rate in (("cql", 0.1), ("iql", 1.0)))
    *lines, last = listed("cuda", [slow, fast])
    assert lines[0] == "4 runs in 1 launch, 80 updates in all, about 1.3 to 13 minutes (guessed from others)"
    assert last == "about 5.3 to 53 minutes", "16 runs of 20 updates"
    (job,) = missing_jobs(small_table(methods=METHODS[:1]), none, trained.data, tmp_path, runs_per_launch=3)
    assert (job.runs, job.launches) == (4, 2)


def test_jobs_that_were_begun_come_first_and_then_cheap_ones(trained: Trained, tmp_path: Path) -> None:
    jobs = missing_jobs(small_table(), Store(tmp_path / "none"), trained.data, tmp_path, device="cuda")
    rates = [Rate("bc", [], "fp32", "cuda", {"training": 1.0}), Rate("td3_bc", [], "fp32", "cuda", {"training": 9.0})]
    order = [jobs.index(job) for job in cheap_first(jobs, Store(tmp_path / "none"), rates)]
    assert order == [2, 1, 0], "4 runs of TD3+BC, 8 of it, 4 of BC"
    unfinished = jobs[1].config.output / ".config.json.part"  # of a job that is being made, or was killed then
    unfinished.parent.mkdir()
    unfinished.touch()
    shutil.copytree(next(trained.jobs.glob("bc-*")), jobs[0].config.output)
    assert cheap_first(jobs, Store(tmp_path / "none"), rates)[0] is jobs[0]
    assert unfinished.exists(), "a list of jobs changes nothing"


def test_measured_speeds_are_those_of_the_largest_stack_in_each_precision() -> None:
    rates = {(rate.algorithm, *rate.plugins, rate.precision): rate for rate in measured_rates(SPEEDS)}
    study = json.loads((SPEEDS / "gpu_speed.json").read_text())["results"]
    for precision in ("fp32", "bf16x3"):
        (one,) = (
            case
            for case in study
            if (case["algorithm"], case["plugins"], case["runs"], case["precision"], case["variant"])
            == ("cql", "c4-proxy", 25, precision, "ours")
        )
        found = rates["cql", "c4", precision]
        assert found.device == "cuda"
        assert found.stages == {"training": one["stages"]["training"]["run_updates_per_second"]}


def test_an_entry_keeps_what_its_run_logged_of_the_method(trained: Trained) -> None:
    filled = fill(small_table(), trained.store)
    for label, names in (("BC", set()), ("TD3+BC, α 1.0", {"trace"}), ("TD3+BC + C4", {"trace", "K"})):
        entry = filled[label, TASKS[0]].entries[0]
        updates, values = entry.curve("cross_covariance_trace_exact")
        assert (len(values) > 0) == ("trace" in names)
        clusters = entry.curve("c4_effective_K")[1]
        assert (len(clusters) > 0) == ("K" in names)
    assert list(updates) == [10, 20]
    assert all(1 <= count <= 5 for count in clusters)


def test_what_was_logged_at_an_evaluation_belongs_to_it() -> None:
    records = [{"update": update, "q": float(update)} for update in (5, 10, 15, 20)]
    assert _watched(records, [10, 20]) == {"q": [[10, 7.5], [20, 17.5]]}


def test_the_same_run_is_stored_once(trained: Trained, copied: Store) -> None:
    before = sorted(copied.folder.rglob("*.json"))
    for folder in trained.jobs.iterdir():
        assert copied.add(entries_of(folder)) == []
    assert sorted(copied.folder.rglob("*.json")) == before
    twin = before[0].with_name(f"again-{before[0].name}")
    twin.write_text(before[0].read_text())
    with pytest.raises(InputError, match=rf"the same run as .*{before[0].name.split('-')[0]}"):
        copied.by_identity()


def test_a_kill_while_entries_are_written_loses_none_and_doubles_none(trained: Trained, copied: Store) -> None:
    paths = sorted(copied.folder.rglob("*.json"))
    for path in paths[::2]:  # half of the entries of every job were written when it died
        path.unlink()
    (copied.folder / "bc" / ".half.json.partial").write_text('{"schema"')
    jobs = missing_jobs(small_table(), copied, trained.data, trained.jobs)
    assert sum(job.runs for job in jobs) == 8
    add_finished(trained.jobs, copied)  # or those runs would be other jobs, trained anew
    assert sorted(copied.folder.rglob("*.json")) == paths and len(copied.by_identity()) == 16


def test_a_finished_job_that_cannot_be_stored_does_not_stop_the_others(
    trained: Trained, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained.jobs, tmp_path / "jobs")
    store = tmp_path / "store"
    jobs = missing_jobs(small_table(), Store(store), trained.data, tmp_path / "jobs", device="cpu", threads=1)
    (jobs[0].config.output / "metrics.jsonl").unlink()
    assert run_jobs(jobs, Store(store), minutes=1) == 1
    out = capsys.readouterr().out
    assert f"{jobs[0].config.output.name}: failed, continuing with the next: " in out
    assert len(list(Store(store))) == sum(job.runs for job in jobs[1:])
    add_finished(tmp_path / "jobs", Store(store))
    assert f"{jobs[0].config.output.name}: cannot be added to the store: " in capsys.readouterr().out


def test_ensembles_around_a_failed_run_are_no_entries_of_other_seeds() -> None:
    config = small_config("bc", task="maze2d-open-dense-v0", seeds=tuple(range(6)), ensemble=2)
    summary = {"stopped": {"1": {"failed_at": 5}}, "ensemble": {"returns": [[1.0], [2.0]]}, "updates": 10}
    # seeds 0 and 2, 3 and 4 acted together; 5 was left over: none of them an ensemble of the seeds as they are named
    assert list(_ensembles(config, runs_of(config), summary)) == []
    summary = {"stopped": {"5": {"failed_at": 5}}, "ensemble": {"returns": [[1.0], [2.0]]}, "updates": 10}
    assert [run.seed for run, *_ in _ensembles(config, runs_of(config), summary)] == [0, 2]


def test_a_disk_that_fills_up_takes_no_entry_of_a_job(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of some of its runs the next bench would train the others anew."""
    store, (folder, *_), write, written = Store(tmp_path), sorted(trained.jobs.iterdir()), Path.write_text, []

    def filling(path: Path, text: str) -> int:
        if len(written) == 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        written.append(path)
        return write(path, text)

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr(Path, "write_text", filling)
        store.add(entries_of(folder))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert len(store.add(entries_of(folder))) > 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda entry: entry["run"]["options"].update(hidden_width=9), "its settings are those of"),
        (lambda entry: entry["run"].update(sha256="0" * 64), "its settings are those of"),
        (lambda entry: entry["run"].update(seed=5), "its settings are those of"),
        (lambda entry: entry["run"].update(physics="d4rl-0"), "its settings are those of"),
        (lambda entry: entry.update(results=0), "field 'results' is 0, expected 1"),
        (lambda entry: entry.update(schema=2), "field 'schema' is 2, expected 1"),
        (lambda entry: entry.pop("versions"), "found other fields than an entry's"),
        (lambda entry: entry.update(run={}), "lacks what determines a run"),
        (lambda entry: entry.update(curve=[]), "its results are not as c4rl writes them"),
        (lambda entry: entry["curve"][0][1].clear(), "its results are not as c4rl writes them"),
        (lambda entry: entry["curve"][0][1].append(float("nan")), "its results are not as c4rl writes them"),
        (lambda entry: entry["curve"][0][1].append(10**400), "its results are not as c4rl writes them"),
        (lambda entry: entry.update(curve=[1.0]), "its results are not as c4rl writes them"),
        (lambda entry: entry.update(made={}), "its results are not as c4rl writes them"),
        (lambda entry: entry.update(stopped="then"), "its results are not as c4rl writes them"),
        (lambda entry: entry.update(selected={"update": 5}), "its results are not as c4rl writes them"),
    ],
)
def test_a_changed_entry_is_refused_by_name(change: Any, sentence: str, copied: Store) -> None:
    path = next(copied.folder.rglob("*.json"))
    entry = json.loads(path.read_text())
    change(entry)
    path.write_text(json.dumps(entry))
    with pytest.raises(InputError, match=sentence) as raised:
        copied.by_identity()
    assert path.name in str(raised.value)


def test_other_data_are_refused(trained: Trained, tmp_path: Path) -> None:
    for task in TASKS:
        (tmp_path / f"{task}.npz").write_bytes((trained.data / f"{task}.npz").read_bytes())
    path = tmp_path / f"{TASKS[0]}.npz"
    path.write_bytes(path.read_bytes() + b" ")
    jobs = missing_jobs(small_table(), Store(tmp_path / "store"), tmp_path, tmp_path / "jobs")
    with pytest.raises(InputError, match=f"{path.name}: its sha256 is"):
        check_data(jobs, tmp_path)
    path.unlink()
    with pytest.raises(InputError, match=f"found no '{path.name}'"):
        check_data(jobs, tmp_path)


def test_a_refused_recording_names_what_differs(tmp_path: Path) -> None:
    name, other = "c4rl/seed-1/maze2d-medium-v1", "c4rl/pen-expert-v1"
    table = small_table(tasks=(name,), methods=METHODS[:1])
    jobs = missing_jobs(table, Store(tmp_path / "store"), tmp_path, tmp_path / "jobs")
    path = tmp_path / f"{name}.npz"
    record = f"c4rl data record maze2d-medium-v1 --size 10000 --seed 1 --output {path} with d4rl-1, mujoco 3.11.0"
    with pytest.raises(InputError, match=re.escape(record)):
        check_data(jobs, tmp_path)
    facts = recording_of(name)
    arrays = {
        "observations": np.zeros((2, 4), np.float32), "actions": np.zeros((2, 2), np.float32),
        "rewards": np.zeros(2, np.float32), "terminals": np.zeros(2, bool), "timeouts": np.array([False, True]),
    }  # fmt: skip
    path.parent.mkdir(parents=True)
    write_npz(path, arrays, facts | {"environment": "d4rl-1, mujoco 9.9.9"})
    words = "environment d4rl-1, mujoco 9.9.9 instead of d4rl-1, mujoco 3.11.0, which gives other bytes"
    with pytest.raises(InputError, match=f"its sha256 is .*; it was recorded with {words}$"):
        check_data(jobs, tmp_path)
    table = small_table(tasks=(other,), methods=METHODS[:1])
    jobs = missing_jobs(table, Store(tmp_path / "store"), tmp_path, tmp_path / "jobs")
    with pytest.raises(InputError, match="pen-expert-v1 --size 10000 --seed 0 --policy FILE --output"):
        check_data(jobs, tmp_path)
    write_npz(tmp_path / f"{other}.npz", arrays, recording_of(other))
    with pytest.raises(InputError, match="a network that acts rounds differently on another kind of processor"):
        check_data(jobs, tmp_path)


def test_an_option_that_came_later_does_not_orphan_a_run(trained: Trained) -> None:
    config = small_table().config(METHODS[1], TASKS[0], trained.data)
    now = determinants(config, "0" * 64, "d4rl-1, mujoco 3.3.7")
    before = now | {"options": {n: v for n, v in now["options"].items() if n != "actor_first"}}
    assert identity(before) == identity(now)
    assert identity(now | {"options": now["options"] | {"actor_first": True}}) != identity(now)
    assert identity(now) == identity(determinants(config, "0" * 64, "d4rl-1, mujoco 4.0.0"))
    assert identity(now) != identity(determinants(config, "0" * 64, "d4rl-2, mujoco 4.0.0"))


def test_a_job_that_fails_does_not_stop_the_others(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    jobs = missing_jobs(small_table(), Store(tmp_path / "store"), trained.data, tmp_path)
    asked = []

    def fail(config: Any) -> None:
        asked.append(config.algorithm)
        raise InputError("--size: found 9")

    monkeypatch.setattr("c4rl.results.bench_runs.train", fail)
    assert run_jobs(jobs, Store(tmp_path / "store"), minutes=1) == 1
    assert asked == ["bc", "td3_bc", "td3_bc"]
    found = capsys.readouterr()
    assert found.out.count("failed, continuing with the next: --size: found 9\n") == 3 and found.err == ""


LONG = {"tasks": TASKS[:1], "methods": METHODS[1:2], "seeds": 1, "updates": 500, "episodes": 1}
CHILD = """
import sys
from pathlib import Path
from c4rl.results import bench_tables, tables
from tests.results.conftest import fill_gaps, small_table
from tests.results.test_store import LONG
data, output, store, sha256 = sys.argv[1:]
known = {LONG["tasks"][0]: {"sha256": sha256, "rows": 300}}
tables.datasets = bench_tables.datasets = lambda: known
fill_gaps(small_table(**LONG | {"updates": 10**6}), bench_tables.Store(Path(store)), Path(data), Path(output))
"""


def test_time_that_is_up_and_a_kill_leave_a_job_to_go_on_with(trained: Trained, tmp_path: Path) -> None:
    table, store, output = small_table(**LONG), Store(tmp_path / "store"), tmp_path / "jobs"
    jobs = missing_jobs(table, store, trained.data, output, device="cpu", threads=1)
    folder = jobs[0].config.output
    folder.mkdir(parents=True)
    (folder / ".lock").touch()  # killed before it began
    assert run_jobs(jobs, store, minutes=0.002) == 3
    assert not list(store) and (folder / "checkpoint.safetensors").exists()
    assert run_jobs(jobs, store, minutes=10) == 0
    assert len(list(store)) == 1
    assert fill_gaps(table, store, trained.data, output) == 0 and len(list(store)) == 1


def test_a_killed_bench_loses_a_checkpoint_interval_at_most(trained: Trained, tmp_path: Path) -> None:
    sha256 = json.loads(next(trained.store.folder.glob(f"*/{TASKS[0]}*")).read_text())["run"]["sha256"]
    command = [sys.executable, "-c", CHILD, str(trained.data), str(tmp_path / "jobs"), str(tmp_path / "store"), sha256]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        while not (logs := list(tmp_path.glob("jobs/*/metrics.jsonl"))) or '"update": 1500' not in logs[0].read_text():
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
    with safe_open(logs[0].with_name("checkpoint.safetensors"), "np") as file:
        saved = json.loads(file.metadata()["progress"])["update"]
    reached = max(json.loads(line)["update"] for line in logs[0].read_text().splitlines()[:-1])
    assert saved > 0 and reached - saved <= 1000, "more than --checkpoint-every"
    assert not list(Store(tmp_path / "store"))
