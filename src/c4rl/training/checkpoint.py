"""Checkpoints: one safetensors file with every run's tensors, whatever stack they were trained in.

Random numbers are a function of (seed, stream, update), so the update's number is all the random state there is.
"""

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from c4rl.core.declarations import Options, option
from c4rl.core.errors import InputError
from c4rl.core.files import parse_json, replacing
from c4rl.core.numpy_policy import SQUASHES, NumpyPolicy
from c4rl.core.typed_json import from_dict
from c4rl.jobs.runs import RunKey, file_name, key_from
from c4rl.training.snapshot import RunState

SCHEMA = "1"


@dataclass(frozen=True)
class Failure(Options):
    """Why and when a run was stopped."""

    update: int = option(at_least=0)  # of its last good state, which it keeps
    failed_at: int = option(at_least=0)
    reason: str = option()


@dataclass(frozen=True)
class PolicyFacts(Options):
    """Facts of a stored policy."""

    layers: int = option(at_least=1, at_most=1000)
    squash: str = option(choices=SQUASHES)
    update: int = option(at_least=0)
    failed: str = ""  # what happened to its run, if it failed


@dataclass
class Progress:
    """How far the job is; travels in the checkpoint's header."""

    update: int = 0
    frozen: dict[str, dict[str, Any]] = field(default_factory=dict)  # str(run's key) -> `Failure` of a failed run
    training_seconds: float = 0.0
    clustering_seconds: float = 0.0
    evaluation_seconds: float = 0.0
    run_updates: int = 0
    dataset_sha256: str = ""  # of several datasets: joined by commas
    pending: list[int] = field(default_factory=list)  # updates whose evaluations are under way
    settings: str = ""  # digest of config.json, without what a resumed job may change
    environment: str | None = None  # the simulator of the scores so far
    threads: int = 0  # of the CPU; 0: not known
    evaluations: int = -1  # lines of metrics.jsonl that hold one, of all runs together; -1: not known

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Counts the time within it as evaluation."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.evaluation_seconds += time.monotonic() - began


def save_checkpoint(path: Path, states: Mapping[Any, RunState], progress: Progress) -> None:
    # contiguous: safetensors writes memory in order, and a matrix from linear algebra may be transposed
    arrays = {
        f"{file_name(run)}/{name}": t.contiguous().numpy() for run, state in states.items() for name, t in state.items()
    }
    _write(path, "checkpoint", arrays, progress=asdict(progress))


def load_checkpoint(path: Path, runs: Collection[RunKey] | None = None) -> tuple[dict[RunKey, RunState], Progress]:
    """The states of all runs, which must be these; `Launch.load` checks the tensors."""
    progress, states = load_progress(path), dict[RunKey, RunState]()
    with _opened(path, "checkpoint") as file:
        for key in file.keys():  # noqa: SIM118 - not a mapping
            prefix, _, name = key.partition("/")
            states.setdefault(key_from(prefix), {})[name] = file.get_tensor(key)
    _check_runs(path, states, runs)
    return states, progress


def load_progress(path: Path) -> Progress:
    """The header alone."""
    with _opened(path, "checkpoint") as file:
        data = parse_json(file.metadata().get("progress", ""), f"{path}: its header", "the progress of a job")
    frozen = data.pop("frozen", {}) if isinstance(data, dict) else {}
    progress: Progress = from_dict(Progress, data, str(path))
    if not isinstance(frozen, dict) or min(progress.update, progress.threads, *progress.pending) < 0:
        raise InputError(f"{path}: found a header with other values than a job's, expected one written by c4rl train")
    progress.frozen = {run: asdict(from_dict(Failure, failure, f"{path}: {run}")) for run, failure in frozen.items()}
    return progress


def _check_runs(path: Path, found: Collection[RunKey], expected: Collection[RunKey] | None) -> None:
    if expected is not None and set(found) != set(expected):
        names = [" ".join(sorted(map(file_name, some))) or "none" for some in (found, expected)]
        raise InputError(f"{path}: found the runs {names[0]}, expected those of config.json: {names[1]}")


