"""SORL's trajectory styles as a plug-in: C4's single-cluster batches, with styles of trajectories for clusters.

The EM over trajectories runs once, before the first update; then z ~ p_z and rows ~ p̂(z|τ(i)), without any penalty.
It clusters whole trajectories by who acted, where C4 clusters transitions by the critic.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.options import option
from c4rl.core.random import Streams
from c4rl.plugins.c4.cluster_sampler import ClusterSampler
from c4rl.plugins.seams import Host, Plugin, Sampler
from c4rl.plugins.trajectory_styles import StyleConfig, TrajectoryStyles, of_rows


@dataclass(frozen=True)
class StyleSamplerConfig(StyleConfig):
    styles: int = option(5, at_least=1, at_most=1000)
    """m: behaviour policies that the trajectories are a mixture of; as many as C4 has clusters."""
    style_pool: int = option(40_000, at_least=2, at_most=1e9)
    """Rows that batches are drawn from at a time; larger datasets are used pool by pool."""
    style_period: int = option(200, at_least=1, at_most=1e9)
    """Updates between two pools, where there are several."""


class StyleSampler(Plugin):
    """Batches of one style each, for any algorithm."""

    def __init__(self, config: StyleSamplerConfig) -> None:
        self.config = config

    @classmethod
    def clash(cls, other: type[Host] | type[Plugin]) -> str | None:
        if issubclass(getattr(other, "config_type", object), StyleConfig):
            return "find the styles of trajectories"
        return super().clash(other)

    def attach(self, algorithm: Host, buffer: TransitionBuffer) -> None:
        if algorithm.critics is None and algorithm.plugins.choose_actor_rows:
            found = "sorl and another plug-in that chooses the policy's rows"
            raise InputError(f"--plugins: found {found}, expected one of them where there is no critic")
        config, stack = self.config, algorithm.stack
        # the EM counts its own steps: the algorithm's random numbers stay those of a run without the plug-in
        step = torch.zeros((), dtype=torch.int64, device=stack.device)
        self._streams = Streams(list(stack.seeds), step, stack.dtype)
        self._styles = TrajectoryStyles(config, stack, buffer, self._streams)
        self.buffer, self.posteriors = buffer, self._styles.posteriors
        self.tables = ClusterSampler(
            stack.seeds,
            buffer.offsets.tolist(),
            buffer.lengths.tolist(),
            [config.styles] * stack.runs,
            pool_size=config.style_pool,
            device=stack.device,
        )
        self.period = None if self.tables.holds_all_rows else config.style_period
        self.style = torch.zeros(stack.runs, dtype=torch.int64, device=stack.device)  # z of the batch at hand

    def start(self, algorithm: Host) -> None:
        self._styles.fit(self._streams)
        del self._styles  # its policies are not needed any more
        self._take_up_pool(0)

    def sampler(self) -> Sampler:
        return self

    def rows(self, streams: Streams, batch_size: int) -> Tensor:
        rows, style = self.tables.rows(streams, batch_size)
        self.style.copy_(style)
        return rows

    def refresh(self, algorithm: Host, step: int) -> dict[str, Tensor]:
        self._take_up_pool(step // self.config.style_period)
        return {}

    def metrics(self) -> dict[str, Tensor]:
        shares = self.tables.weights.to(self.posteriors.dtype)  # p_z, how often each style is drawn from
        return {f"style_share_{i}": share for i, share in enumerate(shares.unbind(1))}

    def state(self) -> dict[str, Tensor]:
        tables = {f"sampler.{name}": tensor for name, tensor in self.tables.state().items()}
        return tables | {"posteriors": self.posteriors, "style": self.style}

    @torch.no_grad()
    def _take_up_pool(self, index: int) -> None:
        rows = self.tables.pool_rows(index)
        posteriors = of_rows(rows, self.buffer, self.posteriors)
        self.tables.refresh(posteriors, index, row_weights=self.buffer.row_weights)
