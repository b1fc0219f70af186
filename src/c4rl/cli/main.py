"""The command line. Each command imports what it needs, so that `c4rl tasks` does not wait for PyTorch."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from c4rl.core.errors import InputError
from c4rl.core.version import __version__

Arguments = list[str]


def main(arguments: Arguments | None = None) -> int:
    """Exit codes: 0 done, 1 every run failed, 2 bad input (one sentence on stderr), 130 interrupted (all saved)."""
    arguments = sys.argv[1:] if arguments is None else arguments
    command, rest = _find(arguments)
    if command is None:
        return _help(error=None if rest in ([], ["--help"], ["-h"]) else rest)
    try:
        return command(rest)
    except InputError as error:
        print(f"c4rl: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("c4rl: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except OSError as error:  # a file that cannot be read or written; the system says why
        if error.filename is None:
            raise
        print(f"c4rl: {error.filename}: {error.strerror}", file=sys.stderr)
        return 2


def _find(arguments: Arguments) -> tuple[Callable[[Arguments], int] | None, Arguments]:
    """The longest command that starts the arguments, and what follows it."""
    if arguments[:1] == ["--version"]:
        return _version, []
    for words in (2, 1):
        name = " ".join(arguments[:words])
        if name in COMMANDS:
            return COMMANDS[name], arguments[words:]
    return None, arguments


def _help(error: Arguments | None) -> int:
    console = Console(stderr=error is not None)
    if error is not None:
        console.print(f"c4rl: unknown command '{' '.join(error[:2])}'; the commands are:", markup=False)
    else:
        console.print("c4rl: offline reinforcement learning for small data. `c4rl COMMAND --help` tells more.\n")
    table = Table.grid(padding=(0, 3))
    for name, command in COMMANDS.items():
        table.add_row(f"  c4rl {name}", (command.__doc__ or "").splitlines()[0])
    console.print(table)
    return 0 if error is None else 2


def _version(arguments: Arguments) -> int:
    print(f"c4rl {__version__}")
    return 0


def _parse(kind: Any, name: str, arguments: Arguments, **settings: Any) -> Any:
    """tyro: typed flags, help and errors; a wrong flag ends with exit code 2."""
    return tyro.cli(kind, prog=f"c4rl {name}", args=arguments, **settings)


def train_command(arguments: Arguments) -> int:
    """Train runs of an algorithm, with or without plug-ins, on a dataset; or continue a job with --resume DIR."""
    from c4rl.cli.train import train

    return train(arguments)


# -- evaluate, export


def evaluate_command(arguments: Arguments) -> int:
    """Score the policies of a run folder in the simulator."""
    from c4rl.results.policies import score_folder
    from c4rl.training.run_directory import check_new_file

    def evaluate(
        folder: Annotated[Path, tyro.conf.Positional],
        episodes: int = 10,
        checkpoint: Literal["last", "best"] = "last",
        seed: int = 20_000,
        run: str | None = None,
        json: Path | None = None,
    ) -> int:
        """Score the policies of a run folder.

        Args:
            folder: a folder made by c4rl train.
            episodes: episodes per policy.
            checkpoint: the last policies, or those of each seed's best evaluation.
            seed: episode e is reset with seed + e.
            run: only the run of this name (as in summary.json); default all.
            json: also write the result to this new file.
        """
        if json is not None:
            check_new_file("json", json)
        result = score_folder(folder, episodes, checkpoint, seed, run)
        console = Console()
        tasks = result["task"] if isinstance(result["task"], str) else " and ".join(result["task"])
        title = f"{tasks}: {checkpoint} checkpoint, {episodes} episodes ({result['score']})"
        table = Table(title=title, caption=f"simulated on {result['environment']}")
        first = "run" if "run" in result["runs"][0] else "seed"
        for heading in (first, "score", "std over episodes", "return"):
            table.add_column(heading, justify="left" if heading == "run" else "right")
        for row in result["runs"]:
            table.add_row(str(row[first]), f"{row['mean']:.1f}", f"{row['std']:.1f}", f"{row['return']:.1f}")
        console.print(table)
        if json is not None:
            from c4rl.core.files import write_json

            write_json(json, result)
        return 0

    return _parse(evaluate, "evaluate", arguments)


def export_command(arguments: Arguments) -> int:
    """Write a run's policy to a file that NumPy alone can read."""
    from c4rl.results.policies import export_policy

    def export(
        folder: Annotated[Path, tyro.conf.Positional],
        format: Literal["npz"] = "npz",
        checkpoint: Literal["last", "best"] = "last",
        seed: int | None = None,
        run: str | None = None,
        output: Path | None = None,
    ) -> int:
        """Write a run's policy to a file that NumPy alone can read.

        Args:
            folder: a folder made by c4rl train.
            format: file format.
            checkpoint: the last policy, or that of the seed's best evaluation.
            seed: which run, where only one has this seed; default the first.
            run: which run, by its name in summary.json.
            output: new file; default FOLDER/policy_CHECKPOINT_RUN.npz.
        """
        print(f"wrote {export_policy(folder, checkpoint, seed, output, run)}")
        return 0

    return _parse(export, "export", arguments)


