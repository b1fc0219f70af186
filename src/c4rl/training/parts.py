"""A job in parts: a run folder for each launch, trained anywhere, and joined to the folder of one job at the end."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from c4rl.core.errors import InputError, WorkFailed
from c4rl.core.files import write_json
from c4rl.core.typed_json import jsonable
from c4rl.environments.tasks import physics, simulator
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import Run, file_name, key_of, launch_groups, runs_of
from c4rl.training.checkpoint import Progress, join_policies, load_checkpoint, load_policies, save_checkpoint
from c4rl.training.evaluation import SimulatorEvaluation
from c4rl.training.preparation import Preparation
from c4rl.training.records import CRITERIA, FAILED, Record, is_scored, read_metrics, selected_records
from c4rl.training.run_directory import RunDirectory
from c4rl.training.summary import summarise

SELECTED = "selected"  # the policies that --select kept
LAUNCHES = "launches"  # the folder of the parts, until they are joined


class LaunchesFailed(WorkFailed):
    """Some parts ended without finishing; the sentence says how to go on."""


def parts_of(config: TrainConfig, preparations: Sequence[Preparation], device: torch.device) -> list[TrainConfig]:
    """The job of each launch: split by the config and its data alone, so that any cluster rounds alike."""
    groups = launch_groups(config, runs_of(config), [len(p.train) for p in preparations], device)
    digits = len(str(len(groups)))
    return [
        replace(
            config,
            only=tuple(file_name(run.key) for run in group),
            output=config.output / LAUNCHES / f"{number:0{digits}}",
            ensemble=0,  # its members may be in several parts
        )
        for number, group in enumerate(groups, 1)
    ]


def place_file(folder: Path) -> Path:
    """Records where a launch last began; lies next to its folder."""
    return folder.with_name(f"{folder.name}.json")


def is_in_parts(folder: Path) -> bool:
    return (folder / LAUNCHES).is_dir()


def join(
    directory: RunDirectory,
    config: TrainConfig,
    preparations: Sequence[Preparation],
    parts: Sequence[TrainConfig],
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Make the folder that one process would have left, then drop the parts. Killed anywhere, it can be done again.

    check: raises to end the evaluation of ensembles.
    """
    folders, runs = [part.output for part in parts], runs_of(config)

    def joined(paths: Sequence[Path]) -> tuple[dict[Any, Any], Progress, list[Progress]]:
        """The states and the progress of the whole job, and that of each part."""
        found = [load_checkpoint(path) for path in paths]
        progress = _summed([own for _, own in found])
        progress.dataset_sha256 = ",".join(p.facts["sha256"] for p in preparations)
        progress.settings, progress.environment = directory.settings, simulator(*(p.task for p in preparations))
        return {key: state for own, _ in found for key, state in own.items()}, progress, [own for _, own in found]

    states, progress, parts_progress = joined([folder / "checkpoint.safetensors" for folder in folders])
    _check_simulators([own.environment for own in parts_progress], progress.environment, config.output)
    logs = [read_metrics(folder / "metrics.jsonl", {run.key for run in runs}) for folder in folders]
    longest = next(log for log, own in zip(logs, parts_progress, strict=True) if own.update == progress.update)
    evaluated = sorted({line["update"] for line in longest if is_scored(line)})
    logs = [_completed(log, own.update, evaluated) for log, own in zip(logs, parts_progress, strict=True)]
    lines = _in_order(logs, runs)
    directory.rewind(lines)
    for which in ("last", "best", SELECTED):
        files = [folder / f"policy_{which}.safetensors" for folder in folders]
        if files[0].exists():  # without a simulator there is no best one
            join_policies(files, directory.policy(which))
    scored = [line for line in lines if "score" in line] or [line for line in lines if is_scored(line)]
    save_checkpoint(directory.checkpoint, states, replace(progress, evaluations=len(scored)))
    for update in set[int]().union(*(RunDirectory(folder).kept_checkpoints() for folder in folders)):
        paths = [  # a launch of which all runs failed is as it ended
            folder / "checkpoint.safetensors" if own.update < update else RunDirectory(folder).kept_checkpoint(update)
            for folder, own in zip(folders, parts_progress, strict=True)
        ]
        save_checkpoint(directory.kept_checkpoint(update), *joined(paths)[:2])
    for events in [path for folder in folders for path in (folder / "tensorboard").glob("*")]:
        shown = directory.path / "tensorboard" / events.name
        shown.parent.mkdir(exist_ok=True)
        shutil.rmtree(shown, ignore_errors=True)  # left by a join that was killed, before the launch was trained on
        events.replace(shown)
    ensembles = _ensembles(config, preparations, directory, progress, check) if config.ensemble else {}
    selected = selected_records(lines, CRITERIA[config.select]) if config.select != "none" else {}
    device = torch.device(config.device)
    summary = summarise(config, runs, preparations, scored, selected, ensembles, progress, device)
    write_json(directory.path / "summary.json", jsonable(summary))
    drop_parts(directory.path)
    return summary


