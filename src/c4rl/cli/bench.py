"""`c4rl bench`: measure speed, and train what the tables lack."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

import tyro

from c4rl.cli.engine import EngineFlags
from c4rl.cli.parsing import Arguments, flags_of, parse, parse_as
from c4rl.cli.table import SPEEDS, STORE, printed
from c4rl.core.declarations import Options, flag_of, option
from c4rl.core.errors import InputError


def speed(arguments: Arguments) -> int:
    """Measure updates per second of each algorithm on made-up data, without evaluation and logging."""
    from c4rl.results.speed import SpeedOptions, measure_speeds

    return measure_speeds(parse_as(SpeedOptions, "bench speed", arguments, speed.__doc__))


@dataclass(frozen=True)
class TableFlags(Options):
    name: tyro.conf.Positional[str]
    """Name of the table; a wrong one lists them all."""
    data: Path | None = None
    """Folder of the datasets: TASK.npz for D4RL's rows, c4rl/TASK.npz for recorded ones. Tables of speed and --dry need
    none."""
    output: Path = Path("runs/bench")
    """Folder of the job folders, from which a stopped job resumes."""
    store: Path = STORE
    """Folder of the results store."""
    speeds: Path = SPEEDS
    """Folder of measured speeds."""
    dry: bool = False
    """Only list what is missing, in launches and estimated minutes."""
    minutes: float = option(1e6, above=0, at_most=1e6)
    """Stop after this long; the same command resumes from there."""
    methods: tuple[str, ...] | None = None
    """Only these rows of the table."""
    sets: tuple[str, ...] | None = None
    """Only sets whose names start with these words, such as hopper."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["fp32", "bf16x3"] = "fp32"
    """Precision of matrix products on a GPU."""
    runs_per_launch: int | None = option(None, at_least=1, at_most=10_000)
    """The most runs of one launch, as in `c4rl train`."""


def table(arguments: Arguments) -> int:
    """Train the runs that a table of the results store lacks, and add them; stop and continue at any point."""
    values = parse("bench table", arguments, [*flags_of(TableFlags), *flags_of(EngineFlags)], None, table.__doc__)
    flags = TableFlags(**{field.name: values.pop(field.name) for field in fields(TableFlags)})
    engine = EngineFlags(**values).ray()

    from c4rl.results.bench_minutes import cheap_first, list_jobs
    from c4rl.results.bench_runs import add_finished, run_jobs, run_jobs_on_ray
    from c4rl.results.bench_tables import check_data, missing_jobs
    from c4rl.results.catalogue import get_table
    from c4rl.results.speed_tables import (
        SPEED_TABLES,
        list_measurements,
        machine_folder,
        measure_missing,
        measured_rates,
        missing,
    )
    from c4rl.results.store import Store

    if flags.name in SPEED_TABLES:
        if engine is not None:
            raise InputError(f"--engine: found ray, expected local: '{flags.name}' is a table of speed")
        for name in ("data", "methods", "sets", "runs_per_launch"):
            if (value := getattr(flags, name)) is not None:
                found = " ".join(value) if isinstance(value, tuple) else value
                raise InputError(f"--{flag_of(name)}: found {found}, expected none: '{flags.name}' is a table of speed")
        speed_table = SPEED_TABLES[flags.name]
        folder = machine_folder(flags.speeds, flags.device, flags.precision)
        wanted = missing(speed_table, folder)
        if flags.dry:
            print(list_measurements(wanted))
            return 0
        return measure_missing(wanted, folder, flags.minutes, device=flags.device, precision=flags.precision)
    store, chosen = Store(flags.store), get_table(flags.name, SPEED_TABLES).only(flags.methods).on(flags.sets)
    if flags.data is None and not flags.dry:
        raise InputError("--data: not given, expected the folder of the datasets, SET.npz")
    how = {"device": flags.device, "precision": flags.precision, "runs_per_launch": flags.runs_per_launch}
    rates = measured_rates(flags.speeds)
    if not flags.dry:
        add_finished(flags.output / chosen.name, store)
    jobs = missing_jobs(chosen, store, flags.data or Path("."), flags.output / chosen.name, **how)
    jobs = cheap_first(jobs, store, rates)
    if flags.dry:
        print(list_jobs(jobs, store, rates))
        return 0
    check_data(jobs, flags.data or Path("."))
    if engine is not None:
        return run_jobs_on_ray(jobs, store, flags.minutes, engine)
    return run_jobs(jobs, store, flags.minutes)


@dataclass(frozen=True)
class PagesFlags(Options):
    files: tyro.conf.Positional[tuple[Path, ...]]
    """Markdown pages with blocks <!-- c4rl table NAME --> ... <!-- end -->."""
    dry: bool = False
    """Write nothing; exit with code 1 if a page is out of date."""


def pages(arguments: Arguments) -> int:
    """Update the tables in Markdown pages from the results store."""
    flags = parse_as(PagesFlags, "bench pages", arguments, pages.__doc__)

    from c4rl.results.pages import fill_page

    if not flags.files:
        raise InputError("FILES: not given, expected Markdown pages")
    stale = [path for path in flags.files if fill_page(path, page_command, write=not flags.dry)]
    for path in stale:
        print(f"{path}: {'out of date' if flags.dry else 'updated'}")
    return 1 if stale and flags.dry else 0


def page_command(words: list[str]) -> str:
    """What the command in a page's comment prints."""
    if words[:1] != ["table"]:
        raise InputError(f"found the command 'c4rl {' '.join(words)}' in a page, expected c4rl table NAME")
    return printed(words[1:])
