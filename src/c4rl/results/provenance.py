"""Where a policy came from and how it was evaluated, as the folder of its job holds it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from c4rl.core.errors import InputError
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import Run, RunKey, key_of, run_config, runs_of
from c4rl.training.checkpoint import load_progress
from c4rl.training.records import Record, is_result, is_scored, read_metrics
from c4rl.training.run_directory import RunDirectory, job_summary
from c4rl.training.summary import datasets_of

Records = dict[RunKey, list[Record]]  # the evaluations of each run


@dataclass(frozen=True)
class Provenance:
    """What a run folder holds about a policy."""

    config: TrainConfig  # of the policy's runs alone
    members: tuple[Run, ...]  # one, or those of an ensemble
    seeds: tuple[Run, ...]  # all runs of its setting
    failed: dict[RunKey, str]
    checkpoint: str
    updates: dict[RunKey, int]  # which each of `seeds` has its policy from
    records: Records  # of each of `seeds`
    sha256: str
    summary: dict[str, Any]  # empty if the job has not finished
    distilled: tuple[int, float, float] | None = None  # into one network: updates, noise, distance to the ensemble

    @property
    def task(self) -> str:
        return self.config.task[0]

    def evaluation(self, run: Run) -> Record | None:
        """The one that the run's exported policy had; a distilled one has had none."""
        if self.distilled is not None and len(self.members) == 1:
            return None
        return evaluation_of(run, self.records, self.updates)

    def dataset_facts(self) -> dict[str, Any]:
        """The dataset's part of summary.json: rows and, without a simulator, baselines of its errors."""
        of_each, index = datasets_of(self.summary), self.members[0].data
        facts = of_each[index] if index < len(of_each) else None
        return facts if isinstance(facts, dict) else {}

    def together(self) -> dict[str, Any]:
        """The score of ensembles of so many seeds, if the job measured them; it does so with the policies that it would
        export."""
        if self.checkpoint != ("last" if self.config.select == "none" else "selected") or self.distilled is not None:
            return {}
        group = self.members[0].group
        groups = self.summary.get("groups", [self.summary | {"name": group}])
        for one in groups if isinstance(groups, list) else ():
            if isinstance(one, dict) and one.get("name") == group and isinstance(one.get("ensemble"), dict):
                return one["ensemble"] if one["ensemble"].get("members") == len(self.members) else {}
        return {}


def evaluations(folder: Path, config: TrainConfig) -> Records:
    """Those of every run in metrics.jsonl."""
    path, records = folder / "metrics.jsonl", Records({run.key: [] for run in runs_of(config)})
    for record in read_metrics(path, records) if path.exists() else ():
        if is_scored(record):
            _add(records[key_of(record)], record)
    if config.select != "none" and "none" not in config.task:  # one may still wait for its score
        records = {key: [record for record in own if "score" in record] for key, own in records.items()}
    kinds = {frozenset(filter(is_result, record)) for own in records.values() for record in own}
    if len(kinds) > 1:
        names = " or ".join(" ".join(sorted(kind)) for kind in kinds)
        raise InputError(f"{path}: found evaluations with {names}, expected the same of all")
    if any(("score" in kind) == ("none" in config.task) for kind in kinds):
        found = " ".join(sorted(next(iter(kinds))))
        raise InputError(f"{path}: found {found}, expected what a job of this task writes")
    return records


def evaluation_of(run: Run, records: Records, updates: Mapping[RunKey, int]) -> Record | None:
    """The one that the run's policy had. A killed job may hold a policy whose evaluation is not logged (again) yet."""
    return next((record for record in records[run.key] if record["update"] == updates[run.key]), None)


def provenance(
    folder: Path,
    config: TrainConfig,
    members: Sequence[Run],
    failed: dict[RunKey, str],
    checkpoint: str,
    updates: dict[RunKey, int],
) -> Provenance:
    directory, records = RunDirectory(folder), evaluations(folder, config)
    seeds = tuple(run for run in runs_of(config) if run.group == members[0].group)
    digests = load_progress(directory.checkpoint).dataset_sha256.split(",") if directory.checkpoint.exists() else []
    return Provenance(
        run_config(config, members[0]),
        tuple(members),
        seeds,
        failed,
        checkpoint,
        updates,
        {run.key: records[run.key] for run in seeds},
        digests[members[0].data] if members[0].data < len(digests) else "not known",
        job_summary(folder, config) or {},
    )


def _add(records: list[Record], record: Record) -> None:
    """Held-out errors are logged before the score of the same update: they become one record."""
    for known in records:
        if known["update"] == record["update"]:
            known |= record
            return
    records.append(record)
