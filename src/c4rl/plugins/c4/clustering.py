"""Re-clustering: gradients of the pool -> mixture -> single-cluster batches, and a report."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from c4rl.core.ops.subspace import solved_on_device
from c4rl.core.options import Options, PerRunInt, option
from c4rl.core.random import Streams
from c4rl.plugins.c4.authors import AuthorsRelease
from c4rl.plugins.c4.cluster_sampler import ClusterSampler
from c4rl.plugins.c4.cross_covariance import within_and_between
from c4rl.plugins.c4.feature_gradients import Mode
from c4rl.plugins.c4.gaussian_mixture import CAPTURED_SIZE, CovarianceKind, Failure, Fit, Mixture, fit, kmeans_start
from c4rl.plugins.c4.principal_directions import Projection, principal_directions

# rows [R, n] of the buffer -> g' and g [R, n, m], and which have a valid next action [R, n]
PoolGradients = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
CHUNK = {"cpu": 1024, "cuda": 8192}  # rows per forward pass: a layer's activations fit the CPU's cache


@dataclass(frozen=True)
class ClusteringConfig(Options):
    K: PerRunInt = option(5, at_least=1, at_most=1000)
    """Clusters."""
    period: int = option(200, at_least=1, at_most=1e9)
    """Critic updates between two clusterings."""
    mode: Mode = "proxy"
    """Gradients of Q with respect to its input (exact), or penultimate features (proxy)."""
    sampler: Literal["soft", "hard", "uniform"] = "soft"
    """Rows of a batch: with weights r_iz, by arg-max label, or from all rows (penalty alone)."""
    covariance: CovarianceKind = "full"
    """Covariance of the mixture's components."""
    mixture_start: Literal["warm", "cold"] = "warm"
    """Each fit starts from the last one's responsibilities, or from k-means++."""
    em_steps: int = option(3, at_least=1, at_most=10_000)
    """EM steps per fit; the first fit and those of --mixture-start cold take ten."""
    directions: int | None = option(16, at_least=1, at_most=100_000)
    """Proxy mode: principal directions of g' and of g each, on which the mixture is fitted; None: all."""
    pool: int = option(40_000, at_least=2, at_most=1e9)
    """Rows per fit; larger datasets are used pool by pool."""


COLD_STEPS = 10
FIT_ROWS = 16_384  # of a larger pool, the mixture is fitted on this many rows or fewer,
LOOK_ROWS = 4096  # and directions and the report's covariances, of m x m numbers, are estimated on this many


