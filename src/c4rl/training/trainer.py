"""One job, R runs: its updates, and what happens between them."""

import time
from collections.abc import Sequence
from contextlib import closing, nullcontext
from copy import deepcopy
from dataclasses import replace
from typing import Any

import torch
from rich.console import Console

from c4rl.core.errors import InputError, Interrupted
from c4rl.core.extras import how_to_install
from c4rl.core.files import copy_file, how_to_resume, write_json
from c4rl.core.typed_json import jsonable
from c4rl.data.packing import pack_datasets
from c4rl.environments.tasks import simulator
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import explain_launches, runs_of
from c4rl.training.background import BackgroundWriter
from c4rl.training.checkpoint import Progress, load_checkpoint, save_checkpoint
from c4rl.training.display import Display, title_of
from c4rl.training.gradient_cosines import gradient_cosines
from c4rl.training.launch import Launch, launches_of
from c4rl.training.pending import forget_pending, save_pending
from c4rl.training.preparation import ALL_THREADS, Preparation, free_threads
from c4rl.training.records import FAILED
from c4rl.training.run_directory import RunDirectory
from c4rl.training.same_job import check_same_job
from c4rl.training.scorekeeper import Scorekeeper
from c4rl.training.snapshot import GoodStates
from c4rl.training.stopping import StopRequests
from c4rl.training.summary import summarise
from c4rl.training.timer import DeviceTimer


