"""A job's folder: locked while in use, every file either whole or absent."""

import json
import os
import shutil
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from c4rl.core.errors import InputError
from c4rl.core.extras import installed
from c4rl.core.files import how_to_resume, locked, not_written, read_json, replacing, write_json
from c4rl.core.typed_json import jsonable
from c4rl.jobs.config import RESUMABLE, TrainConfig
from c4rl.jobs.config_file import digest, read_config, stored_config, to_json
from c4rl.jobs.runs import Run, RunKey, file_name, key_of, runs_of
from c4rl.training.records import NOT_FINITE, read_metrics


class RunDirectory:
    """config.json, metrics.jsonl, checkpoint.safetensors (and kept ones), policy_{last,best,selected}.safetensors,
    summary.json, tensorboard."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: IO[bytes] | None = None
        self._metrics: IO[str] | None = None
        self._events: dict[RunKey, Any] = {}
        self._runs: dict[RunKey, Run] = {}
        self._rewound: list[dict[str, Any]] | None = None  # lines of an interrupted job, until there is a new one
        self.has_tensorboard = installed("tensorboard")

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    def kept_checkpoint(self, update: int) -> Path:
        return self.path / f"checkpoint_{update}.safetensors"

    def kept_checkpoints(self) -> list[int]:
        """The updates of those that --keep-checkpoints kept, in order."""
        names = (path.stem.removeprefix("checkpoint_") for path in self.path.glob("checkpoint_*.safetensors"))
        return sorted(int(name) for name in names if name.isdecimal())

    def policy(self, which: str) -> Path:
        return self.path / f"policy_{which}.safetensors"

    def create(self, config: TrainConfig) -> None:
        check_new_output(self.path)
        self.path.mkdir(parents=True)
        try:
            self._lock = locked(self.path)
            write_json(self.path / "config.json", to_json(config))
            self._metrics = open(self.path / "metrics.jsonl", "a")  # noqa: SIM115 - held until close
        except BaseException:  # a full disk: half a folder could neither be resumed nor made anew
            self.close()
            shutil.rmtree(self.path)
            raise
        self._runs = {run.key: run for run in runs_of(config)}

    @property
    def settings(self) -> str:
        """A digest of config.json, without what may change when the job is resumed."""
        return digest(stored_config(self.path / "config.json"))

    def check_settings(self, began_with: str) -> None:
        """Refuse a config.json that is not the one the job began with."""
        if began_with not in ("", self.settings):
            flags = ", ".join(f"--{name}" for name in RESUMABLE)
            path = self.path / "config.json"
            raise InputError(f"{path}: changed since the job began, expected it as it was ({flags} may change)")

    def reopen(self, config: TrainConfig) -> None:
        """Take an interrupted job's folder; nothing in it changes before `rewind`."""
        for path in self.path.iterdir():
            if path.is_symlink():
                raise InputError(f"{path}: found a link, expected a run folder without links")
            own = path.suffix in (".json", ".jsonl", ".safetensors") or path.name == ".lock"
            if (own and not path.is_file()) or (path.name == "tensorboard" and not path.is_dir()):
                expected = "a regular file" if own else "a folder"
                raise InputError(f"{path}: not {expected}, expected the run folder as c4rl left it")
        self._lock = locked(self.path)
        self._runs = {run.key: run for run in runs_of(config)}

    def kept(self, update: int, pending: Collection[int] = ()) -> list[dict[str, Any]]:
        """The metrics up to `update`, without the scores of `pending` updates.

        The others will be written again. Scores may come late: those that were pending at a checkpoint may have been
        logged after it.
        """
        path = self.path / "metrics.jsonl"
        records = read_metrics(path, self._runs) if path.exists() else []
        return [r for r in records if r["update"] <= update and not ("score" in r and r["update"] in pending)]

    def rewind(self, kept: list[dict[str, Any]]) -> None:
        """Drop all metrics but these, and what a process that was killed left half written."""
        for stale in self.path.glob(".*.partial"):
            stale.unlink()
        path = self.path / "metrics.jsonl"
        with replacing(path) as temporary:
            temporary.write_text("".join(json.dumps(jsonable(record)) + "\n" for record in kept))
        self._metrics = open(path, "a")  # noqa: SIM115 - held until close
        self._rewound = kept

    def change(self, **values: Any) -> None:
        """Change values in config.json."""
        path = self.path / "config.json"
        write_json(path, stored_config(path) | values)

    def log(self, update: int, per_run: Mapping[RunKey, dict[str, Any]]) -> None:
        """A line of metrics.jsonl for each run, all in one go; and the numbers to TensorBoard."""
        try:
            self._log(update, per_run)
        except OSError as error:
            raise not_written(self.path / "metrics.jsonl", error, self.path) from error

    def _log(self, update: int, per_run: Mapping[RunKey, dict[str, Any]]) -> None:
        assert self._metrics is not None
        lines = ({"update": update, **self._runs[key].facts, **values} for key, values in per_run.items())
        self._metrics.write("".join(json.dumps(jsonable(line)) + "\n" for line in lines))
        self._metrics.flush()
        if self._rewound is not None:  # TensorBoard shows what metrics.jsonl holds, and no more
            shutil.rmtree(self.path / "tensorboard", ignore_errors=True)
            for record in self._rewound:
                self._show(record["update"], key_of(record), record)
            self._rewound = None
        for key, values in per_run.items():
            self._show(update, key, values)

    def _show(self, update: int, key: RunKey, values: dict[str, Any]) -> None:
        if not self.has_tensorboard:
            return
        from c4rl.training.event_file import EventFile  # it needs TensorBoard

        if key not in self._events:
            self._events[key] = EventFile(self.path / "tensorboard" / file_name(key))
        numbers = {
            name: float(value)
            for name, value in values.items()
            if name not in ("update", "seed") and (isinstance(value, float | int) or value in NOT_FINITE)
        }
        self._events[key].add(update, numbers)

    def flush(self) -> None:
        """Put the log on disk, before the checkpoint that follows it."""
        if self._metrics is not None:
            os.fsync(self._metrics.fileno())

    def close(self) -> None:
        for file in (self._metrics, self._lock):
            with suppress(OSError):  # what did not fit on the disk was reported, or is written again
                if file is not None:
                    file.close()


