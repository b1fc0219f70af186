"""Speed, measured: updates per second of each algorithm, alone and stacked."""

import gc
import itertools
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from c4rl.core.errors import InputError
from c4rl.core.files import check_new_file, write_json
from c4rl.core.options import Options, option
from c4rl.data.assembly import number_trajectories
from c4rl.data.dataset import Dataset
from c4rl.data.packing import Scaling, pack_datasets
from c4rl.jobs.config import TrainConfig, empty_config
from c4rl.jobs.registry import ALGORITHMS, algorithm_class
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.dr3 import DR3Config
from c4rl.plugins.layer_norm import LayerNormConfig
from c4rl.training.launch import launches_of
from c4rl.training.preparation import choose_device
from c4rl.training.summary import versions

REPEATS = 3  # measurements of each: their median counts
Variant = Literal["none", "layer_norm", "dr3", "c4-proxy", "c4-exact"]
VARIANTS: dict[Variant, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "none": (("none",), ()),
    "layer_norm": (("layer_norm",), (LayerNormConfig(),)),
    "dr3": (("dr3",), (DR3Config(),)),
    "c4-proxy": (("c4",), (C4Config(mode="proxy"),)),
    "c4-exact": (("c4",), (C4Config(mode="exact"),)),
}


@dataclass(frozen=True)
class SpeedOptions(Options):
    algorithms: tuple[str, ...] = option(("bc", "td3_bc", "cql"), choices=tuple(ALGORITHMS))
    """Algorithms to measure, each stage separately."""
    plugins: tuple[Variant, ...] = ("none", "c4-proxy", "c4-exact")
    """Measure with each of these, where the algorithm has a critic."""
    runs: tuple[int, ...] | None = option(None, at_least=1, at_most=10_000)
    """Stack sizes; default 1 and 5, on a GPU also 25. benchmarks/gpu_speed.py compares ways to run an update."""
    rows: int = option(10_000, at_least=2, at_most=10**9)
    """Rows of data."""
    observation_dim: int = option(17, at_least=1, at_most=100_000)
    """Width of an observation."""
    action_dim: int = option(6, at_least=1, at_most=100_000)
    """Width of an action."""
    hidden_layers: int | None = option(None, at_least=1, at_most=100)
    """Hidden layers of networks, instead of each algorithm's own number."""
    hidden_width: int | None = option(None, at_least=1, at_most=100_000)
    """Units per hidden layer, likewise."""
    precision: Literal["fp32", "bf16x3"] = "fp32"
    """Precision of matrix products on a GPU."""
    seconds: float = option(5.0, above=0, at_most=1e6)
    """How long each measurement lasts, in three repeats: their median counts."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    threads: int | None = option(None, at_least=1, at_most=4096)
    """CPU threads; default all cores."""
    json: Path | None = None
    """Also write the result to this new file."""

    def check(self) -> None:
        for name in ("algorithms", "plugins"):
            if not getattr(self, name):
                raise InputError(f"--{name}: found none, expected at least one")
        check_new_file("json", self.json)


def measure_speeds(options: SpeedOptions) -> int:
    """Print a line per measurement, and write them all to --json."""
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    device = choose_device(options.device)
    shape = {name: getattr(options, name) for name in ("rows", "observation_dim", "action_dim")}
    data = made_up_dataset(**shape)
    columns = [c for c in COLUMNS if device.type == "cuda" or c.on_cpu]
    numbers = f"{options.observation_dim} + {options.action_dim} numbers"
    print(f"updates per second on {device.type}, {options.precision}, {options.rows:,} rows, {numbers}")
    print(_line(columns, [column.heading for column in columns]))
    where = {
        "device": device.type,
        "name": machine_name(device),
        "threads": torch.get_num_threads(),
        "precision": options.precision,
    }
    networks = {n: value for n in ("hidden_layers", "hidden_width") if (value := getattr(options, n)) is not None}
    results: list[dict[str, Any]] = []
    for algorithm in options.algorithms:
        variants = options.plugins if algorithm_class(algorithm).has_critic else ("none",)
        counts = options.runs or ((1, 5, 25) if device.type == "cuda" else (1, 5))
        for variant, count in itertools.product(variants, counts):
            config = bench_config(algorithm, variant, count)
            config = replace(config, options=replace(config.options, **networks))
            for index, stage in enumerate(config.stages):
                what = {"algorithm": algorithm, "stage": stage.name, "plugins": variant, "runs": count}
                results.append(what | _measure_one(config, data, device, options.seconds, index, options.precision))
                print(_line(columns, [column.cell(results[-1]) for column in columns]), flush=True)
                if options.json is not None:  # each time: an interrupted measurement keeps what it has
                    found = {"shape": shape | networks, "machine": where | versions(), "results": results}
                    write_json(options.json, found)
    return 0


def machine_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"cpu {platform.machine()}"


class Measurement(NamedTuple):
    updates_per_second: float  # with the refreshes that fall into the time
    run_updates_per_second: float
    clustering_share: float  # of the time: refreshes


class Column(NamedTuple):
    heading: str
    width: int
    cell: Callable[[dict[str, Any]], str]
    on_cpu: bool = True


COLUMNS = (
    Column("algorithm", 20, lambda r: r["algorithm"] + ("" if r["stage"] == "training" else f": {r['stage']}")),
    Column("plug-ins", 10, lambda r: r["plugins"]),
    Column("runs", 4, lambda r: str(r["runs"])),
    Column("updates/s", 9, lambda r: f"{r['updates_per_second']:,.1f}"),
    Column("run-updates/s", 13, lambda r: f"{r['run_updates_per_second']:,.1f}"),
    Column("spread", 6, lambda r: f"{spread(r):.1%}"),
    Column("refresh", 7, lambda r: f"{r['clustering_share']:.1%}"),
    Column("memory", 8, lambda r: f"{r['peak_memory_bytes'] / 1e9:.2f} GB", on_cpu=False),
)
WORDS = ("algorithm", "plug-ins")  # to the left of their columns; numbers are to the right


def _line(columns: Sequence[Column], cells: Sequence[str]) -> str:
    sides = ("<" if column.heading in WORDS else ">" for column in columns)
    return "  ".join(f"{cell:{side}{c.width}}" for c, cell, side in zip(columns, cells, sides, strict=True))


def bench_config(algorithm: str, variant: Variant, runs: int, **values: Any) -> TrainConfig:
    """A job that never touches a file: `TimedRuns` gives it its data. values: other fields of the job."""
    nowhere, (plugins, options) = Path("unused"), VARIANTS[variant]
    values |= {"seeds": tuple(range(runs)), "plugin_options": options}
    return empty_config(algorithm, plugins, dataset=nowhere, task="none", output=nowhere, **values)


def _measure_one(
    config: TrainConfig, data: Dataset, device: torch.device, seconds: float, stage: int, precision: str
) -> dict[str, Any]:
    if device.type == "cuda":
        gc.collect()  # memory of the last measurement
        torch.cuda.reset_peak_memory_stats(device)
    timed = TimedRuns(config, data, device, stage, precision)
    return summarize([timed.measure(seconds / REPEATS) for _ in range(REPEATS)]) | {
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


def summarize(measured: Sequence[Measurement]) -> dict[str, Any]:
    """Medians, and the rates of all."""
    return {name: median(each) for name, each in zip(Measurement._fields, zip(*measured, strict=True), strict=True)} | {
        "repeats": [each.run_updates_per_second for each in measured]
    }


def spread(result: dict[str, Any]) -> float:
    """Between the fastest and the slowest repeat, as a share of the median."""
    return (max(result["repeats"]) - min(result["repeats"])) / result["run_updates_per_second"]


def made_up_dataset(rows: int, observation_dim: int, action_dim: int, seed: int = 0) -> Dataset:
    """A smooth made-up process: values are learnable and bounded, so that nothing diverges while timing."""
    rng = np.random.default_rng(seed)
    states = rng.standard_normal((rows + 1, observation_dim), dtype=np.float32)
    actions = np.tanh(rng.standard_normal((rows + 1, action_dim), dtype=np.float32))
    ends = np.zeros(rows, bool)
    ends[999::1000] = True
    ends[-1] = True
    valid = ~ends
    return Dataset(
        observations=states[:-1],
        actions=actions[:-1],
        rewards=np.tanh(states[:-1, 0]),
        next_observations=states[1:],
        terminals=np.zeros(rows, bool),
        timeouts=ends,
        trajectory_ids=number_trajectories(ends),
        next_actions=actions[1:] * valid[:, None],
        next_action_valid=valid,
        action_low=-np.ones(action_dim, np.float32),
        action_high=np.ones(action_dim, np.float32),
        source="made up",
    )


class TimedRuns:
    """All runs of a job, ready to be updated from a stage's first update on."""

    def __init__(
        self, config: TrainConfig, data: Dataset, device: torch.device, stage: int = 0, precision: str = "fp32"
    ) -> None:
        as_they_are = np.zeros(data.observation_dim, np.float32), np.ones(data.observation_dim, np.float32)
        scaling = Scaling(*as_they_are, data.action_low, data.action_high)
        self.runs, self.device = len(config.seeds), device
        self.launches = launches_of(config, pack_datasets([(data, scaling)], device), device)
        for launch in self.launches:
            launch.precision = precision
        stages, plugins = self.launches[0].algorithm.stages, self.launches[0].plugins.all
        periods = [plugin.period for plugin in plugins if plugin.period is not None and stages[stage].plugged]
        self.period = periods[0] if periods else None  # updates between refreshes
        self.step = sum(earlier.updates for earlier in stages[:stage])
        self._warm = False

    def update(self) -> None:
        self.step += 1
        for launch in self.launches:
            launch.update(self.step)

    def refresh(self) -> None:
        for launch in self.launches:
            launch.refresh(self.period or 0)

    def warm_up(self) -> None:
        """Compile kernels and capture graphs."""
        if not self._warm:
            calls_per_second(self.update, 0, self.device, warm_up=10)
            if self.period is not None:
                calls_per_second(self.refresh, 0, self.device, warm_up=4)
        self._warm = True

    def measure(self, seconds: float) -> Measurement:
        self.warm_up()
        updates, share = calls_per_second(self.update, seconds, self.device), 0.0
        if self.period is not None:
            each = 1 / calls_per_second(self.refresh, min(seconds, 2.0), self.device)
            share = each / (each + self.period / updates)
        rate = updates * (1 - share)
        return Measurement(rate, rate * self.runs, share)


def calls_per_second(advance: Callable[[], Any], seconds: float, device: torch.device, warm_up: int = 0) -> float:
    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    def timed(count: int) -> float:
        settle()
        began = time.perf_counter()
        for _ in range(count):
            advance()
        settle()
        return time.perf_counter() - began

    for _ in range(warm_up):
        advance()
    few = 3
    count = max(few, round(seconds * few / timed(few)))  # known in advance: a GPU queues calls faster than it does them
    return count / timed(count)
