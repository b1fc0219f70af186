"""Re-clustering: gradients of the pool -> mixture -> single-cluster batches, and what is reported of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from c4rl.c4.cluster_sampler import ClusterSampler
from c4rl.c4.cross_covariance import monitor
from c4rl.c4.feature_gradients import Mode
from c4rl.c4.gaussian_mixture import CovarianceKind, Failure, Fit, Mixture, fit, kmeans_start
from c4rl.c4.principal_directions import Projection, principal_directions
from c4rl.random import Streams

# rows [R, n] of the buffer -> g' and g [R, n, m], and which have a valid next action [R, n]
PoolGradients = Callable[[Tensor], tuple[Tensor, Tensor, Tensor]]
CHUNK = {"cpu": 1024, "cuda": 8192}  # rows per forward pass: a layer's activations fit the CPU's cache


@dataclass(frozen=True)
class ClusteringConfig:
    K: int = 5
    """Clusters."""
    period: int = 200
    """Critic updates between two clusterings."""
    mode: Mode = "proxy"
    """Gradients of Q with respect to its input (exact), or penultimate features (proxy)."""
    sampler: Literal["soft", "hard", "uniform"] = "soft"
    """Rows of a batch: with weights r_iz, by arg-max label, or from all rows (penalty alone)."""
    covariance: CovarianceKind = "full"
    """Of the mixture's components."""
    mixture_start: Literal["warm", "cold"] = "warm"
    """Each fit starts from the last one, or from k-means++."""
    em_steps: int = 3
    """EM steps per fit; the first fit and cold ones take ten."""
    directions: int | None = 16
    """Proxy mode: principal directions of g' and of g each, on which the mixture is fitted; None: all."""
    pool: int = 50_000
    """Rows per fit; larger data are walked through pool by pool."""
    drop_small: bool = False
    """Authors' release: clusters below max(256, N // max(K, 10)) rows are not drawn from."""
    next_features: Literal["target", "online"] = "target"
    """Network that gives g' when clustering (authors' release: online)."""
    average_critics: bool = False
    """Authors' release: at each clustering both critics are overwritten by their average."""


COLD_STEPS = 10


