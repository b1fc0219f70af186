"""config.json: a job's description as it is stored, and read back."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

from c4rl.core.errors import InputError
from c4rl.core.files import read_json
from c4rl.core.typed_json import from_dict, jsonable, typed
from c4rl.environments.tasks import imported_by
from c4rl.jobs.config import RESUMABLE, TrainConfig
from c4rl.jobs.registry import PLUGINS, algorithm_class, plugin_names

CONFIG_VERSION = 1


def to_json(config: TrainConfig) -> dict[str, Any]:
    out = dataclasses.asdict(config)
    out["dataset"], out["output"] = [str(path) for path in config.dataset], str(config.output)
    for name in ("dataset", "task"):
        out[name] = out[name][0] if len(out[name]) == 1 else out[name]
    return {"version": CONFIG_VERSION, **jsonable(out)}


def from_json(data: dict[str, Any], origin: str) -> TrainConfig:
    """Read back what `to_json` wrote; unknown or missing fields are named."""
    data = dict(data)
    version = data.pop("version", None)
    if version != CONFIG_VERSION:
        raise InputError(f"{origin}: field 'version' is {version}, expected {CONFIG_VERSION}")
    algorithm = data.get("algorithm")
    if not isinstance(algorithm, str):
        raise InputError(f"{origin}: field 'algorithm' is {algorithm!r}, expected a name")
    field_of_plugins = next(f for f in dataclasses.fields(TrainConfig) if f.name == "plugins")
    plugins = typed(field_of_plugins, data.get("plugins", []), origin)
    try:
        kind, chosen = algorithm_class(algorithm), plugin_names(plugins, algorithm)
    except InputError as error:
        raise InputError(f"{origin}: {error}") from None
    options = from_dict(kind.config_type, data.pop("options", {}), origin)
    stored = data.pop("plugin_options", [])
    if not isinstance(stored, list | tuple) or len(stored) != len(chosen):
        raise InputError(f"{origin}: field 'plugin_options' is {stored}, expected one object for each of {chosen}")
    plugin_options = tuple(
        from_dict(PLUGINS[name][0], values, origin) for name, values in zip(chosen, stored, strict=True)
    )
    for name in ("dataset", "task"):  # a single one is stored as text
        data |= {name: [data[name]]} if isinstance(data.get(name), str) else {}
    return from_dict(TrainConfig, data, origin, options=options, plugin_options=plugin_options)


def read_config(path: Path, allow_import: bool = False) -> TrainConfig:
    """The config in this file or folder. A task that imports a module is refused unless that is allowed."""
    path = path / "config.json" if path.is_dir() else path
    config = from_json(stored_config(path), str(path))
    for task in config.task:
        if (module := imported_by(task)) is not None and not allow_import:
            raise InputError(
                f"{path}: the task '{task}' imports and runs the Python module '{module}', expected --allow-import if "
                "you trust it"
            )
    return config


def stored_config(path: Path) -> dict[str, Any]:
    data = read_json(path, "a config.json written by c4rl train")
    if not isinstance(data, dict):
        raise InputError(f"{path}: found a {type(data).__name__}, expected the object written by c4rl train")
    return data


def digest(stored: dict[str, Any]) -> str:
    """Hash of a stored config without what may change when the job is resumed."""
    fixed = {name: value for name, value in stored.items() if name not in (*RESUMABLE, "output")}
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()
