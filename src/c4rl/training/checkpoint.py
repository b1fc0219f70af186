"""Checkpoints: one safetensors file with every run's tensors, whatever stack they were trained in.

Random numbers are a function of (seed, stream, update), so the update's number is all the random state there is.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from c4rl.core.errors import InputError
from c4rl.core.files import replacing
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.jobs.runs import RunKey, file_name, key_from
from c4rl.training.snapshot import RunState

SCHEMA = "1"


@dataclass
class Progress:
    """How far the job is; travels in the checkpoint's header."""

    update: int = 0
    frozen: dict[str, dict[str, Any]] = field(default_factory=dict)  # str(run's key) -> {update, failed_at, reason}
    training_seconds: float = 0.0
    clustering_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    run_updates: int = 0
    dataset_sha256: str = ""  # of several datasets: joined by commas
    pending: list[int] = field(default_factory=list)  # updates whose evaluations are under way


def save_checkpoint(path: Path, states: Mapping[Any, RunState], progress: Progress) -> None:
    # contiguous: safetensors writes memory in order, and a matrix from linear algebra may be transposed
    arrays = {
        f"{file_name(run)}/{name}": t.contiguous().numpy() for run, state in states.items() for name, t in state.items()
    }
    metadata = {"schema": SCHEMA, "kind": "checkpoint", "progress": json.dumps(asdict(progress))}
    with replacing(path) as temporary:
        save_file(arrays, temporary, metadata)


def load_checkpoint(path: Path) -> tuple[dict[RunKey, RunState], Progress]:
    states: dict[RunKey, RunState] = {}
    with _opened(path, "checkpoint") as file:
        for key in file.keys():  # noqa: SIM118 - not a mapping
            prefix, name = key.split("/", 1)
            states.setdefault(key_from(prefix), {})[name] = file.get_tensor(key)
        progress = Progress(**json.loads(file.metadata()["progress"]))
    return states, progress


def save_policies(path: Path, policies: Mapping[Any, NumpyPolicy], update: Mapping[Any, int]) -> None:
    arrays = {
        f"{file_name(run)}/{name}": np.ascontiguousarray(array)
        for run, policy in policies.items()
        for name, array in policy.arrays().items()
        if array.dtype.kind == "f"
    }
    facts = {str(r): {"layers": len(p.weights), "squash": p.squash, "update": update[r]} for r, p in policies.items()}
    with replacing(path) as temporary:
        save_file(arrays, temporary, {"schema": SCHEMA, "kind": "policies", "facts": json.dumps(facts)})


def load_policies(path: Path) -> dict[RunKey, NumpyPolicy]:
    policies = {}
    with _opened(path, "policies", framework="np") as file:
        facts = json.loads(file.metadata()["facts"])
        for text, fact in facts.items():
            run = key_from(text)
            prefix = f"{file_name(run)}/"
            arrays = {k.removeprefix(prefix): file.get_tensor(k) for k in file.keys() if k.startswith(prefix)}  # noqa: SIM118
            arrays |= {"layers": np.array(fact["layers"]), "squash": np.array(fact["squash"])}
            policies[run] = NumpyPolicy.from_arrays(arrays)
    return policies


def _opened(path: Path, kind: str, framework: str = "pt") -> Any:
    if not path.exists():
        raise InputError(f"{path}: no such file, expected the {kind} of a run folder made by c4rl train")
    try:
        file = safe_open(path, framework)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a whole safetensors file ({error}), expected the {kind} of a run") from None
    metadata = file.metadata() or {}
    if metadata.get("kind") != kind or metadata.get("schema") != SCHEMA:
        found = f"kind {metadata.get('kind')}, schema {metadata.get('schema')}"
        raise InputError(f"{path}: found {found}, expected kind {kind}, schema {SCHEMA}")
    return file