class Clustering:
    """The mixture of a stack, its sampler and its report. All tensors are written in place."""

    def __init__(
        self,
        config: ClusteringConfig,
        seeds: Sequence[int],
        offsets: Sequence[int],
        lengths: Sequence[int],
        device: torch.device,
    ) -> None:
        """Run r owns the rows offsets[r] ... offsets[r] + lengths[r] - 1 of a buffer."""
        self.config, runs = config, len(seeds)
        self.tables = ClusterSampler(
            seeds,
            offsets,
            lengths,
            [config.K] * runs,
            assignment="hard" if config.sampler == "hard" else "soft",
            drop_small=config.drop_small,
            pool_size=config.pool,
            device=device,
        )
        self.cluster = torch.zeros(runs, dtype=torch.int64, device=device)  # z of the batch at hand
        self.components = torch.full((runs,), config.K, dtype=torch.int64, device=device)
        self.failed_at = torch.full((runs,), -1, dtype=torch.int64, device=device)
        self.failure = torch.zeros(runs, dtype=torch.int64, device=device)
        self.last_index = 0
        self.mixture: Mixture | None = None
        self.projections: tuple[Projection, Projection] | None = None
        self.responsibilities: Tensor | None = None  # of the last refresh, [R, P, K]
        self.gradients: Tensor | None = None  # g of the last refresh in the mixture's coordinates, [R, P, d]

    # -- drawing

    def rows(self, streams: Streams, batch_size: int) -> Tensor:
        rows, cluster = self.tables.rows(streams, batch_size)
        self.cluster.copy_(cluster)
        return rows

    # -- fitting

    @torch.no_grad()
    def refresh(self, gradients: PoolGradients, streams: Streams, step: int) -> dict[str, Tensor]:
        """Fit the mixture to the gradients of the pool's rows; what is reported, [R] each."""
        config = self.config
        index = self.last_index = step // config.period
        pool, mask = self.tables.pool_rows(index), self.tables.pool_mask
        chunks = [gradients(rows) for rows in pool.split(CHUNK.get(pool.device.type, 1024), dim=1)]
        g_next, g, valid = (torch.cat(parts, 1) for parts in zip(*chunks, strict=True))
        valid &= mask
        projections = self._projections(g_next, g, valid, mask)
        y = self._coordinates(g_next, g, projections)
        if config.mixture_start == "warm" and self.mixture is not None:
            start = self.mixture.responsibilities(self._coordinates(g_next, g, self.projections), valid)
            steps = config.em_steps
        else:
            start = kmeans_start(y, streams, self.components, config.K, valid)
            steps = COLD_STEPS
        found = fit(y, start, valid, covariance=config.covariance, steps=steps)
        newly = found.failed & (self.failed_at < 0)
        self.failed_at.copy_(torch.where(newly, step, self.failed_at))
        self.failure.copy_(torch.where(newly, found.failure, self.failure))
        self.tables.refresh(found.responsibilities, index, found.failed)
        self._keep(found.mixture, projections)
        self.responsibilities = found.responsibilities
        self.gradients = y[..., y.shape[2] // 2 :]
        return self._report(g_next, g, valid, found, projections)

    def _projections(
        self, g_next: Tensor, g: Tensor, valid: Tensor, mask: Tensor
    ) -> tuple[Projection, Projection] | None:
        count = self.config.directions
        if self.config.mode == "exact" or count is None or count >= g.shape[2]:
            return None
        return principal_directions(g_next, count, valid), principal_directions(g, count, mask)

    @staticmethod
    def _coordinates(g_next: Tensor, g: Tensor, projections: tuple[Projection, Projection] | None) -> Tensor:
        """y = [g', g] as the mixture sees it, [R, P, D]."""
        if projections is None:
            return torch.cat([g_next, g], dim=2)
        return torch.cat([projections[0](g_next), projections[1](g)], dim=2)

    def _keep(self, mixture: Mixture, projections: tuple[Projection, Projection] | None) -> None:
        """Take up the fit in place (a captured graph reads these tensors); a failed run's are replaced all the same."""
        if self.mixture is None:
            self.mixture = Mixture(*(t.clone() for t in mixture))
            if projections is not None:
                next_side, side = projections
                self.projections = Projection(*(t.clone() for t in next_side)), Projection(*(t.clone() for t in side))
            return
        for kept, new in zip(self.mixture, mixture, strict=True):
            kept.copy_(new)
        if projections is not None and self.projections is not None:
            for kept_side, new_side in zip(self.projections, projections, strict=True):
                for kept, new in zip(kept_side, new_side, strict=True):
                    kept.copy_(new)

    # -- reporting

    def _report(
        self, g_next: Tensor, g: Tensor, valid: Tensor, found: Fit, projections: tuple[Projection, Projection] | None
    ) -> dict[str, Tensor]:
        split = monitor(g_next, g, valid, found.responsibilities)
        weights = self.tables.weights.sort(1, descending=True).values
        out = {"c4_effective_K": found.mixture.effective_clusters()}
        out |= {f"c4_cluster_{z}": weights[:, z] for z in range(weights.shape[1])}
        names = ("within_trace", "between_trace", "within_frobenius", "between_frobenius")
        out |= {f"c4_{name}": split[name] for name in names}
        if projections is not None:
            out |= {
                "c4_kept_variance_next": projections[0].kept_variance,
                "c4_kept_variance": projections[1].kept_variance,
            }
        return out

    def failures(self) -> dict[int, tuple[int, str]]:
        out = {}
        for run, (step, code) in enumerate(zip(self.failed_at.tolist(), self.failure.tolist(), strict=True)):
            if step >= 0:
                reasons = " and ".join(reason.name.lower().replace("_", " ") for reason in Failure(code) if reason.name)
                out[run] = (step, f"the Gaussian mixture could not be fitted ({reasons})")
        return out

    def state(self) -> dict[str, Tensor]:
        """Names depend on the options alone. Call it after the first refresh."""
        assert self.mixture is not None
        out = {f"sampler.{name}": tensor for name, tensor in self.tables.state().items()}
        out |= {f"mixture.{name}": tensor for name, tensor in self.mixture._asdict().items()}
        for side, projection in zip(("next", "now"), self.projections or (), strict=False):
            out |= {f"projection.{side}.{name}": tensor for name, tensor in projection._asdict().items()}
        return out | {"cluster": self.cluster}
