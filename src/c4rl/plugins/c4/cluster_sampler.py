"""Single-cluster minibatches (Algorithm 1): z ~ Cat(p), then rows with weights r_iz.

With p_z = mean_i r_iz every row is drawn equally often, sum_z p_z r_iz / sum_j r_jz = 1/N: clusters change which rows
meet in a batch, not the distribution of the data. p is therefore always taken from the responsibilities in use. Rows
of weights w_i come up in proportion to them, by p_z ~ sum_i w_i r_iz and rows ~ w_i r_iz.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from c4rl.core.ops.random import cluster_rows, uniform_48
from c4rl.core.random import Streams


class ClusterSampler:
    """Draws the batches of R runs; run r owns the rows offsets[r] ... offsets[r] + lengths[r] - 1 of the buffer.

    A refresh looks at a pool of at most `pool_size` rows per run. Larger runs walk through all their rows, pool by
    pool, in a fixed shuffled order: over the refreshes every row is used equally often.
    The tables are written in place, so that a captured CUDA graph sees every refresh.
    """

    def __init__(
        self,
        seeds: Sequence[int],
        offsets: Sequence[int],
        lengths: Sequence[int],
        components: Sequence[int],
        *,
        pool_size: int = 40_000,
        device: torch.device | str = "cpu",
    ) -> None:
        """components: K of each run."""
        self.offsets = torch.tensor(offsets, device=device).unsqueeze(1)
        self.lengths = torch.tensor(lengths, device=device).unsqueeze(1)
        runs, clusters, size = len(seeds), max(components), min(pool_size, max(lengths))
        self._order = _shuffled_order(seeds, self.lengths, size)
        self._pool_lengths = self.lengths.clamp(max=size)
        self._position = torch.arange(size, device=device)
        self.pool_mask = self._position < self._pool_lengths  # [R, P]: a short run fills its pool only in part

        self._pool = torch.zeros(runs, size, dtype=torch.int64, device=device)
        # One running sum per run through all its clusters, [R, K * P]: cluster z is the stretch between its ends, so
        # that both draws are searches in place. float64 carries 10^7 rows to 1e-9 of a row, float32 would lose rows.
        self._cumulative = torch.zeros(runs, clusters * size, dtype=torch.float64, device=device)
        self._started = torch.zeros(runs, 1, dtype=torch.bool, device=device)

    @property
    def holds_all_rows(self) -> bool:
        """Whether every refresh looks at the same rows: all of them."""
        return self._order is None

    @property
    def weights(self) -> Tensor:
        """p [R, K] of the last refresh (zeros before the first)."""
        ends = self._ends()
        return ends.diff(dim=1, prepend=torch.zeros_like(ends[:, :1])) / ends[:, -1:].clamp(min=1e-300)

    def pool_rows(self, refresh_index: int) -> Tensor:
        """The rows a refresh looks at, [R, P] indices into the buffer; where `pool_mask` is False, a repeated row."""
        position = (refresh_index * self._pool_lengths + self._position) % self.lengths
        return self.offsets + (position if self._order is None else self._order.gather(1, position))

    def refresh(
        self,
        responsibilities: Tensor,
        refresh_index: int,
        failed: Tensor | None = None,
        row_weights: Tensor | None = None,
    ) -> None:
        """Take up the responsibilities [R, P, K] of `pool_rows(refresh_index)` (one-hot ones: hard clusters).

        failed: [R], runs whose fit could not be done; they keep drawing as before. row_weights: w_i [R, n] of each
        run's own rows; without, all are 1.
        """
        pool = self.pool_rows(refresh_index)
        weights = torch.where(self.pool_mask.unsqueeze(2), responsibilities.double(), 0)
        if row_weights is not None:
            weights = weights * row_weights.gather(1, pool - self.offsets).unsqueeze(2)
        cumulative = weights.transpose(1, 2).flatten(1).cumsum(1)
        fresh = torch.ones_like(self._started) if failed is None else ~failed.unsqueeze(1)
        self._cumulative.copy_(torch.where(fresh, cumulative, self._cumulative))
        self._pool.copy_(torch.where(fresh, pool, self._pool))
        self._started.copy_(self._started | fresh)

    def rows(self, streams: Streams, batch_size: int) -> tuple[Tensor, Tensor]:
        """Row indices into the buffer [R, B] with replacement, and the cluster z [R] they come from.

        Before a run's first refresh: all its rows uniformly, z = 0.
        """
        keys = streams.keys("c4/cluster"), streams.keys("c4/rows")
        tables = self._cumulative, self._pool, self._started, self.offsets, self.lengths
        return cluster_rows(*keys, streams.step, batch_size, *tables)

    def state(self) -> dict[str, Tensor]:
        """The tables of the last refresh, for a checkpoint."""
        return {"cumulative": self._cumulative, "pool": self._pool, "started": self._started}

    def _ends(self) -> Tensor:
        """Where each cluster's stretch of the running sum ends, [R, K]."""
        size = self._pool.shape[1]
        return self._cumulative[:, size - 1 :: size].contiguous()


def _shuffled_order(seeds: Sequence[int], lengths: Tensor, pool_size: int) -> Tensor | None:
    """A permutation of each run's rows, [R, N_max]; None where every run fits in its pool."""
    longest, step = int(lengths.max()), torch.zeros((), dtype=torch.int64, device=lengths.device)
    if longest <= pool_size:
        return None
    key = torch.full((len(seeds), longest), 2.0, dtype=torch.float64, device=lengths.device)
    # run by run: what is drawn depends on how many are drawn, and must not depend on a longer run in the stack
    for run, (seed, length) in enumerate(zip(seeds, lengths.flatten().tolist(), strict=True)):
        if length > pool_size:
            key[run, :length] = uniform_48(Streams([seed], step).keys("c4/pool"), step, length)[0]
        else:  # a run that fits in its pool keeps its order
            key[run, :length] = torch.arange(length, device=lengths.device) / length
    return key.argsort(1).int()
