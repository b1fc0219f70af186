"""The training loop: one job, R runs, events between updates."""

import platform
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import c4rl
from c4rl.config import TrainConfig, jsonable
from c4rl.errors import InputError
from c4rl.files import write_json
from c4rl.numpy_policy import NumpyPolicy
from c4rl.registry import algorithm_class
from c4rl.training.buffer import TransitionBuffer
from c4rl.training.checkpoint import (
    Progress,
    load_checkpoint,
    load_policies,
    save_checkpoint,
    save_policies,
)
from c4rl.training.display import Display
from c4rl.training.evaluation import HeldOutEvaluation, SimulatorEvaluation
from c4rl.training.lane import Lane, RunState, lane_seeds
from c4rl.training.preparation import Preparation, choose_device, prepare
from c4rl.training.run_directory import RunDirectory, check_new_output, job_config


class Interrupted(Exception):
    """The job was asked to stop; everything is saved."""


def train(config: TrainConfig, console: Console | None = None) -> dict[str, Any]:
    """Run a new job to its end and return its summary."""
    check_new_output(config.output)
    preparation, device = prepare(config), choose_device(config.device)
    directory = RunDirectory(config.output)
    directory.create(config)
    return Trainer(config, preparation, directory, device, console or Console()).run()


def resume(path: Path, console: Console | None = None) -> dict[str, Any]:
    """Continue an interrupted job from its last checkpoint."""
    config = job_config(path)
    preparation, device = prepare(config), choose_device(config.device)
    directory = RunDirectory(path)
    directory.reopen()
    return Trainer(config, preparation, directory, device, console or Console(), resumed=True).run()


