"""Scores and exports policies of finished or interrupted jobs."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from c4rl.core.errors import InputError
from c4rl.core.files import check_new_file, replacing
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.core.onnx_policy import onnx_bytes
from c4rl.data.loading import load_dataset
from c4rl.data.policy_files import read_exported
from c4rl.data.writing import write_npz
from c4rl.environments.evaluation import EvaluationPool
from c4rl.environments.tasks import Task, get_task, simulator
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import Run, RunKey, by_group, file_name, key_from, runs_of
from c4rl.results.model_card import card, model_metadata
from c4rl.results.provenance import Provenance, provenance
from c4rl.training.checkpoint import load_policy_file, load_progress
from c4rl.training.distillation import distil
from c4rl.training.run_directory import RunDirectory, job_config
from c4rl.training.summary import describe_failure


def load_policy(
    folder: str | Path,
    checkpoint: str | None = None,
    seed: int | None = None,
    run: str | None = None,
    ensemble: bool = False,
) -> NumpyPolicy:
    """The policy of a run folder; `act(observation)` takes raw observations and gives actions in the task's units.

    An npz file that `c4rl export` wrote holds one policy: the other arguments are for folders.

    checkpoint: last, best or selected; the default is selected if the job was trained with --select, else last.
    Choose a run by its name, or by its seed if no other run has it; the default is the first that did not fail.
    ensemble: all seeds of that run's setting that did not fail, acting together.
    """
    if Path(folder).is_file():
        if ensemble or any(choice is not None for choice in (checkpoint, seed, run)):
            raise InputError(f"{folder}: found a file, whose policy was chosen when it was exported, expected a folder")
        return read_exported(Path(folder))
    if ensemble:
        return _load_ensemble(Path(folder), checkpoint, seed, run)[1]
    return _load_one(Path(folder), checkpoint, seed, run)[1]


class Job(NamedTuple):
    """What a run folder holds, checked against each other."""

    config: TrainConfig
    runs: tuple[Run, ...]
    policies: dict[RunKey, NumpyPolicy]
    updates: dict[RunKey, int]  # which each policy is from
    failed: dict[RunKey, str]  # what happened to runs that failed
    checkpoint: str  # which policies these are

    @property
    def sound(self) -> list[Run]:
        """The runs that did not fail."""
        return [run for run in self.runs if run.key not in self.failed]


def open_job(folder: Path, checkpoint: str | None, allow_import: bool = False) -> Job:
    """checkpoint: None for the selected one of a job with --select, else the last."""
    config, directory = job_config(folder, allow_import), RunDirectory(folder)
    runs, selects = runs_of(config), config.select != "none"
    kept = ["last", *(["best"] if "none" not in config.task else []), *(["selected"] if selects else [])]
    if checkpoint not in (None, *kept):
        raise InputError(f"--checkpoint: found {checkpoint}, expected {' or '.join(kept)}, which {folder} keeps")
    checkpoint = checkpoint or ("selected" if selects else "last")
    policies, facts = load_policy_file(directory.policy(checkpoint), [run.key for run in runs])
    failed = {key: fact.failed for key, fact in facts.items() if fact.failed}
    if directory.checkpoint.exists():  # policies and config.json are enough; with it, later failures count too
        progress = load_progress(directory.checkpoint)
        directory.check_settings(progress.settings)
        frozen = {run.key: progress.frozen.get(str(run.key)) for run in runs}
        failed |= {key: describe_failure(failure) for key, failure in frozen.items() if failure is not None}
    return Job(config, runs, policies, {key: fact.update for key, fact in facts.items()}, failed, checkpoint)


def _load_one(folder: Path, checkpoint: str | None, seed: int | None, name: str | None) -> tuple[Run, NumpyPolicy, Job]:
    if name is not None and seed is not None:
        raise InputError(f"--seed: found {seed} with --run {name}, expected only one of the two")
    job = open_job(folder, checkpoint, allow_import=True)  # nothing is simulated
    if name is None and seed is None:
        if not job.sound:
            raise InputError(f"{folder}: found only runs that failed, expected one that did not")
        first = job.sound[0]
        return first, job.policies[first.key], job
    found = _named(folder, job.runs, name) if name is not None else _of_seed(folder, job.runs, seed)
    if found.key in job.failed:
        raise InputError(
            f"{folder}: {found.title} failed ({job.failed[found.key]}), expected one of {_names(job.sound) or 'none'}"
        )
    return found, job.policies[found.key], job


def _load_ensemble(
    folder: Path, checkpoint: str | None, seed: int | None, name: str | None
) -> tuple[list[Run], NumpyPolicy, Job]:
    """The runs of one setting that did not fail, and the policy of all."""
    if seed is not None:
        raise InputError(f"--seed: found {seed} with --ensemble, expected only one of the two")
    job = open_job(folder, checkpoint, allow_import=True)
    settings = by_group(job.sound)
    if name is not None:
        wanted = _named(folder, job.runs, name).group
    elif len({run.group for run in job.runs}) > 1:
        firsts = _names([runs[0] for runs in settings.values()])
        raise InputError(f"{folder}: found several settings, expected --run NAME of one of them, as {firsts}")
    else:
        wanted = job.runs[0].group
    if wanted not in settings:
        raise InputError(f"{folder}: found only runs that failed, expected one that did not")
    runs = settings[wanted]
    return runs, NumpyPolicy.ensemble([job.policies[run.key] for run in runs]), job


def _named(folder: Path, runs: Sequence[Run], name: str) -> Run:
    for run in runs:
        if run.key == key_from(name):
            return run
    raise InputError(f"{folder}: found no run '{name}', expected one of {_names(runs)}")


def _of_seed(folder: Path, runs: Sequence[Run], seed: int | None) -> Run:
    found = [run for run in runs if run.seed == seed]
    if not found:
        seeds = sorted({run.seed for run in runs})
        raise InputError(f"{folder}: found no run of seed {seed}, expected one of {seeds}")
    if len(found) > 1:
        several = f"{len(found)} runs of seed {seed}"
        raise InputError(f"{folder}: found {several}, expected --run NAME, one of {_names(found)}")
    return found[0]


def _names(runs: Sequence[Run]) -> str:
    return " ".join(file_name(run.key) for run in runs)


def score_folder(
    folder: Path,
    episodes: int,
    checkpoint: str | None,
    seed: int,
    name: str | None = None,
    allow_import: bool = False,
    ensemble: bool = False,
) -> dict[str, Any]:
    """Score all policies of a folder, or that of one run, each in its own task. ensemble: all seeds of a setting act
    together; its row is called after the first of them."""
    job = open_job(folder, checkpoint, allow_import)
    config, runs, policies, _, failed, checkpoint = job
    if "none" in config.task:
        raise InputError(f"{folder}: was trained with --task none, expected a task with a simulator")
    members: dict[RunKey, list[Run]] = {}
    if ensemble:
        wanted = {_named(folder, runs, name).group} if name is not None else {run.group for run in runs}
        members = {own[0].key: own for group, own in by_group(job.sound).items() if group in wanted}
        if not members:
            raise InputError(f"{folder}: found only runs that failed, expected one that did not")
        runs = tuple(run for run in runs if run.key in members)
        policies = {key: NumpyPolicy.ensemble([policies[run.key] for run in own]) for key, own in members.items()}
    elif name is not None:
        runs = (_named(folder, runs, name),)
    rows: dict[RunKey, dict[str, Any]] = {}
    tasks = {name: get_task(name) for name in dict.fromkeys(config.tasks[run.dataset] for run in runs)}
    for task_name, task in tasks.items():
        own = [run for run in runs if config.tasks[run.dataset] == task_name]
        with EvaluationPool(task) as pool:
            returns = pool.evaluate([policies[run.key] for run in own], episodes, seed)
        for run, run_returns in zip(own, returns, strict=True):
            rows[run.key] = {
                **run.facts,
                **({"ensemble": [member.seed for member in members[run.key]]} if ensemble else {}),
                **({"task": task_name} if len(tasks) > 1 else {}),
                **_scored(task, run_returns),
                "failed": failed.get(run.key),
            }
    return {
        "task": next(iter(tasks)) if len(tasks) == 1 else list(tasks),
        "environment": simulator(*tasks.values()),
        "score": " and ".join(dict.fromkeys(task.score_name for task in tasks.values())),
        "checkpoint": checkpoint,
        "seed": seed,
        "runs": [rows[run.key] for run in runs],
    }


def _scored(task: Task, returns: np.ndarray) -> dict[str, Any]:
    """returns: of one policy's episodes."""
    scores = task.normalise(returns)
    return {
        "mean": float(scores.mean()),
        "std": float(scores.std(ddof=1)) if len(scores) > 1 else None,
        "return": float(returns.mean()),
        "returns": [float(r) for r in returns],
    }


