"""Tables of speed: what clustering costs by the number of rows, and how long algorithms train.

A measurement is a file that `c4rl bench speed --json` writes; one file per cell, found by what it measured.
"""

import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from c4rl.core.errors import InputError
from c4rl.jobs.registry import algorithm_class
from c4rl.results.speed import REPEATS, VARIANTS, SpeedOptions, Variant, machine_name, measure_speeds, spread
from c4rl.results.table_text import MISSING, Rows
from c4rl.results.tables import paper
from c4rl.training.preparation import choose_device

UPDATES = 300_000  # of the paper's figure of run times
SHAPE: dict[str, Any] = {
    "observation_dim": 17,
    "action_dim": 6,
    "hidden_layers": 4,
    "hidden_width": 256,
}  # of HalfCheetah, the paper's
SECONDS = 2.0  # of one measurement


class Timed(NamedTuple):
    """A row."""

    label: str
    algorithm: str
    plugins: Variant = "none"


class Case(NamedTuple):
    """One measurement."""

    method: Timed
    rows: int
    runs: int

    @property
    def name(self) -> str:
        return f"{self.method.algorithm}-{self.method.plugins}-{self.rows}_rows-{self.runs}_runs"


@dataclass(frozen=True)
class SpeedTable:
    name: str
    title: str
    methods: tuple[Timed, ...]
    columns: tuple[tuple[int, int], ...]  # (rows, runs)
    quantity: Literal["share", "minutes"]
    shows: str
    headline: tuple[str, ...]

    @property
    def cases(self) -> list[Case]:
        return [Case(method, *column) for method in self.methods for column in self.columns]

    def value(self, case: Case, results: Sequence[dict[str, Any]]) -> float:
        """Percent of the time spent on clustering, or minutes of one run's UPDATES updates with all its stages."""
        if self.quantity == "share":
            return 100 * results[-1]["clustering_share"]
        kind = algorithm_class(case.method.algorithm)
        stages = {stage.name: stage.updates for stage in kind.plan(kind.config_type(), UPDATES)}
        return sum(stages[r["stage"]] / r["run_updates_per_second"] for r in results) / 60

    def heads(self) -> list[str]:
        if self.quantity == "share":
            return [f"{rows:,} rows" for rows, _ in self.columns]
        return ["one run alone" if runs == 1 else f"each of {runs} runs together" for _, runs in self.columns]

    def printed(self, method: Timed, rows: int) -> float | None:
        """The paper's, of HalfCheetah."""
        if self.quantity != "share" or method.algorithm != "cql":
            return None
        return paper()["overhead"]["halfcheetah"].get(f"1e{len(str(rows)) - 1}", [None])[0]


PLUGGED: dict[Variant, str] = {"none": "", "layer_norm": " + LN", "dr3": " + DR3", "c4-proxy": " + C4"}
C4_ROWS = (Timed("CQL + C4", "cql", "c4-proxy"), Timed("TD3+BC + C4", "td3_bc", "c4-proxy"))
SPEED_TABLES = {
    table.name: table
    for table in (
        SpeedTable(
            "overhead",
            "Percent of training time spent on clustering every 200 updates, one run",
            C4_ROWS,
            tuple((10**power, 1) for power in (3, 4, 5, 6)),
            "share",
            "table of the clustering's share of time",
            ("CQL + C4",),
        ),
        SpeedTable(
            "runtime",
            f"Minutes of {UPDATES:,} updates of one run, with all stages",
            (
                *(Timed(label + PLUGGED[plugins], algorithm, plugins)
                  for label, algorithm in (("TD3+BC", "td3_bc"), ("CQL", "cql")) for plugins in PLUGGED),
                *(Timed(name.upper(), name) for name in ("bc", "iql", "doge", "tsrl", "bppo", "a2pr", "sorl")),
            ),
            ((10_000, 1), (10_000, 25)),
            "minutes",
            "figure of the run times",
            ("TD3+BC", "TD3+BC + C4", "CQL", "CQL + C4"),
        ),
    )
}  # fmt: skip

Measured = dict[str, dict[str, list[dict[str, Any]]]]  # machine -> name of a case -> results of its stages


def read_speeds(folder: Path) -> Measured:
    found: Measured = {}
    for path in sorted(folder.glob("*/*.json")):
        try:
            data = json.loads(path.read_text())
            shape, machine, results = data["shape"], data["machine"], data["results"]
            first = results[0]
            where = f"{machine['name']}, {machine['precision']}, torch {machine['torch']}"
            measured = Case(Timed("", first["algorithm"], first["plugins"]), shape["rows"], first["runs"]).name
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, IndexError, TypeError):
            raise InputError(f"{path}: not a measurement, expected what `c4rl bench speed --json` writes") from None
        if path.stem != measured or {name: shape.get(name) for name in SHAPE} != SHAPE:
            raise InputError(f"{path}: measured {measured} of {shape}, expected {path.stem} of {SHAPE}")
        found.setdefault(where, {})[measured] = results
    return found


