"""Small things that several tests build on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from c4rl.core.buffer import Batch
from c4rl.data.dataset import Dataset
from c4rl.data.packing import Scaling, pack_datasets
from c4rl.jobs.config import TrainConfig, empty_config
from c4rl.jobs.registry import ALGORITHMS
from c4rl.plugins.c4.plugin import C4
from c4rl.results.speed import made_up_dataset
from c4rl.training.launch import Launch

CPU = torch.device("cpu")
# what makes an algorithm small: narrow networks of its own, stages so short that nine updates pass through all of them
SMALL: dict[str, dict[str, Any]] = {
    "doge": {"distance_updates": 5},
    "tsrl": {
        "dynamics_updates": 5,
        "dynamics_batch_size": 32,
        "encoder_ode_from": 2,
        "encoder_widths": (16, 8),
        "field_widths": (16, 16),
    },
    "bppo": {
        "updates": 3,
        "value_updates": 2,
        "cloning_updates": 2,
        "improvement_updates": 2,
        "value_layers": 2,
        "value_width": 16,
    },
    "a2pr": {"actor_layers": 2, "vae_width": 16},
    "sorl": {"style_rounds": 2, "style_steps": 2, "style_batch_size": 32, "style_layers": 1, "style_width": 16},
}
SMALL_PLUGINS: dict[str, dict[str, Any]] = {"sorl": SMALL["sorl"]}


def small_config(
    algorithm: str, plugins: tuple[str, ...] = (), seeds: tuple[int, ...] = (0,), **values: Any
) -> TrainConfig:
    """Two hidden layers of 16 and batches of 32: the same code, in milliseconds."""
    option_type = ALGORITHMS[algorithm].config_type
    values = SMALL.get(algorithm, {}) | values
    names = set(option_type.__dataclass_fields__)
    options = option_type(
        **{"hidden_layers": 2, "hidden_width": 16, "batch_size": 32}
        | {name: values.pop(name) for name in list(values) if name in names}
    )
    defaults: dict[str, Any] = {"dataset": Path("unused"), "task": "none", "output": Path("unused")}
    return empty_config(algorithm, plugins or ("none",), options=options, seeds=seeds, **(defaults | values))


def small_dataset(rows: int = 200, observation_dim: int = 5, action_dim: int = 2) -> Dataset:
    return made_up_dataset(rows, observation_dim, action_dim)


def with_trajectories(data: Dataset, length: int, terminal: bool = False) -> Dataset:
    """The rows of the data as trajectories of this length, without a next action at their ends."""
    place = np.arange(len(data))
    ends = (place % length == length - 1) | (place == len(data) - 1)
    return replace(
        data,
        terminals=ends if terminal else np.zeros(len(data), bool),
        timeouts=np.zeros(len(data), bool) if terminal else ends,
        trajectory_ids=(place // length).astype(np.int32),
        next_actions=data.next_actions * ~ends[:, None],
        next_action_valid=~ends,
    )


def plain_scaling(dataset: Dataset) -> Scaling:
    s = dataset.observation_dim
    return Scaling(np.zeros(s, np.float32), np.ones(s, np.float32), dataset.action_low, dataset.action_high)


def make_launch(
    config: TrainConfig, dataset: Dataset | None = None, dtype: torch.dtype = torch.float64, states: Any = None
) -> Launch:
    dataset = dataset or small_dataset()
    buffer = pack_datasets([(dataset, plain_scaling(dataset))], CPU, dtype)
    return Launch(config, list(config.seeds), buffer, CPU, dtype, states)


def advance(launch: Launch, updates: int, start: int = 0) -> Launch:
    for step in range(start + 1, start + updates + 1):
        launch.update(step)
        launch.refresh(step)
    return launch


def batch_at(launch: Launch, step: int, rows: int = 32) -> Batch:
    """The rows of update `step`, for which the device's counter is made ready."""
    launch.step.fill_(step)
    return launch.buffer.gather(launch.sampler.rows(launch.streams, rows))


def flat(module: nn.Module) -> Tensor:
    """All parameters, [n]."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def c4_of(launch: Launch) -> C4:
    return next(plugin for plugin in launch.plugins.all if isinstance(plugin, C4))


def sum_of_losses(losses: Tensor | Sequence[Tensor | float]) -> Tensor:
    """What an optimiser minimises when its `step` is given one loss or several."""
    given = [losses] if isinstance(losses, Tensor) else losses
    return sum((term for term in given[1:] if isinstance(term, Tensor)), start=given[0])
