"""`c4rl doctor`: is this dataset sound, what does it cover, and which settings suit it?"""

import json
from dataclasses import dataclass
from pathlib import Path

import tyro
from rich.console import Console

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.core.action_bounds import ActionBounds
from c4rl.core.declarations import option
from c4rl.core.files import check_new_file


@dataclass(frozen=True)
class Flags(ActionBounds):
    dataset: tyro.conf.Positional[str]
    """An npz file, D4RL hdf5, a d3rlpy dump, or a local Minari dataset."""
    task: str = "none"
    """A name from `c4rl tasks`: for normalised returns, and checks of dimensions, horizon and ends of episodes."""
    html: Path | None = None
    """Also write a page with plots, which opens from disk, to this new file."""
    probe: bool = True
    """Train small networks to see when cloning overfits and what the critic's gradients look like."""
    seconds: float = option(110.0, above=0, at_most=86_400)
    """The longest that the probe may take."""
    json: bool = False
    """Print JSON."""


def doctor(arguments: Arguments) -> int:
    """Examine a dataset: faults (exit code 1), coverage, returns, when cloning overfits, and settings with reasons."""
    flags = parse_as(Flags, "doctor", arguments, doctor.__doc__)
    check_new_file("html", flags.html)

    from c4rl.data.loading import load_for_task
    from c4rl.diagnostics.doctor import as_json, examine, render, write_page
    from c4rl.environments.tasks import get_task

    task = get_task(flags.task)
    dataset = load_for_task(flags.dataset, task, flags)
    probe = f", with a probe of at most {flags.seconds:g} s" if flags.probe else ""
    with Console(stderr=True).status(f"examining {len(dataset):,} rows{probe}"):
        found = examine(dataset, task, flags.probe, flags.seconds)
    if flags.html is not None:
        write_page(found, flags.html)
    if flags.json:
        print(json.dumps(as_json(found), indent=2))
    else:
        Console().print(render(found))
        if flags.html is not None:
            print(f"page: {flags.html}")
    return 1 if found.faults else 0
