"""c4rl.train called from someone's own program."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import c4rl
from c4rl.data.recording import record
from tests.helpers import small_config


def test_a_job_runs_in_any_thread(tmp_path: Path) -> None:
    data = tmp_path / "maze.npz"
    record("maze2d-open-dense", 300, 0, data)
    values = {"dataset": data, "task": "maze2d-open-dense", "updates": 4, "eval_every": 4, "eval_episodes": 1}
    config = small_config("td3_bc", output=tmp_path / "main", **values)
    here = c4rl.train(config)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(c4rl.train, replace(config, output=tmp_path / "thread")).result()
    assert there["last"]["returns"] == here["last"]["returns"]


def test_bad_input_raises_the_one_exception_that_means_it(tmp_path: Path) -> None:
    config = small_config("td3_bc", dataset=tmp_path / "absent.npz", output=tmp_path / "job")
    with pytest.raises(c4rl.InputError, match=r"absent\.npz"):
        c4rl.train(config)
    assert not (tmp_path / "job").exists()
