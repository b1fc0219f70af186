"""Speed, measured: updates per second of each algorithm, alone and stacked."""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from c4rl.c4.plugin import C4Config
from c4rl.config import TrainConfig, empty_config
from c4rl.data.dataset import Dataset
from c4rl.errors import InputError
from c4rl.files import write_json
from c4rl.registry import ALGORITHMS, algorithm_class
from c4rl.regularizers.layer_norm import LayerNormConfig
from c4rl.training.buffer import Scaling, TransitionBuffer
from c4rl.training.lane import Lane, lane_seeds
from c4rl.training.loop import versions
from c4rl.training.preparation import choose_device

Variant = Literal["none", "layer_norm", "c4-proxy", "c4-exact"]
VARIANTS: dict[Variant, tuple[tuple[str, ...], tuple[Any, ...]]] = {
    "none": (("none",), ()),
    "layer_norm": (("layer_norm",), (LayerNormConfig(),)),
    "c4-proxy": (("c4",), (C4Config(mode="proxy"),)),
    "c4-exact": (("c4",), (C4Config(mode="exact"),)),
}


def speed(
    algorithms: tuple[str, ...] = tuple(ALGORITHMS),
    plugins: tuple[Variant, ...] = ("none", "c4-proxy", "c4-exact"),
    runs: tuple[int, ...] | None = None,
    rows: int = 10_000,
    observation_dim: int = 17,
    action_dim: int = 6,
    seconds: float = 5.0,
    device: str = "auto",
    threads: int | None = None,
    graph: bool = True,
    json: Path | None = None,
) -> int:
    """Measure updates per second on made-up data of a given shape, evaluation and logging left out.

    Args:
        algorithms: which ones.
        plugins: measure with each of these, where the algorithm has a critic.
        runs: stack sizes; default 1 and 5, on a GPU also 25.
        rows: rows of data.
        observation_dim: width of an observation.
        action_dim: width of an action.
        seconds: how long each measurement lasts.
        device: auto, cpu, cuda or cuda:N.
        threads: CPU threads; default all cores.
        graph: on a GPU, replay each update as one CUDA graph.
        json: also write the result to this new file.
    """
    if json is not None and json.exists():
        raise InputError(f"--json {json}: exists already, expected a new file (nothing is overwritten)")
    if threads is not None:
        torch.set_num_threads(threads)
    chosen = choose_device(device)
    data = made_up_dataset(rows, observation_dim, action_dim)
    console = Console()
    table = Table(title=f"updates per second on {chosen.type}, {rows:,} rows, {observation_dim} + {action_dim} numbers")
    for heading in ("algorithm", "plug-ins", "runs", "updates/s", "run-updates/s", "clustering", "memory"):
        table.add_column(heading, justify="left" if heading in ("algorithm", "plug-ins") else "right")
    results = []
    for algorithm in algorithms:
        variants = plugins if algorithm_class(algorithm).has_critic else ("none",)
        for variant, count in itertools.product(variants, runs or ((1, 5, 25) if chosen.type == "cuda" else (1, 5))):
            result = _measure_one(bench_config(algorithm, variant, count, graph), data, chosen, seconds)
            rate, memory = result["updates_per_second"], result["peak_memory_bytes"]
            cells = [f"{rate:.1f}", f"{rate * count:.1f}", f"{100 * result['clustering_share']:.1f}%"]
            cells.append("-" if memory is None else f"{memory / 1e9:.2f} GB")
            table.add_row(algorithm, variant, str(count), *cells)
            results.append({"algorithm": algorithm, "plugins": variant, "runs": count, "graph": graph, **result})
    console.print(table)
    if json is not None:
        shape = {"rows": rows, "observation_dim": observation_dim, "action_dim": action_dim}
        where = {"device": chosen.type, "threads": torch.get_num_threads(), **versions()}
        write_json(json, {"shape": shape, "machine": where, "results": results})
    return 0


def bench_config(algorithm: str, variant: Variant, runs: int, graph: bool = True) -> TrainConfig:
    """A job that never touches a file: `stepper` gives it its data."""
    nowhere, seeds = Path("unused"), tuple(range(runs))
    plugins, options = VARIANTS[variant]
    return empty_config(
        algorithm,
        plugins,
        dataset=nowhere,
        task="none",
        output=nowhere,
        seeds=seeds,
        cuda_graph=graph,
        plugin_options=options,
    )


def _measure_one(config: TrainConfig, data: Dataset, device: torch.device, seconds: float) -> dict[str, Any]:
    """Rates with the refreshes that fall into the time, and what share of it they took."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    update, refresh, period = stepper_parts(config, data, device)
    without = measure(update, seconds, device, warm_up=10)
    share = 0.0
    if period is not None:
        each = 1 / measure(refresh, min(seconds, 2.0), device, warm_up=1)
        share = each / (each + period / without)
    rate = without * (1 - share)
    runs = len(config.seeds)
    return {
        "updates_per_second": rate,
        "run_updates_per_second": rate * runs,
        "clustering_share": share,
        "peak_memory_bytes": torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    }


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
        trajectory_ids=np.cumsum(np.concatenate([[False], ends[:-1]])).astype(np.int32),
        next_actions=actions[1:] * valid[:, None],
        next_action_valid=valid,
        action_low=-np.ones(action_dim, np.float32),
        action_high=np.ones(action_dim, np.float32),
        source="made up",
    )


def stepper(config: TrainConfig, data: Dataset, device: torch.device) -> Callable[[], None]:
    """One update of all the job's runs, plug-ins refreshed when due."""
    update, refresh, period = stepper_parts(config, data, device)
    count = 0

    def advance() -> None:
        nonlocal count
        update()
        count += 1
        if period is not None and count % period == 0:
            refresh()

    return advance


def stepper_parts(
    config: TrainConfig, data: Dataset, device: torch.device
) -> tuple[Callable[[], None], Callable[[], None], int | None]:
    """One update of all the job's runs; one refresh of their plug-ins; how many updates lie between refreshes."""
    s, a = data.observation_dim, data.action_dim
    one, zero = np.ones, np.zeros
    scaling = Scaling(zero(s, np.float32), one(s, np.float32), -one(a, np.float32), one(a, np.float32))
    buffer = TransitionBuffer([(data, scaling)], device)
    lanes = [Lane(config, seeds, buffer, device) for seeds in lane_seeds(config, list(config.seeds), device)]
    periods = [plugin.period for plugin in lanes[0].plugins.all if plugin.period is not None]
    step = 0

    def update() -> None:
        nonlocal step
        step += 1
        for lane in lanes:
            lane.update(step)

    def refresh() -> None:
        for lane in lanes:
            lane.refresh(periods[0])

    return update, refresh, periods[0] if periods else None


def measure(advance: Callable[[], Any], seconds: float, device: torch.device, warm_up: int = 3) -> float:
    """Calls per second."""

    def settle() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    for _ in range(warm_up):
        advance()
    settle()
    began, count = time.perf_counter(), 0
    while time.perf_counter() - began < seconds or count < 3:
        advance()
        count += 1
    settle()
    return count / (time.perf_counter() - began)
