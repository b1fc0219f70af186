"""`c4rl train`: flags that depend on the algorithm, the plug-ins and the preset; then the job."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from c4rl.cli.engine import EngineFlags, on_ray
from c4rl.cli.parsing import NOT_GIVEN, Arguments, flag_in, flags_of, free_folder, parse
from c4rl.core.declarations import flag_of
from c4rl.core.errors import InputError, printable

if TYPE_CHECKING:
    from c4rl.jobs.config import TrainConfig

HELP = (
    "Train runs of an algorithm on a dataset. --algorithm and --plugins decide which further flags there are: "
    "`c4rl train --algorithm NAME --plugins NAME --help` shows them. --preset sets their defaults (flags that you "
    "give win). --sweep, --points and several datasets of one shape add runs, which train together. "
    "--config FILE repeats a stored job, --resume DIR continues an interrupted or finished one."
)


@dataclass(frozen=True)
class _Sources:
    config: Path | None = None
    """Repeat the job of this config.json; needs --output. Flags that you give win."""
    resume: Path | None = None
    """Continue the job in this folder. Takes --dataset (moved files of the same bytes), --updates (train beyond the
    planned end), --device, --threads and --allow-import, and no other flag."""
    points: Path | None = None
    """A file of settings to train: a JSON list of objects such as {"lambda": 0.1, "K": 5}, or an object per line.
    Each is trained with every combination of --sweep and every seed; an option that it does not name keeps the job's
    value."""
    allow_import: bool = False
    """With --config or --resume: import the module that a stored task names (gym:MODULE:ID), which runs its code."""


@dataclass(frozen=True)
class _Choice(EngineFlags, _Sources):
    """The flags that decide which other flags there are, and their defaults; and where the job is trained."""

    algorithm: str = ""
    plugins: tuple[str, ...] | None = None
    preset: str = "none"
    task: tuple[str, ...] = ("none",)
    dataset: tuple[Path, ...] = ()
    seeds: tuple[int, ...] = ()


def train(arguments: Arguments) -> int:
    """Train runs of an algorithm, with or without plug-ins, on a dataset; or continue a job with --resume DIR."""
    choice = _choice(arguments)
    engine = choice.ray()
    if choice.resume is None or {"-h", "--help"} & set(arguments):
        config = config_of(arguments, choice)
        return _run(lambda loop: loop.train(config) if engine is None else on_ray(engine, config), config.output)

    from c4rl.jobs.config import RESUMABLE, TrainConfig

    fields = [flag for flag in flags_of(TrainConfig) if flag.field.name in RESUMABLE]
    flags = [*(flag for flag in flags_of(_Sources) if flag.field.name not in ("config", "points")), *fields]
    flags += flags_of(EngineFlags)
    known = {flag.name for flag in flags}
    if others := [flag_in(word) for word in arguments if word[:2] == "--" != word and flag_in(word) not in known]:
        raise InputError(f"{others[0]}: found with --resume, which takes only {', '.join(sorted(known))}")
    values = parse("train", arguments, flags, {flag.field.name: None for flag in fields})
    folder, allow_import = values.pop("resume"), values.pop("allow_import")
    changes = {flag.field.name: values[flag.field.name] for flag in fields if values[flag.field.name] is not None}
    how = {"allow_import": allow_import, **changes}
    return _run(lambda loop: loop.resume(folder, **how) if engine is None else on_ray(engine, folder, **how), folder)


def _choice(arguments: Arguments) -> _Choice:
    return _Choice(**parse("train", arguments, flags_of(_Choice), others_follow=True))


def config_of(arguments: Arguments, choice: _Choice | None = None) -> "TrainConfig":
    """The job that these arguments of `c4rl train` describe. choice: that of the arguments, if it is known."""
    from c4rl.jobs.config import TrainConfig, field_names
    from c4rl.jobs.config_file import read_config
    from c4rl.jobs.registry import DEFAULT_ALGORITHM, PLUGINS, PRESET_ALGORITHM, algorithm_class, plugin_names
    from c4rl.jobs.sweeps import read_points

    choice = choice or _choice(arguments)
    base = read_config(choice.config, choice.allow_import) if choice.config is not None else None
    preset = choice.preset != "none"
    if preset and base is not None:
        raise InputError("--preset: found with --config, expected only one of the two (a config holds all values)")
    default = base.algorithm if base else PRESET_ALGORITHM if preset else DEFAULT_ALGORITHM
    algorithm = choice.algorithm or default
    given: dict[str, Any] = {}
    if base is not None:
        given = _stored(base, algorithm, choice.plugins)
    elif choice.preset == "best":
        given = _best(choice)
        algorithm = given["algorithm"]
    elif preset:
        given = _preset(choice, algorithm)
    if base is None:
        data = choice.dataset[0].stem if choice.dataset else "DATASET"
        given["output"] = free_folder(f"{data}-{choice.preset if preset else algorithm}")
    plugins = choice.plugins if choice.plugins is not None else given.get("plugins", ("none",))
    options = given.pop("options", None) or algorithm_class(algorithm).config_type()
    names = plugin_names(plugins, algorithm)
    of_plugins = given.pop("plugin_options", None)
    if of_plugins is None:
        of_plugins = tuple(PLUGINS[name][0]() for name in names)
    defaults = given | {"algorithm": algorithm}
    for owner in (options, *of_plugins):
        defaults |= {field.name: getattr(owner, field.name) for field in fields(owner)}

    panels = {_Sources: "", TrainConfig: "", EngineFlags: "engine", type(options): algorithm} | dict(
        zip(map(type, of_plugins), names, strict=True)
    )
    flags = [
        flag
        for kind, panel in panels.items()
        for flag in flags_of(kind, panel)
        if flag.field.name not in ("options", "plugin_options")
        and not (kind is TrainConfig and flag.name == "--points")
    ]
    words, file = defaults.pop("points", ()), choice.points
    values = parse("train", arguments, flags, defaults, HELP)
    options, *of_plugins = (type(o)(**{f.name: values.pop(f.name) for f in fields(o)}) for o in (options, *of_plugins))
    for flag in (*flags_of(_Sources), *flags_of(EngineFlags)):
        del values[flag.field.name]
    if file is not None:
        words = read_points(file, (options, tuple(of_plugins)), field_names())
    alone = set(map(flag_in, arguments))
    if file is None and (both := alone & _options_of(words)):
        raise InputError(
            f"{min(both)}: found in the points of {choice.config} too, expected other points with --points"
        )
    # what the preset or the stored config has for an option that is given anew makes way
    anew = {name: values[name] if f"--{flag_of(name)}" in alone else () for name in ("sweep", "by_dataset")}
    for name, swept in anew.items():
        if both := alone & _options_of(swept):
            raise InputError(f"{min(both)}: found in --{flag_of(name)} too, expected an option in one of them")
    named = alone | _options_of((*anew["sweep"], *anew["by_dataset"], *(words if file is not None else ())))
    kept = {name: tuple(w for w in given.get(name, ()) if not named & _options_of([w])) for name in anew}
    values["sweep"] = anew["sweep"] or kept["sweep"]
    values["by_dataset"] = (*kept["by_dataset"], *anew["by_dataset"])
    return TrainConfig(**values | {"points": words}, options=options, plugin_options=tuple(of_plugins))


def _best(choice: _Choice) -> dict[str, Any]:
    """The recipe for the data, of which it must be the same for all."""
    from c4rl.jobs.preset_fields import best_fields

    for flag, value in (("algorithm", choice.algorithm), ("plugins", choice.plugins)):
        if value:
            raise InputError(f"--{flag}: found with --preset best, expected no --{flag}: best chooses it by the data")
    if not choice.dataset:
        raise InputError("--preset best: found no --dataset, expected the data by which it chooses")
    tasks = choice.task * len(choice.dataset) if len(choice.task) == 1 else choice.task
    if len(tasks) != len(choice.dataset):
        raise InputError(f"--task: found {' '.join(tasks) or 'none'}, expected one for all datasets, or one for each")
    first, *others = (best_fields(*pair, tell=_say) for pair in zip(choice.dataset, tasks, strict=False))
    if any(other != first for other in others):
        raise InputError("--preset best: found datasets that need different recipes, expected a job for each")
    if choice.seeds and first["ensemble"]:
        first["ensemble"] = len(choice.seeds) if len(choice.seeds) > 1 else 0
    return first


def _preset(choice: _Choice, algorithm: str) -> dict[str, Any]:
    """Options may differ between tasks (--by-dataset); a preset that treats their data differently is refused."""
    from c4rl.jobs.preset_fields import fields_by_dataset, preset_fields

    found = [preset_fields(choice.preset, algorithm, choice.plugins, task) for task in choice.task or ("none",)]
    given = fields_by_dataset(found)
    if given is None:
        tasks = " and ".join(choice.task)
        raise InputError(
            f"--preset {choice.preset}: found {tasks}, whose data it treats differently, expected a job for each"
        )
    return given


def _stored(base: "TrainConfig", algorithm: str, plugins: tuple[str, ...] | None) -> dict[str, Any]:
    """The stored config as the starting point; options of another algorithm or other plug-ins do not carry over."""
    from c4rl.jobs.config import ONE_SETTING

    values = {field.name: getattr(base, field.name) for field in fields(base)}
    values["output"] = NOT_GIVEN  # it does not say where to write
    other_algorithm, other_plugins = algorithm != base.algorithm, plugins not in (None, base.plugins)
    if other_algorithm:
        del values["options"]
    if other_plugins:
        del values["plugin_options"]
    if other_algorithm or other_plugins:
        for name in ("preset", *ONE_SETTING):
            del values[name]  # their values went with them
    return values


def _options_of(words: Sequence[str]) -> set[str]:
    """The options that words of --sweep, --by-dataset and points name, as flags."""
    names = (part.partition("=")[0] for word in words for part in word.split(",") if "=" in part)
    return {f"--{name.lstrip('-').replace('_', '-')}" for name in names}


def _say(words: str) -> None:
    print(printable(words))


def _run(job: Callable[[Any], dict[str, Any]], folder: Path) -> int:
    from c4rl.cli.summary import print_summary
    from c4rl.training import loop
    from c4rl.training.summary import failed_runs

    summary = job(loop)
    print_summary(summary)
    _say(f"wrote {folder}")
    if (sentence := failed_runs(summary)) is not None:
        print(f"c4rl: {sentence}", file=sys.stderr)
        return 1
    return 0
