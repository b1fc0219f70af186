"""metrics.jsonl of a job, running or finished, by run."""

import json
from pathlib import Path
from typing import Any

from c4rl.core.errors import InputError
from c4rl.jobs.runs import RunKey, key_of


def read_metrics(folder: Path) -> dict[RunKey, list[dict[str, Any]]]:
    """The lines of each run, in the order of their updates; a line still being written is left out."""
    path = folder / "metrics.jsonl"
    if not path.exists():
        raise InputError(f"{path}: no such file, expected one made by c4rl train")
    found: dict[RunKey, list[dict[str, Any]]] = {}
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            found.setdefault(key_of(line), []).append(line | {"update": int(line["update"])})
        except json.JSONDecodeError:
            break  # the last line of a job that is running or was killed
        except (KeyError, TypeError, ValueError):
            raise InputError(f"{path}: line {number} lacks 'update' or 'seed', expected a line of c4rl train") from None
    for lines in found.values():
        lines.sort(key=lambda line: line["update"])  # scores may come late
    return found


def values_of(lines: list[dict[str, Any]], name: str) -> tuple[list[int], list[float | None]]:
    """Updates and values of one metric; None where it was not finite."""
    some = [(line["update"], line[name]) for line in lines if name in line]
    return [u for u, _ in some], [v if isinstance(v, float | int) else None for _, v in some]
