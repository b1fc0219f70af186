"""Scores policies in worker processes that run whole episodes.

Episode e of an evaluation with seed s is reset with seed s + e, and a worker plays it as `episodes` does: returns are
bitwise those of a plain loop over the environment, for any number of workers.
"""

import os
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import asdict, dataclass, field

import numpy as np

from c4rl.core.array import Array
from c4rl.core.errors import InputError, WorkFailed
from c4rl.core.numpy_policy import NumpyPolicy, policy_bytes, policy_from_bytes
from c4rl.core.worker_process import Message, Parent, WorkerDied, WorkerProcess, described
from c4rl.environments.episodes import episode_returns
from c4rl.environments.tasks import Task, missing

MAX_WORKERS = 16
WAKE_UP_SECONDS = 0.2
MAX_DEATHS = 3  # of workers on one job, before the evaluation fails
SIDE_BY_SIDE = {"maze2d": 5}  # domain -> most episodes that a worker steps at once; elsewhere 1


def wait_for(returns: "Future[Array]", check: Callable[[], None] = lambda: None) -> Array:
    """The result. check: called every now and then, may raise. The main thread has to wake up to act on Ctrl-C, which
    may have reached any thread."""
    while not wait([returns], WAKE_UP_SECONDS).done:
        check()
    return returns.result()


@dataclass(eq=False)
class _Evaluation:
    """An evaluation in progress."""

    policies: list[bytes]
    returns: Array  # [policies, episodes], filled in any order
    seed: int
    remaining: int
    future: "Future[Array]" = field(default_factory=Future)


@dataclass
class _Job:
    """Episodes of one policy for one worker."""

    evaluation: _Evaluation
    policy: int
    episodes: range
    deaths: int = 0


class _Worker(WorkerProcess):
    """Is sent a policy only where it is another than in the last episode."""

    _policy: bytes | None = None

    def run(self, policy: bytes, seeds: Sequence[int]) -> Message:
        """An episode for each seed: {"returns": [R, ...]} or {"error": what happened}."""
        self.request({"seeds": seeds}, policy if policy is not self._policy else b"")
        self._policy = policy
        return self.reply()[0]


