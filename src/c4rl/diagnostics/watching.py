"""`c4rl watch`: a job as its folder shows it, while it runs, from another machine, or after the fact."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from c4rl.core.errors import InputError
from c4rl.diagnostics.divergence import first_warning
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import RunKey, key_of, runs_of
from c4rl.training.display import SHOWN, mean_of, number
from c4rl.training.records import FAILED, parse_record
from c4rl.training.run_directory import job_config, job_summary

BLOCKS = "▁▂▃▄▅▆▇█"
SPARKS = 12  # evaluations in a sparkline
QUIET = 300.0  # seconds without a new line after which a job may have ended
LEAST_ROWS = 5  # of the table, however small the terminal
WIDE = 72  # columns of a terminal that has room for losses and sparklines


class Follower:
    """New whole lines of a growing file; a file that was rewritten, as by a resumed job, is read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read, self._inode = 0, -1

    def poll(self) -> tuple[bool, list[bytes]]:
        """(whether it starts anew, lines since the last call)."""
        if not self.path.exists():
            return False, []
        if not self.path.is_file():
            raise InputError(f"{self.path}: not a regular file, expected the metrics of a job")
        facts = self.path.stat()
        anew = facts.st_ino != self._inode or facts.st_size < self._read
        if anew:
            self._read, self._inode = 0, facts.st_ino
        with open(self.path, "rb") as file:
            file.seek(self._read)
            whole = file.read().rpartition(b"\n")[0]
        self._read += len(whole) + 1 if whole else 0
        return anew, [line for line in whole.split(b"\n") if line]


@dataclass
class RunView:
    group: str
    latest: dict[str, float] = field(default_factory=dict)
    scores: list[float] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)  # of losses, for the warning


