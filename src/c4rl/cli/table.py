"""`c4rl table`: the tables of the results store."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.core.declarations import Options

STORE = Path("results/store")
SPEEDS = Path("results/speed")


@dataclass(frozen=True)
class Flags(Options):
    name: tyro.conf.Positional[str]
    """Name of the table, or `index` for a line on each; a wrong name lists them all."""
    format: Literal["markdown", "latex", "csv"] = "markdown"
    """Format of the table; csv has a line per run."""
    score: Literal["late", "last", "best", "selected", "curve", "criteria", "differences"] = "late"
    """Score of each run. late: the mean over the second half of its evaluations; last: the last one; best: the best
    one, chosen in the simulator; selected: the one chosen by held-out trajectories (runs with --select); curve: means
    over sets at every evaluation; criteria: how well each rule chooses a checkpoint; differences: of late means,
    between rows that differ in one part."""
    methods: tuple[str, ...] | None = None
    """Only these rows of the table."""
    sets: tuple[str, ...] | None = None
    """Only sets whose names start with these words, such as hopper; means are over these."""
    far: bool = False
    """Instead, list the cells far from the paper's, and what is known of the reasons."""
    store: Path = STORE
    """Folder of the results store."""
    speeds: Path = SPEEDS
    """Folder of measured speeds."""


def table(arguments: Arguments) -> int:
    """Print a table of the results store, with the paper's numbers and what is missing; nothing is trained."""
    print(printed(arguments))
    return 0


def printed(arguments: Arguments) -> str:
    flags = parse_as(Flags, "table", arguments, table.__doc__)

    from c4rl.results.pages import table_text

    return table_text(
        flags.name, flags.format, flags.score, flags.methods, flags.sets, flags.store, flags.speeds, flags.far
    )
