"""The cross-covariance C = Cov(g', g) of successive feature gradients: its penalty, its weight and its monitor.

Shapes: g', g are [..., B, m] (in training [R, M, B, m]: runs, twin critics, rows, features). `valid` [..., B], boolean
or 0/1, marks the rows that have a next action and broadcasts over the leading axes (e.g. [R, 1, B]); n is its sum.
Nothing here synchronises with the host or has a shape that depends on data.
"""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from c4rl.core.errors import InputError
from c4rl.core.networks import per_row
from c4rl.core.ops.covariance import cross_covariance as cross_covariance
from c4rl.core.ops.covariance import cross_covariance_size
from c4rl.core.ops.mlp import transposed_product
from c4rl.core.options import Options, PerRun, option
from c4rl.plugins.c4.authors import dot_product

Estimator = Literal["plugin", "unbiased", "dot_product"]
Scale = Literal["raw", "per_feature"]


@dataclass(frozen=True)
class PenaltyConfig(Options):
    lambda_: PerRun | Literal["auto"] = option(0.3, at_least=0, at_most=1e6)
    """Weight of the cross-covariance penalty; auto holds it at --lambda-fraction of the TD loss."""
    lambda_fraction: PerRun = option(0.1, at_least=0, at_most=1e6)
    """With --lambda auto: the size of lambda R relative to the TD loss; large values crush the critic (docs/c4.md)."""
    beta: PerRun = option(1.0, at_least=0, at_most=1e6)
    """Weight of (tr C)^2 against ||C||_F^2."""
    estimator: Estimator = "plugin"
    """Estimator of the penalty: the paper's, the unbiased one, or the authors' uncentred dot product."""
    scale: Scale = "raw"
    """The paper's sum over all m^2 entries of C, or that divided by m."""


