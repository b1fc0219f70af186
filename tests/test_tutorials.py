"""The tutorials, executed as written; what they print is what the pages show, up to numbers."""

import re
from pathlib import Path

import pytest

from tests.documents import ROOT, blocks, command_lines, executed, without_numbers

TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.md"))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_does_what_it_says(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mujoco", reason="some tutorials score policies in MuJoCo")
    monkeypatch.setenv("COLUMNS", "120")
    for block, printed in executed(page.read_text(), tmp_path):
        found = without_numbers(printed)
        for line in without_numbers(block.code):
            assert any(line in other for other in found), f"{line}\nis not printed:\n{printed}"
    if page.stem == "read_the_report":
        report = (tmp_path / "report.html").read_text()
        for part in re.findall(r"^\*\*(.+?)\.\*\*", page.read_text(), re.M):
            assert part in report, f"the report has no '{part}'"


def test_there_are_five_and_they_show_what_they_print() -> None:
    assert len(TUTORIALS) == 5
    for page in TUTORIALS:
        languages = [block.language for block in blocks(page.read_text())]
        assert languages.count("text") >= 1, page
        assert languages.count("sh") + languages.count("python") >= 3, page


def test_what_is_not_executed_has_flags_that_exist() -> None:
    """Those that need GPUs or a cluster."""
    from c4rl.cli.parsing import flags_of
    from c4rl.cli.train import _Choice
    from c4rl.jobs.config import TrainConfig
    from c4rl.jobs.registry import ALGORITHMS

    known = {flag.name for kind in (_Choice, TrainConfig, ALGORITHMS["cql"].config_type) for flag in flags_of(kind)}
    skipped = [block for page in TUTORIALS for block in blocks(page.read_text()) if block.mark is not None]
    assert {block.mark for block in skipped} == {"not executed: needs two GPUs", "not executed: needs Ray"}
    for block in skipped:
        for line in command_lines(block.code):
            if line.startswith("c4rl train"):
                assert set(re.findall(r"--[a-z-]+", line)) <= known, line
