"""Speed, measured: updates per second of each algorithm, alone and stacked."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from c4rl.config import TrainConfig, empty_config
from c4rl.data.dataset import Dataset
from c4rl.errors import InputError
from c4rl.files import write_json
from c4rl.registry import ALGORITHMS
from c4rl.training.buffer import Scaling, TransitionBuffer
from c4rl.training.lane import Lane, lane_seeds
from c4rl.training.loop import versions
from c4rl.training.preparation import choose_device


def speed(
    algorithms: tuple[str, ...] = tuple(ALGORITHMS),
    plugins: tuple[str, ...] = ("none",),
    runs: tuple[int, ...] = (1, 5),
    rows: int = 10_000,
    observation_dim: int = 17,
    action_dim: int = 6,
    seconds: float = 5.0,
    device: str = "auto",
    threads: int | None = None,
    json: Path | None = None,
) -> int:
    """Measure updates per second on made-up data of a given shape, evaluation and logging left out.

    Args:
        algorithms: which ones.
        plugins: with these plug-ins, where the algorithm takes them.
        runs: stack sizes.
        rows: rows of data.
        observation_dim: width of an observation.
        action_dim: width of an action.
        seconds: how long each measurement lasts.
        device: auto, cpu, cuda or cuda:N.
        threads: CPU threads; default all cores.
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
    for heading in ("algorithm", "plug-ins", "runs", "updates/s", "run-updates/s", "ms per run-update"):
        table.add_column(heading, justify="left" if heading in ("algorithm", "plug-ins") else "right")
    results = []
    for algorithm in algorithms:
        with_plugins = plugins if algorithm in ALGORITHMS and ALGORITHMS[algorithm].has_critic else ("none",)
        for count in runs:
            advance = stepper(_config(algorithm, with_plugins, count), data, chosen)
            rate = measure(advance, seconds, chosen)
            name = " ".join(with_plugins)
            table.add_row(
                algorithm, name, str(count), f"{rate:.2f}", f"{rate * count:.2f}", f"{1e3 / rate / count:.2f}"
            )
            results.append(
                {
                    "algorithm": algorithm,
                    "plugins": [p for p in with_plugins if p != "none"],
                    "runs": count,
                    "updates_per_second": rate,
                    "run_updates_per_second": rate * count,
                }
            )
    console.print(table)
    if json is not None:
        shape = {"rows": rows, "observation_dim": observation_dim, "action_dim": action_dim}
        where = {"device": chosen.type, "threads": torch.get_num_threads(), **versions()}
        write_json(json, {"shape": shape, "machine": where, "results": results})
    return 0


def _config(algorithm: str, plugins: tuple[str, ...], runs: int) -> TrainConfig:
    nowhere = Path("unused")
    return empty_config(algorithm, plugins, dataset=nowhere, task="none", output=nowhere, seeds=tuple(range(runs)))


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
    s, a = data.observation_dim, data.action_dim
    one, zero = np.ones, np.zeros
    scaling = Scaling(zero(s, np.float32), one(s, np.float32), -one(a, np.float32), one(a, np.float32))
    buffer = TransitionBuffer([(data, scaling)], device)
    lanes = [Lane(config, seeds, buffer, device) for seeds in lane_seeds(config, list(config.seeds), device)]
    step = 0

    def advance() -> None:
        nonlocal step
        step += 1
        for lane in lanes:
            lane.update(step)
            lane.refresh(step)

    return advance


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