def _weights(valid: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
    """Row weights [..., B, 1] in the features' dtype and the number of valid rows n [..., 1, 1]."""
    weight = valid.to(like.dtype).unsqueeze(-1)
    return weight, weight.sum(-2, keepdim=True)


def _centred(rows: Tensor, weight: Tensor, count: Tensor) -> Tensor:
    """The valid rows minus their mean, and 0 for the others, [..., B, m]."""
    mean = (rows * weight).sum(-2, keepdim=True) / count.clamp_min(1)
    return (rows - mean) * weight


def _trace(matrix: Tensor) -> Tensor:
    return matrix.diagonal(dim1=-2, dim2=-1).sum(-1)


def _is_zero(weight: float | Tensor | str) -> bool:
    """Known to be zero without looking into a tensor, which would synchronise with the host."""
    return not isinstance(weight, Tensor) and weight == 0


def _unbiased(g_next: Tensor, g: Tensor, valid: Tensor, beta: float | Tensor) -> Tensor:
    """The U-statistics of ||C||_F^2 and (tr C)^2; derivation in docs/unbiased_penalty.md.

    With centred rows x_i = g'_i, y_i = g_i, S = sum_i x_i y_i^T, A_ij = <x_i, y_j>, t = tr S:
      ||C||_F^2: [ ||S||_F^2 - n/(n-2) sum_i |x_i|^2 |y_i|^2 + sum|x|^2 sum|y|^2 / ((n-1)(n-2)) ] / (n (n-3))
      (tr C)^2:  [ (n^2-3n+1) t^2 - n(n-1) sum_i A_ii^2 + sum_ij A_ij (A_ij + A_ji) ] / (n (n-1)(n-2)(n-3))
    Both need four valid rows; with fewer the result is 0.
    """
    weight, n = _weights(valid, g)
    x, y = _centred(g_next, weight, n).detach(), _centred(g, weight, n)
    n = n.squeeze((-2, -1))
    enough = n >= 4
    n = n.clamp_min(4)
    x_norm, y_norm = x.square().sum(-1), y.square().sum(-1)
    S = x.mT @ y
    size = S.square().sum((-2, -1)) - n / (n - 2) * (x_norm * y_norm).sum(-1)
    size = (size + x_norm.sum(-1) * y_norm.sum(-1) / ((n - 1) * (n - 2))) / (n * (n - 3))
    if _is_zero(beta):
        return size * enough
    A = x @ y.mT
    trace = (n * n - 3 * n + 1) * _trace(S).square() - n * (n - 1) * A.diagonal(dim1=-2, dim2=-1).square().sum(-1)
    trace = (trace + (A * (A + A.mT)).sum((-2, -1))) / (n * (n - 1) * (n - 2) * (n - 3))
    return (size + beta * trace) * enough


def penalty(
    g_next: Tensor,
    g: Tensor,
    valid: Tensor,
    *,
    beta: float | Tensor = 1.0,
    estimator: Estimator = "plugin",
    scale: Scale = "raw",
) -> Tensor:
    """R = ||C||_F^2 + beta (tr C)^2 (the paper's batch penalty), one value per leading index, [...].

    estimator
      'plugin': of C_hat, as the paper has it. Biased upwards by sum_ab Var(C_hat_ab); for Gaussian rows exactly by
          (tr Sigma' tr Sigma + ||C||_F^2) / (n-1) for ||C||_F^2 and (tr(Sigma' Sigma) + tr(C C)) / (n-1) for (tr C)^2.
          With m features of unit variance the first is m^2/(n-1): at m = n = 256 it shrinks g itself, whatever C is.
      'unbiased': the U-statistic, whose expectation and expected gradient are those of the true C (n >= 4).
          It may be negative.
      'dot_product': the authors' mean of <g', g>: uncentred, no square, beta unused.
    scale: 'raw', or 'per_feature' (divided by m). beta is a number, or a tensor that broadcasts to [...].
    No gradient flows through g'. dR/dg_i = 2 (C + beta tr(C) I)^T (g'_i - mean g') / (n-1) for 'plugin'.
    """
    if estimator not in get_args(Estimator):
        raise InputError(f"penalty: estimator is '{estimator}', expected one of {', '.join(get_args(Estimator))}")
    if scale not in get_args(Scale):
        raise InputError(f"penalty: scale is '{scale}', expected one of {', '.join(get_args(Scale))}")
    if estimator == "plugin":
        value = cross_covariance_size(g_next, g, valid, beta)
    elif estimator == "unbiased":
        value = _unbiased(g_next, g, valid, beta)
    else:
        value = dot_product(g_next, g, *_weights(valid, g))
    return value / g.shape[-1] if scale == "per_feature" else value


def automatic_weight(
    penalty: Tensor, td_loss: Tensor, fraction: float | Tensor, running: Tensor, decay: float = 0.99
) -> Tensor:
    """The weight lambda [R] that keeps lambda |R| at `fraction` of the TD loss on a moving average.

    penalty, td_loss: [R]. running: [2, R], zeros at the start, updated in place: the moving averages of the TD loss
    and of |R|. Both start at zero with one decay, so the start-up bias cancels in their ratio. The averages are
    taken apart, then divided: a single batch with a tiny penalty cannot throw the weight.
    """
    with torch.no_grad():
        running.lerp_(torch.stack([td_loss.abs(), penalty.abs()]), 1 - decay)
        return fraction * running[0] / running[1].clamp_min(1e-12)


class WeightedPenalty:
    """λR as it is added to each critic's loss."""

    def __init__(self, config: PenaltyConfig, runs: int, device: torch.device, dtype: torch.dtype) -> None:
        self.config, self.is_zero = config, _is_zero(config.lambda_)
        self.averages = torch.zeros(runs, 2, device=device, dtype=dtype)  # of the TD loss and of |R|, for λ "auto"

    def __call__(self, g_next: Tensor, g: Tensor, valid: Tensor, td_loss: Tensor | None) -> Tensor:
        """[R, M] from g', g [R, M, B, m], valid [R, B] and the TD loss [R, M], which λ "auto" needs."""
        config = self.config
        beta, estimator, scale = per_row(config.beta), config.estimator, config.scale
        size = penalty(g_next, g, valid.unsqueeze(1), beta=beta, estimator=estimator, scale=scale)
        if not isinstance(config.lambda_, str):
            return per_row(config.lambda_) * size
        if td_loss is None:
            raise InputError("the penalty's weight is 'auto', expected the TD loss that it is a fraction of")
        means = size.detach().mean(1), td_loss.detach().mean(1)
        return automatic_weight(*means, config.lambda_fraction, self.averages.T).unsqueeze(1) * size


@torch.no_grad()
def traces(g_next: Tensor, g: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
    """tr C / m and tr C / sqrt(tr Sigma' tr Sigma), [...] each, without forming C."""
    weight, n = _weights(valid, g)
    x, y = _centred(g_next, weight, n), _centred(g, weight, n)
    products = (x * y).sum((-2, -1))
    spread = (x.square().sum((-2, -1)) * y.square().sum((-2, -1))).sqrt()
    trace_per_feature = products / (n - 1).clamp_min(1)[..., 0, 0] / g.shape[-1]
    return trace_per_feature, products / spread.clamp_min(torch.finfo(g.dtype).tiny)


@torch.no_grad()
def within_and_between(g_next: Tensor, g: Tensor, valid: Tensor, responsibilities: Tensor) -> dict[str, Tensor]:
    """Theorem 2's split C = E_z[C_z] + Cov(mu'_z, mu_z) by responsibilities r [..., B, K] (rows sum to 1): the `trace`
    and the `frobenius` norm of both parts, [...] each. The two matrices add up to C_hat, with its factor n/(n-1).
    Neither bounds C: the two can cancel."""
    weight, n = _weights(valid, g)
    x, y = _centred(g_next, weight, n), _centred(g, weight, n)
    r = responsibilities * weight
    mass = r.sum(-2).unsqueeze(-1).clamp_min(torch.finfo(g.dtype).tiny)  # N_z [..., K, 1]
    # x and y are centred, so r^T x / N_z are the cluster means' offsets from the overall mean
    between = (r.mT @ x / mass).mT @ (r.mT @ y) / (n - 1).clamp_min(1)
    within = transposed_product(x, y) / (n - 1).clamp_min(1) - between
    parts = {"within": within, "between": between}
    traces = {f"{name}_trace": _trace(matrix) for name, matrix in parts.items()}
    return traces | {f"{name}_frobenius": torch.linalg.matrix_norm(matrix) for name, matrix in parts.items()}
