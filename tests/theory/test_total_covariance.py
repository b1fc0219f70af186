"""Theorem 2 and the alignment lemma over random soft clusterings, and the conclusion that does not follow."""

from itertools import pairwise

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from c4rl.core.random import Streams
from c4rl.plugins.c4.cross_covariance import within_and_between
from c4rl.plugins.c4.gaussian_mixture import fit, kmeans_start
from c4rl.theory.total_covariance import alignment_lower_bound, total_covariance, within_bound_chain
from tests.c4.original_units import omega

seeds = st.integers(0, 2**31 - 1)
property_test = settings(derandomize=True, deadline=None, max_examples=60)


def soft_clusters(seed: int, rows: int = 40, m: int = 4, K: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    """g', g with cluster-dependent centres and responsibilities anywhere between soft and hard."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sharpness = 10 ** (2 * torch.rand((), generator=generator).item() - 1)
    r = torch.softmax(sharpness * normal(rows, K), -1)
    g = r @ normal(K, m) + normal(rows, m)
    return r @ normal(K, m) + 0.5 * g + normal(rows, m), g, r


def unit(seed: int, m: int) -> Tensor:
    w = torch.randn(m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return w / w.norm()


@property_test
@given(seeds)
def test_covariance_is_within_plus_between(seed: int) -> None:
    total = total_covariance(*soft_clusters(seed))
    torch.testing.assert_close(total.C, total.within + total.between)


@property_test
@given(seeds)
def test_training_monitor_reports_the_theorems_parts(seed: int) -> None:
    g_next, g, r = soft_clusters(seed)
    total, seen = total_covariance(g_next, g, r), within_and_between(g_next, g, torch.ones(40), r)
    for name, matrix in (("within", total.within), ("between", total.between)):
        torch.testing.assert_close(seen[f"{name}_frobenius"], torch.linalg.matrix_norm(matrix) * 40 / 39)
        torch.testing.assert_close(seen[f"{name}_trace"], matrix.trace() * 40 / 39)


@property_test
@given(seeds)
def test_rows_drawn_from_one_cluster_have_only_its_covariance(seed: int) -> None:
    """Hard clusters: the covariance of cluster z's rows alone is C_z."""
    g_next, g, _ = soft_clusters(seed)
    hard = torch.nn.functional.one_hot(torch.arange(40) % 3, 3).double()
    total = total_covariance(g_next, g, hard)
    rows = hard[:, 1].bool()
    x, y = g_next[rows] - g_next[rows].mean(0), g[rows] - g[rows].mean(0)
    torch.testing.assert_close(total.C_z[1], x.T @ y / rows.sum())


@property_test
@given(seeds)
def test_single_cluster_bound_holds_link_by_link(seed: int) -> None:
    total = total_covariance(*soft_clusters(seed))
    for z in range(3):
        chain = within_bound_chain(
            total.C_z[z], total.Sigma_next_z[z], total.Sigma_z[z], unit(seed + 1, 4), unit(seed + 2, 4)
        )
        assert all(left <= right * (1 + 1e-9) for left, right in pairwise(chain))


def test_single_cluster_bound_is_tight() -> None:
    """All links agree where g' = 2g lies on one line."""
    g = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64).unsqueeze(1) * unit(0, 3)
    total = total_covariance(2 * g, g, torch.ones(3, 1, dtype=torch.float64))
    chain = within_bound_chain(total.C_z[0], total.Sigma_next_z[0], total.Sigma_z[0], unit(0, 3), unit(0, 3))
    torch.testing.assert_close(torch.stack(chain), 2 * g.var(0, correction=0).sum().expand(4))


@property_test
@given(seeds)
def test_clustering_lowers_the_trace_bound_on_average(seed: int) -> None:
    g_next, g, r = soft_clusters(seed)
    total = total_covariance(g_next, g, r)
    traces = [S.diagonal(dim1=-2, dim2=-1).sum(-1) for S in (total.Sigma_next_z, total.Sigma_z)]
    clustered = total.p @ (traces[0] * traces[1]).sqrt()
    whole = (g_next.var(0, correction=0).sum() * g.var(0, correction=0).sum()).sqrt()
    assert clustered <= whole * (1 + 1e-9)


def test_removing_the_between_part_can_enlarge_the_covariance() -> None:
    """Counterexample: within +1, between -1. All rows together have C = 0, every single-cluster batch has C_z = 1."""
    step = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    g = torch.cat([step + 1, step - 1]).unsqueeze(-1)
    g_next = torch.cat([step - 1, step + 1]).unsqueeze(-1)
    r = torch.eye(2, dtype=torch.float64).repeat_interleave(2, 0)
    total = total_covariance(g_next, g, r)
    assert total.C.item() == 0 and total.C_z.flatten().tolist() == [1.0, 1.0]


@property_test
@given(seeds, st.integers(1, 5))
def test_alignment_lemma_bounds_the_covariance_from_below(seed: int, m: int) -> None:
    C = torch.randn(m, m, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    w_next, w = unit(seed + 1, m), unit(seed + 2, m)
    assert w_next @ C @ w >= alignment_lower_bound(C, w_next, w) - 1e-10
    U, S, Vh = torch.linalg.svd(C)
    torch.testing.assert_close(alignment_lower_bound(C, U[:, 0], Vh[0]), S[0], atol=1e-6, rtol=0)


def test_alignment_lemma_is_tight() -> None:
    C = torch.diag(torch.tensor([3.0, 2.0, 1.0], dtype=torch.float64))
    w_next = torch.tensor([0.6, 0.8, 0.0], dtype=torch.float64)
    w = torch.tensor([0.8, -0.6, 0.0], dtype=torch.float64)
    torch.testing.assert_close(w_next @ C @ w, alignment_lower_bound(C, w_next, w))


def test_the_global_objective_lacks_the_mixtures_likelihood() -> None:
    """The minimum over (p, mu, Omega) of L_TD + lambda sum_z p_z ||C_z||_F^2, as printed, does not look at the data:
    Omega_z without its off-diagonal blocks is positive definite and costs nothing. The likelihood, which EM climbs,
    is what ties C_z to the rows."""
    g_next, g, _ = soft_clusters(0, rows=600)
    y = torch.cat([g_next, g], 1).unsqueeze(0)
    start = kmeans_start(y, Streams([0], torch.zeros((), dtype=torch.int64), y.dtype), torch.tensor([3]), 3)
    mixture = fit(y, start).mixture
    m = g.shape[1]
    penalty = (mixture.weights * omega(mixture)[..., :m, m:].square().sum((2, 3))).sum()
    blocks = torch.block_diag(torch.ones(m, m), torch.ones(m, m)).double()
    factors = torch.linalg.inv(torch.linalg.cholesky(mixture.covariances * blocks))  # there is one: Omega_z > 0
    cheaper = mixture._replace(covariances=mixture.covariances * blocks, precision_factors=factors)
    assert penalty > 0.1 and not omega(cheaper)[..., :m, m:].any()
    assert cheaper.log_prob(y).mean() < mixture.log_prob(y).mean() - 0.05