class JobView:
    """What is known of a job so far."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config: TrainConfig = job_config(folder, allow_import=True)  # nothing is simulated
        self.total = self.config.total_updates
        self.follower = Follower(folder / "metrics.jsonl")
        self._clear()
        self._first: tuple[float, int] | None = None  # when watching began, and at which update

    def _clear(self) -> None:
        self.runs: dict[RunKey, RunView] = {run.key: RunView(run.group) for run in runs_of(self.config)}
        self.update, self.higher_is_better = 0, "none" not in self.config.task

    def poll(self) -> None:
        anew, lines = self.follower.poll()
        if anew:
            self._clear()
        for line in lines:
            self._take(parse_record(line, str(self.follower.path), self.runs))
        if self._first is None:
            self._first = time.monotonic(), self.update

    def _take(self, line: dict[str, Any]) -> None:
        self.update, run = max(self.update, line["update"]), self.runs[key_of(line)]
        try:
            run.latest |= {name: float(line[name]) for name in SHOWN if name in line}
        except (ValueError, TypeError, OverflowError):
            found = {name: line[name] for name in SHOWN if name in line}
            raise InputError(f"{self.follower.path}: found {found}, expected numbers") from None
        if any(name in line for name in (*SHOWN, FAILED)):
            run.lines.append(line)
        only_selects = self.config.select != "none" and "none" not in self.config.task  # the held-out error
        for name, value in line.items():
            if name == "score" or (name.endswith("action_rmse") and not only_selects):
                self.higher_is_better = name == "score"
                run.scores.append(float(value))

    @property
    def seconds(self) -> float:
        """How long a finished job took."""
        timing = (job_summary(self.folder, self.config) or {}).get("timing")
        found = timing.get("total_seconds") if isinstance(timing, dict) else None
        if not isinstance(found, float | int):
            raise InputError(
                f"{self.folder / 'summary.json'}: field 'timing.total_seconds' is {found!r}, expected a number"
            )
        return found

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").exists()

    def speed(self) -> float | None:
        """Updates per second since watching began; None as long as nothing moved."""
        if self._first is None or self.update <= self._first[1]:
            return None
        return (self.update - self._first[1]) / max(time.monotonic() - self._first[0], 1e-9)

    def quiet_seconds(self) -> float:
        """Since the last line."""
        path = self.follower.path
        return time.time() - path.stat().st_mtime if path.exists() else 0.0


def sparkline(values: Sequence[float]) -> str:
    """The last values as a row of blocks."""
    shown = [value for value in values if math.isfinite(value)][-SPARKS:]
    low, high = (min(shown), max(shown)) if shown else (0.0, 0.0)
    width = high - low
    return "".join(BLOCKS[round((value - low) / width * (len(BLOCKS) - 1)) if width else 0] for value in shown)


def _status(view: JobView) -> str:
    if view.finished:
        return f"finished in {view.seconds:,.0f} s"
    speed = view.speed()
    if speed is not None:
        left = max(view.total - view.update, 0) / speed
        return f"{speed:,.1f} updates/s, {left:,.0f} s left"
    quiet = view.quiet_seconds()
    return f"no new line for {quiet:,.0f} s: interrupted?" if quiet > QUIET else "waiting for the next line"


def render(view: JobView, rows: int = 10_000, columns: int = 80) -> RenderableType:
    """rows: the most of the table; the best groups are shown where runs are more. columns: of the terminal."""
    grouped: dict[str, list[RunView]] = {}
    for key, run in view.runs.items():
        name = str(key) if len(view.runs) <= rows else run.group
        grouped.setdefault(name, []).append(run)

    def last_score(name: str) -> float:
        found = [run.scores[-1] for run in grouped[name] if run.scores]
        return sum(found) / len(found) * (1 if view.higher_is_better else -1) if found else -math.inf

    names = sorted(grouped, key=last_score, reverse=True) if len(grouped) > rows else list(grouped)
    shown = names[: max(rows, LEAST_ROWS)]
    wide = columns >= WIDE
    metrics = [name for name in SHOWN if wide and any(name in run.latest for run in view.runs.values())]
    table = Table(title=Text(f"{view.folder}: {view.config.method}"), title_justify="left")
    alone = all(isinstance(key, int) for key in view.runs) and len(view.runs) <= rows
    last, every = ("score", "scores") if view.higher_is_better else ("action error", "errors")
    for heading in ("seed" if alone else "run", *metrics, last, "best", *([every] if wide else []), "state"):
        justify: Literal["left", "right"] = "left" if heading in ("run", every, "state") else "right"
        no_wrap = heading in (every, "state")
        table.add_column(heading.replace("_", " "), justify=justify, overflow="fold", no_wrap=no_wrap)
    for name in shown:
        some = grouped[name]
        scores = [run.scores for run in some if run.scores]
        best = max if view.higher_is_better else min
        common = min(map(len, scores), default=0)
        means = [sum(one[i] for one in scores) / len(scores) for i in range(common)]
        state, style = _state(view, some)
        table.add_row(
            Text(name or "all"),
            *(number(mean_of([run.latest[m] for run in some if m in run.latest])) for m in metrics),
            number(mean_of([one[-1] for one in scores])),
            number(mean_of([best(one) for one in scores])),
            *([sparkline(means)] if wide else []),
            Text(state, style=style),
        )
    left = len(names) - len(shown)
    bar = Table.grid(padding=(0, 1))
    reached = f"{view.update:,} of {view.total:,} updates"
    bar.add_row(ProgressBar(total=max(view.total, 1), completed=view.update, width=30), reached, _status(view))
    worse = "lower scores" if view.higher_is_better else "larger errors"
    more = [Text(f"and {left:,} more, with {worse}", style="dim")] if left > 0 else []
    return Group(table, *more, bar)


def _state(view: JobView, runs: list[RunView]) -> tuple[str, str]:
    warnings = [warning for run in runs if (warning := first_warning(run.lines)) is not None]
    if warnings:
        return f"diverged at {min(warning.update for warning in warnings):,}", "red"
    return ("done", "green") if view.finished else ("training", "")


def watch(folder: Path, every: float, once: bool, console: Console) -> None:
    """Until the job ends. once, or without a terminal: as it is now."""
    view = JobView(folder)
    view.poll()
    if once or not console.is_terminal:
        console.print(render(view, columns=console.width))
        return
    with Live(console=console, auto_refresh=False, screen=False) as live:
        while True:
            live.update(render(view, console.height - 8, console.width), refresh=True)
            if view.finished:
                return
            time.sleep(every)
            view.poll()
