"""A job from its config, or from the folder of one that was interrupted, to its summary."""

import shutil
from pathlib import Path
from typing import Any

from rich.console import Console

from c4rl.core.errors import InputError
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.config_file import to_json
from c4rl.training.parts import is_in_parts
from c4rl.training.preparation import choose_device, in_any_folder, prepare_all, pytorch_given_back
from c4rl.training.run_directory import RunDirectory, check_new_output, job_config
from c4rl.training.same_job import changed
from c4rl.training.trainer import Trainer


@pytorch_given_back()
def train(config: TrainConfig, console: Console | None = None) -> dict[str, Any]:
    """Run a new job to its end and return its summary."""
    check_new_output(config.output)
    config = in_any_folder(config)
    preparations, device = prepare_all(config), choose_device(config.device)
    directory = RunDirectory(config.output)
    directory.create(config)
    try:
        trainer = Trainer(config, preparations, directory, device, console or Console())
    except BaseException:  # nothing was trained: nothing to resume
        directory.close()
        shutil.rmtree(directory.path)
        raise
    del preparations  # the trainer has packed their rows
    return trainer.run()


@pytorch_given_back()
def resume(
    path: str | Path, console: Console | None = None, *, allow_import: bool = False, **changes: Any
) -> dict[str, Any]:
    """Continue an interrupted job from its last checkpoint. changes: new values of `RESUMABLE` options."""
    path = Path(path)
    config = job_config(path, allow_import)
    if is_in_parts(path):
        raise InputError(f"{path}: found a job begun with --engine ray, expected --engine ray with --resume")
    if changes:
        config = changed(config, changes)
    preparations, device = prepare_all(config), choose_device(config.device)
    directory = RunDirectory(path)
    directory.reopen(config)
    try:
        trainer = Trainer(config, preparations, directory, device, console or Console(), resumed=True)
        del preparations
        if changes:
            directory.change(**{name: to_json(config)[name] for name in changes})
        if trainer.progress.update < trainer.total:  # of a job that had ended
            (path / "summary.json").unlink(missing_ok=True)
    except BaseException:
        directory.close()
        raise
    return trainer.run()
