"""Files that are written while training continues."""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch
from safetensors import SafetensorError

from c4rl.core.files import not_written
from c4rl.jobs.config import TrainConfig

MOST_FILES = 8  # waiting to be written; with more, training waits for the first
GPU_CHECKPOINT_SECONDS = 10.0


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
