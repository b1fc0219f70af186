"""`c4rl data`: record a dataset, and look into one."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.core.declarations import Options, option


@dataclass(frozen=True)
class RecordFlags(Options):
    task: tyro.conf.Positional[str]
    """A maze2d task of `c4rl tasks`."""
    output: Path
    """New npz file."""
    size: int = option(10_000, at_least=1, at_most=10**9)
    """Transitions."""
    seed: int = option(0, at_least=0, at_most=2**63 - 1)
    """The same seed gives the same bytes."""


def record(arguments: Arguments) -> int:
    """Record a dataset with the scripted controller of a Maze2D task."""
    flags = parse_as(RecordFlags, "data record", arguments, record.__doc__)

    from c4rl.data.recording import record as record_dataset

    record_dataset(flags.task, flags.size, flags.seed, flags.output)
    print(f"wrote {flags.size:,} transitions of {flags.task} to {flags.output}")
    return 0


@dataclass(frozen=True)
class InfoFlags(Options):
    dataset: tyro.conf.Positional[str]
    """An npz file, D4RL hdf5, or a local Minari dataset."""
    task: str = "none"
    """A name from `c4rl tasks`, for normalised returns and a check of the dimensions."""
    action_low: tuple[float, ...] | None = option(None, at_least=-1e9, at_most=1e9)
    """Lower action bounds."""
    action_high: tuple[float, ...] | None = option(None, at_least=-1e9, at_most=1e9)
    """Upper action bounds."""
    clip_actions: bool = False
    """Clip logged actions to the bounds instead of refusing them."""
    json: bool = False
    """Print JSON."""


def info(arguments: Arguments) -> int:
    """Show what is in a dataset, and what looks wrong with it."""
    flags = parse_as(InfoFlags, "data info", arguments, info.__doc__)

    from c4rl.data.info import describe, render
    from c4rl.data.loading import load_for_task
    from c4rl.environments.tasks import get_task

    task = get_task(flags.task)
    found = load_for_task(flags.dataset, task, flags.action_low, flags.action_high, flags.clip_actions)
    description = describe(found, task)
    if flags.json:
        print(json.dumps(description, indent=2))
    else:
        Console().print(render(description))
    return 0
