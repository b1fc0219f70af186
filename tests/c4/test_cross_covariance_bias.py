"""The plug-in penalty overshoots by a known amount; the U-statistic does not."""

from itertools import permutations

import torch
from torch import Tensor

from c4rl.plugins.c4.cross_covariance import penalty

ROWS, FEATURES = 8, 3


def within_standard_errors(samples: Tensor, expected: Tensor, errors: float = 4.5) -> bool:
    """|mean - expected| within 4.5 standard errors: a false alarm once in 1e5, and seeded."""
    return bool((samples.mean() - expected).abs() < errors * samples.std() / len(samples) ** 0.5)


def gaussian_batches(count: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Many batches of correlated Gaussian pairs, and the true C, Sigma', Sigma."""
    generator = torch.Generator().manual_seed(3)
    root = torch.randn(2 * FEATURES, 2 * FEATURES, generator=generator, dtype=torch.float64)
    y = torch.randn(count, ROWS, 2 * FEATURES, generator=generator, dtype=torch.float64) @ root.mT + 1.0
    Omega = root @ root.mT
    m = FEATURES
    return y[..., :m], y[..., m:], Omega[:m, m:], Omega[:m, :m], Omega[m:, m:]


def test_plugin_overshoots_by_the_gaussian_formula() -> None:
    g_next, g, C, Sigma_next, Sigma = gaussian_batches(200_000)
    valid = torch.ones(ROWS)
    size = penalty(g_next, g, valid, beta=0.0)
    size_bias = (Sigma_next.trace() * Sigma.trace() + C.square().sum()) / (ROWS - 1)
    assert within_standard_errors(size, C.square().sum() + size_bias)
    squared_trace = penalty(g_next, g, valid, beta=1.0) - size
    trace_bias = ((Sigma_next * Sigma).sum() + (C @ C).trace()) / (ROWS - 1)
    assert within_standard_errors(squared_trace, C.trace().square() + trace_bias)
    assert not within_standard_errors(size, C.square().sum(), errors=50)


def test_unbiased_hits_the_true_value_for_gaussians() -> None:
    g_next, g, C, _, _ = gaussian_batches(200_000)
    valid = torch.ones(ROWS)
    size = penalty(g_next, g, valid, beta=0.0, estimator="unbiased")
    assert within_standard_errors(size, C.square().sum())
    squared_trace = penalty(g_next, g, valid, beta=1.0, estimator="unbiased") - size
    assert within_standard_errors(squared_trace, C.trace().square())


def test_unbiased_hits_the_true_value_for_rows_of_a_finite_buffer() -> None:
    """Skewed, heavy-tailed rows drawn with replacement, as a minibatch of a small dataset is."""
    generator = torch.Generator().manual_seed(4)
    buffer = torch.randn(30, FEATURES, generator=generator, dtype=torch.float64).exp()
    buffer_next = buffer.square() / 4 + torch.rand(30, FEATURES, generator=generator, dtype=torch.float64)
    C = (buffer_next - buffer_next.mean(0)).mT @ (buffer - buffer.mean(0)) / 30
    index = torch.randint(30, (200_000, ROWS), generator=generator)
    R = penalty(buffer_next[index], buffer[index], torch.ones(ROWS), beta=0.5, estimator="unbiased")
    assert within_standard_errors(R, C.square().sum() + 0.5 * C.trace().square())


def test_unbiased_is_the_average_over_all_quadruples_of_distinct_rows() -> None:
    """The definition, in O(n^4): 1/4 <x1-x2, x3-x4><y1-y2, y3-y4> and 1/4 <x1-x2, y1-y2><x3-x4, y3-y4>."""
    g_next, g, _, _, _ = gaussian_batches(1)
    x, y = g_next[0, :7], g[0, :7]
    quadruples = torch.tensor(list(permutations(range(7), 4)))
    i, j, k, l = quadruples.unbind(-1)
    dx, dy, ex, ey = x[i] - x[j], y[i] - y[j], x[k] - x[l], y[k] - y[l]
    size = ((dx * ex).sum(-1) * (dy * ey).sum(-1)).mean() / 4
    squared_trace = ((dx * dy).sum(-1) * (ex * ey).sum(-1)).mean() / 4
    torch.testing.assert_close(penalty(x, y, torch.ones(7), beta=0.0, estimator="unbiased"), size)
    torch.testing.assert_close(penalty(x, y, torch.ones(7), beta=2.0, estimator="unbiased"), size + 2 * squared_trace)


def test_unbiased_gradient_vanishes_on_average_where_nothing_is_correlated() -> None:
    """With C = 0 the plug-in still pulls g towards its mean; the unbiased estimator does not."""
    generator = torch.Generator().manual_seed(5)
    g_next, g = torch.randn(2, 40_000, ROWS, FEATURES, generator=generator, dtype=torch.float64)
    g.requires_grad_()
    pulls = {}
    for estimator in ("plugin", "unbiased"):
        R = penalty(g_next, g, torch.ones(ROWS), beta=0.0, estimator=estimator)
        (gradient,) = torch.autograd.grad(R.sum(), g)
        pulls[estimator] = (gradient * g.detach()).sum((-2, -1))
    assert within_standard_errors(pulls["unbiased"], torch.tensor(0.0))
    expected = 2 * torch.tensor(FEATURES * FEATURES / (ROWS - 1))  # R is quadratic in g: <dR/dg, g> = 2R
    assert within_standard_errors(pulls["plugin"], expected)
