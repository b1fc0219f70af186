"""What a person sees while a job runs: a live table in a terminal, plain lines elsewhere."""

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

PLAIN_SECONDS = 10.0  # at most one plain line of losses this often
SHOWN = ("critic_loss", "actor_loss", "q")


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"


class Display:
    def __init__(self, title: str, seeds: list[int], total: int, start: int, console: Console) -> None:
        self.title, self.total, self.console = title, total, console
        self.runs: dict[int, dict[str, Any]] = {seed: {"state": "training"} for seed in seeds}
        self._plain_at = 0.0
        self._began, self._start = time.monotonic(), start
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
            self._live.refresh()  # shown at once, however long the first update takes or however soon the last is done
        else:
            console.print(title, highlight=False)

    def advance(self, update: int, stage: str = "updates") -> None:
        if self._live is not None:
            self._bar.update(self._task, description=stage, completed=update, speed=f"{self._speed(update):,.1f}/s")

    def metrics(self, update: int, per_seed: dict[int, dict[str, float]]) -> None:
        for seed, values in per_seed.items():
            self.runs[seed].update({name: values[name] for name in SHOWN if name in values})
        if self._live is not None:
            self._draw()
        elif time.monotonic() - self._plain_at >= PLAIN_SECONDS:
            self._plain_at = time.monotonic()
            mean = {n: _mean([v[n] for v in per_seed.values() if n in v]) for n in SHOWN}
            parts = "  ".join(f"{n} {number(v)}" for n, v in mean.items() if v is not None)
            self._line(f"update {update:,}/{self.total:,}  {parts}  {self._left(update)}")

    def evaluation(self, update: int, per_seed: dict[int, dict[str, Any]]) -> None:
        for seed, record in per_seed.items():
            run = self.runs[seed]
            run.update({k: v for k, v in record.items() if isinstance(v, float)})
            if "score" in record:
                run["best"] = max(run.get("best", -float("inf")), record["score"])
        if self._live is not None:
            self._draw()
        else:
            names = [k for k in next(iter(per_seed.values())) if isinstance(next(iter(per_seed.values()))[k], float)]
            parts = "  ".join(f"{n} " + " ".join(number(r[n]) for r in per_seed.values()) for n in names)
            self._line(f"update {update:,}/{self.total:,}  {parts}  {self._left(update)}")

    def frozen(self, seed: int, sentence: str) -> None:
        self.runs[seed]["state"] = "stopped"
        self.message(sentence)

    def message(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self._live is not None:
            self._draw()
            self._live.stop()

    def _line(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _speed(self, update: int) -> float:
        return (update - self._start) / max(time.monotonic() - self._began, 1e-9)

    def _left(self, update: int) -> str:
        speed = self._speed(update)
        seconds = (self.total - update) / speed if speed > 0 else 0
        left = f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
        return f"{speed:,.1f} updates/s, {left} left"

    def _draw(self) -> None:
        assert self._live is not None
        names = [n for n in ("critic_loss", "actor_loss", "q") if any(n in run for run in self.runs.values())]
        scores = [
            n
            for n in ("score", "best", "held_out_td_rmse", "held_out_action_rmse")
            if any(n in run for run in self.runs.values())
        ]
        table = Table(title=self.title, title_justify="left")
        for heading in ("seed", *names, *scores, "state"):
            table.add_column(heading.replace("_", " "), justify="left" if heading == "state" else "right")
        for seed, run in self.runs.items():
            table.add_row(str(seed), *(number(run.get(n)) for n in (*names, *scores)), run["state"])
        self._live.update(Group(table, self._bar))


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