class EvaluationPool:
    """Worker processes for one task; a context manager. One thread of the parent waits on each worker."""

    def __init__(self, task: Task, workers: int | None = None) -> None:
        absent = missing(task)
        if absent is not None:
            raise InputError(f"task '{task.name}' cannot be evaluated here: {absent}")
        self.task = task
        self.workers = workers or min(available_cores(), MAX_WORKERS)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._open: set[_Evaluation] = set()
        self._processes: list[_Worker | None] = [None] * self.workers
        self._lock, self._closed = threading.Lock(), False
        self._driving = self.workers  # threads that have a worker, or can start one
        self._threads = [threading.Thread(target=self._drive, args=(i,), daemon=True) for i in range(self.workers)]
        for thread in self._threads:
            thread.start()

    def submit(self, policies: Sequence[NumpyPolicy], episodes: int, seed: int) -> "Future[Array]":
        """Start an evaluation; the future's result is [policies, episodes] raw undiscounted returns.

        All policies get the same starts. A policy whose weights are not finite has diverged: its returns are NaN.
        """
        finite = [all(np.isfinite(w).all() for w in (*p.weights, *p.biases, *p.gains, *p.shifts)) for p in policies]
        todo = [(p, e) for p in range(len(policies)) if finite[p] for e in range(episodes)]
        evaluation = _Evaluation(
            [policy_bytes(p) for p in policies], np.full((len(policies), episodes), np.nan), seed, len(todo)
        )
        evaluation.future.set_running_or_notify_cancel()
        if not todo:
            evaluation.future.set_result(evaluation.returns)
            return evaluation.future
        with self._lock:
            if self._closed:
                raise RuntimeError("the evaluation pool is closed")
            self._open.add(evaluation)
        most = min(SIDE_BY_SIDE.get(self.task.domain, 1), -(-len(todo) // self.workers))
        for policy in (p for p in range(len(policies)) if finite[p]):
            for first in range(0, episodes, most):
                self._jobs.put(_Job(evaluation, policy, range(first, min(first + most, episodes))))
        return evaluation.future

    def evaluate(self, policies: Sequence[NumpyPolicy], episodes: int, seed: int) -> Array:
        """`submit`, and wait: [policies, episodes] raw undiscounted returns."""
        return wait_for(self.submit(policies, episodes, seed))

    def close(self) -> None:
        """End all workers now; evaluations that are not finished fail."""
        with self._lock:
            self._closed = True
            processes = [worker for worker in self._processes if worker is not None]
        for worker in processes:
            worker.kill()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
        for evaluation in list(self._open):
            self._finish(evaluation, RuntimeError("the evaluation pool was closed before the evaluation was done"))

    def __enter__(self) -> "EvaluationPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _drive(self, index: int) -> None:
        """One worker's thread: keep it alive, hand it episodes."""
        try:
            self._hand_out(index)
        except OSError as error:  # no process to be had: the others do the work, if there are any
            with self._lock:
                self._driving -= 1
                alone = self._driving == 0
            while alone and (item := self._jobs.get()) is not None:
                sentence = f"task '{self.task.name}': no evaluation worker could be started ({error.strerror})"
                self._finish(item.evaluation, WorkFailed(sentence))

    def _hand_out(self, index: int) -> None:
        worker = self._start(index)
        while worker is not None and (item := self._jobs.get()) is not None:
            evaluation = item.evaluation
            if evaluation.future.done():
                continue  # it failed in another worker
            try:
                seeds = [evaluation.seed + episode for episode in item.episodes]
                reply = worker.run(evaluation.policies[item.policy], seeds)
            except WorkerDied as death:
                item.deaths += 1
                if item.deaths < MAX_DEATHS:
                    self._jobs.put(item)
                else:
                    self._finish(evaluation, WorkFailed(self._obituary(item, death.code)))
                worker = self._start(index)
                continue
            if "error" in reply:
                message = f"task '{self.task.name}', episode {item.episodes[0]}: {reply['error']}"
                self._finish(evaluation, WorkFailed(message))
                continue
            with self._lock:
                evaluation.returns[item.policy, item.episodes] = reply["returns"]
                evaluation.remaining -= len(item.episodes)
                complete = evaluation.remaining == 0
            if complete:
                self._finish(evaluation)
        if worker is not None:
            worker.stop()

    def _start(self, index: int) -> _Worker | None:
        with self._lock:  # `close` sees every process that was ever started
            self._processes[index] = None if self._closed else _Worker(__name__, asdict(self.task))
            return self._processes[index]

    def _finish(self, evaluation: _Evaluation, error: Exception | None = None) -> None:
        with self._lock:
            if evaluation not in self._open:
                return
            self._open.remove(evaluation)
        if error is None:
            evaluation.future.set_result(evaluation.returns)
        else:
            evaluation.future.set_exception(error)

    def _obituary(self, item: _Job, code: int) -> str:
        return (
            f"task '{self.task.name}': {MAX_DEATHS} evaluation workers died in episode {item.episodes[0]}, "
            f"the last one with exit code {code}; what they printed is above"
        )


def available_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def serve() -> None:
    """The worker's side: a task, then episodes."""
    from c4rl.environments.making import make_environment

    parent = Parent()
    requests = parent.requests()
    try:
        task = Task(**next(requests)[0])
        environments = [make_environment(task)]
    except InputError as error:
        for _ in requests:
            parent.answer({"error": str(error)})
        return
    policy = None
    for message, new in requests:
        seeds = message["seeds"]
        try:
            if new:
                policy = policy_from_bytes(new)
            assert policy is not None
            environments += [make_environment(task) for _ in range(len(seeds) - len(environments))]
            parent.answer({"returns": episode_returns(environments, policy, seeds)})
        except (Exception, SystemExit) as error:  # a script's environment may exit
            parent.answer({"error": described(error)})
