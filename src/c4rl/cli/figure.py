"""`c4rl figure`: the figures of the results store."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.cli.table import SPEEDS, STORE
from c4rl.core.declarations import Options
from c4rl.core.errors import InputError
from c4rl.core.files import check_new_file

ENDINGS = (".png", ".svg")


@dataclass(frozen=True)
class Flags(Options):
    name: tyro.conf.Positional[str]
    """Name of the figure; a wrong one lists them all."""
    output: Path | None = None
    """New file, PNG or SVG by its ending. Default: NAME.png."""
    table: str | None = None
    """Draw the figure from this table instead of its own, with all the table's methods."""
    methods: tuple[str, ...] | None = None
    """Draw only these methods of the table; a comparison is with the first of them."""
    sets: tuple[str, ...] | None = None
    """Draw only sets whose names start with these words, such as hopper."""
    store: Path = STORE
    """Folder of the results store."""
    speeds: Path = SPEEDS
    """Folder of measured speeds."""


def figure(arguments: Arguments) -> int:
    """Draw a figure from the results store, with seeds and intervals; nothing is trained."""
    flags = parse_as(Flags, "figure", arguments, figure.__doc__)
    output = flags.output or Path(f"{flags.name}.png")
    if output.suffix not in ENDINGS:
        raise InputError(f"--output: found '{output.name}', expected a name that ends in {' or '.join(ENDINGS)}")
    check_new_file("output", output)

    from c4rl.results.figures import draw

    draw(flags.name, output, flags.table, flags.methods, flags.sets, flags.store, flags.speeds)
    print(output)
    return 0
