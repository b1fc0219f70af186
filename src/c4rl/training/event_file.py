"""The numbers of one run, in TensorBoard's format.

PyTorch's SummaryWriter has a thread for each file. On a full disk that thread prints a traceback, and the job learns of
it later. Here every record is written at once, and errors reach the caller.
"""

import os
import time
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter


class EventFile:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._path = folder / f"events.out.tfevents.{int(time.time()):010d}.{os.getpid()}"
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        # a TensorBoard that watched an interrupted job drops what is rewritten here
        self._write(Event(wall_time=time.time(), session_log=SessionLog(status=SessionLog.START)))

    def add(self, update: int, numbers: dict[str, float]) -> None:
        """All numbers in one event: one for each would take five times as long."""
        summary = Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in numbers.items()])
        self._write(Event(wall_time=time.time(), step=update, summary=summary))

    def _write(self, event: Event) -> None:
        with self._path.open("ab") as file:  # not kept open: a job may have more runs than a process may open files
            RecordWriter(file).write(event.SerializeToString())
