"""The results store: one small JSON file per run, written once, found by what determines the run.

An entry holds every option, the data's sha256, versions, and the returns of every evaluation episode; scores and
statistics are computed from those. Two entries never describe the same run.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.errors import InputError
from c4rl.core.files import read_json, replacing
from c4rl.environments.tasks import get_task, imported_by, physics
from c4rl.jobs.config import TrainConfig, to_json
from c4rl.jobs.registry import PLUGINS, algorithm_class
from c4rl.jobs.runs import key_of, run_config, runs_of
from c4rl.training.run_directory import job_config, read_metrics

SCHEMA = 1
RESULTS = 1  # to be counted up whenever training itself changes, so that older results are not taken for new ones
# fields of a job that decide where, how fast and how well watched a run is made, but not what comes out of it
INCIDENTAL = frozenset({
    "algorithm", "plugins", "options", "plugin_options", "dataset", "task", "output", "preset", "seeds", "sweep",
    "by_dataset", "eval_every", "eval_in_background", "hold_out", "log_every", "checkpoint_every",
    "checkpoint_seconds", "device", "threads", "cuda_graph", "fused_kernels", "precision", "monitor",
})  # fmt: skip
ENTRY = {"schema", "results", "run", "config", "dataset", "environment", "versions", "curve", "stopped", "made"}


@dataclass(frozen=True)
class Entry:
    """One stored run."""

    data: dict[str, Any]
    origin: str  # the file, for sentences

    @property
    def task(self) -> str:
        return self.data["run"]["task"]

    @property
    def seed(self) -> int:
        return self.data["run"]["seed"]

    @cached_property
    def identity(self) -> str:
        return identity(self.data["run"])

    @cached_property
    def updates(self) -> list[int]:
        return [update for update, _ in self.data["curve"]]

    @cached_property
    def scores(self) -> np.ndarray:
        """The mean score of every evaluation, in their order."""
        task = get_task(self.task)
        return np.array([float(np.mean(task.normalise(np.array(returns)))) for _, returns in self.data["curve"]])


def determinants(config: TrainConfig, sha256: str, environment: str) -> dict[str, Any]:
    """What determines a run: of a job of one run, all but the incidental."""
    stored = to_json(config)
    (seed,), (task,) = config.seeds, config.task
    return {
        "algorithm": config.algorithm,
        "plugins": [name for name in config.plugins if name != "none"],
        "options": stored["options"],
        "plugin_options": stored["plugin_options"],
        "job": {f.name: stored[f.name] for f in fields(TrainConfig) if f.name not in INCIDENTAL},
        "task": get_task(task).name,
        "seed": seed,
        "sha256": sha256,
        "physics": physics(environment),
    }


def identity(run: dict[str, Any]) -> str:
    """Equal for runs with equal determinants. An option that came later counts as if it had had its default."""
    kinds = [algorithm_class(run["algorithm"]).config_type, *(PLUGINS[name][0] for name in run["plugins"])]
    options = [run["options"], *run["plugin_options"]]
    whole = run | {
        "options": [_defaults(kind) | own for kind, own in zip(kinds, options, strict=True)],
        "job": {n: v for n, v in _defaults(TrainConfig).items() if n not in INCIDENTAL} | run["job"],
    }
    whole.pop("plugin_options")
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


def _defaults(kind: type) -> dict[str, Any]:
    """As JSON has them."""
    found = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    return json.loads(json.dumps(found, default=str).replace("Infinity", '"inf"').replace('-"inf"', '"-inf"'))


class Store:
    """A folder of entries, a sub-folder for each algorithm with its plug-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __iter__(self) -> Iterator[Entry]:
        for path in sorted(self.folder.glob("*/*.json")):
            yield read_entry(path)

    def by_identity(self) -> dict[str, Entry]:
        found: dict[str, Entry] = {}
        for entry in self:
            if entry.identity in found:
                raise InputError(f"{entry.origin}: the same run as {found[entry.identity].origin}, expected it once")
            found[entry.identity] = entry
        return found

    def add(self, entries: Iterable[dict[str, Any]]) -> list[Path]:
        """Write those that are not there yet; the paths written."""
        known, written = set(self.by_identity()), []
        for data in entries:
            run, key = data["run"], identity(data["run"])
            if key in known:
                continue
            known.add(key)
            folder = self.folder / "+".join([run["algorithm"], *run["plugins"]])
            folder.mkdir(parents=True, exist_ok=True)
            path = folder / f"{run['task']}-seed{run['seed']}-{key}.json"
            with replacing(path) as temporary:
                temporary.write_text(json.dumps(data, allow_nan=False) + "\n")
            written.append(path)
        return written


def read_entry(path: Path) -> Entry:
    data = read_json(path, "an entry of a results store")
    if not isinstance(data, dict) or set(data) != ENTRY:
        raise InputError(f"{path}: found other fields than an entry's, expected {', '.join(sorted(ENTRY))}")
    for name, expected in (("schema", SCHEMA), ("results", RESULTS)):
        if data[name] != expected:
            raise InputError(f"{path}: field '{name}' is {data[name]}, expected {expected}")
    entry = Entry(data, str(path))
    try:
        named, module = entry.identity, imported_by(entry.task)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise InputError(f"{path}: field 'run' lacks what determines a run") from None
    if module is not None:
        raise InputError(f"{path}: its task would import the Python module '{module}', expected one that does not")
    if not path.stem.endswith(f"-{named}"):
        raise InputError(f"{path}: its settings are those of {named}, expected them unchanged since it was stored")
    return entry


def entries_of(folder: Path) -> list[dict[str, Any]]:
    """The entries of a finished job's runs."""
    config = job_config(folder)
    summary = read_json(folder / "summary.json", "that of a finished job")
    curves: dict[Any, dict[int, list[float]]] = {}
    for record in read_metrics(folder / "metrics.jsonl", {run.key for run in runs_of(config)}):
        if "returns" in record:
            curves.setdefault(key_of(record), {})[record["update"]] = [round(r, 3) for r in record["returns"]]
    facts = summary["dataset"] if isinstance(summary["dataset"], list) else [summary["dataset"]]
    entries = []
    for run in runs_of(config):
        own, dataset = run_config(config, run), facts[run.data]
        found = determinants(own, dataset["sha256"], summary["environment"])
        stored = to_json(own)
        entries.append(
            {
                "schema": SCHEMA,
                "results": RESULTS,
                "run": found,
                "config": {name: stored[name] for name in ("preset", "precision", "eval_every")},
                "dataset": {"name": Path(dataset["path"]).name, "rows": dataset["rows"]},
                "environment": summary["environment"],
                "versions": summary["versions"],
                "curve": sorted([update, returns] for update, returns in curves[run.key].items()),
                "stopped": summary["stopped"].get(str(run.key)),
                "made": {"device": summary["device"], "timing": summary["timing"], "runs": len(summary["runs"])},
            }
        )
    return entries
