"""A whole job in every domain: read a file, take a subset, train a few hundred updates, evaluate."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from c4rl.data.recording import record
from c4rl.environments.tasks import get_task, missing
from tests.cli.support import SMALL, run, summary

REAL = {
    "hopper-medium-replay-v2": "d4rl-10k/hopper-medium-replay-v2.npz",
    "antmaze-umaze-v2": "d4rl-10k/antmaze-umaze-v0.npz",
    "pen-cloned-v1": "d4rl-hdf5/pen-cloned-v1.hdf5",
    "relocate-human-v1": "d4rl-hdf5/relocate-human-v1.hdf5",
}
RECORDED = ["maze2d-open-v0", "kitchen-mixed-v0"]


@pytest.mark.parametrize("task", [*REAL, *RECORDED])
def test_a_job_reads_subsets_trains_and_evaluates(task: str, tmp_path: Path, shared: Callable[[str], Path]) -> None:
    if (reason := missing(get_task(task))) is not None:
        pytest.skip(reason)
    data = shared(f"data/{REAL[task]}") if task in REAL else tmp_path / "data.npz"
    if task in RECORDED:
        record(task, 200, 0, data, workers=0)
    options = ["--size", 150, "--updates", 200, "--eval-every", 200, "--eval-episodes", 1, "--threads", 1]
    folder = tmp_path / "job"
    assert run("train", "--task", task, "--dataset", data, "--output", folder, *options, *SMALL) == 0
    told = summary(folder)
    assert told["dataset"]["rows"] == 150
    assert told["environment"].startswith("d4rl-")
    assert np.isfinite(told["last"]["mean"])
