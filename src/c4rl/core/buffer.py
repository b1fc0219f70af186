"""The rows of all runs' datasets in one tensor, gathered in one launch."""

from collections.abc import Sequence
from copy import copy
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from c4rl.core.ops.random import below, uniform_48
from c4rl.core.random import Streams


class Batch(NamedTuple):
    """Rows for every run; views of one gathered tensor. Actions are scaled to [-1, 1], observations normalised."""

    state_actions: Tensor  # [R, B, s + a]
    observations: Tensor  # [R, B, s]
    actions: Tensor  # [R, B, a]
    next_state_actions: Tensor  # [R, B, s + a], with the logged next action
    next_observations: Tensor  # [R, B, s]
    rewards: Tensor  # [R, B]
    continues: Tensor  # [R, B], 1 - terminal
    next_valid: Tensor  # [R, B], 1 where the logged next action is valid
    rows: Tensor | None = None  # [R, B], where the rows lie in the buffer

    @property
    def next_actions(self) -> Tensor:
        """The logged ones, [R, B, a]."""
        return self.next_state_actions[..., self.observations.shape[-1] :]

    def ended_where_cut(self) -> "Batch":
        """Treats cuts as ends, for backups by logged actions: no next action was logged at a cut."""
        return self._replace(continues=self.continues * self.next_valid)


class TransitionBuffer:
    """Packed rows [N, s+a+s+a+3] of one or more datasets; run r reads `lengths[r]` rows from `offsets[r]` on."""

    def __init__(
        self,
        packed: Tensor,
        trajectory_ids: Tensor,
        widths: tuple[int, int],
        dataset_lengths: Sequence[int],
        dataset_of_run: Sequence[int] = (0,),
    ) -> None:
        self.packed, self.widths = packed, widths
        self.trajectory_ids = trajectory_ids  # [N] int32, from 0 in each dataset
        self.dataset_lengths = list(dataset_lengths)
        self.weights: tuple[Tensor, ...] = ()  # factors of `row_weights`, live
        self._weighted: list[WeightedSampler] = []
        self._assign(dataset_of_run)

    def _assign(self, dataset_of_run: Sequence[int]) -> None:
        starts = np.concatenate([[0], np.cumsum(self.dataset_lengths)[:-1]]).tolist()
        lengths, device = self.dataset_lengths, self.packed.device
        self.offsets = torch.tensor([starts[i] for i in dataset_of_run], dtype=torch.int64, device=device)
        self.lengths = torch.tensor([lengths[i] for i in dataset_of_run], dtype=torch.int64, device=device)

    def for_runs(self, dataset_of_run: Sequence[int]) -> "TransitionBuffer":
        """The same rows (not copied), read by these runs."""
        out = copy(self)
        out._assign(dataset_of_run)
        return out

    def sample(self, most: int) -> "TransitionBuffer":
        """At most so many rows of each dataset, the same ones every time and whatever the others are."""
        if max(self.dataset_lengths) <= most:
            return self
        start, rows = 0, []
        for length in self.dataset_lengths:
            draw = np.random.default_rng(0)
            rows.append(start + np.sort(draw.choice(length, min(length, most), replace=False)))
            start += length
        kept = torch.from_numpy(np.concatenate(rows)).to(self.packed.device)
        return TransitionBuffer(self.packed[kept], self.trajectory_ids[kept], self.widths, [len(own) for own in rows])

    @property
    def row_weights(self) -> Tensor | None:
        """Relative sampling weights of each run's own rows, [R, n]; None: uniform."""
        return reduce(torch.mul, self.weights) if self.weights else None

    def sampler(self, stream: str = "rows", *factors: Tensor) -> "UniformSampler | WeightedSampler":
        """Draws from all rows of each run, by weight. stream: of random numbers; a second sampler needs another.
        factors: more weights [R, n], of this sampler alone."""
        if not self.weights and not factors:
            return UniformSampler(self, stream)
        self._weighted = [*self._weighted, WeightedSampler(self, stream, factors)]
        return self._weighted[-1]

    def take_up_weights(self) -> None:
        """Call this after the weights change."""
        for sampler in self._weighted:
            sampler.take_up_weights()

    def gather(self, rows: Tensor) -> Batch:
        """rows [R, B]: indices into the packed rows (offsets included)."""
        return self.unpack(self.packed.index_select(0, rows.flatten()).view(*rows.shape, -1))._replace(rows=rows)

    def unpack(self, packed: Tensor) -> Batch:
        s, a = self.widths
        pair, next_pair = packed[..., : s + a], packed[..., s + a : 2 * (s + a)]
        rewards, continues, next_valid = packed[..., -3:].unbind(-1)
        return Batch(pair, pair[..., :s], pair[..., s:], next_pair, next_pair[..., :s], rewards, continues, next_valid)


class UniformSampler:
    """Every row of a run's data equally likely, with replacement."""

    def __init__(self, buffer: TransitionBuffer, stream: str = "rows") -> None:
        """stream: name of its random numbers; a second sampler needs another."""
        self.offsets, self.lengths, self.stream = buffer.offsets, buffer.lengths, stream

    def rows(self, streams: Streams, batch_size: int) -> Tensor:
        """[R, B] indices into the buffer."""
        return streams.integers(self.stream, self.lengths, batch_size) + self.offsets.unsqueeze(1)


class WeightedSampler:
    """Every row of a run's data in proportion to its weight, with replacement."""

    def __init__(self, buffer: TransitionBuffer, stream: str, factors: tuple[Tensor, ...]) -> None:
        self.buffer, self.stream, self._factors = buffer, stream, factors
        shape = len(buffer.lengths), int(buffer.lengths.max())
        self._cumulative = torch.zeros(shape, dtype=torch.float64, device=buffer.packed.device)
        self.take_up_weights()

    def take_up_weights(self) -> None:
        """Written in place, so that a captured CUDA graph draws by the new weights."""
        weights = reduce(torch.mul, (*self.buffer.weights, *self._factors))
        own = torch.arange(weights.shape[1], device=weights.device) < self.buffer.lengths.unsqueeze(1)
        torch.cumsum(torch.where(own, weights.double(), 0), 1, out=self._cumulative)

    def rows(self, streams: Streams, batch_size: int) -> Tensor:
        """[R, B] indices into the buffer."""
        total = self._cumulative[:, -1:]
        drawn = below(uniform_48(streams.keys(self.stream), streams.step, batch_size) * total, total)
        return torch.searchsorted(self._cumulative, drawn, right=True) + self.buffer.offsets.unsqueeze(1)
