"""Trains behaviour agents: SAC on transitions that worker processes collect while the device updates.

Block b is collected with the policy as it was after block b - 1, and updates meanwhile draw from the rows before it.
This order is fixed, so that an agent is a function of its seed and options, however fast the simulators are. Episodes
begin anew after every checkpoint: a killed training that is resumed ends as one that was never interrupted.
"""

import json
import shutil
import time
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file
from torch import Tensor

from c4rl.algorithms.sac import SAC, SACConfig
from c4rl.core.array import Array
from c4rl.core.errors import InputError
from c4rl.core.files import locked, read_json, replacing, write_json
from c4rl.core.networks import Stack
from c4rl.core.random import Streams
from c4rl.core.version import __version__
from c4rl.data.checks import action_bounds
from c4rl.data.collection import Collector
from c4rl.data.loading import environment_bounds
from c4rl.data.policy_files import write_gaussian
from c4rl.environments.evaluation import EvaluationPool
from c4rl.environments.tasks import Task, get_task, missing, simulator
from c4rl.jobs.behaviour_config import BLOCK, BehaviourConfig
from c4rl.plugins.layer_norm import LayerNorm, LayerNormConfig
from c4rl.plugins.seams import Plugins
from c4rl.training.behaviour_policies import mean_policies, policy_arrays
from c4rl.training.cuda_graph import GraphedCalls
from c4rl.training.preparation import choose_device
from c4rl.training.replay import Replay

TURN = 4  # updates of one robot before the next one's
WAIT_SECONDS = 2e-4  # where all wait for the device and simulators
EVALUATION_SEED = 10_000
LINE_SECONDS = 10.0  # between two lines of progress
PATIENCE_SECONDS = 20.0  # for evaluations under way when the time is up


