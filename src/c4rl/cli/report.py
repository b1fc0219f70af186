"""`c4rl report`: jobs on one page."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.core.declarations import Options
from c4rl.core.errors import InputError
from c4rl.core.files import check_new_file


@dataclass(frozen=True)
class Flags(Options):
    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders of jobs, running or finished; several are compared."""
    output: Path = Path("report.html")
    """New HTML file, which opens from disk."""
    allow_import: bool = False
    """Import the module that a job's task names (gym:MODULE:ID), which runs its code."""

    def check(self) -> None:
        if not self.folders:
            raise InputError("FOLDERS: found none, expected one or more folders made by c4rl train")


def report(arguments: Arguments) -> int:
    """Write one self-contained page on a job, or on several compared: scores, curves, clusters, Q, timings, data."""
    flags = parse_as(Flags, "report", arguments, report.__doc__)
    check_new_file("output", flags.output)

    from c4rl.results.report import write_report

    write_report(flags.folders, flags.output, allow_import=flags.allow_import)
    print(f"wrote {flags.output} ({flags.output.stat().st_size / 1e6:.2f} MB)")
    return 0