def check_new_output(path: Path) -> None:
    if path.exists() or path.is_symlink():
        hint = f"; to continue that job: {how_to_resume(path)}" if (path / "config.json").exists() else ""
        raise InputError(f"--output {path}: exists already, expected a new folder (nothing is overwritten){hint}")
    parent = next(p for p in path.absolute().parents if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise InputError(f"--output {path}: cannot be created, '{parent}' is not a folder that can be written to")


def was_begun(path: Path) -> bool:
    """Whether there is a job to resume. A folder without a config is that of a job that was killed while it was made:
    it is removed."""
    if path.is_dir() and not (path / "config.json").exists():
        for unfinished in path.glob(".*"):
            unfinished.unlink()
        path.rmdir()
    return path.exists()


def job_config(path: Path, allow_import: bool = False) -> TrainConfig:
    """The config of a run folder, which may have been moved since."""
    if not path.is_dir():
        raise InputError(f"{path}: no such folder, expected one made by c4rl train")
    return read_config(path / "config.json", allow_import)


def job_summary(path: Path, config: TrainConfig) -> dict[str, Any] | None:
    """The summary.json of a run folder; None if the job has not finished."""
    file = path / "summary.json"
    if not file.exists():
        return None
    found = read_json(file, "that of a finished job")
    if not isinstance(found, dict):
        raise InputError(f"{file}: found a {type(found).__name__}, expected that of a finished job")
    for name, value in (("algorithm", config.algorithm), ("seeds", list(config.seeds)), ("updates", config.updates)):
        if found.get(name) != value:
            raise InputError(f"{file}: field '{name}' is {found.get(name)!r}, expected {value!r} as in config.json")
    return found