class BehaviourTraining:
    lock: IO[bytes]  # of the folder, until `work` ends

    def __init__(self, config: BehaviourConfig, folder: Path, print_line: Callable[[str], None]) -> None:
        self.config, self.folder, self.print_line = config, folder, print_line
        self.task: Task = get_task(config.task)
        self.device = choose_device(config.device)
        self.low, self.high = _action_bounds(self.task)
        self.replay = Replay(config, self.task, self.device)
        self.step = torch.zeros((), dtype=torch.int64, device=self.device)
        self.streams = Streams(list(config.seeds), self.step)
        own = SACConfig(
            hidden_width=config.hidden_width, actor_lr=config.lr, critic_lr=config.lr, batch_size=config.batch_size
        )
        plugins = Plugins([LayerNorm(LayerNormConfig())] if config.layer_norm else [])
        self.algorithm = SAC(own, Stack(config.seeds, *self.replay.buffer.widths, self.device), self.streams, plugins)
        self._graphed = GraphedCalls(self._update) if self.device.type == "cuda" else None
        self._metrics: dict[str, Tensor] = {}
        self.blocks, self.updates = 0, 0
        self.returns: list[list[float]] = [[] for _ in config.seeds]  # since the last snapshot
        self._recent = [deque[float](maxlen=20) for _ in config.seeds]  # for people
        self._evaluations: list[tuple[int, Future[Array]]] = []

    # -- one update

    def _update(self, step: int) -> dict[str, Tensor]:
        self.step.add_(1)
        batch = self.replay.batch(self.streams)
        return {name: value.detach() for name, value in self.algorithm.update(batch, step, batch).items()}

    def _updates_of(self, block: int) -> int:
        """How many come with a block: none in random ones, and on average `updates_per_step` a step."""
        rows, rate = self.config.block_rows, self.config.updates_per_step
        first = -(-self.config.random_steps // rows)
        return 0 if block < first else int((block + 1 - first) * rows * rate) - int((block - first) * rows * rate)

    # -- the whole

    @property
    def steps(self) -> int:
        return self.blocks * self.config.block_rows

    def work(self, workers: int, seconds: float | None) -> Generator[bool, None, None]:
        """Train, and yield now and then: whether anything was done, or all is waiting for the device and simulators.

        workers: processes that simulate; 0: this one. seconds: stop after so many.
        """
        config, began = self.config, time.monotonic()
        last_line, first_updates = began, self.updates
        fresh = True  # new episodes are to begin
        with (
            closing(self.lock),
            Collector(self.task, config.seeds, config.envs, workers) as collector,
            EvaluationPool(self.task, 1) if config.evaluation_episodes else nullcontext() as pool,
        ):
            while not self._done and (seconds is None or time.monotonic() - began < seconds):
                before = self.steps
                random = before < config.random_steps
                collector.start(None if random else self.policies(), self.blocks, BLOCK, fresh)
                for i in range(self._updates_of(self.blocks)):
                    self.updates += 1
                    self._metrics = self._graphed(self.updates) if self._graphed else self._update(self.updates)
                    if i % TURN == 0:
                        yield True
                event = torch.cuda.Event() if self.device.type == "cuda" else None
                if event is not None:
                    event.record()
                while not (collector.ready() and (event is None or event.query())):
                    yield False
                block = collector.finish()
                self.replay.append(block.rows)
                self.blocks += 1
                for own, recent, new in zip(self.returns, self._recent, block.returns, strict=True):
                    own += new
                    recent.extend(new)
                if self._is_due(config.snapshot_every, before):
                    self._save_snapshot()
                    self._log()
                if pool is not None and self._is_due(config.evaluate_every, before):
                    returns = pool.submit(mean_policies(self.policies()), config.evaluation_episodes, EVALUATION_SEED)
                    self._evaluations.append((self.steps, returns))
                self._log_evaluations()
                if time.monotonic() - last_line > LINE_SECONDS or self._done:
                    last_line = time.monotonic()
                    self._print_progress((self.updates - first_updates) / (last_line - began))
                fresh = self._is_due(config.checkpoint_every, before)
                if fresh:
                    while self._evaluations:  # a training that goes on from here would not make them again
                        yield False
                        self._log_evaluations()
                    self._save_checkpoint()
                yield True
            if not self._done:
                self._save_snapshot()
                self._log()
                self.print_line(f"{self.task.name}: stopped at {self.steps:,} of {config.steps:,} steps")
            waited = time.monotonic()
            while self._evaluations and (seconds is None or time.monotonic() - waited < PATIENCE_SECONDS):
                yield False
                self._log_evaluations()

    @property
    def _done(self) -> bool:
        return self.steps >= self.config.steps

    def _is_due(self, every: int, before: int) -> bool:
        """What happens every so many steps, and at the end; before: steps when the block began."""
        return self._done or before // every < self.steps // every

    def policies(self) -> dict[str, Array]:
        return policy_arrays(self.algorithm.actor, self.low, self.high)

    # -- what is written

    def _save_snapshot(self) -> None:
        path = self.folder / "snapshots" / f"{self.steps:010d}.safetensors"
        facts = {"c4rl": __version__, "task": self.task.name, "environment": simulator(self.task) or ""}
        facts |= {"steps": str(self.steps), "updates": str(self.updates), "seeds": json.dumps(self.config.seeds)}
        write_gaussian(path, self.policies(), facts)

    def _append(self, entry: dict[str, Any]) -> None:
        with open(self.folder / "progress.jsonl", "a") as file:
            print(json.dumps(entry), file=file)

    def _log(self) -> None:
        """Means of the training episodes since the last entry, and the last update's losses."""
        means = [float(np.mean(own)) if own else None for own in self.returns]
        values = {name: tensor.tolist() for name, tensor in self._metrics.items()}
        counts = [len(own) for own in self.returns]
        self._append({"steps": self.steps, "updates": self.updates, "returns": means, "episodes": counts} | values)
        self.returns = [[] for _ in self.returns]

    def _print_progress(self, updates_a_second: float) -> None:
        shown = " ".join(f"{np.mean(own):,.0f}" if own else "-" for own in self._recent)
        self.print_line(
            f"{self.task.name}: {self.steps:,} steps, {self.updates:,} updates ({updates_a_second:,.0f}/s), "
            f"returns of training {shown}"
        )

    def _log_evaluations(self) -> None:
        """Log finished evaluations in their order."""
        while self._evaluations and self._evaluations[0][1].done():
            steps, future = self._evaluations.pop(0)
            mean, std = future.result().mean(1), future.result().std(1)
            self._append({"steps": steps, "evaluation": mean.tolist(), "std": std.tolist()})
            shown = " ".join(f"{m:,.0f} ± {s:,.0f}" for m, s in zip(mean, std, strict=True))
            self.print_line(f"{self.task.name}: evaluated at {steps:,} steps: {shown}")

    # -- checkpoints

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    def _save_checkpoint(self) -> None:
        arrays = {name: tensor.cpu().contiguous().numpy() for name, tensor in self.algorithm.state().items()}
        arrays["replay"] = self.replay.packed[:, : self.replay.held].cpu().contiguous().numpy()
        progress = {"blocks": self.blocks, "updates": self.updates, "written": self.replay.written}
        facts = {"progress": json.dumps(progress), "returns": json.dumps(self.returns)}
        with replacing(self._checkpoint) as temporary:
            save_file(arrays, temporary, facts)

    def restore(self) -> None:
        """Go on from the last checkpoint, if there is one."""
        log = self.folder / "progress.jsonl"
        kept: list[str] = []
        if self._checkpoint.exists():
            try:
                self._read_checkpoint()
                complete = log.read_text().split("\n")[:-1]  # a kill may have cut the last line
                kept = [line for line in complete if json.loads(line)["steps"] <= self.steps]
            except (SafetensorError, OSError, RuntimeError, LookupError, TypeError, ValueError) as error:
                raise InputError(
                    f"{self._checkpoint}: found no checkpoint of this training ({type(error).__name__}: {error}), "
                    "expected the one that it wrote; delete it to start over"
                ) from error
        with replacing(log) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in kept))

    def _read_checkpoint(self) -> None:
        with safe_open(self._checkpoint, framework="pt") as file:
            facts = file.metadata()
            for name, tensor in self.algorithm.state().items():
                tensor.copy_(file.get_tensor(name))
            rows = file.get_tensor("replay")
        self.replay.packed[:, : rows.shape[1]] = rows.to(self.device)
        progress = json.loads(facts["progress"])
        self.blocks, self.updates = progress["blocks"], progress["updates"]
        self.replay.written, self.returns = progress["written"], json.loads(facts["returns"])
        self.replay.mark()
        self.step.fill_(self.updates)


