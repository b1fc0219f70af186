"""--engine ray on a real cluster of two nodes in this machine: killed, cancelled and refused, jobs end as they do here.

`make test-ray` installs Ray and runs these; without it they are skipped.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from c4rl.cli.train import config_of
from c4rl.core.files import InUse
from c4rl.data.recording import record
from c4rl.jobs.config_file import to_json
from c4rl.results import bench_runs, bench_tables, tables
from c4rl.results.store import Store
from c4rl.results.tables import Method, ResultTable
from c4rl.training.ray_engine import RayOptions, begun_job
from c4rl.training.ray_worker import train_part
from tests.cli.support import SMALL, run, summary
from tests.training.jobs import assert_same_job, last_update

ray = pytest.importorskip("ray", reason="--engine ray needs the package ray: make test-ray")
if "xdist" in sys.modules and "PYTEST_XDIST_WORKER" in os.environ:
    pytest.skip("a cluster of its own needs more than a share of the cores: make test-ray", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
FAST_DEATHS = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_failure_threshold": 3}
UPDATES = 500
PATIENCE = 400  # seconds, until a job is taken to hang: cores may be busy with other work
Command = Callable[[Path], list[str]]


class Machines:
    """A head without CPUs and two nodes with one each."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": FAST_DEATHS}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.nodes = {node.node_id[:6]: node for node in (self._node(), self._node())}

    def _node(self) -> Any:
        return self.cluster.add_node(num_cpus=1, include_dashboard=False)

    def kill(self, name: str) -> None:
        """As by a power cut; another takes its place."""
        self.cluster.remove_node(self.nodes.pop(name), allow_graceful=False)
        node = self._node()
        self.nodes[node.node_id[:6]] = node


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    with pytest.MonkeyPatch.context() as patched:
        for name in ("RAY_USAGE_STATS_ENABLED", "OMP_NUM_THREADS", "PYTHONPATH"):
            patched.setenv(name, os.environ.get(name, ""))  # put back at the end
        found = Machines()
        yield found
        found.cluster.shutdown()


@pytest.fixture(scope="module")
def command(plain_data: Path) -> Command:
    """Two launches of one run each."""
    every = ["--updates", UPDATES, "--log-every", "10", "--eval-every", "125", "--checkpoint-every", "14"]
    job = ["--dataset", plain_data, "--algorithm", "cql", "--cql-actions", "2", *SMALL, *every, "--seeds", "0", "1"]
    return lambda output: [*map(str, ("train", *job, "--threads", "1", "--output", output))]


