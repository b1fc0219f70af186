"""When would cloning overfit? The action error on held-out trajectories against updates, of a small clone."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from c4rl.algorithms.bc import BCConfig
from c4rl.data.dataset import Dataset
from c4rl.data.info import observation_statistics
from c4rl.data.packing import Scaling, baselines, pack_datasets
from c4rl.data.subsets import hold_out, trajectory_slices
from c4rl.jobs.config import empty_config
from c4rl.training.launch import Launch

CPU = torch.device("cpu")
HELD_OUT = 0.2
# Errors up to 7.5% above the least count as good as it: scores fall later than held-out errors rise (docs/doctor.md).
TOLERATED = 0.075
JITTER = 0.01  # of the best constant action's error: a clone that is nearly perfect does not overfit by shaking


@dataclass(frozen=True)
class CloningCurve:
    updates: list[int]
    held_out: list[float]  # root mean squared error of actions scaled to [-1, 1]
    training: list[float]
    mean_action: float  # the same of the best constant action
    held_out_trajectories: int  # 0: the end of the only one
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def best(self) -> int:
        """The update with the least held-out error."""
        return self.updates[int(np.argmin(self.held_out))]

    @property
    def stop(self) -> int:
        """The last update whose error is as good as the least."""
        return max(u for u, error in zip(self.updates, self.held_out, strict=True) if error <= self.bar)

    @property
    def overfits(self) -> bool:
        """Whether the error was seen to rise again."""
        return self.held_out[-1] > self.bar

    @property
    def bar(self) -> float:
        return bar_above(min(self.held_out), self.mean_action)


def bar_above(least: float, mean_action: float) -> float:
    return max((1 + TOLERATED) * least, least + JITTER * mean_action)


def probe_cloning(
    dataset: Dataset, updates: int = 40_000, seconds: float = 60.0, options: BCConfig | None = None
) -> CloningCurve:
    """Clone most trajectories and watch the others, until the error rises, or `updates` or `seconds` have passed."""
    options = options or BCConfig(hidden_layers=2, actor_lr=3e-4)
    train, held = hold_out(dataset, HELD_OUT, seed=0)
    scaling = Scaling(*observation_statistics(train.observations), dataset.action_low, dataset.action_high)
    config = empty_config(
        "bc", ("none",), options=options, dataset=Path("probe"), task="none", output=Path("probe"), updates=updates
    )
    buffer, other = (pack_datasets([(part, scaling)], CPU) for part in (train, held))
    launch = Launch(config, [0], buffer, CPU)
    batches = [part.unpack(part.packed[:20_000].unsqueeze(0)) for part in (buffer, other)]
    points = {int(u) for u in np.geomspace(min(50, updates), updates, max(2, int(8 * math.log10(updates))))}
    constant = baselines(held, scaling)["mean_action_rmse"]
    deadline = time.monotonic() + seconds
    seen: list[tuple[int, float, float]] = []
    for update in range(1, updates + 1):
        launch.update(update)
        late = time.monotonic() > deadline
        if update in points or update == updates or late:
            training, held_out = (
                float((launch.algorithm.act(batch.observations) - batch.actions).square().mean().sqrt())
                for batch in batches
            )
            seen.append((update, held_out, training))
            least = min(seen, key=lambda point: point[1])
            if late or (held_out > bar_above(least[1], constant) and update > 2 * least[0]):
                break
    return CloningCurve(
        updates=[u for u, _, _ in seen],
        held_out=[error for _, error, _ in seen],
        training=[error for _, _, error in seen],
        mean_action=constant,
        held_out_trajectories=len(trajectory_slices(held)[0]) if dataset.trajectory_ids[-1] > 0 else 0,
        settings={
            "networks": f"{options.hidden_layers} x {options.hidden_width}",
            "step size": options.actor_lr,
            "batch": options.batch_size,
        },
    )
