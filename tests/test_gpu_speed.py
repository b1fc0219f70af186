"""The page of speeds says what was measured, and what is measured covers the tables of speed."""

import importlib.util
from pathlib import Path
from typing import Any

from c4rl.results.speed_tables import SPEED_TABLES

ROOT = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("gpu_speed", ROOT / "benchmarks" / "gpu_speed.py")
assert SPEC is not None and SPEC.loader is not None
study: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(study)


def test_the_page_has_the_tables_of_the_measurements() -> None:
    page = (ROOT / "benchmarks" / "speed.md").read_text()
    for table in study.tables(ROOT / "results" / "speed" / "gpu_speed.json").split("\n\n"):
        assert table in page


def test_every_cell_of_the_tables_of_speed_is_measured_once() -> None:
    cases = [case for group in study.plan(compiled=True) for case in group]
    assert len(set(cases)) == len(cases)
    for cell in (cell for table in SPEED_TABLES.values() for cell in table.cases):
        method = cell.method
        assert study.Case(method.algorithm, method.plugins, cell.runs, rows=cell.rows) in cases