class Trainer:
    def __init__(
        self,
        config: TrainConfig,
        preparations: Sequence[Preparation],
        directory: RunDirectory,
        device: torch.device,
        console: Console,
        resumed: bool = False,
    ) -> None:
        self.config, self.directory, self.device = config, directory, device
        self.runs = runs_of(config)
        self.buffer = pack_datasets([(p.train, p.scaling) for p in preparations], device)
        self.good, self.requests, self._answered = GoodStates(), StopRequests(), False
        self.progress = Progress(
            dataset_sha256=",".join(p.facts["sha256"] for p in preparations),
            settings=directory.settings,
            environment=simulator(*(p.task for p in preparations)),
            threads=config.threads or free_threads(),
        )
        self.total = config.total_updates
        self.kept_at = {round(self.total * i / config.keep_checkpoints) for i in range(1, config.keep_checkpoints + 1)}
        self.notes = [remark for p in preparations for remark in p.remarks]
        self.writer = BackgroundWriter(directory.path, config, device)
        self.clustering = DeviceTimer(device)
        self.scores = Scorekeeper(
            config, self.runs, preparations, self.buffer, directory, self.writer, self._while_waiting
        )
        self.scores.progress = self.progress
        self.preparations = [preparation.without_rows() for preparation in preparations]
        if resumed and directory.checkpoint.exists():
            self._restore()
        else:
            later = [*directory.path.glob("policy_*.safetensors"), *directory.path.glob("summary.json")]
            if resumed and later:  # the first checkpoint is written before any of them
                found = f"found {min(later).name} without it"
                raise InputError(f"{directory.checkpoint}: {found}, expected the checkpoint to resume from")
            torch.set_num_threads(self.progress.threads)
            self.launches = launches_of(config, self.buffer, device)
            if resumed:
                directory.rewind([])
            self._start_clock()
            self._save(0, forced=True)
        self.console = console

    def run(self) -> dict[str, Any]:
        """To the job's end; its summary."""
        with self.requests.heeded():
            try:
                self._introduce()
                with closing(self.display):
                    while self.progress.update < self.total and self.launches:
                        self._one_update()
                    return self._finish()
            except KeyboardInterrupt:
                raise Interrupted(f"interrupted twice: {self._left_behind}") from None
            except (SystemExit, BrokenPipeError):  # rich, where nobody reads its output; older ones pass the error on
                raise Interrupted(f"nobody reads the output any more: {self._left_behind}") from None
            finally:
                self.scores.close()
                self.writer.close()
                self.directory.close()

    def _introduce(self) -> None:
        """Show what is trained, and what people should know before."""
        config = self.config
        if config.threads is None and self.progress.threads < ALL_THREADS:
            others = f"{self.progress.threads} of {ALL_THREADS} threads, since other processes were busy when it began"
            self.notes.append(f"{others}; --threads changes that")
        for sentence in dict.fromkeys(self.notes):
            self.console.print(sentence, highlight=False, markup=False, soft_wrap=True)
        title = title_of(config, [p.facts["rows"] for p in self.preparations], self.device)
        self.display = Display(title, self.runs, self.total, self.progress.update, self.console)
        if (split := explain_launches(config, self.runs, self.buffer.dataset_lengths, self.device)) is not None:
            self.display.message(split)
        if not self.directory.has_tensorboard:
            self.display.message(f"no logs for TensorBoard: {how_to_install('tensorboard')}")
        for key, record in self.scores.best.records.items():  # those before a resume, here and below
            self.display.runs[key]["best"] = record["score"]
        for run in self.runs:
            if (failure := self.progress.frozen.get(str(run.key))) is not None:
                self.display.failed(run.key, failure)
        self._start_clock()

    def _finish(self) -> dict[str, Any]:
        """Score and write what is still to be; the summary."""
        if not self.scores.has(self.progress.update):  # --updates ended it between two evaluations
            self._evaluate(self.progress.update)
        self._finish_evaluations(self.progress.update)
        if not self.directory.policy("last").exists():  # lost by a finished job that was resumed
            self.scores.save_last(self._every_launch())
            self.writer.wait()
        ensembles = self.scores.ensembles(self.launches)
        self.display.finished()
        selected = self.scores.selection.records if self.scores.selection is not None else {}
        summary = summarise(
            self.config,
            self.runs,
            self.preparations,
            self.scores.records,
            selected,
            ensembles,
            self.progress,
            self.device,
        )
        write_json(self.directory.path / "summary.json", jsonable(summary))
        return summary

    def _while_waiting(self) -> None:
        """Called during long waits: a first request to stop is answered, a second one ends the wait."""
        self.requests.hurry()
        if self.requests.count > 0 and not self._answered:
            self._answered = True
            tasks = [task for task in dict.fromkeys(self.config.task) if task != "none"]
            where = f" on {' and '.join(tasks)}" if tasks else ""
            words = f"{self.requests.reason}: waiting for the evaluation{where} to end"
            self.display.message(f"{words}; interrupt again to stop without it")

    @property
    def _left_behind(self) -> str:
        return f"left as of the last checkpoint; {self._how_to_continue}"

    @property
    def _how_to_continue(self) -> str:
        return f"continue with: {how_to_resume(self.directory.path)}"

    # -- one update and what happens around it

    def _one_update(self) -> None:
        config = self.config
        step = self.progress.update + 1
        for launch in self.launches:
            launch.update(step)
        self.progress.update = step
        self.progress.run_updates += sum(len(launch.runs) for launch in self.launches)
        for launch in self.launches:
            with self.clustering.running() if launch.refreshes(step) else nullcontext():
                reports = launch.refresh(step)
            if reports:
                self.directory.log(step, reports)
            if launch.algorithm.asks_environment(step):
                with self.progress.evaluating():
                    launch.algorithm.receive_scores(self.scores.simulate(launch))

        stop = self.requests.reason  # read once: a request during an evaluation belongs to the next update
        algorithm = self.launches[0].algorithm
        stage, last = algorithm.stages[self.launches[0].stage], step == self.total
        ends_stage = last or self.launches[0].ends_stage(step)
        logs = step % config.log_every == 0 or (ends_stage and not last)
        evaluates = last or (stage.evaluated and (step % config.eval_every == 0 or ends_stage))
        keeps = step in self.kept_at
        checkpoints = step % config.checkpoint_every == 0 or ends_stage or keeps or stop is not None
        if logs or evaluates or checkpoints:
            self._freeze_failed()
        ended = last or not self.launches
        if logs:
            self._log(step)
        if evaluates or ended:
            self._evaluate(step)
        self._take_scores(wait=ended)
        if checkpoints or ended:
            self._save(step, forced=ends_stage or keeps or stop is not None or ended)
        if keeps:
            self._keep_checkpoint(step)
        self.display.advance(step, stage.name if len(algorithm.stages) > 1 else "updates")
        if stop is not None and not ended:
            self._finish_evaluations(step)
            raise Interrupted(f"{stop}: saved at update {step:,} of {self.total:,}; {self._how_to_continue}")

    def _start_clock(self) -> None:
        self._ticked = time.monotonic() - self.progress.evaluation_seconds

    def _tick(self) -> None:
        """Count the time since the last tick as training, without the wait for evaluations. Only at checkpoints, so
        that resuming a finished job changes nothing."""
        last = self._ticked
        self._start_clock()
        self.progress.training_seconds += self._ticked - last
        self.progress.clustering_seconds += self.clustering.take()

    def _log(self, step: int) -> None:
        per_run = {key: values for launch in self.launches for key, values in launch.read_metrics().items()}
        self.directory.log(step, per_run)
        self.display.metrics(step, per_run)

    def _evaluate(self, step: int) -> None:
        with self.progress.evaluating():
            for launch in self.launches:
                if launch.monitor is not None:
                    launch.step.fill_(step)  # of a resumed job it is 0 before the first update
                    cosines = gradient_cosines(launch, launch.monitor.batch)
                    self.directory.log(step, dict(zip(launch.keys, cosines, strict=True)))
            self.scores.evaluate(step, self._every_launch())

    def _take_scores(self, wait: bool) -> None:
        """Show the evaluations that have ended; with `wait`, all of them."""
        if not self.scores.pending:
            return
        with self.progress.evaluating():
            for step, per_run in self.scores.finished(wait):
                self.display.evaluation(step, per_run)

    def _every_launch(self) -> list[Launch]:
        """The launches, and one for each run that was stopped early, as of its last good state."""
        frozen = [run for run in self.runs if str(run.key) in self.progress.frozen]
        states = self.good.states([run.key for run in frozen]) if frozen else {}
        return self.launches + [Launch(self.config, [run], self.buffer, self.device, states=states) for run in frozen]

    # -- failures, checkpoints

    def _freeze_failed(self) -> None:
        """Stop runs with non-finite numbers at their last good state; the others continue."""
        for launch in list(self.launches):
            failures = launch.failures()
            if not failures:
                continue
            states = launch.run_states()
            for run in (run for run in launch.runs if run.key in failures):
                (failed_at, reason), good_at = failures[run.key], self.good.update
                failure = {"update": good_at, "failed_at": failed_at, "reason": reason}
                self.progress.frozen[str(run.key)] = failure
                self.directory.log(self.progress.update, {run.key: {FAILED: failed_at}})
                self.display.failed(run.key, failure)
            remaining = [run for run in launch.runs if run.key not in failures]
            index = self.launches.index(launch)
            self.launches.remove(launch)
            if remaining:
                self.launches.insert(index, Launch(self.config, remaining, self.buffer, self.device, states=states))

    def _save(self, step: int, forced: bool) -> None:
        """Take a snapshot of every run (failed ones keep their last good state) and, if due, write a checkpoint."""
        self.good = good = self.good.advanced(step, self.launches)
        if not (forced or self.writer.checkpoint_is_due()):
            return
        self._tick()
        pending, evaluations = self.scores.pending.now(), len(self.scores.records)
        progress = replace(deepcopy(self.progress), pending=[e.update for e in pending], evaluations=evaluations)

        def write() -> None:
            save_pending(self.directory.path, pending)
            self.directory.flush()
            save_checkpoint(self.directory.checkpoint, good.states(), progress)
            forget_pending(self.directory.path, progress.pending)

        self.writer.submit_checkpoint(self.directory.checkpoint, write)

    def _keep_checkpoint(self, step: int) -> None:
        """A copy of the one that was just submitted: files are written in order."""
        latest, kept = self.directory.checkpoint, self.directory.kept_checkpoint(step)
        self.writer.submit(kept, lambda: copy_file(latest, kept))

    def _finish_evaluations(self, step: int) -> None:
        """All is saved; wait for pending evaluations. A second request to stop skips them: a resumed job does them."""
        if self.scores.pending:
            self._take_scores(wait=True)
            self._save(step, forced=True)
        self.writer.wait()

    def _restore(self) -> None:
        """Read and check all that is there; only then change anything."""
        path, now = self.directory.checkpoint, self.progress
        runs = {run.key for run in self.runs}
        states, began = load_checkpoint(path, runs)
        self.progress = self.scores.progress = began
        names = [str(key) for key in runs]
        self.notes += check_same_job(began, now, self.directory, self.preparations, names, self.total)
        began.settings, began.environment = now.settings, now.environment
        began.threads = self.config.threads or began.threads or now.threads  # sums round differently with others
        torch.set_num_threads(began.threads)
        self.good = GoodStates(self.progress.update, states)
        active = [run for run in self.runs if str(run.key) not in self.progress.frozen]
        try:
            self.launches = launches_of(self.config, self.buffer, self.device, active, states)
            self._every_launch()  # checks the states of the others
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        self.scores.restore(ended=self.progress.update == self.total or not self.launches)
        update = self.progress.update
        if update in self.kept_at and not self.directory.kept_checkpoint(update).exists():  # killed before the copy
            self._keep_checkpoint(update)
