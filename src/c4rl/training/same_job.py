"""Whether a checkpoint belongs to the job at hand: settings, data and simulator."""

from collections.abc import Collection, Sequence
from itertools import zip_longest

from c4rl.core.errors import InputError
from c4rl.environments.tasks import physics
from c4rl.training.checkpoint import Progress
from c4rl.training.preparation import Preparation
from c4rl.training.run_directory import RunDirectory


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
