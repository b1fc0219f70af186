"""What a person sees while a job runs: a live table in a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from c4rl.core.ops import available, missing
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import Run, RunKey
from c4rl.training.records import FAILED
from c4rl.training.summary import MARK, describe_failure

PLAIN_SECONDS = 10.0  # at most one plain line of losses this often
SHOWN = ("critic_loss", "actor_loss", "q")


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def title_of(config: TrainConfig, rows: Sequence[int], device: torch.device) -> str:
    """What is trained, where, and what stands in for kernels that are not at hand. rows: of each of the job's data."""
    where = "without a simulator" if config.task == ("none",) else f"on {' and '.join(config.task)}"
    title = f"{config.method} {where}, {' + '.join(f'{count:,}' for count in rows)} rows, {device.type}"
    if device.type == "cuda" and config.fused_kernels and (reason := missing()) is not None:
        title += f", PyTorch's own kernels ({reason})"
    if config.precision != "fp32":
        own_kernels = available(device) and config.fused_kernels
        title += f", {config.precision if own_kernels else f'fp32 ({config.precision} needs fused GPU kernels)'}"
    return title


class Display:
    def __init__(self, title: str, runs: Sequence[Run], total: int, start: int, console: Console) -> None:
        self.title, self.total, self.console = title, total, console
        self.groups, self.titles = {run.key: run.group for run in runs}, {run.key: run.title for run in runs}
        self.runs: dict[RunKey, dict[str, Any]] = {run.key: {"state": "training"} for run in runs}
        self._plain_at = 0.0
        self._began, self._start, self._update = time.monotonic(), start, start
        self._live: Live | None = None
        if console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn("{task.fields[speed]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                console=console,
            )
            self._task = self._bar.add_task("updates", total=total, completed=start, speed="")
            self._live = Live(console=console, refresh_per_second=4)
            self._live.start()
            self._draw()
            self._live.refresh()  # shown at once, even if the first update takes long or the last comes soon
        else:
            console.print(title, highlight=False)

    def advance(self, update: int, stage: str = "updates") -> None:
        self._update = update
        if self._live is not None:
            self._bar.update(self._task, description=stage, completed=update, speed=f"{self._speed(update):,.1f}/s")

    def metrics(self, update: int, per_run: Mapping[RunKey, dict[str, float]]) -> None:
        for run, values in per_run.items():
            self.runs[run].update({name: values[name] for name in SHOWN if name in values})
        if self._live is not None:
            self._draw()
        elif time.monotonic() - self._plain_at >= PLAIN_SECONDS:
            self._plain_at = time.monotonic()
            mean = {n: mean_of([v[n] for v in per_run.values() if n in v]) for n in SHOWN}
            losses = "  ".join(f"{n} {number(v)}" for n, v in mean.items() if v is not None)
            self.message(f"update {update:,}/{self.total:,}  {losses}  {self._left(update)}")

    def evaluation(self, update: int, per_run: Mapping[RunKey, dict[str, Any]]) -> None:
        for key, record in per_run.items():
            run = self.runs[key]
            run.update({k: v for k, v in record.items() if isinstance(v, float)})
            if "score" in record:
                run["best"] = max(run.get("best", -float("inf")), record["score"])
        if self._live is not None:
            self._draw()
            return
        for group in dict.fromkeys(self.groups[key] for key in per_run):
            records = [record for key, record in per_run.items() if self.groups[key] == group]
            names = [name for name, value in records[0].items() if isinstance(value, float)]
            marked = [(record, MARK if FAILED in record else "") for record in records]
            scores = [f"{name} " + " ".join(number(record[name]) + mark for record, mark in marked) for name in names]
            left = self._left(max(update, self._update))  # scores may come late
            words = [f"update {update:,}/{self.total:,}", *([group] if group else []), *scores, left]
            self.message("  ".join(words))

    def failed(self, run: RunKey, failure: dict[str, Any]) -> None:
        self.runs[run]["state"] = f"failed at {failure['failed_at']:,}"
        self.message(f"{self.titles[run]}: {describe_failure(failure)}")

    def message(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def finished(self) -> None:
        """All runs that were not stopped have reached the end."""
        for run in self.runs.values():
            run["state"] = "done" if run["state"] == "training" else run["state"]

    def close(self) -> None:
        if self._live is not None:
            self._draw()
            self._live.stop()

    def _speed(self, update: int) -> float:
        return (update - self._start) / max(time.monotonic() - self._began, 1e-9)

    def _left(self, update: int) -> str:
        speed = self._speed(update)
        seconds = (self.total - update) / speed if speed > 0 else 0
        left = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
        return f"{speed:,.1f} updates/s, {left} left"

    def _draw(self) -> None:
        assert self._live is not None
        names = [n for n in SHOWN if any(n in run for run in self.runs.values())]
        found = dict.fromkeys(name for run in self.runs.values() for name in run)
        scores = [n for n in ("score", "best") if n in found] + [n for n in found if n.endswith("_rmse")]
        table = Table(title=self.title, title_justify="left")
        first = "run" if any(self.groups.values()) else "seed"
        for heading in (first, *names, *scores, "state"):
            justify: Literal["left", "right"] = "left" if heading in ("run", "state") else "right"
            # the end of a name tells runs apart: wrap names, never cut them
            table.add_column(heading.replace("_", " "), justify=justify, overflow="fold")
        for key, run in self.runs.items():
            table.add_row(str(key), *(number(run.get(n)) for n in (*names, *scores)), run["state"])
        self._live.update(Group(table, self._bar))


def mean_of(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
