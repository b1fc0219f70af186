"""The scores of a job: its runs' evaluations, and the policies that were best or were selected."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.files import copy_file
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import Run, RunKey, key_of
from c4rl.training.background import BackgroundWriter
from c4rl.training.checkpoint import Progress, load_policies, policy_facts, policy_updates, save_policies
from c4rl.training.evaluation import HeldOutEvaluation, SimulatorEvaluation
from c4rl.training.launch import Launch
from c4rl.training.pending import KnownScores, PendingEvaluations, forget_pending, pending_file
from c4rl.training.preparation import Preparation
from c4rl.training.records import FAILED, Record, best_records, is_scored, scores_more, selected_records
from c4rl.training.run_directory import RunDirectory
from c4rl.training.selection import Choice, Selection
from c4rl.training.summary import describe_failure


class Scorekeeper:
    """Evaluates policies, during training or between updates, and files what comes out."""

    progress: Progress  # of the trainer

    def __init__(
        self,
        config: TrainConfig,
        runs: Sequence[Run],
        preparations: Sequence[Preparation],
        buffer: TransitionBuffer,
        directory: RunDirectory,
        writer: BackgroundWriter,
        check: Callable[[], None],
    ) -> None:
        """check: raises to end a long wait."""
        self.config, self.runs, self.directory, self.writer = config, runs, directory, writer
        self.scalings = [preparation.scaling for preparation in preparations]
        self.records: list[Record] = []  # evaluations so far
        self.best = Choice(scores_more)
        self.pending = PendingEvaluations()
        device = buffer.packed.device
        # on a CPU, evaluations and updates would compete for cores
        self.in_background = {"yes": True, "no": False, "auto": device.type == "cuda"}[config.eval_in_background]
        self.simulator: SimulatorEvaluation | None = None
        self.held_out: HeldOutEvaluation | None = None
        if preparations[0].task.name == "none":
            self.held_out = HeldOutEvaluation(preparations, buffer, check)
        else:
            self.simulator = SimulatorEvaluation(config, preparations, 1 if self.in_background else 0, check)
        self.selection: Selection | None = None
        if config.select != "none":
            self.selection = Selection(config.select, preparations, buffer, check)

    def evaluate(self, step: int, launches: list[Launch]) -> None:
        """launches: of all runs. `finished` has the scores, at once or later."""
        found = self._policies(launches)
        policies = {run.key: found[run.key] for run in self.runs}
        if self.selection is not None:
            self._select(self.selection, step, policies, launches)
        if self.simulator is None:
            assert self.held_out is not None
            self.pending.add(step, policies, KnownScores(self.held_out(launches)))
        elif self.in_background:
            self.pending.add(step, policies, self.simulator.submit(policies))
        else:
            self.pending.add(step, policies, KnownScores(self.simulator.submit(policies).result()))

    def simulate(self, launch: Launch) -> Tensor:
        """The launch's scores now, [R], for an algorithm that decides by the simulator (as its options declare)."""
        assert self.simulator is not None
        scores = self.simulator.submit(self._policies([launch])).result()
        return torch.tensor([scores[key]["score"] for key in launch.keys], device=launch.device)

    def finished(self, wait: bool) -> Iterator[tuple[int, dict[RunKey, Record]]]:
        """Evaluations that have ended, in order, after filing them; with `wait`, all of them."""
        for evaluation, scores in self.pending.finished(wait):
            yield evaluation.update, self._file(evaluation.update, evaluation.policies, scores)

    def ensembles(self, launches: list[Launch]) -> dict[str, list[Record]]:
        """By what their runs have in common; runs that were stopped early are left out."""
        if not (self.config.ensemble and self.simulator is not None):
            return {}
        sound = [run for run in self.runs if str(run.key) not in self.progress.frozen]
        policies = self._policies(launches) if self.selection is None else self.selection.policies
        with self.progress.evaluating():
            return self.simulator.ensembles(sound, policies)

    def has(self, step: int) -> bool:
        """Whether the policies of this update were evaluated, or are being."""
        pending = (evaluation.update for evaluation in self.pending.now())
        return step in pending or any(record["update"] == step for record in self.records)

    def save_last(self, launches: list[Launch]) -> None:
        """The policies as they are. launches: of all runs."""
        self._save_last(self._policies(launches), self.progress.update)

    def restore(self, ended: bool) -> None:
        """Read and check what the run folder has; only then change anything. ended: no update is left."""
        folder, progress, runs = self.directory.path, self.progress, {run.key for run in self.runs}
        pending = progress.pending if self.simulator is not None else []
        policies = {update: load_policies(pending_file(folder, update), runs) for update in pending}
        lines = self._lines(pending)
        self.records = [line for line in lines if self._named in line]
        known = {key_of(record) for record in self.records}
        shapes = {frozenset(name for name in record if name.endswith("_rmse")) for record in self.records}
        lost = progress.evaluations not in (-1, len(self.records))
        none_yet = progress.evaluations == 0  # --updates may end a job before its first
        if lost or (ended and known != runs and not none_yet) or len(shapes) > 1:
            raise InputError(f"{folder / 'metrics.jsonl'}: lacks evaluations, expected those of every run")
        files: dict[str, Path] = {}
        if self.simulator is not None and self.records:
            self.best.records = best_records(self.records)
            files["best"] = self._file_of("best", self.best.records)
            self.best.policies = load_policies(files["best"], runs)
        if self.selection is not None and (chosen := selected_records(lines, self.selection.criterion)):
            files["selected"] = self._file_of("selected", chosen)
            self.selection.records, self.selection.policies = chosen, load_policies(files["selected"], runs)
        last = self.directory.policy("last")
        stale = ended and max(policy_updates(last).values(), default=0) > self.config.total_updates
        self.directory.rewind(lines)
        for which, file in files.items():
            file.replace(self.directory.policy(which))
        if stale:
            last.unlink()  # it is written anew
        forget_pending(folder, pending)
        for update, some in policies.items():
            assert self.simulator is not None
            self.pending.add(update, some, self.simulator.submit(some))

    def close(self) -> None:
        if self.simulator is not None:
            self.simulator.close()

    @property
    def _named(self) -> str:
        """A number that every evaluation has."""
        return f"{self.held_out.rows}_action_rmse" if self.held_out is not None else "score"

    def _lines(self, pending: list[int]) -> list[Record]:
        """Those of metrics.jsonl that the checkpoint knew. An end that --updates put between two evaluations is scored
        after its checkpoint; killed before the next one, it is scored again."""
        now = self.progress.update
        lines = self.directory.kept(now, pending)
        before = sum(self._named in line and line["update"] < now for line in lines)
        if now not in pending and before == self.progress.evaluations:
            repeated = (is_scored(line) or "variance_share" in line for line in lines)  # --monitor's cosines too
            lines = [line for line, again in zip(lines, repeated, strict=True) if line["update"] < now or not again]
        return lines

    def _file_of(self, which: str, chosen: Mapping[RunKey, Record]) -> Path:
        """The file with the policies of these evaluations: since its checkpoint the job may have replaced them."""
        path, earlier = self.directory.policy(which), pending_file(self.directory.path, which)
        frozen = {run: describe_failure(failure) for run, failure in self.progress.frozen.items()}
        wanted = {key: (record["update"], frozen.get(str(key), "")) for key, record in chosen.items()}
        there = {key: (fact.update, fact.failed) for key, fact in policy_facts(path).items()}
        file = earlier if earlier.exists() and there != wanted else path
        if (newest := max(policy_updates(file).values(), default=0)) > self.config.total_updates:
            found = f"found a policy of update {newest:,}, which took the place of earlier ones"
            raise InputError(f"{file}: {found}, expected --updates {newest} or more")
        return file

    def _policies(self, launches: list[Launch]) -> dict[RunKey, NumpyPolicy]:
        return {key: policy for launch in launches for key, policy in launch.policies(self.scalings).items()}

    def _select(
        self, selection: Selection, step: int, policies: dict[RunKey, NumpyPolicy], launches: list[Launch]
    ) -> None:
        """Logged apart from scores, which may come later: a resumed job chooses by what was logged."""
        found = selection.held_out(launches)
        if self.simulator is not None:  # without one, the evaluation logs the same numbers
            self.directory.log(step, found)
        if selection.consider({key: {"update": step, **own} for key, own in found.items()}, policies):
            self._save("selected", dict(selection.policies), selection.updates)

    def _file(
        self, step: int, policies: dict[RunKey, NumpyPolicy], scores: dict[RunKey, Record]
    ) -> dict[RunKey, Record]:
        # a run that has failed is marked wherever its score stands
        failed = {run.key: self.progress.frozen.get(str(run.key)) for run in self.runs}
        marks = {key: {FAILED: f["failed_at"]} if f and f["failed_at"] <= step else {} for key, f in failed.items()}
        per_run = {run.key: scores[run.key] | marks[run.key] for run in self.runs}
        records = {run.key: {"update": step, **run.facts, **per_run[run.key]} for run in self.runs}
        self.records += records.values()
        self.best.consider(records, policies)
        self.directory.log(step, per_run)
        self._save_last(policies, step)
        if self.best.policies:
            self._save("best", dict(self.best.policies), self.best.updates)
        return per_run

    def _save_last(self, policies: dict[RunKey, NumpyPolicy], step: int) -> None:
        def update_of(key: RunKey) -> int:
            """A failed run's policy is older than the evaluation."""
            frozen = self.progress.frozen.get(str(key))
            return frozen["update"] if frozen and frozen["failed_at"] <= step else step

        self._save("last", policies, {key: update_of(key) for key in policies})

    def _save(self, which: str, policies: dict[RunKey, NumpyPolicy], updates: dict[RunKey, int]) -> None:
        path, frozen = self.directory.policy(which), self.progress.frozen
        earlier = pending_file(self.directory.path, which)
        failed = {key: describe_failure(frozen[str(key)]) for key in policies if str(key) in frozen}

        def write() -> None:
            if which != "last" and path.exists() and not earlier.exists():
                copy_file(path, earlier)  # the last checkpoint counts on them; the next one deletes them
            save_policies(path, policies, updates, failed)

        self.writer.submit(path, write)
