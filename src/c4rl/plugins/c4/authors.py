"""What the authors' release does and the paper does not say, each behind a switch (`--preset authors` has them on)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.networks import Critic
from c4rl.core.options import Options
from c4rl.core.random import Streams
from c4rl.plugins.c4.gaussian_mixture import CovarianceKind, Fit, fit, kmeans_start

STATE_ACTION_STEPS = 100  # scikit-learn's limit, which the release leaves as it is


@dataclass(frozen=True)
class AuthorsConfig(Options):
    initial_clusters: Literal["gradients", "state_action"] = "gradients"
    """What the first clusters group: gradients, like all later ones, or (authors' release) [s, a], each cluster drawn
    equally often."""
    trajectory_tails: bool = False
    """Authors' release: a cluster also holds what follows its last member in a trajectory; needs --sampler hard."""
    drop_small: bool = False
    """Authors' release: clusters of fewer than max(256, N // max(K, 10)) rows are not drawn from."""
    next_features: Literal["target", "online"] = "target"
    """Network that gives g' when clustering (authors' release: online)."""
    average_critics: bool = False
    """Authors' release: at each clustering both critics are overwritten by their average."""
    zero_next_actions: bool = False
    """Authors' release: from the second clustering on, the penalty sees a' = 0."""
    mask_invalid: bool = True
    """Leave rows without a valid next action out of the penalty and of the mixture's fit (the authors' release keeps
    them)."""


class AuthorsRelease:
    """The switches at work. With all of them off, nothing is changed."""

    def __init__(self, config: AuthorsConfig, buffer: TransitionBuffer, dtype: torch.dtype) -> None:
        self.config, self.buffer = config, buffer
        self.trajectories = int(buffer.trajectory_ids.max()) + 1
        self.next_actions_kept = torch.ones(len(buffer.lengths), dtype=dtype, device=buffer.packed.device)  # 0: lost

    # -- what the critics see

    def clustered(self, batch: Batch) -> Batch:
        """A batch as the mixture sees it."""
        return batch if self.config.mask_invalid else batch._replace(next_valid=torch.ones_like(batch.next_valid))

    def penalised(self, batch: Batch) -> Batch:
        """A batch as the penalty sees it."""
        batch = self.clustered(batch)
        if not self.config.zero_next_actions:
            return batch
        kept = torch.ones_like(batch.next_state_actions)
        kept[..., self.buffer.widths[0] :] = self.next_actions_kept.view(-1, 1, 1)
        return batch._replace(next_state_actions=batch.next_state_actions * kept)

    def before_clustering(self, critic: Critic) -> None:
        """What the release does at every clustering but the first."""
        if self.config.zero_next_actions:
            self.next_actions_kept.zero_()
        if self.config.average_critics:
            average_members(critic)

    # -- what the clusters hold

    def first_clusters(
        self, pool: Tensor, mask: Tensor, components: Tensor, covariance: CovarianceKind, streams: Streams
    ) -> Fit | None:
        """The mixture of [s, a] that the first batches are drawn from instead; pool and mask [R, P]."""
        if self.config.initial_clusters == "gradients":
            return None
        x = self.buffer.gather(pool).state_actions
        start = kmeans_start(x, streams, components, int(components.max()), mask)
        return fit(x, start, mask, covariance=covariance, steps=STATE_ACTION_STEPS)

    def members(self, weights: Tensor, pool: Tensor, mask: Tensor, components: Tensor, first: bool) -> Tensor:
        """The rows' weights in each cluster [R, P, K]: of equal clusters (the first ones), or with tails and without
        small clusters."""
        if first and self.config.initial_clusters == "state_action":
            return weights / weights.sum(1, keepdim=True).clamp_min(torch.finfo(weights.dtype).tiny)
        if self.config.trajectory_tails:
            trajectories = self.buffer.trajectory_ids[pool]
            tailed = with_trajectory_tails(weights > 0, trajectories, pool, self.trajectories)
            weights = (tailed & mask.unsqueeze(2)).to(weights.dtype)  # what fills up a short run's pool counts nowhere
        return without_small_clusters(weights, mask, components) if self.config.drop_small else weights


@torch.no_grad()
def average_members(critic: Critic) -> None:
    """Overwrite both critics by the average of their parameters."""
    for p in critic.parameters():
        p.copy_(p.mean(1, keepdim=True).expand_as(p).clone())


def with_trajectory_tails(members: Tensor, trajectories: Tensor, rows: Tensor, trajectory_count: int) -> Tensor:
    """members [R, P, K] bool, with what follows a cluster's last member in each trajectory that it touches.

    trajectories [R, P]: the trajectory of each row, below trajectory_count. rows [R, P]: the rows' places in the logged
    order, in which they need not be given (a pool is shuffled). Clusters overlap then: one that holds the first rows of
    every trajectory, and none after them, becomes the whole data.
    """
    runs, _, clusters = members.shape
    place = rows.unsqueeze(2)
    trajectory = trajectories.long().unsqueeze(2).expand(-1, -1, clusters)
    last = place.new_full((runs, trajectory_count, clusters), -1)
    last = last.scatter_reduce(1, trajectory, torch.where(members, place, -1), "amax").gather(1, trajectory)
    return members | ((last >= 0) & (place > last))


def without_small_clusters(weights: Tensor, mask: Tensor, components: Tensor) -> Tensor:
    """weights [R, P, K], 0 in clusters of fewer than max(256, N // max(K, 10)) rows, unless a run would lose them all.

    mask [R, P]: the N rows of each run's pool. components [R]: its K.
    """
    limit = (mask.sum(1) // components.clamp(min=10)).clamp(min=256).unsqueeze(1)
    large = weights.sum(1, dtype=torch.float64) >= limit
    return weights * (large | ~large.any(1, keepdim=True)).unsqueeze(1)


def dot_product(g_next: Tensor, g: Tensor, weight: Tensor, count: Tensor) -> Tensor:
    """The release's penalty, the mean <g', g> [...]: uncentred, not squared. weight [..., B, 1], their sum count."""
    return (g_next.detach() * weight * g).sum((-2, -1)) / count.squeeze((-2, -1)).clamp_min(1)
