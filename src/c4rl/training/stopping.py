"""Requests to stop: the first one ends a job after its current update, a second one ends long waits."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar


class StopRequests:
    # set by the process `c4rl`: after a job that stopped nothing is left to interrupt but its last words
    process_ends_with_job: ClassVar[bool] = False

    def __init__(self) -> None:
        self.reason: str | None = None  # of the last one
        self.count = 0
        self.obeyed = False

    def hurry(self) -> None:
        """Called during long waits: end them at a second request. A handler that raised by itself might do so where
        Python ignores it, or in the middle of closing files."""
        if self.count > 1:
            raise KeyboardInterrupt

    @contextmanager
    def heeded(self) -> Iterator[None]:
        """Ctrl-C and termination are noted, and raise nothing; in the process `c4rl` to its end, once one is obeyed."""

        def note(number: int, frame: Any) -> None:
            self.count += 1
            self.reason = "interrupted" if number == signal.SIGINT else "terminated"

        # only Python's main thread handles signals; the caller stops a job that runs in another thread
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        previous = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        except BaseException:
            self.obeyed = self.count > 0
            raise
        finally:
            if not (self.obeyed and self.process_ends_with_job):
                for number, handler in previous.items():
                    signal.signal(number, handler)
