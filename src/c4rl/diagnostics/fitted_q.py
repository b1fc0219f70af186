"""Fitted Q evaluation: the values of fixed policies from logged data, many policies and resamples in one stack.

Each policy k has one critic for the data and one for each bootstrap resample of its trajectories:
Q_k <- argmin E[(Q_k(s, a) - r - γ Q̄_k(s', μ_k(s')))²]. Critics of one resample start equal and see equal batches, so
that policies differ by their actions alone.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from c4rl.core.networks import Critic, Stack
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.core.optimizers import FlatAdam, Polyak
from c4rl.core.options import Options, option
from c4rl.core.random import Streams
from c4rl.data.dataset import Dataset
from c4rl.data.info import observation_statistics
from c4rl.data.packing import Scaling, pack_datasets
from c4rl.data.subsets import trajectory_returns, trajectory_slices

LOOKS = 10  # in each of the last two tenths of the updates: values are means over them, since each one is noisy


@dataclass(frozen=True)
class FittedQConfig(Options):
    updates: int = option(20_000, at_least=LOOKS * 10, at_most=1e9)
    """Gradient updates of every critic."""
    resamples: int = option(5, at_least=2, at_most=1000)
    """Bootstrap resamples of the trajectories, for the intervals; each takes one more critic per policy."""
    discount: float = option(0.99, at_least=0, below=1)
    """Discount of the estimated values."""
    batch_size: int = option(256, at_least=1, at_most=1e6)
    """Rows per update."""
    hidden_layers: int = option(2, at_least=1, at_most=100)
    """Hidden layers of the critics, which have LayerNorm."""
    hidden_width: int = option(256, at_least=1, at_most=1e5)
    """Units of a hidden layer."""
    critic_lr: float = option(3e-4, above=0, at_most=1)
    """Step size of Adam; falls to a tenth over the last half of the updates."""
    tau: float = option(0.05, above=0, at_most=1)
    """Target update rate. Values settle after a few times 1 / (tau (1 - discount)) updates."""
    seed: int = option(0, at_least=0, at_most=2**62)
    """Seed of networks, batches and resamples."""


class Estimates(NamedTuple):
    values: np.ndarray  # [K] of all data
    resampled: np.ndarray  # [K, resamples]
    moved: np.ndarray  # [K]: by how much the value changed over the last tenth of the updates
    distance: np.ndarray  # [K]: mean squared distance of the policy's next actions from the logged, scaled to [-1, 1]
    mean_action_distance: float  # the same for the mean logged action
    logged_value: float  # mean discounted return of the logged trajectories (cut ones count as they are)


def fitted_q_evaluation(
    data: Dataset,
    policies: Sequence[NumpyPolicy],
    config: FittedQConfig,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    watch: Callable[[int], Any] = lambda update: None,
) -> Estimates:
    """watch: called with the number of each finished update."""
    device, groups = torch.device(device), config.resamples + 1  # critics of a policy; the first sees the data as is
    mean, std = observation_statistics(data.observations)
    size = float(np.abs(data.rewards).mean()) or 1.0
    scaling = Scaling(mean, std, data.action_low, data.action_high, 1 / size)
    buffer = pack_datasets([(data, scaling)], device, dtype, [0] * groups)
    counts = _trajectory_counts(data, config)  # [groups, trajectories]
    buffer.weights = (torch.tensor(counts[:, data.trajectory_ids], device=device, dtype=dtype),)

    starts, _ = trajectory_slices(data)
    next_actions = _actions(policies, data.next_observations, scaling, device, dtype)  # [K, N, a]
    first_actions = _actions(policies, data.observations[starts], scaling, device, dtype)
    first = torch.tensor((data.observations[starts] - mean) / std, device=device, dtype=dtype)
    # critic (k, g) at (s_0, μ_k(s_0)), and how often resample g holds the trajectory
    first_pairs = torch.cat([first.expand(len(policies), -1, -1), first_actions], 2).repeat_interleave(groups, 0)
    shares = torch.tensor(counts / counts.sum(1, keepdims=True), device=device, dtype=dtype).repeat(len(policies), 1)

    seeds = [config.seed + group for group in range(groups)]
    step = torch.zeros((), dtype=torch.int64, device=device)
    streams, sampler = Streams(seeds, step, dtype), buffer.sampler("fqe/rows")
    stack = Stack(tuple(seeds) * len(policies), data.observation_dim, data.action_dim, device, dtype)
    critic = Critic(stack, "fqe/critic", (config.hidden_width,) * config.hidden_layers, members=1, layer_norm=True)
    target = copy.deepcopy(critic)
    optimizer = FlatAdam(critic, config.critic_lr)
    polyak = Polyak(optimizer, target, config.tau)
    # no policy is worth more than the best reward for ever, nor less than the worst; an end is worth 0
    low, high = (
        bound / size / (1 - config.discount) for bound in (min(data.rewards.min(), 0), max(data.rewards.max(), 0))
    )

    looks = {config.updates - i * max(1, config.updates // (10 * LOOKS)) for i in range(2 * LOOKS)}
    found: list[Tensor] = []
    for update in range(1, config.updates + 1):
        step.fill_(update)
        rows = sampler.rows(streams, config.batch_size)  # [groups, B]
        batch = buffer.gather(rows)
        with torch.no_grad():
            actions = next_actions[:, rows].flatten(0, 1)  # [K * groups, B, a]
            next_q = target(batch.next_observations.repeat(len(policies), 1, 1), actions).q[:, 0]
            rewards, continues = (t.repeat(len(policies), 1) for t in (batch.rewards, batch.continues))
            y = (rewards + config.discount * continues * next_q).clamp(low, high)
        q = critic.at(batch.state_actions.repeat(len(policies), 1, 1)).q[:, 0]
        optimizer.step((q - y).square().mean(1), _falling(update, config.updates))
        polyak.step()
        if update in looks:
            with torch.no_grad():
                found.append((critic.at(first_pairs).q[:, 0] * shares).sum(1))
        watch(update)
    values = torch.stack(found).view(2, LOOKS, len(policies), groups).mean(1).double().cpu().numpy() * size
    logged = torch.tensor(scaling.actions(data.next_actions), device=device, dtype=dtype)
    valid = torch.tensor(data.next_action_valid, device=device)
    distance = [float((own[valid] - logged[valid]).square().mean()) for own in next_actions]
    spread = float((logged[valid] - logged[valid].mean(0)).square().mean())
    return Estimates(
        values[1, :, 0],
        values[1, :, 1:],
        values[1, :, 0] - values[0, :, 0],
        np.array(distance),
        spread,
        float(trajectory_returns(data, config.discount).mean()),
    )


def _falling(update: int, updates: int) -> float:
    """Factor of the step size: 1 in the first half, then straight down to 0.1."""
    return min(1.0, 1.9 - 1.8 * update / updates)


def _trajectory_counts(data: Dataset, config: FittedQConfig) -> np.ndarray:
    """How often each trajectory is in the data, and in each resample of as many trajectories, [1 + resamples, T]."""
    count = int(data.trajectory_ids[-1]) + 1
    random = np.random.default_rng(config.seed)
    drawn = random.multinomial(count, np.full(count, 1 / count), config.resamples)
    return np.concatenate([np.ones((1, count), drawn.dtype), drawn])


def _actions(
    policies: Sequence[NumpyPolicy],
    observations: np.ndarray,
    scaling: Scaling,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """The policies' actions, once and for all: [K, N, a] in [-1, 1]."""
    return torch.tensor(
        np.stack([scaling.actions(policy.act(observations)) for policy in policies]), device=device, dtype=dtype
    )
