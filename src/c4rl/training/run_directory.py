"""A job's folder: locked while in use, every file either whole or absent."""

import fcntl
import json
import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import IO, Any

from c4rl.core.errors import InputError
from c4rl.core.extras import installed
from c4rl.core.files import write_json
from c4rl.core.typed_json import jsonable
from c4rl.jobs.config import TrainConfig, read_config, to_json
from c4rl.jobs.runs import Run, RunKey, file_name, key_of, runs_of

NOT_FINITE = ("nan", "inf", "-inf")  # as `jsonable` writes them


class RunDirectory:
    """config.json, metrics.jsonl, checkpoint.safetensors, policy_{last,best}.safetensors, summary.json, tensorboard."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[str] | None = None
        self._metrics: IO[str] | None = None
        self._writers: dict[RunKey, Any] = {}
        self._runs: dict[RunKey, Run] = {}
        self.has_tensorboard = installed("tensorboard")

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def policy(self, which: str) -> Path:
        return self.path / f"policy_{which}.safetensors"

    def create(self, config: TrainConfig) -> None:
        check_new_output(self.path)
        self.path.mkdir(parents=True)
        self._acquire()
        write_json(self.path / "config.json", to_json(config))
        self._runs = {run.key: run for run in runs_of(config)}
        self._metrics = open(self.path / "metrics.jsonl", "a")  # noqa: SIM115 - held until close

    def reopen(self, config: TrainConfig) -> None:
        """Take an interrupted job's folder; `rewind` must follow."""
        self._acquire()
        self._runs = {run.key: run for run in runs_of(config)}
        for stale in self.path.glob(".*.partial"):  # of a process that was killed while writing
            stale.unlink()

    def rewind(self, update: int, pending: Collection[int] = ()) -> list[dict[str, Any]]:
        """Drop metrics later than `update`, and scores of `pending` updates; return the others.

        What is dropped will be written again. Scores may come late: those that were pending at a checkpoint may have
        been logged after it.
        """
        path = self.path / "metrics.jsonl"
        kept: list[dict[str, Any]] = []
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                break  # the line that was being written when the process died
            if record["update"] <= update and not ("score" in record and record["update"] in pending):
                kept.append(record)
        temporary = path.with_name(".metrics.jsonl.partial")
        temporary.write_text("".join(json.dumps(record) + "\n" for record in kept))
        os.replace(temporary, path)
        self._metrics = open(path, "a")  # noqa: SIM115 - held until close
        shutil.rmtree(self.path / "tensorboard", ignore_errors=True)  # it shows what metrics.jsonl holds, and no more
        for record in kept:
            self._show(record["update"], key_of(record), record)
        return kept

    def _acquire(self) -> None:
        self._lock = open(self.path / ".lock", "w")  # noqa: SIM115 - held until close; the system frees it on any death
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise InputError(
                f"{self.path}: in use by another c4rl process, expected a folder that none is using"
            ) from None

    def log(self, update: int, per_run: Mapping[RunKey, dict[str, Any]]) -> None:
        """A line of metrics.jsonl for each run, all in one go; and the numbers to TensorBoard."""
        assert self._metrics is not None
        lines = ({"update": update, **self._runs[key].facts, **values} for key, values in per_run.items())
        self._metrics.write("".join(json.dumps(jsonable(line)) + "\n" for line in lines))
        self._metrics.flush()
        for key, values in per_run.items():
            self._show(update, key, values)

    def _show(self, update: int, key: RunKey, values: dict[str, Any]) -> None:
        """To TensorBoard, in one event: one for each number would take five times as long."""
        if not self.has_tensorboard:
            return
        from tensorboard.compat.proto.summary_pb2 import Summary
        from torch.utils.tensorboard import SummaryWriter

        if key not in self._writers:
            # purge_step: a TensorBoard that watched an interrupted job forgets what is written here again
            self._writers[key] = SummaryWriter(str(self.path / "tensorboard" / file_name(key)), purge_step=0)
        numbers = [
            Summary.Value(tag=name, simple_value=float(value))
            for name, value in values.items()
            if name not in ("update", "seed") and (isinstance(value, float | int) or value in NOT_FINITE)
        ]
        self._writers[key].file_writer.add_summary(Summary(value=numbers), update)

    def flush(self) -> None:
        """What was logged up to a checkpoint is on the disk before the checkpoint is."""
        for writer in list(self._writers.values()):  # in another thread than `log`, which may add some
            writer.flush()
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()
        for file in (self._metrics, self._lock):
            if file is not None:
                file.close()


def check_new_output(path: Path) -> None:
    if path.exists() or path.is_symlink():
        hint = f"; to continue that job: c4rl train --resume {path}" if (path / "config.json").exists() else ""
        raise InputError(f"--output {path}: exists already, expected a new folder (nothing is overwritten){hint}")
    parent = next(p for p in path.absolute().parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"--output {path}: cannot be created, '{parent}' is not a folder that can be written to")


def check_new_file(flag: str, path: Path) -> None:
    if path.exists() or path.is_symlink():
        raise InputError(f"--{flag} {path}: exists already, expected a new file (nothing is overwritten)")
    if not path.parent.is_dir():
        raise InputError(f"--{flag} {path}: cannot be created, '{path.parent}' is not a folder")


def job_config(path: Path) -> TrainConfig:
    """The config of a run folder, which may have been moved since."""
    if not path.is_dir():
        raise InputError(f"{path}: no such folder, expected one made by c4rl train")
    return read_config(path / "config.json")
