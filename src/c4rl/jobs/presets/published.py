"""The settings of each algorithm's own publication, by task (published.json): what --preset published gives.

Every entry has its source; what nobody published is marked "ours". Where several match a task, later ones win.
"""

import json
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Published:
    """Settings for the tasks whose names match."""

    tasks: tuple[str, ...]  # patterns, as "antmaze-*"
    source: str
    options: dict[str, Any]  # of the algorithm
    training: dict[str, Any]  # fields of TrainConfig

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Published":
        options = {name: tuple(v) if isinstance(v, list) else v for name, v in entry["options"].items()}
        return cls(tuple(entry["tasks"].split()), entry["source"], options, entry["training"])


PUBLISHED: dict[str, tuple[Published, ...]] = {
    algorithm: tuple(map(Published.of, entries))
    for algorithm, entries in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")).items()
}


def published_for(algorithm: str, task: str) -> list[Published]:
    """The settings that name this task (with its version), in order: later ones win."""
    return [p for p in PUBLISHED.get(algorithm, ()) if any(fnmatch(task, pattern) for pattern in p.tasks)]
