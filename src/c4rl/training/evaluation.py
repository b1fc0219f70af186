"""Scores of the runs: in the simulator, or on held-out trajectories where there is none."""

from typing import Any

import numpy as np
import torch

from c4rl.config import TrainConfig
from c4rl.environments.evaluation import EvaluationPool
from c4rl.numpy_policy import NumpyPolicy
from c4rl.training.buffer import Batch, TransitionBuffer
from c4rl.training.lane import Lane
from c4rl.training.preparation import Preparation

CHUNK = 4096  # held-out rows per forward pass


class SimulatorEvaluation:
    """Undiscounted returns of the deterministic policy; scores are D4RL-normalised where the task has references."""

    def __init__(self, config: TrainConfig, preparation: Preparation) -> None:
        self.config, self.task = config, preparation.task
        self._pool: EvaluationPool | None = None

    def __call__(self, lanes: list[Lane], policies: dict[int, NumpyPolicy]) -> dict[int, dict[str, Any]]:
        if self._pool is None:
            self._pool = EvaluationPool(self.task, self.config.threads)
        seeds = list(policies)
        returns = self._pool.evaluate([policies[s] for s in seeds], self.config.eval_episodes, self.config.eval_seed)
        return {seed: score_record(self.task, episodes) for seed, episodes in zip(seeds, returns, strict=True)}

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()


def score_record(task: Any, returns: np.ndarray) -> dict[str, Any]:
    scores = task.normalise(returns) if task.reference_min is not None else returns
    return {"score": float(np.mean(scores)), "returns": [float(r) for r in returns]}


class HeldOutEvaluation:
    """On trajectories kept from training: the critic's TD error and the policy's distance to the logged actions."""

    def __init__(self, config: TrainConfig, preparation: Preparation, device: torch.device) -> None:
        assert preparation.held_out is not None
        self.buffer = TransitionBuffer([(preparation.held_out, preparation.scaling)], device)

    def __call__(self, lanes: list[Lane], policies: dict[int, NumpyPolicy]) -> dict[int, dict[str, Any]]:
        out: dict[int, dict[str, Any]] = {}
        for lane in lanes:
            runs, rows = len(lane.seeds), len(self.buffer.packed)
            squared_error = torch.zeros(runs, dtype=torch.float64)
            squared_distance = torch.zeros(runs, dtype=torch.float64)
            for start in range(0, rows, CHUNK):
                batch = self.buffer.unpack(self.buffer.packed[start : start + CHUNK].expand(runs, -1, -1))
                error, distance = self._chunk(lane, batch)
                squared_error += error
                squared_distance += distance
            for run, seed in enumerate(lane.seeds):
                out[seed] = {"held_out_action_rmse": float((squared_distance[run] / rows).sqrt())}
                if lane.algorithm.has_critic:
                    out[seed]["held_out_td_rmse"] = float((squared_error[run] / rows).sqrt())
        return out

    @staticmethod
    def _chunk(lane: Lane, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """Sums over rows of the squared TD error (mean over critics) and squared action distance, [R] each."""
        actions = lane.algorithm.act(batch.observations)
        distance = (actions - batch.actions).double().square().mean(2).sum(1).cpu()
        error = lane.algorithm.temporal_difference(batch)
        zero = torch.zeros_like(distance)
        return (error.double().square().mean(1).sum(1).cpu() if error is not None else zero), distance

    def close(self) -> None:
        pass
