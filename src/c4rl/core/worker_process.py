"""A worker process: a fresh interpreter, with one thread, that answers requests.

It imports neither torch nor the caller's main module unless it needs to. Both ways go messages: a line of JSON, and
bytes behind it where there are any.
"""

import json
import os
import queue
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from c4rl.core.errors import InputError

Message = Mapping[str, Any]
# where code is that people did not write: this package and Python's library, part of which is inside the interpreter
OTHERS = (f"{Path(__file__).parents[1]}{os.sep}", sysconfig.get_path("stdlib"), "<frozen")
PATIENCE_SECONDS = 1.0  # between the end of a worker's replies and that of the worker


def worker_environment() -> dict[str, str]:
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return os.environ | threads | {"PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}


class WorkerDied(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(f"a worker ended with exit code {code}; what it printed is above")
        self.code = code


class WorkerProcess:
    """The parent's end."""

    def __init__(self, module: str, facts: Message) -> None:
        """module: its function `serve` is the worker's end, with these facts as its first request."""
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {module} import serve; serve()"],  # not from the current folder
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=worker_environment(),
            start_new_session=True,  # the terminal's Ctrl-C is for the parent alone
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self._requests, self._replies = self.process.stdin, self.process.stdout
        self.request(facts)

    def request(self, message: Message, payload: bytes = b"") -> None:
        with suppress(OSError):  # it died: `reply` will notice
            _write(self._requests, message, payload)

    def ready(self) -> bool:
        """Whether `reply` would not wait."""
        return bool(select.select([self._replies], [], [], 0)[0])

    def reply(self) -> tuple[Message, bytes]:
        try:
            found = _read(self._replies)
        except (OSError, ValueError):
            found = None
        if found is None:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(PATIENCE_SECONDS)
            raise WorkerDied(self.stop())
        return found

    def kill(self) -> None:
        """And what it started: a library may look for its parts in a process, which would complain of the lost pipe."""
        if not self._replies.closed:  # what a dead worker started may still run
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def stop(self) -> int:
        """Kill it and collect its exit code."""
        self.kill()
        code = self.process.wait()
        for stream in (self._requests, self._replies):
            with suppress(OSError):  # bytes that a dead worker never read
                stream.close()
        return code


class Parent:
    """The worker's end."""

    def __init__(self) -> None:
        self._requests, self._replies = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        pipes, nowhere = (self._requests.fileno(), self._replies.fileno()), os.open(os.devnull, os.O_RDWR)
        os.dup2(nowhere, 0)  # what an environment reads must not be requests
        os.dup2(2, 1)  # what it prints must not mix with the replies
        # a process that it forks must not keep the pipes open: the parent sees by them that the worker died
        os.register_at_fork(after_in_child=lambda: [os.dup2(nowhere, pipe) for pipe in pipes])
        self._inbox: queue.SimpleQueue[tuple[Message, bytes]] = queue.SimpleQueue()
        threading.Thread(target=self._receive, daemon=True).start()

    def _receive(self) -> None:
        while (found := _read(self._requests)) is not None:
            self._inbox.put(found)
        os._exit(0)  # the parent is gone, and nobody needs the current work

    def requests(self) -> Iterator[tuple[Message, bytes]]:
        """Until the parent closes the pipe or dies, which ends this process."""
        while True:
            yield self._inbox.get()

    def answer(self, message: Message, payload: bytes = b"") -> None:
        try:
            _write(self._replies, message, payload)
        except BrokenPipeError:  # the parent was killed
            os._exit(0)


def described(error: BaseException) -> str:
    """For the parent, which reports whatever an environment raises, and where."""
    if isinstance(error, InputError):
        return str(error).removesuffix(".")
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if "site-packages" not in f.filename and not f.filename.startswith(OTHERS)]
    place = (own or frames)[-1]  # people can mend their own code, not NumPy's
    what = ": ".join(filter(None, (type(error).__name__, str(error))))
    return f"{what} ({place.filename}, line {place.lineno})"


def _write(stream: IO[bytes], message: Message, payload: bytes) -> None:
    stream.write(json.dumps(dict(message) | {"bytes": len(payload)}).encode() + b"\n" + payload)
    stream.flush()


def _read(stream: IO[bytes]) -> tuple[Message, bytes] | None:
    """None at the end, and where the other one died in the middle of a message."""
    if not (line := stream.readline()):
        return None
    message = json.loads(line)
    payload = stream.read(size := message.pop("bytes"))
    return (message, payload) if len(payload) == size else None
