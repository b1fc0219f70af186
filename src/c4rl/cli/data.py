"""`c4rl data`: record a dataset, look into one, convert it, and find the published ones."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.core.action_bounds import ActionBounds
from c4rl.core.declarations import Options, option
from c4rl.core.errors import InputError
from c4rl.core.subset_kinds import SubsetKind

ALL_LOCOMOTION = "all-locomotion"
DOWNLOAD = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())


@dataclass(frozen=True)
class RecordFlags(Options):
    task: tyro.conf.Positional[str]
    """A task of `c4rl tasks`, ROBOT-random, or all-locomotion: the twenty sets of the paper's table."""
    output: Path
    """New npz file; for all-locomotion, a folder."""
    size: int = option(10_000, at_least=1, at_most=10**7)
    """Transitions."""
    seed: int = option(0, at_least=0, at_most=2**63 - 1)
    """The same seed gives the same bytes."""
    policy: tuple[str, ...] = ()
    """Policy files, which record equal shares in this order; for all tasks but Maze2D. A file of snapshots stands for
    all of them, FILE@2-5 for some; random: uniform actions. Default: the package's own agents, where it has some
    (locomotion, AntMaze, Kitchen)."""

    def check(self) -> None:
        if self.task == ALL_LOCOMOTION and self.policy:
            raise InputError(f"--policy: found {self.policy[0]}, expected none for {ALL_LOCOMOTION}")


def record(arguments: Arguments) -> int:
    """Record a dataset with a scripted controller, the package's agents or your policies; run it again to resume."""
    flags = parse_as(RecordFlags, "data record", arguments, record.__doc__)

    from c4rl.data.recording import record as record_dataset
    from c4rl.data.recording import record_all_locomotion

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        blocks = bar.add_task("recording", total=None)
        if flags.task == ALL_LOCOMOTION:
            paths = record_all_locomotion(
                flags.size,
                flags.seed,
                flags.output,
                progress=lambda name, done, expected: bar.update(
                    blocks, description=name, completed=done, total=expected
                ),
            )
            print(f"{flags.output}: {len(paths)} sets of {flags.size:,} transitions, called c4rl/...")
            return 0
        metadata = record_dataset(
            flags.task,
            flags.size,
            flags.seed,
            flags.output,
            flags.policy,
            progress=lambda done, expected: bar.update(blocks, completed=done, total=expected),
        )
    print(f"wrote {flags.size:,} transitions of {flags.task} to {flags.output}, called {metadata['name']}")
    return 0


@dataclass(frozen=True)
class InfoFlags(ActionBounds):
    dataset: tyro.conf.Positional[str]
    """An npz file, D4RL hdf5, a d3rlpy dump, or a local Minari dataset."""
    task: str = "none"
    """A name from `c4rl tasks`, for normalised returns and a check of the dimensions."""
    json: bool = False
    """Print JSON."""


def info(arguments: Arguments) -> int:
    """Show what is in a dataset and what looks wrong with it."""
    flags = parse_as(InfoFlags, "data info", arguments, info.__doc__)

    from c4rl.data.info import describe, render
    from c4rl.data.loading import load_for_task
    from c4rl.environments.tasks import get_task

    task = get_task(flags.task)
    found = load_for_task(flags.dataset, task, flags)
    description = describe(found, task)
    if flags.json:
        print(json.dumps(description, indent=2))
    else:
        Console().print(render(description))
    return 0


@dataclass(frozen=True)
class ConvertFlags(ActionBounds):
    files: tyro.conf.Positional[tuple[str, ...]]
    """IN OUT: a dataset as for `c4rl data info`, and a new file or, for Minari, a new folder or minari:ID."""
    format: Literal["auto", "npz", "hdf5", "minari", "d3rlpy"] = "auto"
    """Format of OUT: npz (plain arrays), hdf5 (D4RL's layout), minari, or d3rlpy (for its ReplayBuffer.load). auto: by
    OUT's name, never d3rlpy."""
    task: str = "none"
    """A name from `c4rl tasks`: checks the dimensions, and names the environment for Minari."""
    size: int | None = option(None, at_least=1, at_most=10**9)
    """Rows to keep. Default: all."""
    subset: SubsetKind = "trajectories"
    """How --size rows are chosen, as in `c4rl train`."""
    subset_seed: int = option(0, at_least=0, at_most=2**63 - 1)
    """Seed of that choice."""

    def check(self) -> None:
        if len(self.files) != 2:
            raise InputError(f"FILES: found {len(self.files)}, expected two: IN and OUT")
        if self.size is None and self.subset != ConvertFlags.subset:
            raise InputError(f"--subset: found {self.subset} without --size, expected the number of rows to keep")


def convert(arguments: Arguments) -> int:
    """Write a dataset, or a subset of it, in another format; reading it back gives the same rows, bit for bit."""
    flags = parse_as(ConvertFlags, "data convert", arguments, convert.__doc__)

    from c4rl.data.loading import load_for_task
    from c4rl.data.subsets import SUBSETS
    from c4rl.data.writing import write_dataset
    from c4rl.environments.tasks import get_task

    source, output = flags.files
    task = get_task(flags.task)
    found = load_for_task(source, task, flags)
    if flags.size is not None:
        found = SUBSETS[flags.subset](found, flags.size, flags.subset_seed)
    if task.name != "none":
        found = replace(found, metadata={**found.metadata, "task": task.name})
    with Console(stderr=True).status(f"writing {len(found):,} rows"):
        path = write_dataset(found, output, flags.format)
    print(f"wrote {len(found):,} rows in {int(found.trajectory_ids[-1]) + 1:,} trajectories to {path}")
    return 0


@dataclass(frozen=True)
class FetchFlags(Options):
    task: tyro.conf.Positional[str]
    """A task of `c4rl tasks`."""
    output: Path | None = None
    """Where the file is, or will be. Default: its published name, in this folder."""
    download: bool = False
    """Download the file; nothing is downloaded without this flag."""


def fetch(arguments: Arguments) -> int:
    """Show where a task's published file is, check one that you have, or download it."""
    flags = parse_as(FetchFlags, "data fetch", arguments, fetch.__doc__)

    from c4rl.data.fetching import check_file, download, published_file
    from c4rl.environments.tasks import get_task

    task = get_task(flags.task)
    file = published_file(task)
    output = flags.output or Path(file.name)
    if flags.download:
        console = Console(stderr=True)
        with Progress(*DOWNLOAD, console=console, transient=True, disable=not console.is_terminal) as bar:
            bytes_ = bar.add_task(file.name, total=file.size)
            download(file, output, lambda done, _: bar.update(bytes_, completed=done))
        print(f"wrote {output}: size and checksum are right")
    elif output.exists():
        check_file(file, output)
        print(f"{output}: " + ("size and checksum are right" if file.sha256 else "is there; no checksum is known"))
    else:
        print(f"url       {file.url}")
        print(f"size      {f'{file.size:,} bytes' if file.size else 'not known'}")
        print(f"sha256    {file.sha256 or 'not known'}")
        print(f"use       c4rl train --task {task.name} --dataset {output}")
        print("download  " + (f"c4rl data fetch {task.name} --download" if file.sha256 else "by yourself"))
    return 0
