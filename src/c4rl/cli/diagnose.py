"""`c4rl diagnose`: a look inside the critic of a job."""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.core.declarations import Options, option


@dataclass(frozen=True)
class Flags(Options):
    folder: tyro.conf.Positional[Path]
    """A job's folder; its dataset must still be in its place."""
    run: str | None = None
    """One run by its name in files. Default: all, which must share their data and the shape of their networks."""
    size: int = option(1024, at_least=2, at_most=10**6)
    """Rows to examine."""
    save: bool = False
    """Write diagnostics.json into the folder, for `c4rl report`."""
    json: bool = False
    """Print JSON."""
    allow_import: bool = False
    """Import the module that the job's task names (gym:MODULE:ID), which runs its code."""


def diagnose(arguments: Arguments) -> int:
    """Show Theorem 1's terms, gradients, spectra, clusters and Q of a job's critics, and when they diverged."""
    flags = parse_as(Flags, "diagnose", arguments, diagnose.__doc__)

    from c4rl.core.typed_json import jsonable
    from c4rl.diagnostics.diagnose import diagnose as look_into
    from c4rl.diagnostics.diagnose import render, save

    found = look_into(flags.folder, flags.run, flags.size, flags.allow_import)
    if flags.save:
        save(found, flags.folder)
    if flags.json:
        print(json.dumps(jsonable(found), indent=2))
    else:
        Console().print(render(found))
    return 0