class Rate(NamedTuple):
    """Run-updates per second of each stage, of the largest stack that was measured."""

    algorithm: str
    plugins: list[str]
    precision: str
    device: str
    stages: dict[str, float]


def measured_rates(folder: Path) -> list[Rate]:
    """Of the tables of speed, and of what benchmarks/gpu_speed.py measured in other precisions."""
    found: dict[tuple[str, Variant, str, str], tuple[int, dict[str, float]]] = {}

    def keep(
        algorithm: str, variant: Variant, precision: str, device: str, runs: int, stages: dict[str, float]
    ) -> None:
        key = algorithm, variant, precision, device
        if runs > found.get(key, (0, {}))[0]:
            found[key] = runs, stages

    for machine, cases in read_speeds(folder).items():
        _, precision, _ = machine.rsplit(", ", 2)
        for results in cases.values():
            first, device = results[0], "cuda" if machine.startswith("NVIDIA") else "cpu"
            stages = {result["stage"]: result["run_updates_per_second"] for result in results}
            keep(first["algorithm"], first["plugins"], precision, device, first["runs"], stages)
    study = folder / "gpu_speed.json"
    for one in json.loads(study.read_text())["results"] if study.exists() else ():
        if one["variant"] == "ours":
            stages = {name: stage["run_updates_per_second"] for name, stage in one["stages"].items()}
            keep(one["algorithm"], one["plugins"], one["precision"], "cuda", one["runs"], stages)
    return [
        Rate(algorithm, [name for name in VARIANTS[variant][0] if name != "none"], precision, device, stages)
        for (algorithm, variant, precision, device), (_, stages) in found.items()
    ]


def speed_rows(table: SpeedTable, measured: Measured) -> Rows:
    """A line per method and machine."""
    rows = [["", *table.heads(), "machine"]]
    for machine, cases in _machines(table, measured):
        for method in table.methods:
            words = []
            for column in table.columns:
                case = Case(method, *column)
                ours = f"{table.value(case, cases[case.name]):.3g}" if case.name in cases else MISSING
                theirs = table.printed(method, case.rows)
                words.append(ours if theirs is None else f"{ours} / {theirs}")
            rows.append([method.label, *words, machine])
    return rows


def _machines(table: SpeedTable, measured: Measured) -> Iterator[tuple[str, dict[str, list[dict[str, Any]]]]]:
    """Those that measured any of the table; a line of gaps where none did."""
    names = {case.name for case in table.cases}
    some = [(machine, cases) for machine, cases in measured.items() if names & set(cases)]
    yield from some or [(MISSING, {})]


def speed_caption(table: SpeedTable, measured: Measured) -> str:
    shape = f"{SHAPE['hidden_layers']}x{SHAPE['hidden_width']} networks, 17 observations, 6 actions, made-up rows"
    theirs = "; after the slash the paper's, of HalfCheetah" if table.quantity == "share" else ""
    return f"{table.title}. {shape}; {repeats_of(table, measured)}{theirs}; {MISSING}: not measured."


def repeats_of(table: SpeedTable, measured: Measured) -> str:
    """How often each cell was measured, and how far that was apart."""
    names = {case.name for case in table.cases}
    cells = [results for cases in measured.values() for name, results in cases.items() if name in names]
    made = [result for results in cells for result in results]
    counts = " to ".join(map(str, sorted({len(result["repeats"]) for result in made}))) or str(REPEATS)
    apart = f", at most {max(map(spread, made)):.1%} apart" if made else ""
    return f"medians of {counts} measurements{apart}"


# -- measuring


def machine_folder(speeds: Path, device: str, precision: str) -> Path:
    return folder_of(speeds, machine_name(choose_device(device)), precision)


def folder_of(speeds: Path, machine: str, precision: str) -> Path:
    return speeds / re.sub(r"\W+", "_", f"{machine} {precision}").lower()


def missing(table: SpeedTable, folder: Path) -> list[Case]:
    """What was not measured on this machine."""
    read_speeds(folder.parent)  # refuses files that are no measurements
    return [case for case in table.cases if not (folder / f"{case.name}.json").exists()]


def list_measurements(cases: Sequence[Case]) -> str:
    minutes = len(cases) * 3 * SECONDS / 60  # updates, refreshes, and getting ready
    return "\n".join([*(case.name for case in cases), f"{len(cases)} measurements: about {minutes:.1f} minutes"])


def measure_missing(cases: Sequence[Case], folder: Path, minutes: float, **how: Any) -> int:
    """Exit code: 0 all done, 3 time was up. A measurement is a file once it is whole. how: device, precision."""
    deadline = time.monotonic() + 60 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    for case in cases:
        if time.monotonic() >= deadline:
            return 3
        unfinished = folder / f".{case.name}.unfinished"
        unfinished.unlink(missing_ok=True)
        method, given = case.method, SHAPE | how | {"rows": case.rows, "seconds": SECONDS, "json": unfinished}
        measure_speeds(SpeedOptions((method.algorithm,), (method.plugins,), (case.runs,), **given))
        unfinished.rename(folder / f"{case.name}.json")
    return 0
