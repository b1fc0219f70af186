"""What a preset gives: fields of TrainConfig, the algorithm's and plug-ins' options among them."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from c4rl.core.action_bounds import ActionBounds
from c4rl.core.errors import InputError
from c4rl.data.loading import load_for_task
from c4rl.environments.tasks import get_task
from c4rl.jobs.config import PUBLISHED, empty_config
from c4rl.jobs.presets.best import BEST, best_for
from c4rl.jobs.presets.c4 import NO_PRESET, preset
from c4rl.jobs.presets.published import PUBLISHED as PUBLISHED_SETTINGS
from c4rl.jobs.presets.published import published_for
from c4rl.jobs.presets.settings import values_of
from c4rl.jobs.registry import PLUGINS, algorithm_class, plugin_names
from c4rl.jobs.sweeps import differences


def published_fields(algorithm: str, plugins: tuple[str, ...], task: str) -> dict[str, Any]:
    """The fields of TrainConfig that --preset published gives: the settings of the algorithm's own publication."""
    task = task if task.startswith("gym:") else get_task(task).name  # with its version
    matching = published_for(algorithm, task)
    if not matching:
        settings = PUBLISHED_SETTINGS.get(algorithm, ())
        known = ", ".join(dict.fromkeys(pattern for one in settings for pattern in one.tasks)) or "none"
        raise InputError(f"--preset {PUBLISHED}: '{algorithm}' has no settings for '{task}', expected one of: {known}")
    options: dict[str, Any] = {}
    training: dict[str, Any] = {}
    for published in matching:
        options |= published.options
        training |= published.training
    chosen = plugin_names(plugins, algorithm)
    return {
        "preset": PUBLISHED,
        "plugins": chosen or ("none",),
        "options": algorithm_class(algorithm).config_type(**options),
        "plugin_options": tuple(PLUGINS[name][0]() for name in chosen),
        **training,
    }


def best_fields(path: Path, task: str, tell: Callable[[str], None] = lambda words: None) -> dict[str, Any]:
    """The fields of TrainConfig that --preset best gives for this data, the algorithm among them. tell: takes what it
    chose, and why."""
    recipe, reason = best_for(load_for_task(path, get_task(task), ActionBounds(clip_actions=True)))
    tell(f"best trains {recipe.method} on {path.name}. {reason}")
    return {
        "algorithm": recipe.algorithm,
        "preset": BEST,
        "plugins": tuple(recipe.plugins),
        "options": algorithm_class(recipe.algorithm).config_type(**values_of(recipe.options)),
        "plugin_options": tuple(PLUGINS[name][0](**values_of(own)) for name, own in recipe.plugins.items()),
        **values_of(recipe.training),
        "ensemble": 0 if task == "none" else len(recipe.training["seeds"].value),
    }


def preset_fields(name: str, algorithm: str, plugins: tuple[str, ...] | None, task: str) -> dict[str, Any]:
    """The fields of TrainConfig that a preset gives; plugins: used instead of the preset's own."""
    if name == PUBLISHED:
        return published_fields(algorithm, plugins or ("none",), task)
    if name == NO_PRESET:
        own = empty_config(algorithm, plugins or ("none",), dataset=(Path(),), output=Path())
        return {field: getattr(own, field) for field in ("preset", "plugins", "options", "plugin_options")}
    if not algorithm_class(algorithm).has_critic:
        raise InputError(f"--preset {name}: C4 acts on a critic, and '{algorithm}' has none")
    chosen = preset(name, algorithm, task)
    names = plugin_names(plugins if plugins is not None else chosen.plugins, algorithm)
    return {
        "preset": name,
        "plugins": names or ("none",),
        "options": algorithm_class(algorithm).config_type(**values_of(chosen.options)),
        "plugin_options": tuple(PLUGINS[n][0](**(values_of(chosen.c4) if n == "c4" else {})) for n in names),
        **values_of(chosen.training),
    }


def fields_by_dataset(fields: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """The fields of one job on several datasets, from those that a preset gives each of them: options of the algorithm
    and its plug-ins that differ go to `by_dataset`. None where anything else differs."""
    first, per_dataset = dict(fields[0]), ("options", "plugin_options")
    for other in fields:
        if {k: v for k, v in other.items() if k not in per_dataset} != {
            k: v for k, v in first.items() if k not in per_dataset
        }:
            return None
    words = differences([(other["options"], other["plugin_options"]) for other in fields])
    return None if words is None else first | ({"by_dataset": tuple(words)} if words else {})