def save_policies(
    path: Path,
    policies: Mapping[Any, NumpyPolicy],
    update: Mapping[Any, int],
    failed: Mapping[Any, str] = MappingProxyType({}),
) -> None:
    """failed: what happened to the runs that failed."""
    arrays = {
        f"{file_name(run)}/{name}": np.ascontiguousarray(array)
        for run, policy in policies.items()
        for name, array in policy.arrays().items()
        if array.dtype.kind == "f"
    }
    facts = {
        str(run): asdict(PolicyFacts(len(policy.weights), policy.squash, update[run], failed.get(run, "")))
        for run, policy in policies.items()
    }
    _write(path, "policies", arrays, facts=facts)


def join_policies(parts: Sequence[Path], path: Path) -> None:
    """One file with the policies of several, which have different runs."""
    arrays: dict[str, np.ndarray] = {}
    facts: dict[str, Any] = {}
    for part in parts:
        load_policies(part)  # whole, as they should be
        with _opened(part, "policies", framework="np") as file:
            arrays |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            facts |= json.loads(file.metadata()["facts"])
    _write(path, "policies", arrays, facts=facts)


def load_policies(path: Path, runs: Collection[RunKey] | None = None) -> dict[RunKey, NumpyPolicy]:
    """The policies of all runs, which must be these."""
    return load_policy_file(path, runs)[0]


def load_policy_file(
    path: Path, runs: Collection[RunKey] | None = None
) -> tuple[dict[RunKey, NumpyPolicy], dict[RunKey, PolicyFacts]]:
    """The policies of all runs, which must be these."""
    policies: dict[RunKey, NumpyPolicy] = {}
    found: dict[RunKey, PolicyFacts] = {}
    with _opened(path, "policies", framework="np") as file:
        facts = parse_json(file.metadata().get("facts", ""), f"{path}: its header", "facts of policies")
        for text, data in facts.items() if isinstance(facts, dict) else ():
            run = key_from(text)
            fact: PolicyFacts = from_dict(PolicyFacts, data, f"{path}: {text}")
            prefix = f"{file_name(run)}/"
            arrays = {k.removeprefix(prefix): file.get_tensor(k) for k in file.keys() if k.startswith(prefix)}  # noqa: SIM118
            try:
                policy = NumpyPolicy.from_arrays(
                    arrays | {"layers": np.array(fact.layers), "squash": np.array(fact.squash)}
                )
            except KeyError as missing:
                raise InputError(f"{path}: {prefix}{missing.args[0]} is missing, expected a complete policy") from None
            if (misfit := policy.misfit()) is not None:
                raise InputError(f"{path}: {text}: found {misfit}")
            policies[run], found[run] = policy, fact
    _check_runs(path, policies, runs)
    return policies, found


def policy_facts(path: Path) -> dict[RunKey, PolicyFacts]:
    """Facts of each policy in a file, which must be whole; none without a file."""
    return load_policy_file(path)[1] if path.exists() else {}


def policy_updates(path: Path) -> dict[RunKey, int]:
    """The update of each policy in a file; none without a file."""
    return {run: fact.update for run, fact in policy_facts(path).items()}


def _write(path: Path, kind: str, arrays: dict[str, np.ndarray], **header: Any) -> None:
    texts = {name: json.dumps(value) for name, value in header.items()}
    with replacing(path) as temporary:
        save_file(arrays, temporary, {"schema": SCHEMA, "kind": kind, **texts})


def _opened(path: Path, kind: str, framework: str = "pt") -> Any:
    if not path.is_file():
        raise InputError(f"{path}: no such file, expected the {kind} of a run folder made by c4rl train")
    if not os.access(path, os.R_OK):  # safetensors would say that there is none
        raise InputError(f"{path}: cannot be read (Permission denied), expected the {kind} of a run")
    try:
        file = safe_open(path, framework)
    except (SafetensorError, OSError) as error:
        raise InputError(f"{path}: not a complete safetensors file ({error}), expected the {kind} of a run") from None
    metadata = file.metadata() or {}
    if metadata.get("kind") != kind or metadata.get("schema") != SCHEMA:
        found = f"kind {metadata.get('kind')}, schema {metadata.get('schema')}"
        raise InputError(f"{path}: found {found}, expected kind {kind}, schema {SCHEMA}")
    return file
