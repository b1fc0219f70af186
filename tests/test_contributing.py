"""CONTRIBUTING.md, followed as written: its algorithm, plug-in and task work once they are registered."""

import re
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from c4rl.environments import tasks
from c4rl.jobs.registry import ALGORITHMS, PLUGINS
from tests.cli.support import SMALL, run, save_npz
from tests.helpers import advance, make_launch, small_config

PAGE = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text()
BLOCKS = dict(re.findall(r"^```python\n# src/c4rl/(\S+)\.py\n(.*?)^```$", PAGE, re.DOTALL | re.M))


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page's files, and the registry lines that it gives."""
    found: dict[str, Any] = {}
    for name in ("algorithms/huber_bc", "plugins/small_q"):
        module = types.ModuleType(f"c4rl.{name.replace('/', '.')}")
        monkeypatch.setitem(sys.modules, module.__name__, module)
        exec(compile(BLOCKS[name], f"{name}.py", "exec"), vars(module))
        found |= vars(module)
    for table in (ALGORITHMS, PLUGINS):
        (line,) = (line for line in re.findall(r'`("\w+": [^`]+),`', PAGE) if ("(" in line) == (table is PLUGINS))
        for name, kind in eval(f"{{{line}}}", found).items():
            monkeypatch.setitem(table, name, kind)  # type: ignore[arg-type]


@pytest.mark.usefixtures("followed")
def test_the_algorithm_learns_and_the_command_line_takes_its_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    launch = make_launch(small_config("huber_bc", seeds=(0, 1)))
    batch = launch.buffer.gather(torch.arange(50).expand(2, -1))

    def distance() -> float:
        return (launch.algorithm.act(batch.observations) - batch.actions).abs().mean().item()

    before = distance()
    advance(launch, 60)
    assert distance() < before
    command = ["train", "--algorithm", "huber_bc", "--task", "none", "--dataset", save_npz(tmp_path / "d.npz")]
    assert run(*command, *SMALL, "--updates", "2", "--output", tmp_path / "job") == 0
    assert run(*command, "--huber-width", "0", "--output", tmp_path / "other") == 2
    assert "--huber-width: found 0" in capsys.readouterr().err


@pytest.mark.usefixtures("followed")
def test_the_plugin_makes_values_smaller() -> None:
    size = []
    for weight in (0.0, 10.0):
        options = (PLUGINS["small_q"][0](small_q_weight=weight),)
        launch = make_launch(small_config("td3_bc", ("small_q",), plugin_options=options, critic_lr=1e-2))
        advance(launch, 30)
        batch = launch.buffer.gather(torch.arange(50).expand(1, -1))
        size.append(launch.algorithm.critics[0].at(batch.state_actions).q.abs().mean().item())
    assert size[1] < size[0] / 2


def test_the_task_is_listed_and_scored_between_its_references(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gymnasium", reason="the task's simulator needs gymnasium")
    (name,) = (name for name in BLOCKS if name == "environments/tasks")
    space = dict(vars(tasks))
    exec(BLOCKS[name], space)
    (task,) = space["_classic"]()
    monkeypatch.setitem(tasks.TASKS, task.name, task)
    assert tasks.get_task("pendulum-mixed-v1") is task and tasks.missing(task) is None
    assert any(row["name"] == task.name for row in tasks.tasks_list())
    assert tasks.tasks_table().row_count == len(tasks.TASKS)
    np.testing.assert_allclose(task.normalise([-1200.0, -150.0]), [0, 100])
