"""A fixed sample of rows of a launch, and the critic's feature gradients there."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from c4rl.core.buffer import Batch
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic
from c4rl.plugins.c4.feature_gradients import Mode, feature_gradients
from c4rl.training.launch import Launch


class Sample(NamedTuple):
    """Rows of one run that have a valid next action. Batches keep the run axis, of length 1 or more."""

    rows: np.ndarray  # [n], numbers in the run's own data
    batch: Batch  # [R, n, ...]


def sample_rows(launch: Launch, size: int) -> Sample:
    """All rows with a valid next action or, of more, `size` drawn without replacement."""
    (offset, *_), (length, *_) = launch.buffer.offsets.tolist(), launch.buffer.lengths.tolist()
    own = launch.buffer.packed[offset : offset + length]
    valid = torch.nonzero(own[:, -1] > 0).squeeze(1).cpu().numpy()
    if len(valid) < 2:
        found = f"{len(valid)} rows with a valid next action"
        raise InputError(f"{launch.config.output}: found {found}, expected 2 or more")
    chosen = np.sort(np.random.default_rng(0).choice(valid, min(size, len(valid)), replace=False))
    rows = torch.as_tensor(chosen, device=launch.device) + offset
    return Sample(chosen, launch.buffer.gather(rows.expand(len(launch.runs), -1)))


def critics_of(launch: Launch) -> tuple[Critic, Critic]:
    if launch.algorithm.critics is None:
        algorithm = launch.config.algorithm
        raise InputError(f"{launch.config.output}: found algorithm '{algorithm}', expected one with a critic")
    return launch.algorithm.critics


def gradient_pairs(launch: Launch, batch: Batch, mode: Mode = "exact") -> tuple[Tensor, Tensor]:
    """g' and g of every run and critic, [R, M, n, m] each."""
    critic, target = critics_of(launch)
    inputs, next_inputs = (launch.algorithm.critic_inputs(x) for x in (batch.state_actions, batch.next_state_actions))
    return feature_gradients(mode, target, next_inputs), feature_gradients(mode, critic, inputs)
