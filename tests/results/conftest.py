"""A small table, its data, and its runs, trained once for all tests of the results."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from c4rl.data.recording import record
from c4rl.plugins.c4.monitor import CrossCovarianceMonitor
from c4rl.results import bench_tables, tables
from c4rl.results.bench_runs import run_jobs
from c4rl.results.bench_tables import check_data, missing_jobs
from c4rl.results.store import Store
from c4rl.results.tables import Method, ResultTable

TASKS = ("maze2d-open-dense-v0", "maze2d-umaze-dense-v1")
SMALL = {"hidden_layers": 1, "hidden_width": 8, "batch_size": 16}
C4 = Method("TD3+BC + C4", "td3_bc", ("c4",), options=SMALL | {"period": 5, "directions": 2})
METHODS = (
    Method("BC", "bc", options=SMALL),
    *(
        Method(
            f"TD3+BC, α {alpha}", "td3_bc", options=SMALL | {"alpha": alpha}, swept="alpha", series="TD3+BC", x=alpha
        )
        for alpha in (1.0, 2.5)
    ),
    C4,
)


def small_table(**values: Any) -> ResultTable:
    settings = {"tasks": TASKS, "seeds": 2, "updates": 20, "evaluations": 2, "episodes": 2} | values
    title, methods = settings.pop("title", "A small table"), settings.pop("methods", METHODS)
    return ResultTable("small", title, methods, **settings)


def fill_gaps(table: ResultTable, store: Store, data: Path, output: Path) -> int:
    jobs = missing_jobs(table, store, data, output, device="cpu", threads=1)
    check_data(jobs, data)
    return run_jobs(jobs, store, minutes=10)


class Trained(NamedTuple):
    data: Path  # folder of the datasets
    jobs: Path  # folder of the job folders
    store: Store


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Two small recorded sets, known to the tables by their sha256, and the small table's runs. Not to be changed."""
    folder = tmp_path_factory.mktemp("results")
    known = dict(tables.datasets())
    for task in TASKS:
        path = folder / "data" / f"{task}.npz"
        record(task, 300, 0, path)
        known[task] = {"sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "rows": 300}
    with pytest.MonkeyPatch.context() as patch:
        for module in (tables, bench_tables):
            patch.setattr(module, "datasets", lambda: known)
        patch.setattr(CrossCovarianceMonitor.__init__, "__defaults__", (5,))  # its period: 200 is beyond the end
        store = Store(folder / "store")
        assert fill_gaps(small_table(), store, folder / "data", folder / "jobs") == 0
        yield Trained(folder / "data", folder / "jobs", store)


@pytest.fixture
def copied(trained: Trained, tmp_path: Path) -> Store:
    """A store that a test may spoil."""
    shutil.copytree(trained.store.folder, tmp_path / "store")
    return Store(tmp_path / "store")