# -- data, tasks


def record_command(arguments: Arguments) -> int:
    """Record a dataset with the scripted controller of a Maze2D task."""
    from c4rl.data.recording import record

    def record_dataset(
        task: Annotated[str, tyro.conf.Positional], output: Path, size: int = 10_000, seed: int = 0
    ) -> int:
        """Record a dataset with the scripted controller of a Maze2D task.

        Args:
            task: a maze2d task of `c4rl tasks`.
            output: new npz file.
            size: transitions.
            seed: the same seed gives the same bytes.
        """
        record(task, size, seed, output)
        print(f"wrote {size:,} transitions of {task} to {output}")
        return 0

    return _parse(record_dataset, "data record", arguments)


def info_command(arguments: Arguments) -> int:
    """Show what is in a dataset, and what looks wrong with it."""
    from c4rl.data.info import describe, render
    from c4rl.data.loading import load_dataset
    from c4rl.environments.tasks import get_task

    def info(
        dataset: Annotated[str, tyro.conf.Positional],
        task: str = "none",
        action_low: tuple[float, ...] | None = None,
        action_high: tuple[float, ...] | None = None,
        clip_actions: bool = False,
        json: bool = False,
    ) -> int:
        """Show what is in a dataset, and what looks wrong with it.

        Args:
            dataset: npz, D4RL hdf5, or a local Minari dataset.
            task: a name from `c4rl tasks`, for normalised returns and a check of the dimensions.
            action_low: lower action bounds.
            action_high: upper action bounds.
            clip_actions: clip logged actions to the bounds instead of refusing them.
            json: print JSON.
        """
        loaded = load_dataset(
            dataset, task=get_task(task), action_low=action_low, action_high=action_high, clip_actions=clip_actions
        )
        description = describe(loaded, get_task(task))
        if json:
            print(_json(description))
        else:
            Console().print(render(description))
        return 0

    return _parse(info, "data info", arguments)


def tasks_command(arguments: Arguments) -> int:
    """List every task: environment, horizon, dimensions, published data, reference scores, what is missing here."""
    from c4rl.environments.tasks import tasks_list, tasks_table

    def tasks(json: bool = False) -> int:
        """List every task.

        Args:
            json: print JSON.
        """
        if json:
            print(_json(tasks_list()))
        else:
            Console().print(tasks_table())
        return 0

    return _parse(tasks, "tasks", arguments)


def _json(data: Any) -> str:
    return json.dumps(data, indent=2)


# -- demo, bench


def demo_command(arguments: Arguments) -> int:
    """Record a small Maze2D dataset, train on it, score, and draw what the agent learned."""
    from c4rl.cli.demo import demo

    return _parse(demo, "demo", arguments)


def bench_speed_command(arguments: Arguments) -> int:
    """Measure updates per second of each algorithm."""
    from c4rl.results.speed import speed

    return _parse(speed, "bench speed", arguments)


COMMANDS: dict[str, Callable[[Arguments], int]] = {
    "demo": demo_command,
    "data record": record_command,
    "data info": info_command,
    "tasks": tasks_command,
    "train": train_command,
    "evaluate": evaluate_command,
    "export": export_command,
    "bench speed": bench_speed_command,
}


if __name__ == "__main__":
    sys.exit(main())
