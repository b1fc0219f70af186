"""`c4rl table`: the tables of the results store."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.core.declarations import Options

STORE = Path("results/store")


@dataclass(frozen=True)
class Flags(Options):
    name: tyro.conf.Positional[str]
    """Which table; a wrong name lists them."""
    format: Literal["markdown", "latex", "csv"] = "markdown"
    """Text of the scores, or a line per run."""
    score: Literal["late", "last", "best"] = "late"
    """Of each run: the mean over the second half of its evaluations, the last one, or the best, chosen in the
    simulator."""
    store: Path = STORE
    """Folder of the results store."""


def table(arguments: Arguments) -> int:
    """Print a table of the results store, with the paper's numbers and what is missing; nothing is trained."""
    flags = parse_as(Flags, "table", arguments, table.__doc__)

    from c4rl.results.store import Store
    from c4rl.results.tables import csv, fill, get_table, latex, markdown, score_rows
    from c4rl.training.summary import MARK

    chosen = get_table(flags.name)
    filled = fill(chosen, Store(flags.store))
    if flags.format == "csv":
        print(csv(chosen, filled))
        return 0
    rows = score_rows(chosen, filled, flags.score)
    print(latex(rows) if flags.format == "latex" else f"{chosen.caption(flags.score)}\n\n{markdown(rows)}")
    if any(MARK in word for row in rows for word in row):
        print(f"\n{MARK} Some of these runs failed and were stopped; --format csv shows when.")
    return 0