def _action_bounds(task: Task) -> tuple[Array, Array]:
    low, high = environment_bounds(task)
    if low is None or high is None:
        raise InputError(f"task '{task.name}': found actions without bounds, expected bounds that agents explore")
    return action_bounds(f"task '{task.name}'", np.size(low), low, high)


def open_training(config: BehaviourConfig, folder: Path, print_line: Callable[[str], None]) -> BehaviourTraining:
    """A training in a new folder, or the one that is there, as of its last checkpoint.

    The folder holds config.json, progress.jsonl, snapshots/ and checkpoint.safetensors.
    """
    task = get_task(config.task)
    if (absent := missing(task)) is not None:
        raise InputError(f"task '{task.name}' cannot be simulated here: {absent}")
    described = {name: value for name, value in asdict(config).items() if name != "device"}
    described |= {"seeds": list(config.seeds), "task": task.name, "c4rl": __version__, "environment": simulator(task)}
    note = folder / "config.json"
    resumed = note.exists()
    if resumed and (found := read_json(note, "the settings of a behaviour agent")) != described:
        if not isinstance(found, dict):
            raise InputError(f"{note}: found a {type(found).__name__}, expected the settings of a behaviour agent")
        differs = next(name for name in [*described, *found] if described.get(name) != found.get(name))
        raise InputError(
            f"{note}: found {differs} {found.get(differs)}, expected {described.get(differs)}: "
            "the folder holds another training; choose another output"
        )
    if not resumed and folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder} exists already and is not overwritten; choose another name")
    training = BehaviourTraining(replace(config, task=task.name), folder, print_line)
    (folder / "snapshots").mkdir(parents=True, exist_ok=True)
    training.lock = locked(folder)
    write_json(note, described)
    training.restore()
    return training


def train_together(
    jobs: Sequence[tuple[BehaviourConfig, Path, int]],
    seconds: float | None = None,
    print_line: Callable[[str], None] = print,
) -> list[BehaviourTraining]:
    """Train agents of several robots, (settings, folder, workers) each. On a GPU each robot has a stream of its own:
    one update keeps only a small part of the device busy."""
    trainings: list[BehaviourTraining] = []
    turns: list[tuple[AbstractContextManager[Any], Generator[bool, None, None]]] = []
    try:
        for config, folder, workers in jobs:
            device = choose_device(config.device)
            stream = torch.cuda.stream(torch.cuda.Stream()) if device.type == "cuda" else nullcontext()
            with stream:
                trainings.append(open_training(config, folder, print_line))
            turns.append((stream, trainings[-1].work(workers, seconds)))
        while turns:
            busy = False
            for turn in list(turns):
                with turn[0]:
                    try:
                        busy |= next(turn[1])
                    except StopIteration:
                        turns.remove(turn)
            if not busy:
                time.sleep(WAIT_SECONDS)
    except Exception:
        for training in trainings:
            # nothing was done: nothing to go on from, nor to keep of an earlier attempt
            if training.steps == 0 and not any((training.folder / "snapshots").iterdir()):
                shutil.rmtree(training.folder, ignore_errors=True)
        raise
    finally:
        for _, work in turns:
            work.close()
    return trainings
