"""`c4rl watch`: a job's live view."""

from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.core.declarations import Options, option


@dataclass(frozen=True)
class Flags(Options):
    folder: tyro.conf.Positional[Path]
    """A job's folder, running or finished."""
    every: float = option(1.0, at_least=0.1, at_most=3600)
    """Seconds between updates of the view."""
    once: bool = False
    """Show the current state and exit."""


def watch(arguments: Arguments) -> int:
    """Watch a running or finished job from its folder; Ctrl-C ends the view, never the job."""
    flags = parse_as(Flags, "watch", arguments, watch.__doc__)

    from c4rl.diagnostics.watching import watch as watch_folder

    try:
        watch_folder(flags.folder, flags.every, flags.once, Console())
    except KeyboardInterrupt:
        print()
    return 0
