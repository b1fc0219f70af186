"""The core alone: training without a simulator needs no extra, and what needs one names it in a sentence."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.support import SMALL, metric_lines, save_npz

EXTRAS = ("gymnasium", "mujoco", "matplotlib", "tensorboard", "minari", "gymnasium_robotics", "onnx")
# a Python in which these packages are not installed
HIDE = """
import importlib.machinery, sys
class Without(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in {hidden!r} else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Without
"""
COMMANDS = """
import contextlib, io, json
from c4rl.cli.main import main
results = []
for command in {commands!r}:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        code = main(command)
    results.append([code, out.getvalue(), err.getvalue()])
assert not set(sys.modules) & set({hidden!r})
print(json.dumps(results))
"""


def results(commands: list[str], hidden: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """Command -> (exit code, stdout, stderr)."""
    code = COMMANDS.format(commands=[command.split() for command in commands], hidden=hidden)
    done = subprocess.run(
        [sys.executable, "-c", HIDE.format(hidden=hidden) + code],
        cwd=folder,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(commands, json.loads(done.stdout), strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_npz(tmp_path / "data.npz")
    return tmp_path


def test_a_job_without_a_simulator_runs_on_the_core_alone(folder: Path) -> None:
    train = (
        f"train --plugins c4 --task none --dataset data.npz --output job --updates 4 --log-every 2 {' '.join(SMALL)}"
    )
    others = ["train --resume job", "export job", "data info data.npz", "tasks"]
    onnx = "export job --format onnx --output p.onnx"
    found = results([train, *others, onnx], EXTRAS, folder)
    code, _, err = found.pop(onnx)
    assert code == 2 and err == "c4rl: needs the package 'onnx': pip install 'c4rl[onnx]'\n"
    assert not list(folder.glob("*p.onnx*"))
    assert [code for code, _, _ in found.values()] == [0] * 5, found
    assert "'c4rl[simulators]'" in found["tasks"][1], "the extra, brackets and all"
    _, out, _ = found[train]
    assert out.count("TensorBoard") == 1 and "pip install 'c4rl[tensorboard]'" in out
    assert {line["update"] for line in metric_lines(folder / "job")} >= {2, 4}
    assert not (folder / "job" / "tensorboard").exists()
    versions = json.loads((folder / "job" / "summary.json").read_text())["versions"]
    assert "torch" in versions and "gymnasium" not in versions


def test_what_needs_an_extra_names_it_in_a_sentence(folder: Path) -> None:
    train = f"train --dataset data.npz --output new {' '.join(SMALL)}"
    needs = {
        f"{train} --task maze2d-open-v0": "gymnasium",
        f"{train} --task gym:Pendulum-v1": "gymnasium",
        "data record maze2d-open-v0 --output new.npz": "gymnasium",
        "demo --output new": "gymnasium",
    }
    found = [*results(list(needs), EXTRAS, folder).items()]
    found += results(["demo --output new", "figure curves"], ("matplotlib",), folder).items()
    found += results(["demo --output new"], ("mujoco",), folder).items()
    packages = [*needs.values(), "matplotlib", "matplotlib", "mujoco"]
    for (command, (code, out, err)), package in zip(found, packages, strict=True):
        extra = "figures" if package == "matplotlib" else "simulators"
        assert code == 2 and out == "" and err.count("\n") == 1, f"{command}: {out}{err}"
        assert f"needs the package '{package}': pip install 'c4rl[{extra}]'" in err, err
    assert {path.name for path in folder.iterdir()} == {"data.npz"}