def drop_parts(folder: Path) -> None:
    shutil.rmtree(folder / LAUNCHES, ignore_errors=True)


def _completed(lines: list[Record], ended: int, evaluated: Sequence[int]) -> list[Record]:
    """A launch of which all runs failed ended early. In company its kept policies would have been scored again with
    the others: to the same numbers, since the episodes are the same."""
    kept = [line for line in lines if not is_scored(line) or line["update"] in evaluated]
    # of each kind: --select logs its errors apart from scores
    last = {("score" in line, key_of(line)): line for line in lines if is_scored(line)}
    return kept + [line | {"update": update} for update in evaluated if update > ended for line in last.values()]


def _in_order(parts: Sequence[list[Record]], runs: Sequence[Run]) -> list[Record]:
    """Lines as one process writes them: update by update failures, reports and losses by launch, then scores by run."""
    place, keyed = {run.key: number for number, run in enumerate(runs)}, []
    for part, lines in enumerate(parts):
        seen: dict[tuple[Any, int], int] = {}
        for line in lines:
            key, update = key_of(line), line["update"]
            if is_scored(line):
                order = (update, 3 if "score" in line else 2, 0, 0, place[key])  # --select looks before the simulator
            elif FAILED in line:
                order = (update, 0, 0, part, place[key])
            else:
                nth = seen[key, update] = seen.get((key, update), -1) + 1
                order = (update, 1, nth, part, place[key])
            keyed.append((order, line))
    return [line for _, line in sorted(keyed, key=lambda pair: pair[0])]


def _summed(parts: Sequence[Progress]) -> Progress:
    """Seconds are summed, as if one device had done the parts in turn."""
    total = {
        name: sum(getattr(part, name) for part in parts)
        for name in ("training_seconds", "clustering_seconds", "evaluation_seconds", "run_updates")
    }
    frozen = {run: failure for part in parts for run, failure in part.frozen.items()}
    update = max(part.update for part in parts)
    return replace(parts[0], update=update, frozen=frozen, pending=[], evaluations=-1, **total)


def _check_simulators(found: Sequence[str | None], expected: str | None, folder: Path) -> None:
    """Each part names the simulators of its own tasks."""
    known = set(physics(expected or "").split(" and "))
    for name in found:
        if not set(physics(name or "").split(" and ")) <= known:
            raise InputError(f"{folder}: found scores of {name}, expected those of {expected}: they do not compare")


def _ensembles(
    config: TrainConfig,
    preparations: Sequence[Preparation],
    directory: RunDirectory,
    progress: Progress,
    check: Callable[[], None],
) -> dict[str, list[Record]]:
    sound = [run for run in runs_of(config) if str(run.key) not in progress.frozen]
    evaluation = SimulatorEvaluation(config, preparations, check=check)
    which = "last" if config.select == "none" else SELECTED
    try:
        return evaluation.ensembles(sound, load_policies(directory.policy(which)))
    finally:
        evaluation.close()
