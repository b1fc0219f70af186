"""Logged experience: reading it, cutting it down, describing it."""

from c4rl.data.dataset import Dataset
from c4rl.data.info import describe, observation_statistics, render
from c4rl.data.loading import load_dataset
from c4rl.data.subsets import hold_out, row_subset, top_fraction, trajectory_returns, trajectory_subset

__all__ = [
    "Dataset",
    "describe",
    "hold_out",
    "load_dataset",
    "observation_statistics",
    "render",
    "row_subset",
    "top_fraction",
    "trajectory_returns",
    "trajectory_subset",
]
