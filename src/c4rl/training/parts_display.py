"""The launches of jobs that train elsewhere, as their folders show them: a live table, or plain lines."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from c4rl.jobs.config import TrainConfig
from c4rl.training.display import PLAIN_SECONDS, number
from c4rl.training.parts import place_file

TAIL = 2**16  # bytes at the end of metrics.jsonl that are read


@dataclass
class Part:
    """A launch, and what is known of it besides its folder."""

    config: TrainConfig
    changes: dict[str, Any]
    token: str  # of the process that asks for it
    state: str = "queued"  # then: done, refused, interrupted, failed
    sentence: str = ""


class PartsDisplay:
    def __init__(self, parts: Sequence[tuple[str, Part, int]], console: Console) -> None:
        """parts: each with its name and the updates of its job."""
        self.parts, self.console = parts, console
        self.live = Live(console=console, refresh_per_second=2) if console.is_terminal else None
        self._said: dict[str, str] = {}
        self._plain_at = 0.0

    def __enter__(self) -> None:
        if self.live is not None:
            self.live.start()

    def __exit__(self, *_: object) -> None:
        self.draw()
        if self.live is not None:
            self.live.stop()

    def rows(self) -> Iterator[tuple[str, str, str]]:
        """(launch, state, progress)."""
        for name, part, total in self.parts:
            place, state = _read(place_file(part.config.output)), part.state
            if state == "queued" and place.get("token") == part.token:  # others were begun before
                again = f", resumed from {place['resumed_from']:,}" if place["resumed_from"] else ""
                state = f"running on {place['node']}{again}"
            yield name, state, _progress(part.config.output, total)

    def draw(self) -> None:
        rows = list(self.rows())
        if self.live is not None:
            done = sum(state == "done" for _, state, _ in rows)
            table = Table("launch", "state", "progress", caption=f"{done} of {len(rows)} launches done")
            most = max(5, self.console.height - 6)
            if len(rows) > most:  # what moves comes first
                rows.sort(key=lambda row: ("queued", "done").index(row[1]) if row[1] in ("queued", "done") else -1)
            for row in rows[:most]:
                table.add_row(*row)
            self.live.update(table)
            return
        due = time.monotonic() - self._plain_at >= PLAIN_SECONDS
        for name, state, progress in rows:
            if self._said.get(name) != state or (due and state.startswith("running")):
                self._said[name] = state
                words = [f"{name}: {state}", *([progress] if progress else [])]
                self.console.print(", ".join(words), highlight=False, markup=False, soft_wrap=True)
        self._plain_at = time.monotonic() if due else self._plain_at


def _read(path: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError):
        return json.loads(path.read_text())
    return {}


def _progress(folder: Path, total: int) -> str:
    """From the end of metrics.jsonl, as in "update 5,000 of 10,000, score 42"."""
    lines: list[dict[str, Any]] = []
    with suppress(OSError, ValueError), open(folder / "metrics.jsonl", "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        whole = file.read().rpartition(b"\n")[0].splitlines()
        lines = [json.loads(line) for line in whole[1 if len(whole) > 1 else 0 :]]
    if not lines:
        return ""
    scored = [line for line in lines if "score" in line]
    last = [float(line["score"]) for line in scored if line["update"] == scored[-1]["update"]]
    score = f", score {number(sum(last) / len(last))}" if last else ""
    return f"update {max(line['update'] for line in lines):,} of {total:,}{score}"
