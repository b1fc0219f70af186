"""The example of a loop as CORL and CleanRL write it: C4 finds the next actions, and keeps the trace small."""

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from c4rl.data import load_dataset
from c4rl.plugins.c4.cross_covariance import traces

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "corl_loop.py"


@pytest.fixture(scope="module")
def main() -> Callable[..., Any]:
    return runpy.run_path(str(EXAMPLE))["main"]


def trace(trainer: Any) -> float:
    c4 = trainer.c4
    pairs = (c4.target, c4.x_next), (c4.critic, c4.x)
    return traces(*(c4._gradients(q, x, create_graph=False) for q, x in pairs), c4.valid)[0].item()


def test_c4_keeps_the_trace_below_a_third_on_real_data(
    main: Callable[..., Any], shared: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    file = shared("data/d4rl-10k/hopper-medium-expert-v2.npz")
    small = ["--updates", "500", "--hidden", "64", "--batch-size", "64"]
    weights = "5", "0"  # the penalty sums over m^2 numbers: with a quarter of the features 5 is what 0.3 is with 256
    with_c4, without = (main([str(file), *small, "--lambda", weight]) for weight in weights)
    assert "update 500: critic_loss" in capsys.readouterr().out
    assert trace(with_c4) < trace(without) / 3
    # rows and next actions as c4rl's own reader finds them
    assert torch.equal(with_c4.c4.valid, torch.from_numpy(load_dataset(file).next_action_valid.copy()))


def test_it_marks_what_c4_adds() -> None:
    lines = EXAMPLE.read_text().splitlines()
    assert len(lines) < 140 and sum("# C4" in line for line in lines) == 3
