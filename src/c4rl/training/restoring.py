"""A finished or interrupted job's networks, as they were at its last checkpoint."""

from dataclasses import replace
from pathlib import Path

import torch

from c4rl.config import TrainConfig
from c4rl.training.buffer import TransitionBuffer
from c4rl.training.checkpoint import load_checkpoint
from c4rl.training.lane import Lane
from c4rl.training.preparation import Preparation, prepare
from c4rl.training.run_directory import RunDirectory, job_config


def restore(folder: Path, device: torch.device | None = None) -> tuple[Lane, Preparation, TrainConfig]:
    """All runs of a job in one lane, ready to be looked at or updated."""
    device = device or torch.device("cpu")
    config = replace(job_config(folder), output=folder)
    preparation = prepare(config)
    buffer = TransitionBuffer([(preparation.train, preparation.scaling)], device)
    states, progress = load_checkpoint(RunDirectory(folder).checkpoint)
    lane = Lane(config, list(config.seeds), buffer, device)
    lane.load(states)
    lane.step.fill_(progress.update)
    return lane, preparation, config
