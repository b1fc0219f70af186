"""Statistics of scores, as pure functions on arrays [..., runs, tasks]: one row per seed, one column per task.

Differences between methods on little data are as large as those between seeds, so every mean comes with an interval.
Point estimates and the bootstrap follow Agarwal et al. (2021), whose rliable is the oracle of the tests.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from c4rl.core.array import Array

LEVEL = 0.95  # of every interval


class Interval(NamedTuple):
    low: Any  # a number, or an array where the statistic is one
    high: Any


def mean(scores: Array) -> Any:
    return np.mean(scores, axis=(-2, -1))


def interquartile_mean(scores: Array) -> Any:
    """The mean of the middle half of all runs of all tasks: a lucky or lost run moves it little."""
    ordered = np.sort(_pooled(scores), axis=-1)
    cut = ordered.shape[-1] // 4
    return ordered[..., cut : ordered.shape[-1] - cut].mean(-1)


def _pooled(scores: Array) -> Array:
    """All runs of all tasks, [..., runs * tasks]."""
    return scores.reshape(*scores.shape[:-2], -1)


def probability_of_improvement(scores: Array, others: Array) -> Any:
    """P(a run of the first beats a run of the second), ties counting half, averaged over tasks."""
    differences = scores[..., :, None, :] - others[..., None, :, :]
    return np.mean((np.sign(differences) + 1) / 2, axis=(-3, -2, -1))


def performance_profile(scores: Array, thresholds: Array) -> Array:
    """The share of runs that score above each threshold, [..., thresholds]."""
    return np.mean(_pooled(scores)[..., None, :] > np.asarray(thresholds)[:, None], axis=-1)


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Spearman's: the correlation of ranks, equal values sharing their mean rank; 0 where one of them never changes."""
    ranks = []
    for values in (np.asarray(first, float), np.asarray(second, float)):
        below = (values[:, None] > values).sum(1)
        equal = (values[:, None] == values).sum(1)
        ranks.append(below + (equal - 1) / 2)
    x, y = (rank - rank.mean() for rank in ranks)
    spread = math.sqrt(float(x @ x) * float(y @ y))
    return float(x @ y) / spread if spread > 0 else 0.0


def mean_interval(scores: Array) -> Interval:
    """The interval of the mean of [runs] or [runs, tasks]; infinite for fewer than two runs."""
    return weighted_interval((scores, 1.0))


def difference_interval(scores: Array, others: Array) -> Interval:
    """The interval of the difference between two means, likewise."""
    return weighted_interval((scores, 1.0), (others, -1.0))


def weighted_interval(*parts: tuple[Array, float | Array]) -> Interval:
    """The interval of Σ weight · mean(scores); scores: [runs] or [runs, tasks], weight: a number, or one for each task.

    Student's interval of one mean, Welch's of a difference. Spreads of tasks differ too: Satterthwaite's degrees of
    freedom are for both. With two or three runs it still covers only 90 to 93% where one task varies ten times as much
    as the others.
    """
    means, variances, freedoms = [], [], []  # of each task
    for scores, weight in parts:
        if (runs := len(scores)) < 2:
            return Interval(-math.inf, math.inf)
        columns = np.reshape(scores, (runs, -1))
        tasks = columns.shape[1]
        weights = np.broadcast_to(weight, tasks) / tasks
        means.append(weights * columns.mean(0))
        variances.append(weights**2 * columns.var(0, ddof=1) / runs)
        freedoms.append(np.full(tasks, runs - 1))
    centre, variance = float(np.concatenate(means).sum()), np.concatenate(variances)
    if not variance.any():
        return Interval(centre, centre)
    freedom = float(variance.sum() ** 2 / (variance**2 / np.concatenate(freedoms)).sum())
    half = student_quantile((1 + LEVEL) / 2, round(freedom, 6)) * math.sqrt(variance.sum())
    return Interval(centre - half, centre + half)


def bootstrap_interval(
    statistic: Callable[..., Any],
    *scores: Array,
    repetitions: int = 2000,
    seed: int = 0,
    corrected: bool = True,
) -> Interval:
    """The interval of a statistic of one or more arrays [runs, tasks], resampling the runs of every task apart.

    n runs drawn with replacement vary less than n new runs would, by sqrt((n - 1) / n). `corrected` widens the
    percentile interval by that; without, it is the usual one, too narrow for few seeds. Where one
    task varies more than the others, three seeds are too few for either: means have `mean_interval`.
    """
    random = np.random.default_rng(seed)
    drawn = (np.take_along_axis(s[None], random.integers(0, len(s), (repetitions, *s.shape)), axis=1) for s in scores)
    low, high = np.quantile(statistic(*drawn), [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    runs = min(len(s) for s in scores)
    if corrected and runs > 1:
        centre, wider = statistic(*scores), math.sqrt(runs / (runs - 1))
        low, high = centre + (low - centre) * wider, centre + (high - centre) * wider
    return Interval(low, high)


@cache
def student_quantile(probability: float, freedom: float) -> float:
    """The quantile of Student's t distribution, above its median."""
    log_density = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - 0.5 * math.log(freedom * math.pi)
    # t = tan(θ) sqrt(freedom) makes the density a power of cos(θ), which is integrated on a grid
    angle = np.linspace(0, math.pi / 2, 20_001)
    density = math.exp(log_density) * math.sqrt(freedom) * np.cos(angle) ** (freedom - 1)
    mass = 0.5 + np.concatenate([[0], np.cumsum((density[1:] + density[:-1]) / 2 * np.diff(angle))])
    return float(np.tan(np.interp(probability, mass, angle)) * math.sqrt(freedom))
