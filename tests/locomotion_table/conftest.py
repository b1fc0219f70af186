from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.locomotion_table.support import PAGE, script


@pytest.fixture
def folders(tmp_path: Path) -> SimpleNamespace:
    """Data that are there (planning does not read them), the project's page, and nothing else."""
    data = tmp_path / "data"
    data.mkdir()
    for task in script.SETS:
        (data / f"{task}.npz").touch()
    page = tmp_path / "page.md"
    page.write_text(PAGE.read_text())
    return SimpleNamespace(data=data, output=tmp_path / "runs", results=tmp_path / "results", page=page)
