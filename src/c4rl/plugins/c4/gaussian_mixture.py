"""Gaussian mixture on the stacked gradient pairs y = [g', g] (the E- and M-step of Algorithm 1), batched over runs.

`fit` starts from responsibilities: a cold start from `kmeans_start`, a warm start from the last mixture's E-step. That
keeps a warm start exact when the coordinates of y change between fits (other principal directions, other scales).

The fit works on y standardised per dimension; epsilon is in those units. Data keep their dtype, the parameters
(few and small) are float64, so that a float32 fit loses nothing in its factorisations.
"""

import math
from collections.abc import Iterator
from enum import IntFlag
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from c4rl.core.random import Streams

CovarianceKind = Literal["full", "diagonal"]
EFFECTIVE_WEIGHT = 0.02  # the paper counts a cluster as effective above this p_z
_JITTERS = (0.0, 1e-4, 1e-2)  # tried in this order, relative to the component's mean variance
CAPTURED_SIZE = 256  # the most dimensions whose fit a CUDA graph captures: solvers of larger ones may wait
_CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 21}  # K * rows * D per run: the CPU's fits its L2 cache


class Failure(IntFlag):
    """Why a run's fit could not be done; `Failure(code)` names the reasons of a code."""

    NON_FINITE_ROWS = 1  # a valid row of y holds an infinity or a NaN
    TOO_FEW_ROWS_WITH_A_NEXT_ACTION = 2  # fewer than two valid ones
    NOT_POSITIVE_DEFINITE = 4  # a covariance resisted every jitter
    NON_FINITE_PARAMETERS = 8  # weights, means or the likelihood overflowed