class Clustering:
    """The mixture of a stack, its sampler and its report. All tensors are written in place."""

    def __init__(
        self,
        config: ClusteringConfig,
        seeds: Sequence[int],
        offsets: Sequence[int],
        lengths: Sequence[int],
        device: torch.device,
        *,
        authors: AuthorsRelease | None = None,
        row_weights: Callable[[], Tensor | None] = lambda: None,
    ) -> None:
        """Run r owns the rows offsets[r] ... offsets[r] + lengths[r] - 1 of a buffer.

        authors: quirks of the authors' release. row_weights: [R, n] of each run's own rows, asked for at each refresh.
        """
        self.config, self.authors, self.row_weights = config, authors, row_weights
        runs = len(seeds)
        components = config.K if isinstance(config.K, Tensor) else torch.full((runs,), config.K)
        self.components = components.to(device, torch.int64)  # K of each run
        self.clusters = int(components.max())  # the largest, for which all have tables
        own = self.components.tolist()
        self.tables = ClusterSampler(seeds, offsets, lengths, own, pool_size=config.pool, device=device)
        # numbers of the host: a checkpoint must not ask the device
        self._own_extents = list(zip(own, self.tables.pool_mask.sum(1).tolist(), strict=True))
        self.cluster = torch.zeros(runs, dtype=torch.int64, device=device)  # z of the batch at hand
        self.failed_at = torch.full((runs,), -1, dtype=torch.int64, device=device)
        self.failure = torch.zeros(runs, dtype=torch.int64, device=device)
        self.last_index = 0
        self.mixture: Mixture | None = None  # of the last fit, as are the next two
        self.projections: tuple[Projection, ...] = ()  # of g' and of g, where y is projected
        self.memberships: Tensor | None = None  # r_iz that the next fit starts from, [R, P, K]
        self.responsibilities: Tensor | None = None  # rows are drawn by them since the last refresh, [R, P, K]

    # -- drawing

    def rows(self, streams: Streams, batch_size: int) -> Tensor:
        rows, cluster = self.tables.rows(streams, batch_size)
        self.cluster.copy_(cluster)
        return rows

    # -- fitting

    def make_room(self, features: int, dtype: torch.dtype) -> None:
        """Tensors for fits to this many features, into which the first fit or a stored state is written."""
        runs, device = len(self.components), self.components.device
        if (count := self._directions(features)) is not None:
            sizes = (runs, features), (runs, features, count), (runs,)
            sides = ((torch.zeros(size, device=device, dtype=dtype) for size in sizes) for _ in range(2))
            self.projections = tuple(Projection(*side) for side in sides)
        dim = 2 * (count or features)
        means = runs, self.clusters, dim
        covariances = means if self.config.covariance == "diagonal" else (*means, dim)
        shapes = means[:2], means, covariances, covariances, (runs, dim), (runs, dim)
        self.mixture = Mixture(*(torch.zeros(shape, device=device, dtype=torch.float64) for shape in shapes))
        if self._carries_over:
            rows = self.tables.pool_mask.shape[1]
            self.memberships = torch.zeros(runs, rows, self.clusters, device=device, dtype=dtype)

    @torch.no_grad()
    def refresh(self, gradients: PoolGradients, streams: Streams, step: int) -> dict[str, Tensor]:
        """Fit the mixture to the gradients of the pool's rows; what is reported, [R] each."""
        config = self.config
        index = self.last_index = step // config.period
        pool, mask = self.tables.pool_rows(index), self.tables.pool_mask
        chunks = [gradients(rows) for rows in pool.split(CHUNK.get(pool.device.type, 1024), dim=1)]
        g_next, g, valid = (torch.cat(parts, 1) for parts in zip(*chunks, strict=True))
        valid &= mask
        if self.mixture is None:
            self.make_room(g.shape[2], g.dtype)
        # the mixture is fitted on every n-th row of a large pool; all its rows get their responsibilities
        fitted = _every(pool.shape[1], FIT_ROWS)
        looked_at = _every(pool.shape[1], LOOK_ROWS)
        projections = self._projections(*(t[:, looked_at] for t in (g_next, g, valid, mask)))
        y = self._coordinates(g_next, g, projections)
        found = self._fit(y[:, fitted], valid[:, fitted], streams, fitted, first=index == 0)
        own = found.responsibilities if fitted.step == 1 else found.mixture.responsibilities(y, valid)
        # of a sound fit, rows that it left out may hold numbers that are not finite
        left_out = (~own.isfinite().flatten(1).all(1)) * int(Failure.NON_FINITE_ROWS)
        failure = torch.where(found.failure == 0, left_out, found.failure)
        drawn = own
        if self.authors is not None and index == 0:
            first = self.authors.first_clusters(pool, mask, self.components, config.covariance, streams)
            if first is not None:
                drawn, failure = first.responsibilities, failure | first.failure
        weights = self._members(drawn, mask)
        if self.authors is not None:
            weights = self.authors.members(weights, pool, mask, self.components, index == 0)
        newly = (failure != 0) & (self.failed_at < 0)
        self.failed_at.copy_(torch.where(newly, streams.step, self.failed_at))
        self.failure.copy_(torch.where(newly, failure, self.failure))
        self.tables.refresh(weights, index, failure != 0, self.row_weights())
        self._keep(found.mixture, projections, own, failure != 0)
        self.responsibilities = weights
        split = within_and_between(*(t[:, looked_at] for t in (g_next, g, valid, own)))
        return self._report(split, found.mixture, projections)

    def _fit(self, y: Tensor, valid: Tensor, streams: Streams, fitted: slice, first: bool) -> Fit:
        """A warm start takes over which row belongs where, not the parameters: features move so much in 200 updates
        that the last parameters see all rows in one cluster (seen on hopper data: five clusters fell to one within 800
        updates). Where the pool holds other rows each time there is nothing to take over, and k-means++ starts anew."""
        config = self.config
        steps = COLD_STEPS if first or config.mixture_start == "cold" else config.em_steps
        if self.memberships is not None and not first:
            start = self.memberships[:, fitted]
        else:
            start = kmeans_start(y, streams, self.components, self.clusters, valid)
        return fit(y, start, valid, covariance=config.covariance, steps=steps)

    @property
    def _carries_over(self) -> bool:
        return self.config.mixture_start == "warm" and self.tables.holds_all_rows

    @property
    def static_refresh(self) -> bool:
        """Whether every refresh after the first runs the same operations and never waits for the host."""
        directions = [side.directions for side in self.projections]
        solved_here = all(solved_on_device(matrix.shape[1], matrix.device) for matrix in directions)
        small = self.mixture is not None and self.mixture.means.shape[2] <= CAPTURED_SIZE
        return self._carries_over and self.config.sampler != "hard" and solved_here and small

    def _members(self, responsibilities: Tensor, mask: Tensor) -> Tensor:
        """The weights of the pool's rows in each cluster, [R, P, K]: r_iz, or 0 and 1."""
        weights = responsibilities
        if self.config.sampler == "hard":
            weights = torch.nn.functional.one_hot(responsibilities.argmax(2), self.clusters).to(responsibilities.dtype)
        return torch.where(mask.unsqueeze(2), weights, 0)

    def _projections(self, g_next: Tensor, g: Tensor, valid: Tensor, mask: Tensor) -> tuple[Projection, ...]:
        count = self._directions(g.shape[2])
        if count is None:
            return ()
        return principal_directions(g_next, count, valid), principal_directions(g, count, mask)

    def _directions(self, features: int) -> int | None:
        """On how many directions so many features are projected; None: on none."""
        count = self.config.directions
        return count if self.config.mode == "proxy" and count is not None and count < features else None

    @staticmethod
    def _coordinates(g_next: Tensor, g: Tensor, projections: tuple[Projection, ...]) -> Tensor:
        """y = [g', g] as the mixture sees it, [R, P, D]."""
        return torch.cat([projections[0](g_next), projections[1](g)] if projections else [g_next, g], dim=2)

    def _keep(self, mixture: Mixture, projections: tuple[Projection, ...], own: Tensor, failed: Tensor) -> None:
        """Take up the fit in place (a captured graph reads these tensors). A failed run keeps what it had: its last
        good state is this one if the first fit failed, and must be finite."""
        assert self.mixture is not None
        pairs = [
            pair
            for kept, new in zip((self.mixture, *self.projections), (mixture, *projections), strict=True)
            for pair in zip(kept, new, strict=True)
        ]
        if self.memberships is not None:
            pairs.append((self.memberships, own))
        for kept, new in pairs:
            kept.copy_(torch.where(failed.view(-1, *[1] * (new.dim() - 1)), kept, new))

    # -- reporting

    def _report(
        self, split: dict[str, Tensor], mixture: Mixture, projections: tuple[Projection, ...]
    ) -> dict[str, Tensor]:
        weights = self.tables.weights.sort(1, descending=True).values
        if isinstance(self.config.K, Tensor):  # a run of fewer clusters has no such numbers
            unused = torch.arange(self.clusters, device=weights.device) >= self.components.unsqueeze(1)
            weights = weights.masked_fill(unused, torch.nan)
        out = {"c4_effective_K": mixture.effective_clusters()}
        out |= {f"c4_cluster_{z}": weights[:, z] for z in range(weights.shape[1])}
        out |= {f"c4_{name}": value for name, value in split.items()}
        names = "c4_kept_variance_next", "c4_kept_variance"
        return out | {name: side.kept_variance for name, side in zip(names, projections, strict=False)}

    def failures(self) -> dict[int, tuple[int, str]]:
        out = {}
        for run, (step, code) in enumerate(zip(self.failed_at.tolist(), self.failure.tolist(), strict=True)):
            if step >= 0:
                reasons = " and ".join(reason.name.lower().replace("_", " ") for reason in Failure(code) if reason.name)
                out[run] = (step, f"the Gaussian mixture could not be fitted ({reasons})")
        return out

    def state(self) -> dict[str, Tensor]:
        """Names depend on the options alone."""
        assert self.mixture is not None
        out = {f"sampler.{name}": tensor for name, tensor in self.tables.state().items()}
        out |= {f"mixture.{name}": tensor for name, tensor in self.mixture._asdict().items()}
        for side, projection in zip(("next", "now"), self.projections, strict=False):
            out |= {f"projection.{side}.{name}": tensor for name, tensor in projection._asdict().items()}
        if self.memberships is not None:
            out["memberships"] = self.memberships
        return out | {"cluster": self.cluster}

    def extents(self, run: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """K and pool length: the run's own, and those of the stack's tables."""
        return self._own_extents[run], (self.clusters, self.tables.pool_mask.shape[1])


def launch_key(config: ClusteringConfig, rows: int) -> tuple[int, int, bool]:
    """Runs on this many rows look at every n-th of them, and meet all of them at every refresh or not."""
    pool = min(rows, config.pool)
    return _every(pool, FIT_ROWS).step, _every(pool, LOOK_ROWS).step, rows <= config.pool


def _every(rows: int, most: int) -> slice:
    """Every n-th of the rows, the least n that leaves no more than `most`."""
    return slice(None, None, -(-rows // most))
