"""Scores of the runs: in the simulator, or on held-out trajectories where there is none."""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np
import torch

from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.data.packing import pack_datasets
from c4rl.environments.evaluation import MAX_WORKERS, EvaluationPool, available_cores, wait_for
from c4rl.environments.tasks import Task
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import Run, RunKey, ensembles_of, runs_of
from c4rl.training.launch import Launch
from c4rl.training.preparation import Preparation

CHUNK = 4096  # held-out rows per forward pass
MOST_TRAINING_ROWS = 20_000  # of each dataset, where none are held out: all of a million take longer than the training


class SimulatorScores:
    """An evaluation under way in the worker processes."""

    def __init__(
        self, by_task: list[tuple[Task, "Future[np.ndarray]", list[RunKey]]], check: Callable[[], None]
    ) -> None:
        self._by_task = by_task  # the pending returns of each task, and the runs they belong to
        self._check = check

    def done(self) -> bool:
        return all(returns.done() for _, returns, _ in self._by_task)

    def result(self) -> dict[RunKey, dict[str, Any]]:
        """Per run, its scores; waits for them."""
        return {
            run: score_record(task, episodes)
            for task, returns, runs in self._by_task
            for run, episodes in zip(runs, wait_for(returns, self._check), strict=True)
        }


class SimulatorEvaluation:
    """Undiscounted returns of the deterministic policy, each run's in its own task; scores are D4RL-normalised where
    the task has references."""

    def __init__(
        self,
        config: TrainConfig,
        preparations: Sequence[Preparation],
        spare_cores: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """spare_cores: cores that workers leave free, if --threads is not given. check: raises to end a long wait."""
        self.config, self._check = config, check
        self.tasks = {run.key: preparations[run.data].task for run in runs_of(config)}
        self._pools: dict[Task, EvaluationPool] = {}
        cores = config.threads or min(available_cores() - spare_cores, MAX_WORKERS)
        episodes = len(self.tasks) * config.eval_episodes
        self.workers = max(1, min(math.ceil(cores / len(set(self.tasks.values()))), episodes))  # of each task

    def submit(self, policies: Mapping[RunKey, NumpyPolicy]) -> SimulatorScores:
        """Start, without waiting."""
        by_task = []
        for task in dict.fromkeys(self.tasks[run] for run in policies):
            runs = [run for run in policies if self.tasks[run] == task]
            own = [policies[run] for run in runs]
            returns = self._pool(task).submit(own, self.config.eval_episodes, self.config.eval_seed)
            by_task.append((task, returns, runs))
        return SimulatorScores(by_task, self._check)

    def ensembles(self, runs: Sequence[Run], policies: Mapping[RunKey, NumpyPolicy]) -> dict[str, list[dict[str, Any]]]:
        """The scores of --ensemble seeds acting together, by what their runs have in common."""
        task = {run.group: self.tasks[run.key] for run in runs}
        pending = {
            group: self._pool(task[group]).submit(
                [NumpyPolicy.ensemble([policies[run.key] for run in together]) for together in several],
                self.config.eval_episodes,
                self.config.eval_seed,
            )
            for group, several in ensembles_of(runs, self.config.ensemble).items()
        }
        return {
            group: [score_record(task[group], own) for own in wait_for(found, self._check)]
            for group, found in pending.items()
        }

    def _pool(self, task: Task) -> EvaluationPool:
        if task not in self._pools:
            self._pools[task] = EvaluationPool(task, self.workers)
        return self._pools[task]

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()


def score_record(task: Task, returns: np.ndarray) -> dict[str, Any]:
    return {"score": float(np.mean(task.normalise(returns))), "returns": [float(r) for r in returns]}


class HeldOutEvaluation:
    """On held-out rows, or on a sample of the training rows if there are none: the critic's TD error and the policy's
    distance to the logged actions."""

    def __init__(
        self, preparations: Sequence[Preparation], training: TransitionBuffer, check: Callable[[], None]
    ) -> None:
        self._check = check
        kept = [(p.held_out, p.scaling) for p in preparations if p.held_out is not None]
        self.rows = "held_out" if kept else "training"
        self.buffer = pack_datasets(kept, training.packed.device) if kept else training.sample(MOST_TRAINING_ROWS)

    def __call__(self, launches: list[Launch]) -> dict[RunKey, dict[str, Any]]:
        out: dict[RunKey, dict[str, Any]] = {}
        for launch in launches:
            buffer = self.buffer.for_runs([run.data for run in launch.runs])
            offsets, lengths = buffer.offsets.unsqueeze(1), buffer.lengths.unsqueeze(1)
            rows = [buffer.dataset_lengths[run.data] for run in launch.runs]
            squared_error = torch.zeros(len(rows), dtype=torch.float64)
            squared_distance = torch.zeros(len(rows), dtype=torch.float64)
            for start in range(0, max(rows), CHUNK):
                self._check()
                position = torch.arange(start, min(start + CHUNK, max(rows)), device=offsets.device)
                batch = buffer.gather(offsets + torch.minimum(position, lengths - 1))
                error, distance = self._chunk(launch, batch, (position < lengths).double())
                squared_error += error
                squared_distance += distance
            for run, key in enumerate(launch.keys):
                out[key] = {f"{self.rows}_action_rmse": float((squared_distance[run] / rows[run]).sqrt())}
                if launch.algorithm.has_critic:
                    out[key][f"{self.rows}_td_rmse"] = float((squared_error[run] / rows[run]).sqrt())
        return out

    @staticmethod
    def _chunk(launch: Launch, batch: Batch, inside: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums over the rows `inside` [R, B] of the squared TD error (mean over critics) and action distance, [R]."""
        actions = launch.algorithm.act(batch.observations)
        distance = ((actions - batch.actions).double().square().mean(2) * inside).sum(1).cpu()
        error = launch.algorithm.temporal_difference(batch)
        zero = torch.zeros_like(distance)
        return ((error.double().square().mean(1) * inside).sum(1).cpu() if error is not None else zero), distance


def explain_held_out(name: str, datasets: Sequence[Mapping[str, Any]]) -> str:
    """Explains a number of `HeldOutEvaluation`: its meaning, unit and scale. datasets: their facts."""
    rows = "held-out rows" if name.startswith("held_out") else "rows trained on"
    if not name.startswith("held_out") and max(facts["rows"] for facts in datasets) > MOST_TRAINING_ROWS:
        rows += f" (a fixed sample of {MOST_TRAINING_ROWS:,})"
    if name.endswith("action_rmse"):
        known = ", ".join(f"{facts['mean_action_rmse']:.4g}" for facts in datasets)
        return (
            f"The policy's root mean square distance from the logged actions of the {rows}, where each action's bounds "
            f"count as -1 and 1. 0 repeats them; always playing their mean gives {known}."
        )
    known = ", ".join(f"{facts['zero_critic_td_rmse']:.4g}" for facts in datasets)
    return (
        f"The critic's root mean square TD error on the {rows}, in units of the training rewards. 0 fits perfectly; a "
        f"critic that answers 0 gives {known}. Compare it between runs of equal data, rewards and discount; it says "
        "nothing about the policy."
    )
