"""Time spent on a device that works asynchronously."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class DeviceTimer:
    """Device time of work submitted inside `with timer.running():`. The host does not wait for it."""

    def __init__(self, device: torch.device) -> None:
        self._on_gpu = device.type == "cuda"
        self._seconds = 0.0
        self._under_way: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        if not self._on_gpu:
            began = time.monotonic()
            yield
            self._seconds += time.monotonic() - began
            return
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        yield
        last.record()
        self._under_way.append((first, last))

    def take(self) -> float:
        """Seconds of finished work since the last call."""
        while self._under_way and self._under_way[0][1].query():
            first, last = self._under_way.pop(0)
            self._seconds += first.elapsed_time(last) / 1000
        seconds, self._seconds = self._seconds, 0.0
        return seconds
