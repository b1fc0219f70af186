"""Styles: trajectories as a mixture of m behaviour policies μ_i, fitted by EM (SORL, Mao et al., 2024).

E-step: posteriors p̂(z=i|τ) of whole trajectories. M-step: posterior-weighted behaviour cloning of the μ_i.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.networks import Stack, StackedMLP
from c4rl.core.ops.tanh_gaussian import log_normal_density
from c4rl.core.optimizers import FlatAdam
from c4rl.core.options import Options, option
from c4rl.core.random import Streams
from c4rl.plugins.c4.gaussian_mixture import kmeans_start

SHORT = 5  # trajectories of fewer steps say nothing about who acted: every style is equally likely
LOWEST_LOG_STD = -5.0
PRIOR_STEP = 0.5  # the prior moves this far towards the mean posterior at each E-step
PRIOR_FLOOR = 0.2  # of an equal share: no style becomes impossible
CHUNK = {"cpu": 1024, "cuda": 8192}  # rows per forward pass of an E-step


@dataclass(frozen=True)
class StyleConfig(Options):
    """Options of the EM over trajectories."""

    styles: int = option(3, at_least=1, at_most=1000)
    """m: behaviour policies that the trajectories are a mixture of."""
    trajectories_per_style: int = option(3, at_least=1, at_most=1e9)
    """Trajectories (of five steps or more) that a style needs: datasets with few of them get fewer styles."""
    style_rounds: int = option(20, at_least=1, at_most=1e6)
    """EM rounds."""
    style_steps: int = option(200, at_least=1, at_most=1e9)
    """Gradient steps of an M-step, one per round."""
    style_batch_size: int = option(256, at_least=2, at_most=1e6)
    """Rows per gradient step and run."""
    style_lr: float = option(3e-4, above=0, at_most=1)
    """Adam's step size for the behaviour policies."""
    style_layers: int = option(2, at_least=1, at_most=100)
    """Hidden layers of the trunk that the behaviour policies share."""
    style_width: int = option(256, at_least=1, at_most=100_000)
    """Units per hidden layer of that trunk."""
    style_temperature: float = option(0.05, above=0, at_most=1e6)
    """T of the E-step, softmax(log p_i + l_i / T) with l_i the mean log-likelihood per step. High ones merge all styles
    into one: on hopper-medium-expert in two of eight random starts with T = 0.1, in none with T = 0.05."""
    style_least_share: float = option(0.5, at_least=0, below=1)
    """In the first half of the rounds, a style with less than this part of an equal share restarts from the largest
    one; 0: never."""
    style_rows: int = option(200_000, at_least=1, at_most=1e9)
    """Rows that an E-step uses; of larger datasets it takes every n-th step of each trajectory."""


class StyleDistributions(NamedTuple):
    """N(mean, std²) per style, mean inside [-1, 1]: logged actions at the bounds stay ordinary ones."""

    mean: Tensor  # [R, B, m, a]
    log_std: Tensor  # [R, B, m, a]

    def log_prob(self, actions: Tensor) -> Tensor:
        """Of actions [R, B, a] under every style, [R, B, m]."""
        normalised = (actions.unsqueeze(2) - self.mean) * (-self.log_std).exp()
        return log_normal_density(normalised, self.log_std).sum(3)


