"""Work in parallel with training: evaluations in worker processes, and files being written."""

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError

from c4rl.core.files import not_written
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.jobs.config import TrainConfig
from c4rl.training.checkpoint import load_policies, save_policies

MOST_PENDING = 4  # evaluations; with more, training waits for the oldest
MOST_FILES = 8  # waiting to be written; with more, training waits for the first
GPU_CHECKPOINT_SECONDS = 10.0


class Scores(Protocol):
    """Scores of one evaluation: metrics to log, per run."""

    def done(self) -> bool: ...

    def result(self) -> dict[Any, dict[str, Any]]: ...


class KnownScores:
    """Scores of an evaluation that has finished."""

    def __init__(self, scores: dict[Any, dict[str, Any]]) -> None:
        self._scores = scores

    def done(self) -> bool:
        return True

    def result(self) -> dict[Any, dict[str, Any]]:
        return self._scores


def in_background(config: TrainConfig, device: torch.device) -> bool:
    """Whether evaluations run in parallel with training. On a CPU the two would compete for cores."""
    return config.eval_in_background == "yes" or (config.eval_in_background == "auto" and device.type == "cuda")


# -- evaluations


@dataclass(frozen=True)
class PendingEvaluation:
    """The policies as of an update, and the scores they will get."""

    update: int
    policies: dict[Any, NumpyPolicy]
    scores: Scores


class PendingEvaluations:
    """Evaluations under way, in the order of their updates; they leave in that order."""

    def __init__(self) -> None:
        self._queue: deque[PendingEvaluation] = deque()

    def add(self, update: int, policies: dict[Any, NumpyPolicy], scores: Scores) -> None:
        self._queue.append(PendingEvaluation(update, policies, scores))

    def __len__(self) -> int:
        return len(self._queue)

    def now(self) -> list[PendingEvaluation]:
        return list(self._queue)

    def finished(self, wait: bool = False) -> Iterator[tuple[PendingEvaluation, dict[Any, dict[str, Any]]]]:
        """Finished evaluations up to the first unfinished one; with `wait`, all of them."""
        while self._queue and (wait or len(self._queue) > MOST_PENDING or self._queue[0].scores.done()):
            scores = self._queue[0].scores.result()
            yield self._queue.popleft(), scores


def pending_file(folder: Path, what: int | str) -> Path:
    """Policies that the last checkpoint counts on: of an update whose evaluation is pending, or "best" or "selected"
    ones that were replaced since."""
    return folder / f"pending_{what}.safetensors"


def save_pending(folder: Path, evaluations: list[PendingEvaluation]) -> None:
    """Save the policies whose evaluation is pending at a checkpoint: a killed job evaluates them when resumed."""
    for evaluation in evaluations:
        path = pending_file(folder, evaluation.update)
        if not path.exists():
            save_policies(path, evaluation.policies, dict.fromkeys(evaluation.policies, evaluation.update))


def load_pending(folder: Path, update: int, runs: Collection[Any]) -> dict[Any, NumpyPolicy]:
    return load_policies(pending_file(folder, update), runs)


def forget_pending(folder: Path, still: Collection[int]) -> None:
    """Delete policies that no checkpoint needs any more."""
    keep = {pending_file(folder, update) for update in still}
    for path in folder.glob("pending_*.safetensors"):
        if path not in keep:
            path.unlink()


# -- files


class BackgroundWriter:
    """One thread that writes files in the order of submission.

    After an error it writes nothing more, because a file may depend on earlier ones; the next `submit`, `check` or
    `wait` raises the error. Checkpoints are at least `seconds` apart, and at most one is being written.
    """

    def __init__(self, folder: Path, config: TrainConfig, device: torch.device) -> None:
        self.folder = folder
        default = GPU_CHECKPOINT_SECONDS if device.type == "cuda" else 0.0
        self.seconds = default if config.checkpoint_seconds is None else config.checkpoint_seconds
        self._checkpoint: Future[None] | None = None
        self._checkpoint_at = -float("inf")
        self._thread = ThreadPoolExecutor(1, "c4rl-writer")
        self._underway: deque[Future[None]] = deque()
        self._failed = False

    def checkpoint_is_due(self) -> bool:
        """With 0 seconds always, after waiting for the last one; otherwise not while that is being written."""
        self.check()
        busy = self._checkpoint is not None and not self._checkpoint.done()
        return self.seconds == 0 or (not busy and time.monotonic() - self._checkpoint_at >= self.seconds)

    def submit_checkpoint(self, path: Path, write: Callable[[], None]) -> None:
        if self._checkpoint is not None:
            self._checkpoint.result()
        self._checkpoint_at = time.monotonic()
        self._checkpoint = self.submit(path, write)

    def submit(self, path: Path, write: Callable[[], None]) -> "Future[None]":
        """Queue `write`, which writes `path`; errors name the path."""
        self.check()
        while len(self._underway) >= MOST_FILES:
            self._wait_for_first()
        future = self._thread.submit(self._write, path, write)
        self._underway.append(future)
        return future

    def check(self) -> None:
        """Raise errors since the last call, without waiting."""
        while self._underway and self._underway[0].done():
            self._wait_for_first()

    def wait(self) -> None:
        """Wait until all files are on disk."""
        while self._underway:
            self._wait_for_first()

    def close(self) -> None:
        """Write what is queued and end the thread; raises nothing."""
        self._thread.shutdown()

    def _wait_for_first(self) -> None:
        self._underway[0].result()  # a failed one stays and is raised again
        self._underway.popleft()

    def _write(self, path: Path, write: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            write()
        except (OSError, SafetensorError) as error:
            self._failed = True
            raise not_written(path, error, self.folder) from error
        except BaseException:
            self._failed = True
            raise
