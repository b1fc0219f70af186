"""`c4rl tasks`: the table of tasks."""

import json
from dataclasses import dataclass

from rich.console import Console

from c4rl.cli.parsing import Arguments, parse_as


@dataclass(frozen=True)
class Flags:
    json: bool = False
    """Print JSON."""


def tasks(arguments: Arguments) -> int:
    """List every task: environment, horizon, dimensions, published data, reference scores, what is missing here."""
    flags = parse_as(Flags, "tasks", arguments, tasks.__doc__)

    from c4rl.environments.tasks import tasks_list, tasks_table

    if flags.json:
        print(json.dumps(tasks_list(), indent=2))
    else:
        Console().print(tasks_table())
    return 0