class StylePolicies(nn.Module):
    """m Gaussian policies per run: one trunk, a linear head (mean and log-std) per style, mean = tanh(f_i(s))."""

    def __init__(self, stack: Stack, name: str, hidden: tuple[int, ...], styles: int) -> None:
        super().__init__()
        self.styles, self.action_dim = styles, stack.action_dim
        self.mlp = StackedMLP(stack, name, (stack.observation_dim, *hidden, styles * 2 * stack.action_dim))

    def forward(self, observations: Tensor) -> StyleDistributions:
        """[R, B, s] -> distributions over [R, B, m, a]."""
        mean, log_std = self.by_style(self.mlp(observations)).split(self.action_dim, dim=-1)
        # a smooth clamp to [-5, 0], at first about -0.6: a hard one would leave some heads without a gradient
        return StyleDistributions(torch.tanh(mean), LOWEST_LOG_STD * torch.sigmoid(-2 - log_std))

    def by_style(self, outputs: Tensor) -> Tensor:
        """[..., m · 2a] -> [..., m, 2a], a view."""
        return outputs.unflatten(-1, (self.styles, 2 * self.action_dim))

    def mean_layers(self, style: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Weights [R, in, out] and biases [R, out] of the MLP f_i with i = style [R]."""
        weights, biases = [w[:, 0] for w in self.mlp.weights], [b[:, 0] for b in self.mlp.biases]
        run, a = torch.arange(len(style), device=style.device), self.action_dim
        weights[-1] = self.by_style(weights[-1])[run, :, style, :a]
        biases[-1] = self.by_style(biases[-1])[run, style, :a]
        return weights, biases


class Trajectories:
    """Which rows of the buffer form the trajectories of each run; runs with fewer trajectories are padded."""

    def __init__(self, buffer: TransitionBuffer, most_rows: int) -> None:
        """most_rows: of larger data, every n-th step of each trajectory is looked at."""
        lengths, offsets = buffer.lengths.unsqueeze(1), buffer.offsets.unsqueeze(1)
        position = torch.arange(int(lengths.max()), device=lengths.device)
        inside = position < lengths
        rows = offsets + torch.where(inside, position, 0)
        ids = buffer.trajectory_ids[rows].long()
        self.own_count = (torch.where(inside, ids, -1).amax(1) + 1).tolist()
        self.count = max(self.own_count)
        ids = torch.where(inside, ids, self.count)  # what is not looked at: one more trajectory, dropped
        sizes = self._sizes(ids)
        self.lengths = sizes[:, : self.count]  # [R, T] steps; 0: the run has no such trajectory
        starts = sizes.cumsum(1) - sizes  # ids do not decrease along the rows
        place = position - starts.gather(1, ids)  # in its trajectory, from 0
        looked_at = inside & (place % -(-lengths // most_rows) == 0)
        first = (~looked_at).byte().argsort(dim=1, stable=True)[:, : int(looked_at.sum(1).max())]
        self.rows = rows.gather(1, first)  # [R, E], trajectory after trajectory
        self._segments = self._sizes(torch.where(looked_at, ids, self.count).gather(1, first))

    def means(self, values: Tensor) -> Tensor:
        """Mean over each trajectory of values [R, E, d] at `rows`, [R, T, d] float64; 0 where there is none.

        Summed segment by segment, in the rows' order: atomic additions would not be the same twice.
        """
        sums = torch.segment_reduce(values.double(), "sum", lengths=self._segments, axis=1, unsafe=True)
        return (sums / self._segments.clamp(min=1).unsqueeze(2))[:, : self.count]

    def _sizes(self, ids: Tensor) -> Tensor:
        """Rows of each id, [R, T + 1]."""
        return ids.new_zeros(len(ids), self.count + 1).scatter_add_(1, ids, torch.ones_like(ids))


def of_rows(rows: Tensor, buffer: TransitionBuffer, posteriors: Tensor) -> Tensor:
    """p̂(z=i|τ) [R, T, m] at the trajectories that buffer rows [R, B] belong to, [R, B, m]."""
    ids = buffer.trajectory_ids[rows].long()
    return posteriors.gather(1, ids.unsqueeze(2).expand(-1, -1, posteriors.shape[2]))


class TrajectoryStyles:
    """The EM of R runs. Everything it changes is written in place and part of `state()`."""

    def __init__(self, config: StyleConfig, stack: Stack, buffer: TransitionBuffer, streams: Streams) -> None:
        self.config, self.buffer = config, buffer
        self.trajectories = Trajectories(buffer, config.style_rows)
        self.telling = self.trajectories.lengths >= SHORT  # [R, T]: trajectories that say who acted
        count = (self.telling.sum(1) // config.trajectories_per_style).clamp(1, config.styles)
        self.active = torch.arange(config.styles, device=stack.device) < count.unsqueeze(1)  # [R, m]
        self.equal_share = (self.active / count.unsqueeze(1)).to(stack.dtype)  # [R, m], 0 for styles not in use
        self.policies = StylePolicies(stack, "styles", (config.style_width,) * config.style_layers, config.styles)
        self.optimizer = FlatAdam(self.policies, config.style_lr)
        self.prior = self.equal_share.clone()  # p_i
        # first posteriors: k-means on the trajectories' mean [s, a]
        x = self.trajectories.means(self._at_rows(lambda batch: batch.state_actions))
        start = kmeans_start(x, streams, count, config.styles, self.telling).to(stack.dtype)
        self.posteriors = self._for_short_ones(start)  # [R, T, m] p̂(z=i|τ)

    def of(self, rows: Tensor) -> Tensor:
        """p̂(z=i|τ) of the rows' trajectories, [R, B, m]."""
        return of_rows(rows, self.buffer, self.posteriors)

    def maximisation_step(self, batch: Batch) -> Tensor:
        """One gradient step of the M-step: L = mean Σ_i p̂_i(τ) · -log μ_i(a|s), [R]."""
        assert batch.rows is not None
        log_prob = self.policies(batch.observations).log_prob(batch.actions)
        loss = -(self.of(batch.rows) * log_prob).sum(2).mean(1)
        self.optimizer.step(loss)
        return loss.detach()

    @torch.no_grad()
    def expectation(self, round_: int) -> dict[str, Tensor]:
        """E-step after round `round_` (from 1): p̂ = softmax(log p_i + l_i / T); what is to be logged, [R] each."""
        likelihood = self.log_likelihood()
        logits = self.prior.double().log().unsqueeze(1) + likelihood / self.config.style_temperature
        posteriors = self._for_short_ones(torch.softmax(logits, 2).to(self.prior.dtype))
        revived = torch.zeros_like(self.prior[:, 0])
        if round_ <= self.config.style_rounds // 2:
            posteriors, revived = self._revive_smallest(posteriors, likelihood)
        self.posteriors.copy_(posteriors)
        share = self._shares(posteriors)
        self.prior.lerp_(share, PRIOR_STEP)
        self.prior.copy_(torch.maximum(self.prior, PRIOR_FLOOR * self.equal_share))
        self.prior.div_(self.prior.sum(1, keepdim=True))
        entropy = -(posteriors * posteriors.clamp(min=1e-30).log()).sum(2)
        own = (posteriors * likelihood).sum(2)
        report = {
            "style_entropy": self._telling_mean(entropy),
            "style_log_likelihood": self._telling_mean(own.to(entropy.dtype)),
            "style_revived": revived,
        }
        return report | {f"style_share_{i}": share[:, i] for i in range(self.config.styles)}

    @torch.no_grad()
    def log_likelihood(self) -> Tensor:
        """l_i(τ) = mean over the steps of τ of log μ_i(a|s), [R, T, m] float64."""
        return self.trajectories.means(
            self._at_rows(lambda batch: self.policies(batch.observations).log_prob(batch.actions))
        )

    def fit(self, streams: Streams) -> dict[str, Tensor]:
        """The whole EM at once, on `streams` of its own, whose step it advances; the last round's report."""
        config, report = self.config, dict[str, Tensor]()
        for round_ in range(1, config.style_rounds + 1):
            for _ in range(config.style_steps):
                streams.step.add_(1)
                rows = streams.integers("styles/rows", self.buffer.lengths, config.style_batch_size)
                self.maximisation_step(self.buffer.gather(rows + self.buffer.offsets.unsqueeze(1)))
            report = self.expectation(round_)
        return report

    def state(self) -> dict[str, Tensor]:
        return {"posteriors": self.posteriors, "prior": self.prior}

    # --

    def _at_rows(self, values: Callable[[Batch], Tensor]) -> Tensor:
        rows = self.trajectories.rows
        return torch.cat([values(self.buffer.gather(r)) for r in rows.split(CHUNK.get(rows.device.type, 1024), 1)], 1)

    def _for_short_ones(self, posteriors: Tensor) -> Tensor:
        return torch.where(self.telling.unsqueeze(2), posteriors, self.equal_share.unsqueeze(1))

    def _telling_mean(self, values: Tensor) -> Tensor:
        """Over the trajectories that count: [R, T] -> [R]."""
        return torch.where(self.telling, values, 0).sum(1) / self.telling.sum(1).clamp(min=1)

    def _shares(self, posteriors: Tensor) -> Tensor:
        """Mean posterior [R, m]; equal shares for a run of short trajectories alone."""
        mean = torch.where(self.telling.unsqueeze(2), posteriors, 0).sum(1) / self.telling.sum(1, keepdim=True).clamp(1)
        return torch.where(self.telling.any(1, keepdim=True), mean, self.equal_share)

    def _revive_smallest(self, posteriors: Tensor, likelihood: Tensor) -> tuple[Tensor, Tensor]:
        """Where the smallest style has nearly died out, it becomes a copy of the largest and takes over the half of
        its trajectories that it explains worst. Returns the posteriors and [R] whether."""
        share = self._shares(posteriors)
        smallest = share.masked_fill(~self.active, math.inf).argmin(1)  # [R]
        largest = share.argmax(1)
        run = torch.arange(len(share), device=share.device)
        limit = self.config.style_least_share * self.equal_share[:, 0]
        dead = (share[run, smallest] < limit) & (smallest != largest)

        source = torch.arange(self.config.styles, device=share.device).expand_as(share)  # [R, m]
        reborn = dead.unsqueeze(1) & (source == smallest.unsqueeze(1))
        source = torch.where(reborn, largest.unsqueeze(1), source)
        for tensor in self._head_tensors():
            heads = self.policies.by_style(tensor)  # [R, ..., m, 2a]
            index = source.view(len(share), *(1,) * (heads.dim() - 3), -1, 1).expand_as(heads)
            heads.copy_(heads.gather(-2, index))

        owned = self.telling & (posteriors.argmax(2) == largest.unsqueeze(1))
        explained = likelihood[run, :, largest].masked_fill(~owned, math.inf)
        rank = explained.argsort(dim=1, stable=True).argsort(1)
        moved = (owned & dead.unsqueeze(1) & (rank < owned.sum(1, keepdim=True) // 2)).to(posteriors.dtype)
        taken = (posteriors[run, :, largest] * moved).unsqueeze(2)  # [R, T, 1]
        lost = torch.nn.functional.one_hot(largest, self.config.styles).unsqueeze(1)
        return posteriors + taken * (reborn.long().unsqueeze(1) - lost), dead.to(posteriors.dtype)

    def _head_tensors(self) -> list[Tensor]:
        """The heads' weights and biases, and Adam's moments of them."""
        names = [name for name in self.optimizer.names if name.endswith(f".{len(self.policies.mlp.weights) - 1}")]
        parameters, moments = dict(self.policies.named_parameters()), self.optimizer.state()
        return [t for n in names for t in (parameters[n].data, moments[f"first.{n}"], moments[f"second.{n}"])]
