"""Evaluations under way while training continues, and the files from which a killed job makes them again."""

from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.training.checkpoint import save_policies

MOST_PENDING = 4  # evaluations; with more, training waits for the oldest


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


def forget_pending(folder: Path, still: Collection[int]) -> None:
    """Delete policies that no checkpoint needs any more."""
    keep = {pending_file(folder, update) for update in still}
    for path in folder.glob("pending_*.safetensors"):
        if path not in keep:
            path.unlink()
