"""TSRL on small data: what its tests build on."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from c4rl.algorithms.tsrl import TSRL
from c4rl.core.networks import StackedMLP
from c4rl.data.dataset import Dataset
from c4rl.training.launch import Launch
from tests.helpers import SMALL, make_launch, small_config, small_dataset

STAGE_ONE = SMALL["tsrl"]["dynamics_updates"]


def algorithm_of(data: Dataset | None = None, **options: Any) -> tuple[TSRL, Launch]:
    launch = make_launch(small_config("tsrl", **options), data or with_terminals())
    assert isinstance(launch.algorithm, TSRL)
    return launch.algorithm, launch


def with_terminals(rows: int = 200, every: int = 9) -> Dataset:
    data = small_dataset(rows)
    terminals = np.arange(rows) % every == every - 1
    return replace(data, terminals=terminals, next_action_valid=data.next_action_valid & ~terminals)


def one_run(mlp: StackedMLP, run: int = 0) -> Callable[[Tensor], Tensor]:
    """One run's network on single rows, written plainly."""

    def evaluate(x: Tensor) -> Tensor:
        for layer, (w, b) in enumerate(zip(mlp.weights, mlp.biases, strict=True)):
            x = x @ w[run, 0] + b[run, 0]
            x = x.relu() if layer < len(mlp.weights) - 1 else x
        return x

    return evaluate
