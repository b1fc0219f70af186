"""Transitions of policies in training, collected by worker processes while the policies are being updated.

A group of environments belongs to one run and steps together. What it does in a block is a function of its seed, the
policy and its environments' states alone: rows depend neither on the number of workers nor on their speed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load, save

from c4rl.core.array import Array
from c4rl.core.behaviour_policy import BehaviourPolicy
from c4rl.core.errors import WorkFailed
from c4rl.core.worker_process import Parent, WorkerDied, WorkerProcess, described
from c4rl.data.checks import check_finite
from c4rl.data.policy_files import WORDS, gaussian_policies
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import Task

GROUP = 8  # environments: products of fewer rows waste time, and sums round differently with another number


class Block(NamedTuple):
    """What all runs' environments did in one block."""

    rows: Array  # [R, n, 2(s + a) + 3], as a `TransitionBuffer` packs them, without next actions
    returns: list[list[float]]  # of episodes that ended, per run


class _Group:
    """Environments of one run that step together."""

    def __init__(self, task: Task, seed: int, index: int) -> None:
        self._key = [seed, index]
        self._environments = [make_environment(task) for _ in range(GROUP)]
        first: Any = self._environments[0]
        space = first.action_space
        self._low, self._high = np.asarray(space.low, np.float32), np.asarray(space.high, np.float32)
        self._observations = np.zeros((GROUP, first.observation_space.shape[0]), np.float32)
        self._totals = [0.0] * GROUP

    def collect(
        self, policy: BehaviourPolicy | None, block: int, steps: int, restart: bool
    ) -> tuple[Array, list[float]]:
        """policy: None acts at random. restart: begin new episodes. A time-out is no terminal."""
        rng = np.random.default_rng([*self._key, block])
        s, a = self._observations.shape[1], len(self._low)
        rows, returns = np.zeros((steps, GROUP, 2 * (s + a) + 3), np.float32), []
        if restart:
            for e in range(GROUP):
                self._reset(e, rng)
        for row in rows:
            if policy is None:
                actions = rng.uniform(self._low, self._high, (GROUP, a)).astype(np.float32)
            else:
                actions = policy.act(self._observations, rng)
            row[:, :s] = self._observations
            row[:, s : s + a] = (actions - self._low) / (self._high - self._low) * 2 - 1
            for e, environment in enumerate(self._environments):
                following, reward, terminated, truncated, _ = environment.step(actions[e])
                row[e, s + a : 2 * s + a] = following
                row[e, -3], row[e, -2] = reward, not terminated
                self._totals[e] += float(reward)
                self._observations[e] = following
                if terminated or truncated:
                    returns.append(self._totals[e])
                    self._reset(e, rng)
        rows = rows.reshape(steps * GROUP, -1)
        if np.isfinite(rows[:, : s + a]).all():  # else the policy itself has diverged
            check_finite("simulated rows", next_observations=rows[:, s + a : 2 * s + a], rewards=rows[:, -3])
        return rows, returns

    def _reset(self, e: int, rng: np.random.Generator) -> None:
        self._observations[e] = self._environments[e].reset(seed=int(rng.integers(2**31)))[0]
        self._totals[e] = 0.0


class _Groups:
    """The groups of one worker: (place of the run, group of the run) each."""

    def __init__(self, task: Task, seeds: Sequence[int], places: Sequence[tuple[int, int]]) -> None:
        self.places = [(run, index) for run, index in places]
        self._groups = [_Group(task, seeds[run], index) for run, index in self.places]

    def collect(self, job: Mapping[str, Any], weights: bytes) -> list[tuple[Array, list[float]]]:
        words = {"activation": np.array("relu"), "squash": np.array("tanh")}
        policies = gaussian_policies(load(weights) | words) if weights else None
        return [
            group.collect(policies[run] if policies else None, job["block"], job["steps"], job["restart"])
            for (run, _), group in zip(self.places, self._groups, strict=True)
        ]


class Collector:
    """Environments of R runs; a context manager. `start` a block, do something else, `finish` it."""

    def __init__(self, task: Task, seeds: Sequence[int], environments: int, workers: int) -> None:
        """environments: of each run, a multiple of GROUP. workers: processes; 0: this one does it in `start`."""
        self.runs, count = len(seeds), environments // GROUP
        places = [(run, index) for run in range(self.runs) for index in range(count)]
        workers = min(workers, len(places))
        self._shares = [places[w::workers] for w in range(workers)] if workers else [places]
        self._own = None if workers else _Groups(task, seeds, places)
        self._found: list[tuple[Array, list[float]]] = []
        facts = {"task": asdict(task), "seeds": list(seeds)}
        self._workers = [WorkerProcess(__name__, facts | {"places": s}) for s in self._shares] if workers else []

    def start(self, arrays: Mapping[str, Array] | None, block: int, steps: int, restart: bool) -> None:
        """arrays: Gaussian policies [R, ...] as docs/recording.md has them; None: act at random."""
        job = {"block": block, "steps": steps, "restart": restart}
        numbers = {k: np.array(v, order="C") for k, v in (arrays or {}).items() if k not in WORDS or k == "n_hidden"}
        weights = save(numbers) if numbers else b""
        if self._own is not None:
            try:
                self._found = self._own.collect(job, weights)
            except (Exception, SystemExit) as error:
                raise WorkFailed(described(error)) from error
        for worker in self._workers:
            worker.request(job, weights)

    def ready(self) -> bool:
        """Whether `finish` would not wait."""
        return all(worker.ready() for worker in self._workers)

    def finish(self) -> Block:
        parts: dict[tuple[int, int], tuple[Array, list[float]]] = {}
        found = [self._found] if self._own is not None else [_collected(worker) for worker in self._workers]
        for share, some in zip(self._shares, found, strict=True):
            parts |= {(run, index): part for (run, index), part in zip(share, some, strict=True)}
        own = [[parts[place] for place in sorted(parts) if place[0] == run] for run in range(self.runs)]
        rows = np.stack([np.concatenate([rows for rows, _ in groups]) for groups in own])
        return Block(rows, [[total for _, totals in groups for total in totals] for groups in own])

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()

    def __enter__(self) -> "Collector":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _collected(worker: WorkerProcess) -> list[tuple[Array, list[float]]]:
    try:
        reply, rows = worker.reply()
    except WorkerDied as death:
        raise WorkFailed(str(death)) from death
    if "error" in reply:
        raise WorkFailed(reply["error"])
    return list(zip(np.frombuffer(rows, np.float32).reshape(reply["shape"]), reply["returns"], strict=True))


def serve() -> None:
    """The worker's side: what to simulate, then blocks to collect."""
    parent, groups = Parent(), None
    requests = parent.requests()
    facts, _ = next(requests)
    for job, weights in requests:
        try:
            groups = groups or _Groups(Task(**facts["task"]), facts["seeds"], facts["places"])
            found = groups.collect(job, weights)
            rows = np.stack([rows for rows, _ in found])
            parent.answer({"shape": rows.shape, "returns": [returns for _, returns in found]}, rows.tobytes())
        except (Exception, SystemExit) as error:  # a script's environment may exit
            parent.answer({"error": described(error)})
