"""A finished or interrupted job's networks, as they were at its last checkpoint or at a kept one."""

from dataclasses import replace
from pathlib import Path

import torch

from c4rl.core.errors import InputError
from c4rl.data.packing import pack_datasets
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import alike, file_name, runs_of
from c4rl.training.checkpoint import load_checkpoint
from c4rl.training.launch import Launch
from c4rl.training.preparation import Preparation, prepare_all
from c4rl.training.run_directory import RunDirectory, job_config


def restore(
    folder: Path, run: str | None = None, update: int | None = None, allow_import: bool = False
) -> tuple[Launch, Preparation, TrainConfig]:
    """All runs of a job in one launch on the CPU, ready to inspect or update; or one of them, by its name in files.
    update: that of a checkpoint that --keep-checkpoints kept; default: the last one."""
    device = torch.device("cpu")
    config = replace(job_config(folder, allow_import), output=folder)
    preparations = prepare_all(config)
    buffer = pack_datasets([(p.train, p.scaling) for p in preparations], device)
    directory = RunDirectory(folder)
    path = directory.checkpoint if update is None else directory.kept_checkpoint(update)
    every = runs_of(config)
    states, progress = load_checkpoint(path, [one.key for one in every])
    runs = [one for one in every if run in (None, file_name(one.key))]
    if not runs or len({one.data for one in runs}) > 1 or len(alike(config, runs, buffer.dataset_lengths)) > 1:
        names = ", ".join(file_name(one.key) for one in every)
        found = "no run named, and they differ in their data or networks" if runs else f"no run '{run}'"
        raise InputError(f"{folder}: found {found}, expected one of {names}")
    try:
        launch = Launch(config, runs, buffer, device, states=states)
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    launch.step.fill_(progress.update)
    return launch, preparations[runs[0].data], config
