"""Data and settings for jobs that are disturbed."""

from pathlib import Path

import pytest

from tests.cli.support import run, save_npz


@pytest.fixture(scope="session")
def plain_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_npz(tmp_path_factory.mktemp("data") / "plain.npz")


@pytest.fixture(scope="session")
def maze_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "maze.npz"
    assert run("data", "record", "maze2d-open-dense-v0", "--output", path, "--size", "600") == 0
    return path
