"""Fixtures shared by all tests."""

from collections.abc import Callable
from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
LONGEST = ("test_kernels.py", "test_readme.py", "test_killed_and_resumed.py", "test_every_algorithm_as_a_job.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first: begun last, one of them would keep one core busy while the others are done."""
    items.sort(key=lambda item: item.path.name not in LONGEST)


@pytest.fixture(scope="session")
def shared() -> Callable[[str], Path]:
    """Real files in a folder next to the checkout: their path, or a skip that says what is missing."""

    def find(name: str) -> Path:
        path = SHARED / name
        if not path.exists():
            pytest.skip(f"real data not at hand: no '{name}' in a folder 'shared' beside the checkout")
        return path

    return find
