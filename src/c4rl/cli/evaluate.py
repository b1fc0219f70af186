"""`c4rl evaluate`: score the policies of a run folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.table import Table

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.core.declarations import Options, option
from c4rl.core.errors import InputError
from c4rl.core.files import check_new_file, write_json
from c4rl.core.typed_json import jsonable


@dataclass(frozen=True)
class Flags(Options):
    folder: tyro.conf.Positional[Path]
    """A folder made by c4rl train, or with --task an npz file made by c4rl export."""
    task: str | None = None
    """The task of an exported policy; a folder names its own."""
    episodes: int = option(10, at_least=1, at_most=10**6)
    """Episodes per policy."""
    checkpoint: Literal["last", "best", "selected"] | None = None
    """The last policies, those of each seed's best evaluation, or those that --select kept. Default: selected if the
    job was trained with --select, else last."""
    seed: int = option(20_000, at_least=0, at_most=2**63 - 1)
    """Episode e is reset with seed + e."""
    run: str | None = None
    """Only the run of this name (as in summary.json). Default: all."""
    ensemble: bool = False
    """Score the seeds of each setting as one policy that plays the mean of their actions."""
    json: Path | None = None
    """Also write the result to this new file."""
    allow_import: bool = False
    """Import the module that the folder's task names (gym:MODULE:ID), which runs its code."""


def evaluate(arguments: Arguments) -> int:
    """Score the policies of a run folder, or of an exported file, in the simulator."""
    flags = parse_as(Flags, "evaluate", arguments, evaluate.__doc__)
    check_new_file("json", flags.json)

    from c4rl.results.policies import score_file, score_folder
    from c4rl.training.summary import MARK, show_score

    if flags.folder.is_file() or (flags.folder.suffix == ".npz" and not flags.folder.exists()):
        if flags.checkpoint is not None or flags.run is not None or flags.ensemble:
            found = "a file with --checkpoint, --run or --ensemble"
            raise InputError(f"{flags.folder}: found {found}, expected a folder, whose policies they choose")
        result = score_file(flags.folder, flags.task, flags.episodes, flags.seed)
    elif flags.task is not None:
        raise InputError(f"--task: found {flags.task}, expected none: {flags.folder} is not an exported policy")
    else:
        result = score_folder(
            flags.folder, flags.episodes, flags.checkpoint, flags.seed, flags.run, flags.allow_import, flags.ensemble
        )
    tasks = result["task"] if isinstance(result["task"], str) else " and ".join(result["task"])
    which = flags.folder.name if flags.folder.is_file() else f"{result['checkpoint']} checkpoint"
    title = f"{tasks}: {which}, {flags.episodes} episodes ({result['score']})"
    first = next(name for name in ("file", "run", "seed") if name in result["runs"][0])
    failed = [f"{MARK} {row[first]}: {row['failed']}" for row in result["runs"] if row["failed"]]
    table = Table(title=title, caption="\n".join([f"simulated on {result['environment']}", *failed]))
    for heading in (first, "score", "std over episodes", "return"):
        table.add_column(heading, justify="left" if heading == "run" else "right", overflow="fold")
    for row in result["runs"]:
        mark = MARK if row["failed"] else ""
        label = str(row[first])
        if "ensemble" in row:  # the setting and all its seeds
            label = label.removesuffix(str(row["seed"])) + "+".join(map(str, row["ensemble"]))
        score, std = (show_score(row[of], result["score"]) for of in ("mean", "std"))
        table.add_row(label, score + mark, std, show_score(row["return"], "raw return"))
    Console(markup=False).print(table)  # names may have brackets
    if flags.json is not None:
        write_json(flags.json, jsonable(result))
    return 1 if failed else 0
