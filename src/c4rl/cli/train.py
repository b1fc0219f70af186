"""`c4rl train`: flags that depend on the algorithm, the plug-ins and the preset; then the job."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from rich.console import Console
from rich.table import Table

from c4rl.core.errors import InputError
from c4rl.jobs import config as configs
from c4rl.training import loop
from c4rl.training.evaluation import explain_held_out

Arguments = list[str]


@dataclass(frozen=True)
class _Choice:
    """The flags that decide which other flags there are, and their defaults."""

    algorithm: str = ""
    plugins: tuple[str, ...] | None = None
    preset: str = "none"
    task: tuple[str, ...] = ("none",)
    config: Path | None = None
    resume: Path | None = None


def train(arguments: Arguments) -> int:
    """Parse the flags, run or resume the job, print its result; the exit code."""
    choice, _ = tyro.cli(_Choice, args=_without_help(arguments), return_unknown_args=True, prog="c4rl train")
    folder = choice.resume
    if folder is not None:
        if _without(arguments, "--resume"):
            raise InputError("--resume: found further flags, expected --resume DIR alone (the job's config is in DIR)")
        return _run(lambda: loop.resume(folder))
    base = configs.read_config(choice.config) if choice.config is not None else None
    preset = choice.preset != "none"
    if preset and base is not None:
        raise InputError("--preset: found beside --config, expected one of them (a config holds all values)")
    algorithm = choice.algorithm or (base.algorithm if base else "cql" if preset else "td3_bc")
    given = _preset_fields(choice, algorithm) if preset else {}
    if "by_dataset" in given:  # flags given beside a preset win
        given["by_dataset"] = tuple(word for word in given["by_dataset"] if not _is_given(word, arguments))
    stored = base.plugins if base else given.get("plugins", ("none",))
    plugins = choice.plugins if choice.plugins is not None else stored
    kind = configs.command_line_type(algorithm, plugins)
    default = None
    if base is not None:
        default = _defaults(kind, base, algorithm, plugins)
    elif preset:
        default = kind(algorithm, dataset=tyro.MISSING, task=tyro.MISSING, output=tyro.MISSING, **given)
    rest = _without(arguments, "--config")
    if not choice.algorithm:
        rest = ["--algorithm", algorithm, *rest]
    settings: dict[str, Any] = {"config": (tyro.conf.OmitArgPrefixes,), "description": TRAIN_HELP}
    parsed = tyro.cli(
        kind, prog="c4rl train", args=rest, **(settings | ({"default": default} if default is not None else {}))
    )
    config = configs.TrainConfig(**{name: getattr(parsed, name) for name in configs.field_names()})
    return _run(lambda: loop.train(config))


TRAIN_HELP = (
    "Train runs of an algorithm on a dataset. --algorithm and --plugins decide which further flags there are: "
    "`c4rl train --algorithm cql --plugins layer_norm --help` shows them. --preset paper, authors or authors-fixed "
    "sets them as the C4 paper or its authors' code does, "
    "--preset published as the algorithm's own publication does (flags given beside it win). --sweep and several "
    "datasets of one shape add runs to the job, which train together. --config FILE repeats a "
    "job with the config.json it stored (flags given beside it win); --resume DIR continues an interrupted one."
)


def _preset_fields(choice: _Choice, algorithm: str) -> dict[str, Any]:
    """Options may differ between tasks (--by-dataset); a preset that treats their data differently is refused."""
    found = [configs.preset_fields(choice.preset, algorithm, choice.plugins, task) for task in choice.task or ("none",)]
    fields = configs.fields_by_dataset(found)
    if fields is None:
        tasks = " and ".join(choice.task)
        raise InputError(
            f"--preset {choice.preset}: found {tasks}, whose data it treats differently, expected a job for each"
        )
    return fields


def _defaults(kind: Any, base: Any, algorithm: str, plugins: tuple[str, ...]) -> Any:
    """The stored config as the starting point; options of another algorithm or other plug-ins do not carry over."""
    values = {name: getattr(base, name) for name in configs.field_names()}
    if algorithm != base.algorithm:
        del values["options"]
    if tuple(plugins) != tuple(base.plugins):
        del values["plugin_options"]
    if "options" not in values or "plugin_options" not in values:
        del values["preset"], values["sweep"], values["by_dataset"]  # their values went with them
    return kind(**values)


def _is_given(word: str, arguments: Arguments) -> bool:
    """Whether the option of a word FLAG=... stands among the arguments."""
    flag = "--" + word.partition("=")[0].replace("_", "-")
    return any(argument.replace("_", "-").partition("=")[0] == flag for argument in arguments)


def _without_help(arguments: Arguments) -> Arguments:
    return [argument for argument in arguments if argument not in ("-h", "--help")]


def _without(arguments: Arguments, flag: str) -> Arguments:
    """The arguments less one flag and its value."""
    if flag in arguments:
        at = arguments.index(flag)
        return arguments[:at] + arguments[at + 2 :]
    return [argument for argument in arguments if not argument.startswith(f"{flag}=")]


def _run(job: Callable[[], dict[str, Any]]) -> int:
    try:
        summary = job()
    except loop.Interrupted as stop:
        print(f"c4rl: {stop}", file=sys.stderr)
        return 130
    print_summary(summary)
    return 1 if len(summary["stopped"]) == len(summary["runs"]) else 0


def print_summary(summary: dict[str, Any], console: Console | None = None) -> None:
    console = console or Console()
    groups = summary.get("groups", [{"name": "", "last": summary.get("last"), "best": summary.get("best")}])
    if groups[0]["best"] is None:
        for group in groups:
            prefix = f"{group['name']}: " if group["name"] else ""
            for name, values in group["last"].items():
                shown = " ".join(f"{value:.4g}" for value in values)
                console.print(f"{prefix}{name.replace('_', ' ')} per seed: {shown}", highlight=False, soft_wrap=True)
        datasets = summary["dataset"] if isinstance(summary["dataset"], list) else [summary["dataset"]]
        for name in groups[0]["last"]:
            meaning = explain_held_out(name, datasets)
            console.print(f"{name.replace('_', ' ')}: {meaning}", highlight=False, markup=False, soft_wrap=True)
        return
    tasks = summary["task"] if isinstance(summary["task"], str) else " and ".join(summary["task"])
    table = Table(title=f"{summary['algorithm']} on {tasks} ({summary['score']})", title_justify="left")
    named = ["runs"] if len(groups) > 1 else []
    for heading in (*named, "checkpoint", "mean", "std over seeds", *(f"seed {seed}" for seed in summary["seeds"])):
        table.add_column(heading, justify="left" if heading in ("runs", "checkpoint") else "right")
    for group in groups:
        for which in ("last", "best"):
            result = group[which]
            name = [group["name"] if which == "last" else ""] if named else []
            cells = [f"{score:.1f}" for score in result["scores"]]
            table.add_row(*name, which, f"{result['mean']:.1f}", f"{result['std']:.1f}", *cells)
    console.print(table)
