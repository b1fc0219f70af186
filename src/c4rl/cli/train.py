"""`c4rl train`: flags that depend on the algorithm, the plug-ins and the preset; then the job."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from c4rl.cli.parsing import Arguments, flags_of, parse
from c4rl.core.errors import InputError

if TYPE_CHECKING:
    from c4rl.jobs.config import TrainConfig

HELP = (
    "Train runs of an algorithm on a dataset. --algorithm and --plugins decide which further flags there are: "
    "`c4rl train --algorithm NAME --plugins NAME --help` shows them. --preset sets them as a publication does (flags "
    "given with it win). --sweep and several datasets of one shape add runs to the job, which train together."
)


@dataclass(frozen=True)
class _Sources:
    config: Path | None = None
    """Repeat the job of this config.json; flags given with it win."""
    resume: Path | None = None
    """Continue the interrupted job in this folder; takes no other flag."""


@dataclass(frozen=True)
class _Choice(_Sources):
    """The flags that decide which other flags there are, and their defaults."""

    algorithm: str = ""
    plugins: tuple[str, ...] | None = None
    preset: str = "none"
    task: tuple[str, ...] = ("none",)


def train(arguments: Arguments) -> int:
    """Train runs of an algorithm, with or without plug-ins, on a dataset; or continue a job with --resume DIR."""
    folder = _choice(arguments).resume
    if folder is None:
        config = config_of(arguments)
        return _run(lambda loop: loop.train(config))
    if len(arguments) > (1 if arguments[0].startswith("--resume=") else 2):
        raise InputError("--resume: found further flags, expected --resume DIR alone (the job's config is in DIR)")
    return _run(lambda loop: loop.resume(folder))


def _choice(arguments: Arguments) -> _Choice:
    without_help = [argument for argument in arguments if argument not in ("-h", "--help")]
    return _Choice(**parse("train", without_help, flags_of(_Choice), others_follow=True))


def config_of(arguments: Arguments) -> "TrainConfig":
    """The job that these arguments of `c4rl train` describe."""
    from c4rl.jobs.config import TrainConfig, read_config
    from c4rl.jobs.registry import DEFAULT_ALGORITHM, PLUGINS, PRESET_ALGORITHM, algorithm_class, plugin_names

    choice = _choice(arguments)
    base = read_config(choice.config) if choice.config is not None else None
    preset = choice.preset != "none"
    if preset and base is not None:
        raise InputError("--preset: found with --config, expected one of them (a config holds all values)")
    default = base.algorithm if base else PRESET_ALGORITHM if preset else DEFAULT_ALGORITHM
    algorithm = choice.algorithm or default
    given = (
        _stored(base, algorithm, choice.plugins) if base else _preset(choice, algorithm, arguments) if preset else {}
    )
    plugins = choice.plugins if choice.plugins is not None else given.get("plugins", ("none",))
    options = given.pop("options", None) or algorithm_class(algorithm).config_type()
    of_plugins = given.pop("plugin_options", None)
    if of_plugins is None:
        of_plugins = tuple(PLUGINS[name][0]() for name in plugin_names(plugins, algorithm))
    defaults = given | {"algorithm": algorithm}
    for owner in (options, *of_plugins):
        defaults |= {field.name: getattr(owner, field.name) for field in fields(owner)}

    kinds = (_Sources, TrainConfig, type(options), *map(type, of_plugins))
    flags = [flag for kind in kinds for flag in flags_of(kind) if flag.field.name not in ("options", "plugin_options")]
    values = parse("train", arguments, flags, defaults, HELP)
    options, *of_plugins = (type(o)(**{f.name: values.pop(f.name) for f in fields(o)}) for o in (options, *of_plugins))
    del values["config"], values["resume"]
    return TrainConfig(**values, options=options, plugin_options=tuple(of_plugins))


def _preset(choice: _Choice, algorithm: str, arguments: Arguments) -> dict[str, Any]:
    """Options may differ between tasks (--by-dataset); a preset that treats their data differently is refused."""
    from c4rl.jobs.config import fields_by_dataset, preset_fields

    found = [preset_fields(choice.preset, algorithm, choice.plugins, task) for task in choice.task or ("none",)]
    given = fields_by_dataset(found)
    if given is None:
        tasks = " and ".join(choice.task)
        raise InputError(
            f"--preset {choice.preset}: found {tasks}, whose data it treats differently, expected a job for each"
        )
    words = given.get("by_dataset", ())
    return given | {"by_dataset": tuple(word for word in words if not _is_given(word, arguments))}


def _stored(base: "TrainConfig", algorithm: str, plugins: tuple[str, ...] | None) -> dict[str, Any]:
    """The stored config as the starting point; options of another algorithm or other plug-ins do not carry over."""
    values = {field.name: getattr(base, field.name) for field in fields(base)}
    other_algorithm, other_plugins = algorithm != base.algorithm, plugins not in (None, base.plugins)
    if other_algorithm:
        del values["options"]
    if other_plugins:
        del values["plugin_options"]
    if other_algorithm or other_plugins:
        del values["preset"], values["sweep"], values["by_dataset"]  # their values went with them
    return values


def _is_given(word: str, arguments: Arguments) -> bool:
    """Whether the option of a word FLAG=... stands among the arguments."""
    flag = "--" + word.partition("=")[0].replace("_", "-")
    return any(argument.replace("_", "-").partition("=")[0] == flag for argument in arguments)


def _run(job: Callable[[Any], dict[str, Any]]) -> int:
    from c4rl.training import loop

    try:
        summary = job(loop)
    except loop.Interrupted as stop:
        print(f"c4rl: {stop}", file=sys.stderr)
        return 130
    print_summary(summary)
    return 1 if len(summary["stopped"]) == len(summary["runs"]) else 0


CHECKPOINTS = {"last": "last", "late": "late mean", "best": "best in simulator"}


def print_summary(summary: dict[str, Any], console: Console | None = None) -> None:
    console = console or Console()
    groups = summary.get("groups", [{"name": "", **summary}])
    if groups[0]["best"] is None:
        for group in groups:
            prefix = f"{group['name']}: " if group["name"] else ""
            for name, values in group["last"].items():
                shown = " ".join(f"{value:.4g}" for value in values)
                console.print(f"{prefix}{name.replace('_', ' ')} per seed: {shown}", highlight=False, soft_wrap=True)
        from c4rl.training.evaluation import explain_held_out

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
        for which, checkpoint in CHECKPOINTS.items():
            result = group[which]
            name = [group["name"] if which == "last" else ""] if named else []
            cells = [f"{score:.1f}" for score in result["scores"]]
            table.add_row(*name, checkpoint, f"{result['mean']:.1f}", f"{result['std']:.1f}", *cells)
    console.print(table)
    for group in groups:
        console.print(_curve_words(group), highlight=False, markup=False, soft_wrap=True)


def _curve_words(group: dict[str, Any]) -> str:
    """The mean of the seeds at some ten evaluations, the last one among them."""
    updates, curves = group["curve"]["updates"], group["curve"]["scores"]
    means = [sum(scores) / len(scores) for scores in zip(*curves, strict=True)]
    shown = list(zip(updates, means, strict=True))[::-1][:: -(-len(updates) // 10)][::-1]
    words = ", ".join(f"{mean:.1f} at {update:,}" for update, mean in shown)
    return f"{group['name'] + ': ' if group['name'] else ''}mean of the seeds, by updates: {words}"
