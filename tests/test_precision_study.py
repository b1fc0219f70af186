"""Precisions are offered exactly where the recorded curves say that they are harmless."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from c4rl.core.ops import OFFERED

ROOT = Path(__file__).resolve().parents[1]
SPEC = importlib.util.spec_from_file_location("precision", ROOT / "benchmarks" / "precision.py")
assert SPEC is not None and SPEC.loader is not None
study: Any = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(study)

CURVES = {file.stem: json.loads(file.read_text()) for file in sorted((ROOT / "results" / "precision").glob("*.json"))}


def test_the_offered_precisions_are_those_shown_to_be_harmless() -> None:
    harmless = {mode for mode, found in CURVES.items() if study.compare(CURVES["fp32"], found)[1]}
    assert harmless == set(OFFERED)
    assert "tf32" in CURVES and "tf32" not in harmless


def made_up(shift: float = 0.0, spread: float = 1.0, seed: int = 0, failures: tuple[str, ...] = ()) -> dict[str, Any]:
    """Curves of three seeds that scatter around `shift`."""
    rng = np.random.default_rng(seed)
    curves = {name: (shift + spread * rng.standard_normal((60, 3))).tolist() for name in study.CURVES}
    return {"curves": {f"study {i}": curves for i in range(4)}, "failures": dict.fromkeys(failures, "why")}


@pytest.mark.parametrize(
    ("other", "harmless"),
    [
        (made_up(seed=1), True),
        (made_up(shift=3.0, seed=1), False),  # elsewhere
        (made_up(spread=6.0, seed=1), False),  # wilder
        (made_up(seed=1, failures=("hopper c4 seed 0",)), False),
    ],
    ids=["alike", "shifted", "wilder", "failed"],
)
def test_the_rule(other: dict[str, Any], harmless: bool) -> None:
    assert study.compare(made_up(), other)[1] == harmless