def score_file(path: Path, task_name: str | None, episodes: int, seed: int) -> dict[str, Any]:
    """Score the policy of an exported npz file."""
    if task_name is None or task_name == "none":
        raise InputError(f"--task: found none, expected the task that {path.name} is to be scored in")
    task, policy = get_task(task_name), read_exported(path)
    found, expected = (policy.observation_mean.size, policy.action_low.size), (task.observation_dim, task.action_dim)
    if found != expected:
        raise InputError(f"{path}: found observations and actions of {found} numbers, expected {expected}")
    with EvaluationPool(task) as pool:
        (returns,) = pool.evaluate([policy], episodes, seed)
    row = {"file": path.name, **_scored(task, returns), "failed": None}
    facts = {"task": task_name, "environment": simulator(task), "score": task.score_name, "checkpoint": None}
    return {**facts, "seed": seed, "runs": [row]}


def _observations(found: Provenance, policy: NumpyPolicy) -> np.ndarray:
    """Those of the file that the job trained on, which `policy` can read."""
    config, low, high = found.config, policy.action_low, policy.action_high
    # an environment would import the module that a stored task may name
    task = replace(get_task("none"), observation_dim=policy.observation_mean.size, action_dim=low.size)
    data = load_dataset(config.dataset[0], task=task, action_low=low, action_high=high, clip_actions=True)
    if data.sha256 != found.sha256:
        raise InputError(
            f"{config.dataset[0]}: its sha256 is {data.sha256[:12]}..., expected {found.sha256[:12]}... as in training"
        )
    return data.observations


