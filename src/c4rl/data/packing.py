"""Datasets -> the one tensor that training reads, with their numbers scaled for the networks."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.data.checks import LARGEST, problem
from c4rl.data.dataset import Dataset

CHUNK = 65_536  # rows


@dataclass(frozen=True)
class Scaling:
    """How a dataset's numbers are scaled for the networks."""

    observation_mean: np.ndarray
    observation_std: np.ndarray
    action_low: np.ndarray
    action_high: np.ndarray
    reward_scale: float = 1.0
    reward_shift: float = 0.0

    def actions(self, actions: np.ndarray) -> np.ndarray:
        return (actions - self.action_low) / (self.action_high - self.action_low) * 2 - 1


def check_scaled(dataset: Dataset, scaling: Scaling) -> None:
    """Refuse numbers that are too large once they are scaled, before anything is trained on them."""
    mean, std = scaling.observation_mean.astype(np.float64), scaling.observation_std
    rewards = np.float64(scaling.reward_scale), scaling.reward_shift
    for name in ("observations", "next_observations", "rewards"):
        values = getattr(dataset, name)
        extremes = np.stack([values.min(axis=0), values.max(axis=0)]).astype(np.float64)
        scaled = extremes * rewards[0] + rewards[1] if name == "rewards" else (extremes - mean) / std
        if not (np.abs(scaled) <= LARGEST).all():
            found = f"is as large as {np.abs(scaled).max():g} once scaled for training"
            raise problem(dataset.source, name, found, f"at most {LARGEST:g}")


def baselines(dataset: Dataset, scaling: Scaling) -> dict[str, float]:
    """Baselines of the held-out numbers: the mean action as the policy, and 0 as the critic."""
    rewards = dataset.rewards.astype(np.float64) * scaling.reward_scale + scaling.reward_shift
    spread = dataset.actions.std(axis=0, dtype=np.float64) * 2 / (dataset.action_high - dataset.action_low)
    return {
        "mean_action_rmse": float(np.sqrt(np.mean(spread**2))),
        "zero_critic_td_rmse": float(np.sqrt(np.mean(rewards**2))),
    }


def pack_datasets(
    datasets: Sequence[tuple[Dataset, Scaling]],
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    dataset_of_run: Sequence[int] = (0,),
) -> TransitionBuffer:
    """The rows of all datasets, one after the other; run r reads dataset `dataset_of_run[r]`."""
    first, lengths = datasets[0][0], [len(dataset) for dataset, _ in datasets]
    widths = first.observation_dim, first.action_dim
    packed = torch.empty((sum(lengths), 2 * sum(widths) + 3), dtype=dtype)
    for rows, (dataset, scaling) in zip(packed.split(lengths), datasets, strict=True):
        _pack(rows, dataset, scaling)
    ids = np.concatenate([dataset.trajectory_ids for dataset, _ in datasets])
    trajectory_ids = torch.tensor(ids, dtype=torch.int32, device=device)
    return TransitionBuffer(packed.to(device), trajectory_ids, widths, lengths, dataset_of_run)


def _pack(out: Tensor, dataset: Dataset, scaling: Scaling) -> None:
    s, a = dataset.observation_dim, dataset.action_dim
    mean, std = scaling.observation_mean, scaling.observation_std
    for start in range(0, len(dataset), CHUNK):  # what is computed on the way must not take as much memory as the data
        rows = slice(start, start + CHUNK)
        columns = out[rows].numpy()
        columns[:, :s] = (dataset.observations[rows] - mean) / std
        columns[:, s : s + a] = scaling.actions(dataset.actions[rows])
        columns[:, s + a : 2 * s + a] = (dataset.next_observations[rows] - mean) / std
        columns[:, 2 * s + a : 2 * (s + a)] = scaling.actions(dataset.next_actions[rows])
        columns[:, -3] = dataset.rewards[rows] * scaling.reward_scale + scaling.reward_shift
        columns[:, -2] = 1 - dataset.terminals[rows]
        columns[:, -1] = dataset.next_action_valid[rows]
