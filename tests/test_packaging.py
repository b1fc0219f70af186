"""The package as others install it: sdist -> wheel -> an empty environment, where it trains and exports."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from c4rl.core.version import __version__
from tests.cli.support import SMALL, save_npz

ROOT = Path(__file__).resolve().parents[1]


def execute(*command: object, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(words)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_version_has_one_source() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    (cited,) = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)
    (newest, *_) = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.M)
    assert cited == newest == __version__


@pytest.mark.skipif("C4RL_PACKAGING" not in os.environ, reason="minutes of installing; asked for by C4RL_PACKAGING=1")
def test_the_wheel_of_the_sdist_works_in_an_empty_environment(tmp_path: Path) -> None:
    source, dist, away = tmp_path / "source", tmp_path / "dist", tmp_path / "away"
    for folder in (dist, away):
        folder.mkdir()
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    shutil.copytree(ROOT / "src", source / "src", ignore=ignore)  # building writes into its folder
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    build = "import sys; from setuptools import build_meta; build_meta.build_sdist(sys.argv[1])"
    execute(sys.executable, "-c", build, dist, cwd=source)
    (sdist,) = dist.glob("c4rl-*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    pip = (sys.executable, "-m", "pip", "--quiet")
    execute(*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", dist, unpacked, cwd=away)
    (wheel,) = dist.glob("*.whl")
    assert wheel.name == f"c4rl-{__version__}-py3-none-any.whl"
    held = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("c4rl/")}
    files = {str(path.relative_to(source / "src")) for path in (source / "src/c4rl").rglob("*") if path.is_file()}
    assert held == files  # the package's data files too

    execute(sys.executable, "-m", "venv", tmp_path / "empty", cwd=away)
    binaries = tmp_path / "empty" / "bin"
    execute(binaries / "python", "-m", "pip", "--quiet", "install", wheel, cwd=away)
    assert execute(binaries / "c4rl", "--version", cwd=away) == f"c4rl {__version__}\n"
    assert "hopper" in execute(binaries / "python", "-m", "c4rl", "tasks", cwd=away)
    save_npz(away / "data.npz")
    job = ["train", "--plugins", "c4", "--task", "none", "--dataset", "data.npz", "--output", "job", "--updates", "4"]
    execute(binaries / "c4rl", *job, *SMALL, cwd=away)
    execute(binaries / "c4rl", "export", "job", "--output", "policy.npz", cwd=away)
    assert (away / "policy.npz").exists() and (away / "policy.npz.md").exists()
    where = execute(binaries / "python", "-c", "import c4rl; print(c4rl.__file__)", cwd=away)
    assert str(tmp_path / "empty") in where
