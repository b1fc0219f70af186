"""The command line from the inside: small data files, small networks, and what a command leaves behind."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from c4rl.cli.main import main

Arrays = dict[str, np.ndarray]

SMALL_OF_ANY_WIDTH = ["--hidden-layers", "2", "--batch-size", "64"]
SMALL = [*SMALL_OF_ANY_WIDTH, "--hidden-width", "32"]


def logged_arrays(rows: int = 240, observation_dim: int = 5, action_dim: int = 2, seed: int = 0) -> Arrays:
    """Trajectories of 20 rows: a smooth walk, actions in [-1, 1], a reward that depends on both."""
    rng = np.random.default_rng(seed)
    observations = np.cumsum(rng.normal(0, 0.3, (rows, observation_dim)), axis=0).astype(np.float32)
    actions = rng.uniform(-1, 1, (rows, action_dim)).astype(np.float32)
    timeouts = np.arange(rows) % 20 == 19
    return {
        "observations": observations,
        "actions": actions,
        "rewards": np.tanh(observations[:, 0] + actions[:, 0]),
        "next_observations": np.roll(observations, -1, axis=0),
        "terminals": np.zeros(rows, bool),
        "timeouts": timeouts,
    }


def save_npz(path: Path, **changes: Any) -> Path:
    """`logged_arrays` as a file; a field changed to None is left out."""
    fields = logged_arrays() | changes
    np.savez(path, **{name: value for name, value in fields.items() if value is not None})
    return path


def run(*arguments: object) -> int:
    """c4rl ARGUMENTS in this process: its exit code."""
    return main([str(argument) for argument in arguments])


def listing(folder: Path) -> dict[str, str]:
    """Every file below the folder with a digest of its bytes, every folder with a slash."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "/"
        for path in folder.rglob("*")
    }


def metric_lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())


def tensors(folder: Path, name: str = "checkpoint") -> Arrays:
    return load_file(folder / f"{name}.safetensors")


def assert_same_tensors(first: Path, second: Path, name: str = "checkpoint") -> None:
    """Bit for bit."""
    a, b = tensors(first, name), tensors(second, name)
    assert a.keys() == b.keys()
    different = [key for key in a if a[key].tobytes() != b[key].tobytes()]
    assert not different, f"{name} differs in {different}"


def assert_tensorboard_shows_the_metrics(folder: Path) -> None:
    """The event files hold the numbers of metrics.jsonl, seed by seed, and no others."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown: dict[tuple[int, str], list[tuple[int, float]]] = {}
    for events in (folder / "tensorboard").iterdir():
        accumulator = EventAccumulator(str(events), size_guidance={"scalars": 0}).Reload()
        for name in accumulator.Tags()["scalars"]:
            key = int(events.name.removeprefix("seed_")), name
            shown[key] = [(event.step, event.value) for event in accumulator.Scalars(name)]
    logged: dict[tuple[int, str], list[tuple[int, float]]] = {}
    for line in metric_lines(folder):
        for name in line.keys() - {"update", "seed", "returns"}:
            logged.setdefault((line["seed"], name), []).append((line["update"], float(np.float32(line[name]))))
    assert shown == logged
