"""Are the critic's values plausible? Q on the data's, the policy's and random actions."""

from typing import Any

import torch
from torch import Tensor

from c4rl.core.buffer import Batch
from c4rl.core.random import Streams
from c4rl.diagnostics.gradients import critics_of
from c4rl.training.launch import Launch

ACTIONS = ("data", "policy", "random")


@torch.no_grad()
def describe_q(launch: Launch, batch: Batch) -> list[dict[str, Any]]:
    """Of every run: mean, least and largest Q (the smaller of the two critics), and how far the critics differ."""
    critic, _ = critics_of(launch)
    streams = Streams(launch.seeds, torch.zeros((), dtype=torch.int64, device=launch.device), batch.actions.dtype)
    actions = {
        "data": batch.actions,
        "policy": launch.algorithm.act(batch.observations),
        "random": streams.uniform("diagnostics/actions", *batch.actions.shape[1:]) * 2 - 1,
    }
    found: list[dict[str, Any]] = [{} for _ in launch.runs]
    for name in ACTIONS:
        pairs = torch.cat([batch.observations, actions[name]], dim=2)
        q = critic.at(launch.algorithm.critic_inputs(pairs)).q  # [R, M, n]
        for run, values in enumerate(q):
            found[run][name] = _summary(values)
    for run, bound in enumerate(value_bound(launch)):
        found[run]["bound"] = bound
        found[run]["policy_distance"] = float((actions["policy"] - batch.actions)[run].square().mean().sqrt())
    return found


def _summary(q: Tensor) -> dict[str, float]:
    least = q.amin(0)
    return {
        "mean": float(least.mean()),
        "min": float(least.min()),
        "max": float(least.max()),
        "disagreement": float((q.amax(0) - least).mean()),
    }


def value_bound(launch: Launch) -> list[float]:
    """max|r| / (1 - gamma) of each run: no policy's value is larger in size; infinite for gamma = 1."""
    offsets, lengths = launch.buffer.offsets.tolist(), launch.buffer.lengths.tolist()
    gammas = torch.as_tensor(launch.algorithm.config.discount).expand(len(launch.runs)).tolist()
    out = []
    for offset, length, gamma in zip(offsets, lengths, gammas, strict=True):
        largest = float(launch.buffer.packed[offset : offset + length, -3].abs().max())
        out.append(largest / (1 - gamma) if gamma < 1 else float("inf"))
    return out