ENDINGS = (".npz", ".onnx")  # readers choose by them


def export_policy(
    folder: Path,
    checkpoint: str | None,
    seed: int | None,
    output: Path | None,
    name: str | None = None,
    ensemble: bool = False,
    kind: str = "npz",
    distil_updates: int = 0,
    distil_noise: float = 0.1,
) -> tuple[list[Path], dict[RunKey, str]]:
    """The files written, policy and model card, and the runs that were passed over because they failed."""
    if distil_updates and not ensemble:
        raise InputError(f"--distil: found {distil_updates} without --ensemble, expected both")
    if ensemble:
        members, policy, job = _load_ensemble(folder, checkpoint, seed, name)
        label = f"ensemble_of_{len(members)}" + (f"_{members[0].group}" if members[0].group else "")
        others = [run for run in job.runs if run.group == members[0].group and run not in members]
    else:
        run, policy, job = _load_one(folder, checkpoint, seed, name)
        members, label = [run], file_name(run.key)
        others = list(job.runs[: job.runs.index(run)]) if seed is None and name is None else []
    label = f"distilled_{label}" if distil_updates else label
    checkpoint = job.checkpoint
    output = output or folder / f"policy_{checkpoint}_{label}.{kind}"
    if output.suffix in ENDINGS and output.suffix != f".{kind}":
        given, other = f"'{output.name}' with --format {kind}", output.suffix[1:]
        raise InputError(f"--output: found {given}, expected a name that ends in .{kind}, or --format {other}")
    check_new_file("output", output)
    page = output.with_name(f"{output.name}.md")
    check_new_file("output", page)
    found = provenance(folder, job.config, members, job.failed, checkpoint, job.updates)
    if distil_updates:
        policy, distance = distil(policy, _observations(found, policy), distil_updates, distil_noise, tell=print)
        found = replace(found, distilled=(distil_updates, distil_noise, distance))
    text = card(found, policy, output.name)
    if kind == "onnx":
        with replacing(output) as temporary:
            temporary.write_bytes(onnx_bytes(policy, model_metadata(found)))
    else:
        write_npz(output, policy.arrays(), {})
    with replacing(page) as temporary:
        temporary.write_text(text, "utf-8", "backslashreplace")  # names of files need not be UTF-8
    return [output, page], {other.key: job.failed[other.key] for other in others}
