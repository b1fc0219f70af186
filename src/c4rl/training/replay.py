"""The rows that a behaviour agent learns from: those it collected last."""

import torch
from torch import Tensor

from c4rl.core.array import Array
from c4rl.core.buffer import Batch, TransitionBuffer, UniformSampler
from c4rl.core.errors import InputError
from c4rl.core.random import Streams
from c4rl.environments.making import symmetries_of
from c4rl.environments.tasks import Task
from c4rl.jobs.behaviour_config import BehaviourConfig


class Replay:
    """The latest rows of every run, on the device. Batches are drawn from the rows there are."""

    def __init__(self, config: BehaviourConfig, task: Task, device: torch.device) -> None:
        assert task.observation_dim is not None and task.action_dim is not None
        widths = task.observation_dim, task.action_dim
        blocks = -(-min(config.replay, config.steps + config.block_rows) // config.block_rows)
        self.capacity, runs = blocks * config.block_rows, len(config.seeds)
        self.packed = torch.zeros(runs, self.capacity, 2 * sum(widths) + 3, device=device)
        none = torch.zeros(0, dtype=torch.int32, device=device)
        self.buffer = TransitionBuffer(self.packed.flatten(0, 1), none, widths, [self.capacity] * runs, range(runs))
        self.sampler, self.batch_size = UniformSampler(self.buffer), config.batch_size
        self._turns = _turns(task, config.batch_size, device) if config.symmetries else None
        self.written = 0  # rows of each run, ever

    def append(self, rows: Array) -> None:
        """rows [R, n, width]; the capacity is a multiple of n."""
        place = self.written % self.capacity
        self.packed[:, place : place + rows.shape[1]] = torch.from_numpy(rows).to(self.packed.device)
        self.written += rows.shape[1]
        self.mark()

    def mark(self) -> None:
        """In place: a captured graph draws from what is there now."""
        self.buffer.lengths.fill_(self.held)

    def batch(self, streams: Streams) -> Batch:
        """Uniform rows; where the simulator has symmetries, an equal part of them by each."""
        rows = self.sampler.rows(streams, self.batch_size)
        if self._turns is None:
            return self.buffer.gather(rows)
        packed = self.buffer.packed.index_select(0, rows.flatten()).view(*rows.shape, -1)
        return self.buffer.unpack((packed.unflatten(1, (len(self._turns), -1)) @ self._turns).flatten(1, 2))

    @property
    def held(self) -> int:
        return min(self.written, self.capacity)


def _turns(task: Task, batch_size: int, device: torch.device) -> Tensor | None:
    """The simulator's symmetries as matrices on packed rows, [K, width, width]."""
    if (found := symmetries_of(task)) is None:
        return None
    observations, actions = (torch.from_numpy(matrices).to(device) for matrices in found)
    if batch_size % len(observations):
        raise InputError(
            f"--batch-size: found {batch_size}, expected a multiple of {len(observations)} for {task.name}"
        )
    same = torch.ones(1, 1, device=device)
    pairs = zip(observations, actions, strict=True)
    return torch.stack([torch.block_diag(s, a, s, a, same, same, same) for s, a in pairs])
