"""The results store: one small JSON file per run, written once, found by what determines the run.

An entry holds every option, the data's sha256, versions, and the returns of every evaluation episode; scores and
statistics are computed from those. Two entries never describe the same run.
"""

import hashlib
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.declarations import declaration
from c4rl.core.errors import InputError
from c4rl.core.files import read_json, replacing
from c4rl.core.typed_json import jsonable
from c4rl.environments.tasks import get_task, imported_by, physics
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.config_file import to_json
from c4rl.jobs.registry import PLUGINS, algorithm_class

SCHEMA = 1
RESULTS = 1  # to be counted up whenever training itself changes, so that older results are not taken for new ones
# fields of a job that its entry holds in forms of their own: a path becomes its content's sha256, seeds one seed
APART = ("algorithm", "plugins", "options", "plugin_options", "dataset", "task", "seeds")
ENTRY = {"schema", "results", "run", "config", "dataset", "environment", "versions", "curve", "stopped", "made"}
LATER = {"watched", "selected"}  # fields that not every entry has


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

    def curve(self, quantity: str) -> tuple[np.ndarray, np.ndarray]:
        """Updates, and the score or a watched metric there; empty where it was not logged."""
        if quantity == "score":
            return np.array(self.updates), self.scores
        if quantity == "variance_lead":
            updates, variance = self.curve("td_cosine_with_variance")
            return updates, variance - self.curve("td_cosine_with_mean")[1]
        points = np.array(self.data.get("watched", {}).get(quantity, [])).reshape(-1, 2)
        return points[:, 0], points[:, 1]

    @property
    def selected(self) -> float | None:
        """The score at the update that --select chose; None for a run without."""
        chosen = self.data.get("selected")
        return None if chosen is None else float(self.scores[self.updates.index(chosen["update"])])

    @property
    def precision(self) -> str:
        """Precision of matrix products; a CPU has one."""
        return self.data["config"]["precision"] if self.data["made"]["device"] == "cuda" else "fp32"


def determinants(config: TrainConfig, sha256: str, environment: str) -> dict[str, Any]:
    """What determines a run: of a job of one run, all but the incidental."""
    stored = to_json(config)
    (task,), seed = config.task, config.seeds[0]
    return {
        "algorithm": config.algorithm,
        "plugins": config.active_plugins,
        "options": stored["options"],
        "plugin_options": stored["plugin_options"],
        "job": {name: stored[name] for name in _job_fields()},
        "task": get_task(task).name,
        "seed": seed,
        "sha256": sha256,
        "physics": physics(environment),
    }


def identity(run: dict[str, Any]) -> str:
    """Equal for runs with equal determinants. An option that came later counts as if it had had its default."""
    kinds = [algorithm_class(run["algorithm"]).config_type, *(PLUGINS[name][0] for name in run["plugins"])]
    options = [_defaults(kind) | own for kind, own in zip(kinds, _options(run), strict=True)]
    return _hash(run, options, {n: v for n, v in _defaults(TrainConfig).items() if n in _job_fields()} | run["job"])


def fingerprint(run: dict[str, Any]) -> str:
    """Hash of the determinants as they were stored, whatever options came later; part of the file's name."""
    return _hash(run, _options(run), run["job"])


def _options(run: dict[str, Any]) -> list[dict[str, Any]]:
    return [run["options"], *run["plugin_options"]]


def _hash(run: dict[str, Any], options: list[dict[str, Any]], job: dict[str, Any]) -> str:
    whole = {name: value for name, value in run.items() if name != "plugin_options"} | {"options": options, "job": job}
    return hashlib.sha256(json.dumps(whole, sort_keys=True).encode()).hexdigest()[:16]


@cache
def _job_fields() -> list[str]:
    return [f.name for f in fields(TrainConfig) if f.name not in APART and not declaration(f).incidental]


@cache
def _defaults(kind: type) -> dict[str, Any]:
    """As JSON has them."""
    return jsonable({f.name: f.default for f in fields(kind) if f.default is not MISSING})


class Store:
    """A folder of entries, a sub-folder for each algorithm with its plug-ins."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[Path, Entry] = {}  # files are never changed once written

    def __iter__(self) -> Iterator[Entry]:
        for path in sorted(self.folder.glob("*/*.json")):
            if path not in self._read:
                self._read[path] = read_entry(path)
            yield self._read[path]

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
        with ExitStack() as whole:  # a disk that fills up takes none: the rest of a job would be trained anew
            for data in entries:
                run, key = data["run"], identity(data["run"])
                if key in known:
                    continue
                known.add(key)
                folder = self.folder / "+".join([run["algorithm"], *run["plugins"]])
                folder.mkdir(parents=True, exist_ok=True)
                path = folder / f"{run['task']}-seed{run['seed']}-{fingerprint(run)}.json"
                temporary = whole.enter_context(replacing(path))
                temporary.write_text(json.dumps(data, allow_nan=False) + "\n")
                written.append(path)
        return written


def read_entry(path: Path) -> Entry:
    data = read_json(path, "an entry of a results store")
    if not isinstance(data, dict) or set(data) - LATER != ENTRY:
        raise InputError(f"{path}: found other fields than an entry's, expected {', '.join(sorted(ENTRY))}")
    for name, expected in (("schema", SCHEMA), ("results", RESULTS)):
        if data[name] != expected:
            raise InputError(f"{path}: field '{name}' is {data[name]}, expected {expected}")
    entry = Entry(data, str(path))
    try:
        named, module = fingerprint(data["run"]), imported_by(entry.task)
        _ = entry.identity
    except (KeyError, TypeError, AttributeError, ValueError):
        raise InputError(f"{path}: field 'run' lacks what determines a run") from None
    if module is not None:
        raise InputError(f"{path}: its task would import the Python module '{module}', expected one that does not")
    if not path.stem.endswith(f"-{named}"):
        raise InputError(f"{path}: its settings are those of {named}, expected them unchanged since it was stored")
    if not _whole(entry):
        raise InputError(
            f"{path}: its results are not as c4rl writes them, expected them unchanged since it was stored"
        )
    return entry


def _whole(entry: Entry) -> bool:
    """Whether all is there that tables of scores read."""
    try:
        curve, speed = entry.data["curve"], entry.data["made"]["timing"]["run_updates_per_second"]
        _ = entry.precision, entry.selected, (entry.data["stopped"] or {}).get("failed_at")
        numbers = itertools.chain([speed], *(returns for _, returns in curve))
        return bool(curve) and all(returns for _, returns in curve) and all(map(math.isfinite, numbers))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):
        return False
