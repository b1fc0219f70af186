"""Requests to stop: the first one ends a job after its current update, a second one ends long waits."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class StopRequests:
    def __init__(self) -> None:
        self.reason: str | None = None  # of the last one
        self.count = 0

    def hurry(self) -> None:
        """Called during long waits: end them at a second request. A handler that raised by itself might do so where
        Python ignores it, or in the middle of closing files."""
        if self.count > 1:
            raise KeyboardInterrupt

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Ctrl-C and termination are noted, and raise nothing."""

        def note(number: int, frame: Any) -> None:
            self.count += 1
            self.reason = "interrupted" if number == signal.SIGINT else "terminated"

        # only Python's main thread handles signals; the caller stops a job that runs in another thread
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        previous = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)