@pytest.fixture(scope="module")
def here(command: Command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same job in one process."""
    folder = tmp_path_factory.mktemp("here") / "job"
    assert run(*command(folder), "--device", "cpu") == 0
    return folder


def driver(words: list[str], machines: Machines) -> "subprocess.Popen[str]":
    engine = ["--engine", "ray", "--address", machines.cluster.address]
    return subprocess.Popen(
        [sys.executable, "-m", "c4rl", *words, *engine],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: "subprocess.Popen[str]") -> tuple[int, str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def at_update(process: "subprocess.Popen[str]", output: Path, update: int) -> list[dict[str, Any]]:
    """Where the launches run, once all are past this update."""
    deadline = time.monotonic() + PATIENCE
    folders = [output / "launches" / name for name in "12"]
    while not all((folder / "metrics.jsonl").exists() and last_update(folder) >= update for folder in folders):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the launches do not get on"
        time.sleep(0.02)
    return [json.loads(folder.with_name(f"{folder.name}.json").read_text()) for folder in folders]


def test_a_node_and_a_worker_die_and_the_job_ends_as_if_nothing_had_happened(
    machines: Machines, command: Command, here: Path, tmp_path: Path
) -> None:
    output = tmp_path / "job"
    process = driver(command(output), machines)
    first, second = at_update(process, output, 60)
    os.kill(second["pid"], signal.SIGKILL)
    machines.kill(first["node"].rpartition("/")[2])
    code, out, err = ended(process)
    assert code == 0, out + err
    assert out.count("resumed from") >= 2, out
    assert_same_job(output, here)
    assert not (output / "launches").exists()
    assert {path.name for path in output.iterdir()} == {path.name for path in here.iterdir()}


def test_stopped_twice_over_a_job_goes_on(machines: Machines, command: Command, here: Path, tmp_path: Path) -> None:
    """By Ctrl-C, which saves; and by the death of the driver, which Ray follows with that of its tasks."""
    output = tmp_path / "job"
    process = driver(command(output), machines)
    at_update(process, output, 40)
    with pytest.raises(InUse):  # another driver on the same folder
        begun_job(output, RayOptions())
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = ended(process)
    assert code == 130, out + err
    assert err == (
        f"c4rl: 2 of 2 launches did not finish (2 interrupted); "
        f"continue with: c4rl train --resume {output} --engine ray --address {machines.cluster.address}\n"
    )
    saved = [last_update(output / "launches" / name) for name in "12"]
    assert run("train", "--resume", output) == 2  # not without the engine
    process = driver(["train", "--resume", str(output)], machines)
    at_update(process, output, max(saved) + 30)
    process.kill()
    process.communicate()
    code, out, err = ended(driver(["train", "--resume", str(output)], machines))
    assert code == 0, out + err
    assert out.count("resumed from") >= 2, out
    assert_same_job(output, here)
    before = summary(output)
    code, out, err = ended(driver(["train", "--resume", str(output)], machines))
    assert code == 0 and summary(output) == before


def test_what_a_node_refuses_is_said_and_not_tried_again(machines: Machines, command: Command, tmp_path: Path) -> None:
    output = tmp_path / "job"
    good = to_json(config_of([*command(output / "launches" / "1")[1:], "--device", "cpu"]))
    ray.init(machines.cluster.address, log_to_driver=False, logging_level="error")
    task = ray.remote(num_cpus=1, max_retries=3)(train_part)

    def refused(config: dict[str, Any], **versions: str) -> str:
        state, sentence = ray.get(task.remote(config, {}, "token", versions), timeout=60)
        assert state == "refused"
        return sentence

    try:
        assert f"{output}: not the driver's folder on this node" in refused(good)  # storage that it does not share
        assert not output.exists()
        (output / "launches").mkdir(parents=True)
        (output / "launches" / "cluster").write_text("token")
        assert "found torch" in (sentence := refused(good, torch="0.1")) and "expected 0.1" in sentence
        assert "absent.npz" in refused(good | {"dataset": str(tmp_path / "absent.npz")})
        assert json.loads((output / "launches" / "1.json").read_text())["attempt"] == 1
    finally:
        ray.shutdown()


def test_a_table_is_trained_on_the_cluster(
    machines: Machines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Several jobs at once, with a simulator; the store holds what it would hold without the cluster."""
    task, small = "maze2d-open-dense-v0", {"hidden_layers": 1, "hidden_width": 8, "batch_size": 16}
    path = tmp_path / "data" / f"{task}.npz"
    record(task, 300, 0, path)
    known = {task: {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "rows": 300}}
    for module in (tables, bench_tables):
        monkeypatch.setattr(module, "datasets", lambda: known)
    methods = (Method("BC", "bc", options=small), Method("TD3+BC", "td3_bc", options=small))
    table = ResultTable("small", "A small table", methods, (task,), seeds=2, updates=20, evaluations=2, episodes=2)
    stores = [Store(tmp_path / name) for name in ("store", "own store")]
    jobs = bench_tables.missing_jobs(table, stores[0], path.parent, tmp_path / "jobs", device="cpu", threads=1)
    options = RayOptions(machines.cluster.address)
    assert bench_runs.run_jobs_on_ray(jobs, stores[0], 10, options) == 0
    assert capsys.readouterr().out.count("runs added to the store") == len(jobs) == 2
    again = bench_tables.missing_jobs(table, stores[1], path.parent, tmp_path / "own jobs", device="cpu", threads=1)
    assert bench_runs.run_jobs(again, stores[1], 10) == 0
    found, expected = (store.by_identity() for store in stores)
    assert len(found) == 4 and found.keys() == expected.keys()
    for name, entry in found.items():
        assert entry.data["curve"] == expected[name].data["curve"]
        assert entry.data["watched"] == expected[name].data["watched"]
