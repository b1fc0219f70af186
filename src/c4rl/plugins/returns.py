"""Rows of better trajectories more often (return weighting, Hong et al., 2023), fair to cut trajectories."""

from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.options import Options, PerRun, option
from c4rl.plugins.seams import Host, Plugin, Sampler

EXTRAPOLATED = 0.3  # of the longest trajectory
SHORTEST = 0.02  # of the longest trajectory: a shorter one says nothing about a behaviour
START_SPREAD = 0.5  # of the variance of all observations: 0 to 0.2 in locomotion data, 0.55 to 1.2 in mazes
STEP = 1.1  # by which the temperature rises until enough rows are left


@dataclass(frozen=True)
class ReturnsConfig(Options):
    return_temperature: PerRun = option(0.1, above=0, at_most=1e6)
    """T: a trajectory's rows are drawn in proportion to exp((G - best G) / (T scale)), where G is its return and scale
    the larger of |best G| and the returns' range."""
    return_top: PerRun = option(0.0, at_least=0, below=1)
    """Trajectories within this share of the best return are drawn as often as the best."""
    return_floor: PerRun = option(0.0, at_least=0, at_most=1)
    """Share of the batch that is drawn uniformly from all rows."""
    return_rows: PerRun = option(0.0, at_least=0, at_most=1)
    """Keep at least this share of all rows in effect, counted as (sum w)² / sum w²: T rises until it is reached."""
    return_starts: PerRun = option(START_SPREAD, at_least=0, at_most=1e6)
    """Draw all rows alike if the variance of first observations is this share of all observations' variance or more
    (median over dimensions): returns compare behaviours only if trajectories start alike."""
    return_cut: float = option(EXTRAPOLATED, at_least=0, at_most=1)
    """A trajectory without a terminal and with at least this share of the longest one's length counts as cut: its mean
    reward extrapolates its return to that length. 1: off."""
    weighted_rows: Literal["actor", "all"] = "actor"
    """Whose batches are drawn by return: only the actor's, or the critics' too."""


class Returns(Plugin):
    mixes_datasets = True

    def __init__(self, config: ReturnsConfig) -> None:
        self.config = config

    @classmethod
    def check(cls, options: ReturnsConfig, algorithm: type[Host], algorithm_options: Any) -> None:
        if options.weighted_rows == "actor" and not algorithm.has_actor_term:
            raise InputError(
                f"--weighted-rows: found actor, expected all: {algorithm.__name__} trains no actor where plug-ins act"
            )

    def row_weights(self, buffer: TransitionBuffer) -> Tensor | None:
        return None if self.chooses_actor_rows else self._weights(buffer)

    def attach(self, algorithm: Host, buffer: TransitionBuffer) -> None:
        self._buffer = buffer
        if self.chooses_actor_rows:
            self._actor_weights = self._weights(buffer)

    def actor_sampler(self) -> Sampler | None:
        return self._buffer.sampler("returns/rows", self._actor_weights) if self.chooses_actor_rows else None

    @property
    def chooses_actor_rows(self) -> bool:
        return self.config.weighted_rows == "actor"

    def metrics(self) -> dict[str, Tensor]:
        return {"effective_rows": self._effective_rows}

    def _weights(self, buffer: TransitionBuffer) -> Tensor:
        """[R, n]"""
        names = ("return_temperature", "return_top", "return_floor", "return_rows", "return_starts")
        runs, dtype = len(buffer.lengths), buffer.packed.dtype
        values = (torch.as_tensor(getattr(self.config, name), dtype=dtype).cpu() for name in names)
        settings = torch.stack([value.expand(runs) for value in values], 1)
        out = torch.zeros(runs, int(buffer.lengths.max()), dtype=torch.float64)
        spans = zip(buffer.offsets.tolist(), buffer.lengths.tolist(), settings.double().tolist(), strict=True)
        known: dict[Any, Tensor] = {}
        for run, (start, length, (*values, most)) in enumerate(spans):
            key = start, length, *values, most
            if key not in known:
                rows = buffer.unpack(buffer.packed[start : start + length].cpu())
                ids = buffer.trajectory_ids[start : start + length].long().cpu()
                trajectories = rows.rewards.double(), rows.continues == 0, ids
                known[key] = torch.ones(length, dtype=dtype) / length
                if spread_of_starts(rows.observations.double(), ids) < most:
                    known[key] = weights_of_rows(*trajectories, *values, cut=self.config.return_cut)
            out[run, :length] = known[key]
        self._effective_rows = (1 / out.square().sum(1)).to(buffer.packed)
        return out.to(buffer.packed.device)


def spread_of_starts(observations: Tensor, ids: Tensor) -> float:
    """The variance of trajectories' first observations over that of all, median over dimensions that vary. Trajectories
    too short to be judged do not count; infinite where one is left."""
    length = torch.bincount(ids)
    first = (length.cumsum(0) - length)[length >= SHORTEST * length.max()]
    variance = observations.var(0, unbiased=False)
    varies = variance > 1e-12
    if len(first) < 2 or not varies.any():
        return torch.inf
    return float((observations[first].var(0, unbiased=False)[varies] / variance[varies]).median())


def fair_returns(rewards: Tensor, terminals: Tensor, ids: Tensor, share: float = EXTRAPOLATED) -> tuple[Tensor, Tensor]:
    """The return and the length of each trajectory, [trajectories]; those too short to be judged have -inf.

    A trajectory without a terminal was cut: its return is what its mean reward gives over the longest trajectory, if it
    has this share of its length.
    """
    count = int(ids[-1]) + 1
    length = torch.bincount(ids, minlength=count).double()
    returns = torch.zeros(count, dtype=torch.float64).index_add_(0, ids, rewards)
    ended = torch.zeros(count, dtype=torch.float64).index_add_(0, ids, terminals.double()) > 0
    longest = length.max()
    cut = ~ended & (length >= share * longest)
    returns = torch.where(cut, returns * longest / length, returns)
    return torch.where(length >= SHORTEST * longest, returns, -torch.inf), length


def weights_of_rows(
    rewards: Tensor,
    terminals: Tensor,
    ids: Tensor,
    temperature: float,
    top: float,
    floor: float,
    rows: float,
    *,
    cut: float = EXTRAPOLATED,
) -> Tensor:
    """How often each row is drawn, [n], summing to 1."""
    returns, length = fair_returns(rewards, terminals, ids, cut)
    judged = returns[returns.isfinite()]
    best = judged.max()
    scale = max(abs(float(best)), float(best - judged.min())) or 1.0
    below = (best - top * scale - returns).clamp(min=0) / scale  # 0 for the best, inf for the short ones

    def weights(temperature: float) -> Tensor:
        return torch.exp(-below / temperature)[ids]

    w = weights(temperature)
    while w.sum().square() / w.square().sum() < min(rows * len(w), 0.99 * float(length[returns.isfinite()].sum())):
        temperature *= STEP
        w = weights(temperature)
    w = w / w.sum()
    return (1 - floor) * w + floor / len(w)