class Trainer:
    def __init__(
        self,
        config: TrainConfig,
        preparation: Preparation,
        directory: RunDirectory,
        device: torch.device,
        console: Console,
        resumed: bool = False,
    ) -> None:
        self.config, self.preparation, self.directory, self.device = config, preparation, directory, device
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self.buffer = TransitionBuffer([(preparation.train, preparation.scaling)], device)
        self.good: dict[int, RunState] = {}  # every run as of the last checkpoint
        self.progress = Progress(dataset_sha256=preparation.facts["sha256"])
        self.records: list[dict[str, Any]] = []  # evaluations so far
        self.best_policies: dict[int, NumpyPolicy] = {}
        self.evaluate: SimulatorEvaluation | HeldOutEvaluation = (
            HeldOutEvaluation(config, preparation, device)
            if preparation.task.name == "none"
            else SimulatorEvaluation(config, preparation)
        )
        if resumed and directory.checkpoint.exists():
            self._restore()
        else:
            self.lanes = [Lane(config, seeds, self.buffer, device) for seeds in self._lane_seeds(list(config.seeds))]
            if resumed:
                directory.rewind(0)
            self._save(0)
        plan = algorithm_class(config.algorithm).plan(config.options, config.updates)
        self.total = sum(stage.updates for stage in plan)  # updates of all stages
        self.console = console
        self._stop: str | None = None

    def _lane_seeds(self, seeds: list[int]) -> list[list[int]]:
        return lane_seeds(self.config, seeds, self.device)

    def run(self) -> dict[str, Any]:
        config = self.config
        plugins = "" if config.plugins == ("none",) else " + " + " + ".join(config.plugins)
        rows = f"{len(self.preparation.train):,} rows"
        title = f"{config.algorithm}{plugins} on {config.task}, {rows}, {self.device.type}"
        self.display = Display(title, list(config.seeds), self.total, self.progress.update, self.console)
        try:
            with self._graceful_interruption():
                while self.progress.update < self.total and self.lanes:
                    self._one_update()
            summary = self._summary()
            write_json(self.directory.path / "summary.json", jsonable(summary))
            return summary
        finally:
            self.display.close()
            self.evaluate.close()
            self.directory.close()

    # -- one update and what happens around it

    def _one_update(self) -> None:
        config = self.config
        began = time.monotonic()
        step = self.progress.update + 1
        for lane in self.lanes:
            lane.update(step)
        self.progress.update = step
        self.progress.run_updates += sum(len(lane.seeds) for lane in self.lanes)
        refreshed = time.monotonic()
        for lane in self.lanes:
            for seed, report in lane.refresh(step).items():
                self.directory.log(step, seed, report)
            if lane.algorithm.asks_environment(step):
                self._ask_environment(lane)
        ended = time.monotonic()
        self.progress.clustering_seconds += ended - refreshed
        self.progress.training_seconds += ended - began

        stop = self._stop  # read once: a request that comes during an evaluation is the next update's
        algorithm = self.lanes[0].algorithm
        stage, last = algorithm.stages[self.lanes[0].stage], step == self.total
        ends_stage = last or self.lanes[0].ends_stage(step)
        logs = step % config.log_every == 0 or (ends_stage and not last)
        evaluates = last or (stage.evaluated and (step % config.eval_every == 0 or ends_stage))
        checkpoints = step % config.checkpoint_every == 0 or ends_stage or stop is not None
        if logs or evaluates or checkpoints:
            self._freeze_failed()
        ended = last or not self.lanes
        if logs:
            self._log(step)
        if evaluates or ended:
            self._evaluate(step)
        if checkpoints or ended:
            self._save(step)
        self.display.advance(step, stage.name if len(algorithm.stages) > 1 else "updates")
        if stop is not None and not ended:
            raise Interrupted(
                f"{stop}: saved at update {step:,} of {self.total:,}; "
                f"continue with: c4rl train --resume {self.directory.path}"
            )

    def _log(self, step: int) -> None:
        per_seed = {seed: values for lane in self.lanes for seed, values in lane.read_metrics().items()}
        for seed, values in per_seed.items():
            self.directory.log(step, seed, values)
        self.display.metrics(step, per_seed)

    def _evaluate(self, step: int) -> None:
        began = time.monotonic()
        lanes = self._every_lane()
        found = {seed: policy for lane in lanes for seed, policy in lane.policies(self.preparation.scaling).items()}
        policies = {seed: found[seed] for seed in self.config.seeds}
        scores = self.evaluate(lanes, policies)
        per_seed = {seed: scores[seed] for seed in self.config.seeds}
        for seed, record in per_seed.items():
            earlier = [r["score"] for r in self.records if r["seed"] == seed and "score" in r]
            if "score" in record and record["score"] > max(earlier, default=-np.inf):
                self.best_policies[seed] = policies[seed]
            self.records.append({"update": step, "seed": seed, **record})
            self.directory.log(step, seed, record)
        updates = {seed: self._update_of(seed) for seed in policies}
        save_policies(self.directory.policy("last"), policies, updates)
        if self.best_policies:
            best = {seed: self._best_record(seed)["update"] for seed in self.best_policies}
            save_policies(self.directory.policy("best"), self.best_policies, best)
        self.progress.evaluation_seconds += time.monotonic() - began
        self.display.evaluation(step, per_seed)

    def _ask_environment(self, lane: Lane) -> None:
        """The algorithm decides by scores of the simulator (and said so in its options)."""
        scores = self.evaluate([lane], lane.policies(self.preparation.scaling))
        lane.algorithm.told(torch.tensor([scores[seed]["score"] for seed in lane.seeds], device=self.device))

    def _every_lane(self) -> list[Lane]:
        """The lanes, and one for each run that was stopped early, as of its last good state."""
        stopped = [Lane(self.config, [int(seed)], self.buffer, self.device) for seed in self.progress.frozen]
        for lane in stopped:
            lane.load(self.good)
        return self.lanes + stopped

    def _update_of(self, seed: int) -> int:
        frozen = self.progress.frozen.get(str(seed))
        return frozen["update"] if frozen else self.progress.update

    # -- failures, checkpoints

    def _freeze_failed(self) -> None:
        """Runs that left the finite numbers stay at their last good state; the others go on without them."""
        for lane in list(self.lanes):
            failures = lane.failures()
            if not failures:
                continue
            states = lane.run_states()
            for seed, (failed_at, reason) in failures.items():
                good_at = self._good_update
                self.progress.frozen[str(seed)] = {"update": good_at, "failed_at": failed_at, "reason": reason}
                self.display.frozen(
                    seed, f"seed {seed}: {reason} at update {failed_at:,}; stopped, kept as of update {good_at:,}"
                )
            remaining = [seed for seed in lane.seeds if seed not in failures]
            index = self.lanes.index(lane)
            self.lanes.remove(lane)
            if remaining:
                rebuilt = Lane(self.config, remaining, self.buffer, self.device)
                rebuilt.load({seed: states[seed] for seed in remaining})
                self.lanes.insert(index, rebuilt)

    def _save(self, step: int) -> None:
        """A checkpoint of every run; those that failed (see `_freeze_failed`) stay as of their last good state."""
        for lane in self.lanes:
            self.good |= lane.run_states()
        self._good_update = step
        self.directory.flush()
        save_checkpoint(self.directory.checkpoint, self.good, self.progress)

    def _restore(self) -> None:
        self.good, self.progress = load_checkpoint(self.directory.checkpoint)
        began_with, found = self.progress.dataset_sha256, self.preparation.facts["sha256"]
        if began_with != found:
            raise InputError(
                f"{self.config.dataset}: its bytes changed since the job began (sha256 {found[:12]}..., "
                f"expected {began_with[:12]}...)"
            )
        self._good_update = self.progress.update
        active = [seed for seed in self.config.seeds if str(seed) not in self.progress.frozen]
        self.lanes = [Lane(self.config, seeds, self.buffer, self.device) for seeds in self._lane_seeds(active)]
        for lane in self.lanes:
            lane.load(self.good)
        lines = self.directory.rewind(self.progress.update)
        self.records = [line for line in lines if "score" in line or "held_out_action_rmse" in line]
        best = self.directory.policy("best")
        if any("score" in record for record in self.records) and best.exists():
            self.best_policies = load_policies(best)

    @contextmanager
    def _graceful_interruption(self) -> Iterator[None]:
        """Ctrl-C and termination finish the update at hand, save, and say how to go on."""

        def note(number: int, frame: Any) -> None:
            if self._stop is not None:  # asked twice: at once
                raise KeyboardInterrupt
            self._stop = "interrupted" if number == signal.SIGINT else "terminated"

        # Python lets the main thread alone handle signals; a job run from another one is its caller's to stop
        numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
        previous = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    # -- the summary

    def _best_record(self, seed: int) -> dict[str, Any]:
        return max((r for r in self.records if r["seed"] == seed), key=lambda r: r["score"])

    def _summary(self) -> dict[str, Any]:
        config, progress = self.config, self.progress
        seeds = list(config.seeds)
        last = [[r for r in self.records if r["seed"] == seed][-1] for seed in seeds]
        has_scores = "score" in last[0]
        elapsed = progress.training_seconds + progress.evaluation_seconds
        return {
            "task": config.task,
            "algorithm": config.algorithm,
            "plugins": [name for name in config.plugins if name != "none"],
            "seeds": seeds,
            "updates": config.updates,
            "dataset": self.preparation.facts,
            "score": "normalised" if self.preparation.task.reference_min is not None else "raw return",
            "last": _result(last) if has_scores else _held_out(last),
            "best": _result([self._best_record(seed) for seed in seeds]) if has_scores else None,
            "best_rule": "per seed, the evaluation with the highest mean score (uses the simulator)",
            "stopped": progress.frozen,
            "timing": {
                "run_updates_per_second": progress.run_updates / max(progress.training_seconds, 1e-9),
                "clustering_seconds": progress.clustering_seconds,
                "evaluation_seconds": progress.evaluation_seconds,
                "total_seconds": elapsed,
            },
            "device": self.device.type,
            "versions": versions(),
        }


def _result(records: list[dict[str, Any]]) -> dict[str, Any]:
    scores = [record["score"] for record in records]
    return {
        "scores": scores,
        "mean": float(np.mean(scores)),
        "std": float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0,
        "returns": [record["returns"] for record in records],
        "updates": [record["update"] for record in records],
    }


def _held_out(records: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in records[0] if name.startswith("held_out")]
    return {name: [record[name] for record in records] for name in names}


def versions() -> dict[str, str]:
    import gymnasium
    import mujoco

    return {
        "c4rl": c4rl.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "gymnasium": gymnasium.__version__,
        "mujoco": mujoco.__version__,
    }
