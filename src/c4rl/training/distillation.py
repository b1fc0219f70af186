"""Distillation: one network that acts as an ensemble does. The ensemble is asked for its actions at noised
observations, so that the network also learns how it reacts near the logged states."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from c4rl.algorithms.losses import mean_squared_error
from c4rl.core.networks import Stack
from c4rl.core.numpy_policy import LAYER_NORM_EPSILON, NumpyPolicy
from c4rl.core.optimizers import CosineSchedule, FlatAdam
from c4rl.core.policies import DeterministicPolicy, EvaluatedPolicy
from c4rl.training.preparation import free_threads, pytorch_given_back

BATCH, STEP_SIZE, TELL_EVERY = 256, 1e-3, 1000
CHUNK = 4096  # rows of the comparison at the end: every member's layers are held at once


class Distilled(NamedTuple):
    policy: NumpyPolicy
    distance: float  # RMS over logged states between its actions and the ensemble's, as a share of the action range


@pytorch_given_back()
def distil(
    ensemble: NumpyPolicy,
    observations: np.ndarray,
    updates: int,
    noise: float,
    seed: int = 0,
    tell: Callable[[str], None] = lambda line: None,
) -> Distilled:
    """noise: standard deviation of what is added to normalised observations. tell: takes a line now and then."""
    torch.set_num_threads(free_threads())
    rows = torch.tensor((observations - ensemble.observation_mean) / ensemble.observation_std, dtype=torch.float32)
    teacher, random = _acting(ensemble), torch.Generator().manual_seed(seed)
    hidden = [weight.shape[-1] for weight in ensemble.weights[:-1]]
    stack = Stack((seed,), rows.shape[1], ensemble.action_low.size, torch.device("cpu"), updates=updates)
    student = DeterministicPolicy(stack, "actor", hidden)
    optimizer, schedule = FlatAdam(student, STEP_SIZE), CosineSchedule(updates, stack.device)
    for update in range(updates):
        drawn = rows[torch.randint(len(rows), (BATCH,), generator=random)]
        states = drawn + noise * torch.randn(drawn.shape, generator=random)
        actions = student(states.unsqueeze(0))
        loss = mean_squared_error(actions, teacher(states).unsqueeze(0))
        optimizer.step(loss, schedule.factors[update])
        if (update + 1) % TELL_EVERY == 0:
            tell(f"distilling: update {update + 1:,}/{updates:,}, {loss.item() ** 0.5 / 2:.2%} of the range away")
    with torch.no_grad():
        learnt = EvaluatedPolicy.of(student.mlp, stack.action_dim)
        gaps = [learnt.act(some.unsqueeze(0))[0] - teacher(some) for some in rows.split(CHUNK)]
    policy = replace(
        ensemble,
        weights=tuple(weight[0].detach().numpy() for weight in learnt.weights),
        biases=tuple(bias[0].detach().numpy() for bias in learnt.biases),
        squash="tanh",
        gains=(),
        shifts=(),
    )
    return Distilled(policy, float(torch.cat(gaps).square().mean().sqrt()) / 2)


def _acting(ensemble: NumpyPolicy) -> Callable[[Tensor], Tensor]:
    """Normalised observations [B, s] -> its mean action in [-1, 1]."""
    layers = list(zip(map(torch.tensor, ensemble.weights), map(torch.tensor, ensemble.biases), strict=True))
    norms = list(zip(map(torch.tensor, ensemble.gains), map(torch.tensor, ensemble.shifts), strict=True))

    def act(x: Tensor) -> Tensor:
        for i, (weight, bias) in enumerate(layers[:-1]):
            x = x @ weight + bias
            if norms:
                gain, shift = norms[i]
                x = F.layer_norm(x, x.shape[-1:], eps=LAYER_NORM_EPSILON) * gain + shift
            x = x.relu()
        x = x @ layers[-1][0] + layers[-1][1]
        x = torch.tanh(x) if ensemble.squash == "tanh" else x.clamp(-1, 1)
        return x.mean(0) if x.dim() == 3 else x

    return act