class Mixture(NamedTuple):
    """Parameters of R mixtures with K components each, float64; `_asdict()` is their state for a safetensors file.

    A run with fewer than K components has weight 0 in the unused ones.
    """

    weights: Tensor  # [R, K] p_z
    means: Tensor  # [R, K, D] mu_z = [mu'_z, mu_z], standardised
    covariances: Tensor  # [R, K, D, D] Omega_z = [Sigma' C; C^T Sigma], standardised; [R, K, D] when diagonal
    precision_factors: Tensor  # L_z^-1 with Omega_z = L_z L_z^T, shaped like the covariances
    shift: Tensor  # [R, D]
    scale: Tensor  # [R, D]: standardised y = (y - shift) / scale

    def log_prob(self, y: Tensor) -> Tensor:
        """log p(y) = log sum_z p_z N(y | mu_z, Omega_z) in the original units: [R, N, D] -> [R, N]."""
        return self._expectation(y)[1]

    def responsibilities(self, y: Tensor, valid: Tensor | None = None) -> Tensor:
        """E-step: r_iz proportional to p_z N(y_i | mu_z, Omega_z), [R, N, K].

        Rows without a valid next action ([R, N] False) have no g': theirs come from the marginal of g.
        """
        if valid is None:
            return self._expectation(y)[0]
        joint = self._expectation(torch.where(valid.unsqueeze(2), y, 0))[0]
        return torch.where(valid.unsqueeze(2), joint, self.marginal_responsibilities(y[:, :, y.shape[2] // 2 :]))

    def marginal(self) -> "Mixture":
        """The mixture of g alone, the last m = D / 2 dimensions; compute it once per fit where it is used often."""
        m = self.means.shape[2] // 2
        covariances = self.covariances[..., m:] if self._diagonal else self.covariances[..., m:, m:]
        covariances, factors, _ = _factorise(covariances)
        return Mixture(self.weights, self.means[..., m:], covariances, factors, self.shift[:, m:], self.scale[:, m:])

    def marginal_responsibilities(self, g: Tensor) -> Tensor:
        """r_iz proportional to p_z N(g_i | mu_z, Sigma_z): [R, N, m] -> [R, N, K]."""
        return self.marginal().responsibilities(g)

    def effective_clusters(self) -> Tensor:
        """The number of clusters with p_z above 0.02, [R]."""
        return (self.weights > EFFECTIVE_WEIGHT).sum(1)

    @property
    def _diagonal(self) -> bool:
        return self.covariances.dim() == 3

    def _expectation(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Responsibilities [R, N, K] and log-likelihoods [R, N] of y in the original units."""
        z = (y - self.shift.to(y.dtype).unsqueeze(1)) / self.scale.to(y.dtype).unsqueeze(1)
        density, (runs, components) = _Density(self, y.dtype), self.weights.shape
        responsibilities = y.new_empty(runs, components, y.shape[1])
        log_likelihood = y.new_empty(runs, y.shape[1])
        for rows in _chunks(z, components):
            responsibilities[:, :, rows], log_likelihood[:, rows] = density(z[:, rows].unsqueeze(1) - density.means)
        log_scale = self.scale.log().sum(1, keepdim=True)
        return responsibilities.mT, log_likelihood - log_scale.to(y.dtype)


class Fit(NamedTuple):
    """A fitted mixture and how the fit went."""

    mixture: Mixture
    responsibilities: Tensor  # [R, N, K] of the final mixture for every row; from the marginal of g where not valid
    log_likelihood: Tensor  # [R, steps] mean over the valid rows after each M-step, original units
    failure: Tensor  # [R] int64: 0, or `Failure` codes

    @property
    def failed(self) -> Tensor:
        """[R] bool: the run's parameters are those of its last sound M-step, or meaningless if there was none."""
        return self.failure != 0


def fit(
    y: Tensor,
    start: Tensor,
    valid: Tensor | None = None,
    *,
    covariance: CovarianceKind = "full",
    epsilon: float = 1e-4,
    steps: int = 10,
) -> Fit:
    """`steps` M-steps, each followed by an E-step, from the responsibilities `start` [R, N, K] of y [R, N, D].

    valid: [R, N], rows that take part in the fit. A component of less mass than floor = D + 1 rows keeps its mean and
    is pulled towards the covariance of all rows, both with weight 1 - mass / floor: it stays regular down to mass 0,
    and can win rows back. A fit that cannot be done is reported in `failure`.
    """
    taking_part = y.new_ones(y.shape[:2], dtype=torch.bool) if valid is None else valid
    z, shift, scale, failure = _standardise(y, taking_part)
    mask, count = taking_part.unsqueeze(1).to(y.dtype), taking_part.sum(1).clamp(min=1)
    background = (z.mT @ z).double() / count.view(-1, 1, 1)  # the mean of standardised rows is 0
    if covariance == "diagonal":
        background = background.diagonal(dim1=1, dim2=2)

    maximise = partial(_maximisation, background=background.unsqueeze(1), epsilon=epsilon, shift=shift, scale=scale)
    given = start.mT * mask
    mixture, step_failure = maximise(_moments(z, mask, given, _weighted_means(z, given), covariance))
    failure = failure | step_failure
    totals = []
    for _ in range(steps - 1):
        moments = _moments(z, mask, _Density(mixture, y.dtype), mixture.means, covariance)
        totals.append(moments.log_likelihood - count * scale.log().sum(1))  # in original units
        update, step_failure = maximise(moments)
        failure = failure | step_failure
        mixture = _replace_where(failure == 0, update, mixture)

    responsibilities, log_likelihood = mixture._expectation(torch.where(taking_part.unsqueeze(2), y, 0))
    totals.append(torch.where(taking_part, log_likelihood, 0).sum(1, dtype=torch.float64))
    curve = torch.stack(totals, 1) / count.unsqueeze(1)
    failure = failure | (~curve[:, -1].isfinite()) * int(Failure.NON_FINITE_PARAMETERS)
    if valid is not None:
        marginal = mixture.marginal_responsibilities(y[:, :, y.shape[2] // 2 :])
        responsibilities = torch.where(valid.unsqueeze(2), responsibilities, marginal)
    return Fit(mixture, responsibilities, curve, failure)


def kmeans_start(
    y: Tensor, streams: Streams, components: Tensor, maximum: int, valid: Tensor | None = None, *, lloyd_steps: int = 5
) -> Tensor:
    """k-means++ and a few Lloyd steps on standardised y: hard responsibilities [R, N, maximum] to start `fit` from.

    components: [R] int, the K of each run, at most `maximum`; the clusters beyond it stay empty.
    """
    valid = y.new_ones(y.shape[:2], dtype=torch.bool) if valid is None else valid
    z = _standardise(y, valid)[0]
    u = streams.uniform("c4/kmeans++", maximum).double()
    chosen = []
    distance = valid.double()  # the first centre is a row drawn uniformly
    for k in range(maximum):
        cumulative = distance.cumsum(1)
        row = torch.searchsorted(cumulative, u[:, k : k + 1] * cumulative[:, -1:], right=True).clamp(max=z.shape[1] - 1)
        chosen.append(z.gather(1, row.unsqueeze(2).expand(-1, -1, z.shape[2])))
        to_chosen = (z - chosen[-1]).square().sum(2).double() * valid
        distance = to_chosen if k == 0 else torch.minimum(distance, to_chosen)
    centres = torch.cat(chosen, 1)
    unused = torch.arange(maximum, device=y.device) >= components.unsqueeze(1)

    def nearest() -> Tensor:
        score = centres.square().sum(2).masked_fill(unused, math.inf).unsqueeze(1) - 2 * z @ centres.mT
        return torch.nn.functional.one_hot(score.argmin(2), maximum).to(y.dtype)

    for _ in range(lloyd_steps):
        members = (nearest() * valid.unsqueeze(2)).mT
        moved = _weighted_means(z, members).to(y.dtype)
        centres = torch.where(members.sum(2, keepdim=True) > 0, moved, centres)  # an empty cluster stays where it is
    return nearest()


class _Density:
    """log p_z N(z | mu_z, Omega_z) with the parameters cast once to the dtype of the data."""

    def __init__(self, mixture: Mixture, dtype: torch.dtype) -> None:
        self.means = mixture.means.to(dtype).unsqueeze(2)
        self.diagonal = mixture._diagonal
        factors = mixture.precision_factors
        diagonal = factors if self.diagonal else factors.diagonal(dim1=2, dim2=3)
        constant = mixture.weights.log() + diagonal.log().sum(2) - 0.5 * diagonal.shape[2] * math.log(2 * math.pi)
        self.constant = constant.to(dtype).unsqueeze(2)
        self.factors = factors.to(dtype).unsqueeze(2) if self.diagonal else factors.to(dtype).flatten(0, 1).mT

    def __call__(self, centred: Tensor) -> tuple[Tensor, Tensor]:
        """Responsibilities [R, K, n] and log-likelihoods [R, n] from z - mu_z [R, K, n, D]."""
        if self.diagonal:
            whitened = centred * self.factors
        else:
            whitened = torch.bmm(centred.flatten(0, 1), self.factors).view(centred.shape)
        log_joint = self.constant - 0.5 * whitened.square_().sum(3)
        log_likelihood = torch.logsumexp(log_joint, 1)
        return torch.exp(log_joint - log_likelihood.unsqueeze(1)), log_likelihood


class _Moments(NamedTuple):
    """What an M-step needs, about `centres`: sums over the rows, of chunks in the data's dtype, then in float64."""

    centres: Tensor  # [R, K, D]
    mass: Tensor  # [R, K] N_z
    first: Tensor  # [R, K, D]
    second: Tensor  # [R, K, D, D] or [R, K, D]
    log_likelihood: Tensor  # [R], under the mixture that gave the responsibilities (0 where they were given)


def _moments(
    z: Tensor, mask: Tensor, source: Tensor | _Density, centres: Tensor, covariance: CovarianceKind
) -> _Moments:
    """One pass over the rows, in chunks that stay in cache: responsibilities from `source`, then their moments.

    Moments about centres near the new means, not about 0, keep narrow clusters exact in float32.
    """
    (runs, components, dim), device = centres.shape, z.device
    mass = torch.zeros(runs, components, dtype=torch.float64, device=device)
    first = torch.zeros_like(centres)
    second = torch.zeros_like(first) if covariance == "diagonal" else first.new_zeros(runs, components, dim, dim)
    log_likelihood = mass.new_zeros(runs)
    near = centres.to(z.dtype).unsqueeze(2)
    for rows in _chunks(z, components):
        centred = z[:, rows].unsqueeze(1) - near
        if isinstance(source, _Density):
            responsibilities, row_log_likelihood = source(centred)
            log_likelihood += (row_log_likelihood * mask[:, 0, rows]).sum(1, dtype=torch.float64)
        else:
            responsibilities = source[:, :, rows]
        responsibilities = responsibilities * mask[:, :, rows]
        weighted = centred * responsibilities.unsqueeze(3)
        mass += responsibilities.sum(2, dtype=torch.float64)
        first += weighted.sum(2)
        if covariance == "diagonal":
            second += weighted.mul_(centred).sum(2)
        else:
            second += torch.bmm(centred.flatten(0, 1).mT, weighted.flatten(0, 1)).view(second.shape)
    return _Moments(near.squeeze(2).double(), mass, first, second, log_likelihood)


def _maximisation(
    moments: _Moments, *, background: Tensor, epsilon: float, shift: Tensor, scale: Tensor
) -> tuple[Mixture, Tensor]:
    """M-step: p_z, mu_z and Omega_z + epsilon I from the moments, and [R] failure codes."""
    mass = moments.mass.unsqueeze(2)
    floor = moments.first.shape[2] + 1
    own = (mass / floor).clamp(max=1)  # how much of a small component is its own; see `fit`
    divisor = mass.clamp(min=torch.finfo(mass.dtype).tiny)
    moved = moments.first / divisor
    means = moments.centres + own * moved
    if moments.second.dim() == 3:
        within = (moments.second / divisor - moved.square()).clamp(min=0)
        covariances = own * within + (1 - own) * background + epsilon
    else:
        within = (moments.second + moments.second.mT) / (2 * divisor.unsqueeze(3)) - moved.unsqueeze(
            3
        ) * moved.unsqueeze(2)
        blended = own.unsqueeze(3) * within + (1 - own).unsqueeze(3) * background
        covariances = blended + epsilon * torch.eye(floor - 1, dtype=mass.dtype, device=mass.device)
    weights = moments.mass / moments.mass.sum(1, keepdim=True)
    covariances, factors, regular = _factorise(covariances)
    finite = weights.isfinite().all(1) & means.isfinite().flatten(1).all(1) & moments.log_likelihood.isfinite()
    failure = (~regular) * int(Failure.NOT_POSITIVE_DEFINITE) | (~finite) * int(Failure.NON_FINITE_PARAMETERS)
    return Mixture(weights, means, covariances, factors, shift, scale), failure


def _factorise(covariances: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Covariances (with the least jitter that makes them regular), L^-1, and [R] whether that succeeded.

    Jitters are hardly ever needed. On a GPU, small matrices try them all in one batched call: choosing among them there
    costs less than asking the device, which a captured refresh must not do.
    """
    if covariances.dim() == 3:
        factors = covariances.rsqrt()
        return covariances, factors, factors.isfinite().flatten(1).all(1)
    size = covariances.shape[3]
    identity = torch.eye(size, dtype=covariances.dtype, device=covariances.device)
    variance = covariances.diagonal(dim1=2, dim2=3).mean(2).view(*covariances.shape[:2], 1, 1)
    asks = not covariances.is_cuda or size > CAPTURED_SIZE
    for jitters in (_JITTERS[:1], _JITTERS) if asks else (_JITTERS,):
        tried = torch.stack([covariances + jitter * variance * identity for jitter in jitters])
        lower, info = torch.linalg.cholesky_ex(tried)
        sound = (info == 0) & lower.isfinite().flatten(3).all(3)
        if asks and bool(sound.all()):
            break
    choice = sound.int().argmax(0).view(1, *covariances.shape[:2], 1, 1).expand(1, *covariances.shape)
    lower, chosen = lower.gather(0, choice).squeeze(0), tried.gather(0, choice).squeeze(0)
    # a fixed memory layout: a mixture read back from a file must round like the one that was written
    factors = torch.linalg.solve_triangular(lower, identity, upper=False).contiguous()
    return chosen.contiguous(), factors, sound.any(0).all(1)


def _standardise(y: Tensor, valid: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z = (y - shift) / scale over the valid rows (0 elsewhere), shift, scale [R, D], and [R] failure codes."""
    finite = y.sum(2).isfinite()
    usable = (valid & finite).unsqueeze(2)
    count = usable.sum(1)
    shift = torch.where(usable, y, 0).sum(1).double() / count.clamp(min=1)
    centred = torch.where(usable, y - shift.to(y.dtype).unsqueeze(1), 0)
    deviation = (centred.square().sum(1).double() / count.clamp(min=1)).sqrt()
    # a constant dimension carries no information: rounding noise must not be blown up to variance 1
    scale = torch.where(deviation > 1e-6 * shift.abs(), deviation, 1.0)
    failure = (valid & ~finite).any(1) * int(Failure.NON_FINITE_ROWS)
    failure = failure | (count.squeeze(1) < 2) * int(Failure.TOO_FEW_ROWS_WITH_A_NEXT_ACTION)
    failure = failure | (~scale.isfinite().all(1)) * int(Failure.NON_FINITE_PARAMETERS)
    return centred / scale.to(y.dtype).unsqueeze(1), shift, scale, failure


def _weighted_means(z: Tensor, weights: Tensor) -> Tensor:
    """Means of z [R, N, D] under weights [R, K, N], float64 [R, K, D]; 0, the mean of all rows, without any weight."""
    mass = weights.sum(2, keepdim=True, dtype=torch.float64)
    return (weights @ z).double() / mass.clamp(min=torch.finfo(torch.float64).tiny)


def _replace_where(sound: Tensor, update: Mixture, mixture: Mixture) -> Mixture:
    """The update for sound runs, the mixture as it was for the others."""
    pairs = zip(update, mixture, strict=True)
    return Mixture(*(torch.where(sound.view(-1, *[1] * (new.dim() - 1)), new, old) for new, old in pairs))


def _chunks(z: Tensor, components: int) -> Iterator[slice]:
    """Slices of rows of bounded size; independent of R, so that a run is summed alike alone and in a stack."""
    rows = max(64, _CHUNK_ELEMENTS.get(z.device.type, 1 << 18) // (components * z.shape[2]))
    for first in range(0, z.shape[1], rows):
        yield slice(first, first + rows)
