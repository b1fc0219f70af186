"""A job stays the same one: what may change when it is resumed, and whether a checkpoint belongs to it."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Any

from c4rl.core.errors import InputError
from c4rl.environments.tasks import physics
from c4rl.jobs.config import RESUMABLE, TrainConfig
from c4rl.jobs.runs import file_name, runs_of
from c4rl.training.checkpoint import Progress
from c4rl.training.preparation import Preparation, in_any_folder
from c4rl.training.run_directory import RunDirectory


def changed(began: TrainConfig, changes: dict[str, Any]) -> TrainConfig:
    """A job's config with changes that leave its runs the same."""
    if others := changes.keys() - set(RESUMABLE):
        raise InputError(f"{' '.join(sorted(others))}: cannot change, expected changes of {', '.join(RESUMABLE)} only")
    config = replace(began, **changes)
    if "dataset" in changes:
        config = in_any_folder(config)
    found, expected = (" ".join(file_name(run.key) for run in runs_of(one)) for one in (config, began))
    if found != expected:
        raise InputError(f"--dataset: found files that name the runs {found}, expected {expected}")
    if config.stages[:-1] != began.stages[:-1]:
        names = ", ".join(stage.name for stage in config.stages[:-1])
        raise InputError(f"--updates: would change the length of the stages {names}, expected it as it was")
    return config


def check_same_job(
    began: Progress,
    now: Progress,
    directory: RunDirectory,
    preparations: Sequence[Preparation],
    runs: Collection[str],
    updates: int,
) -> list[str]:
    """Refuse a checkpoint of another job; returns what the user should know. runs: their keys as text; updates: those
    of all stages."""
    path = directory.path
    directory.check_settings(began.settings)
    if began.update > updates:
        raise InputError(f"{path}: found {began.update:,} updates done, expected at most the job's {updates:,}")
    if not began.frozen.keys() <= set(runs):
        raise InputError(f"{path}: found a failure of no run, expected runs of config.json")
    found = [(p.facts["path"], p.facts["sha256"]) for p in preparations]
    for (place, digest), expected in zip_longest(found, began.dataset_sha256.split(","), fillvalue=(path, "none")):
        if digest != expected:
            raise InputError(
                f"{place}: its bytes changed since the job began (sha256 {digest[:12]}..., expected {expected[:12]}...)"
            )
    if began.environment == now.environment:
        return []
    words = f"began with the simulator {began.environment or 'unknown'} and continues with {now.environment}"
    if began.environment and physics(began.environment) != physics(now.environment or ""):
        raise InputError(f"{path}: {words}, expected the same: their scores do not compare")
    return [f"warning: {path}: {words}"]
