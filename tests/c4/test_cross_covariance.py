"""C_hat and its penalty: values, masking, gradients, the weight's rule and the monitor."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from c4rl.core.errors import InputError
from c4rl.plugins.c4.cross_covariance import (
    PenaltyConfig,
    WeightedPenalty,
    automatic_weight,
    cross_covariance,
    penalty,
    traces,
    within_and_between,
)
from c4rl.theory.total_covariance import total_covariance


def features(*shape: int, seed: int = 0, offset: float = 0.5) -> tuple[Tensor, Tensor]:
    """Correlated, off-centre g', g in float64."""
    generator = torch.Generator().manual_seed(seed)
    g = torch.randn(*shape, generator=generator, dtype=torch.float64) + offset
    g_next = 0.6 * g + torch.randn(*shape, generator=generator, dtype=torch.float64)
    return g_next, g


def all_valid(g: Tensor) -> Tensor:
    return torch.ones(g.shape[:-1], dtype=torch.bool)


def test_matches_numpys_covariance_per_run_and_critic() -> None:
    g_next, g = features(3, 2, 40, 5)
    C = cross_covariance(g_next, g, all_valid(g))
    for run in range(3):
        for critic in range(2):
            stacked = np.cov(torch.cat([g_next, g], -1)[run, critic].numpy(), rowvar=False)
            np.testing.assert_allclose(C[run, critic].numpy(), stacked[:5, 5:], rtol=1e-12)


@pytest.mark.parametrize("estimator", ["plugin", "unbiased", "dot_product"])
def test_masked_rows_leave_no_trace_and_the_count_is_per_run(estimator: str) -> None:
    g_next, g = features(2, 2, 12, 4)
    valid = torch.ones(2, 1, 12, dtype=torch.bool)
    valid[0, 0, [1, 5, 6]] = False
    g_next[0, :, [1, 5, 6]], g[0, :, [1, 5, 6]] = 1e3, -1e3
    g.requires_grad_()
    R = penalty(g_next, g, valid, beta=0.7, estimator=estimator)
    keep = valid[0, 0]
    alone = penalty(g_next[0][:, keep], g[0][:, keep], torch.ones(2, 9), beta=0.7, estimator=estimator)
    torch.testing.assert_close(R[0], alone)
    (gradient,) = torch.autograd.grad(R.sum(), g)
    assert gradient[0, :, ~keep].abs().max() == 0
    assert gradient[1].abs().min(-1).values.min() > 0


def test_penalty_is_the_papers_formula() -> None:
    g_next, g = features(2, 30, 4)
    C = cross_covariance(g_next, g, all_valid(g))
    trace = torch.stack([torch.trace(c) for c in C])
    expected = (C**2).sum((-2, -1)) + 0.3 * trace**2
    torch.testing.assert_close(penalty(g_next, g, all_valid(g), beta=0.3), expected)
    torch.testing.assert_close(penalty(g_next, g, all_valid(g), beta=0.3, scale="per_feature"), expected / 4)
    per_run = torch.tensor([0.3, 0.0], dtype=torch.float64)
    torch.testing.assert_close(penalty(g_next, g, all_valid(g), beta=per_run)[0], expected[0])
    torch.testing.assert_close(penalty(g_next, g, all_valid(g), estimator="dot_product"), (g_next * g).sum(-1).mean(-1))


@pytest.mark.parametrize("estimator", ["plugin", "unbiased"])
def test_penalty_ignores_constant_shifts(estimator: str) -> None:
    g_next, g = features(30, 4)
    there = penalty(g_next + 7, g - 3, all_valid(g), estimator=estimator)
    torch.testing.assert_close(there, penalty(g_next, g, all_valid(g), estimator=estimator))


@pytest.mark.parametrize("estimator", ["plugin", "unbiased", "dot_product"])
@pytest.mark.parametrize("beta", [0.0, 0.8])
def test_gradient_matches_finite_differences(estimator: str, beta: float) -> None:
    g_next, g = features(2, 7, 3)
    valid = all_valid(g)
    valid[0, 2] = False
    g.requires_grad_()
    assert torch.autograd.gradcheck(lambda y: penalty(g_next, y, valid, beta=beta, estimator=estimator), g)


def test_gradient_is_the_explicit_one_and_none_reaches_the_target() -> None:
    g_next, g = features(20, 4)
    g_next.requires_grad_(), g.requires_grad_()
    valid = all_valid(g)
    penalty(g_next, g, valid, beta=0.5).backward()
    C = cross_covariance(g_next, g, valid).detach()
    centred = (g_next - g_next.mean(0)).detach()
    expected = 2 * centred @ (C + 0.5 * torch.trace(C) * torch.eye(4, dtype=torch.float64)) / 19
    torch.testing.assert_close(g.grad, expected)
    assert g_next.grad is None


@pytest.mark.parametrize("estimator", ["plugin", "unbiased", "dot_product"])
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_too_few_valid_rows_give_finite_values_and_gradients(estimator: str, rows: int) -> None:
    g_next, g = features(10, 3)
    g.requires_grad_()
    valid = torch.arange(10) < rows
    R = penalty(g_next, g, valid, estimator=estimator)
    (gradient,) = torch.autograd.grad(R, g)
    assert R.isfinite() and gradient.isfinite().all()
    if estimator == "unbiased" or (rows < 2 and estimator == "plugin"):
        assert R == 0 and gradient.abs().max() == 0


def test_float32_agrees_with_float64_for_features_far_from_zero() -> None:
    g_next, g = features(256, 64, offset=100.0)
    for estimator in ("plugin", "unbiased"):
        exact = penalty(g_next, g, all_valid(g), estimator=estimator)
        single = penalty(g_next.float(), g.float(), all_valid(g), estimator=estimator)
        assert abs(single.item() / exact.item() - 1) < 1e-3


def test_unknown_choices_are_refused_by_name() -> None:
    g_next, g = features(8, 3)
    with pytest.raises(InputError, match="estimator is 'exact', expected one of plugin"):
        penalty(g_next, g, all_valid(g), estimator="exact")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="scale is 'sum', expected one of raw"):
        penalty(g_next, g, all_valid(g), scale="sum")  # type: ignore[arg-type]


def test_automatic_weight_holds_the_penalty_at_a_fraction_of_the_td_loss() -> None:
    generator = torch.Generator().manual_seed(1)
    running = torch.zeros(2, 3, dtype=torch.float64)
    scale = torch.tensor([1e-4, 1.0, 1e5], dtype=torch.float64)
    shares = []
    for step in range(2000):
        R = scale * (0.5 + torch.rand(3, generator=generator, dtype=torch.float64))
        td = 2 + torch.rand(3, generator=generator, dtype=torch.float64)
        weight = automatic_weight(R, td, 0.25, running)
        if step == 0:
            torch.testing.assert_close(weight, 0.25 * td / R)  # no start-up bias
        shares.append(weight * R / td)
    mean_share = torch.stack(shares[200:]).mean(0)
    assert (mean_share / 0.25 - 1).abs().max() < 0.05


@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_the_unbiased_penalty_of_fewer_than_four_rows_is_zero(beta: float) -> None:
    g_next, g = features(2, 8, 3)
    g = g.requires_grad_()
    few = (torch.arange(8) < 3).expand(2, 8)
    found = penalty(g_next, g, few, beta=beta, estimator="unbiased")
    assert found.tolist() == [0, 0]
    (gradient,) = torch.autograd.grad(found.sum(), g)
    assert not gradient.any()


def test_the_weighted_penalty_is_lambda_r_or_a_fraction_of_the_td_loss() -> None:
    g_next, g = features(2, 3, 20, 4)
    valid, td_loss = all_valid(g)[:, 0], torch.arange(1.0, 7).double().view(2, 3)
    R = penalty(g_next, g, valid.unsqueeze(1), beta=0.5)

    def weighted(**options: Any) -> WeightedPenalty:
        return WeightedPenalty(PenaltyConfig(beta=0.5, **options), 2, torch.device("cpu"), torch.float64)

    torch.testing.assert_close(weighted(lambda_=0.7)(g_next, g, valid, None), 0.7 * R)
    automatic = weighted(lambda_="auto", lambda_fraction=0.2)
    for average in (td_loss, (0.99 * td_loss + 3 * td_loss) / 1.99):  # of one update, and of another with a larger loss
        found = automatic(g_next, g, valid, td_loss if average is td_loss else 3 * td_loss)
        torch.testing.assert_close(found, 0.2 * (average.mean(1) / R.mean(1)).unsqueeze(1) * R)


@pytest.mark.parametrize("estimator", ["plugin", "unbiased"])
def test_no_gradient_flows_into_the_next_features(estimator: str) -> None:
    g_next, g = (x.requires_grad_() for x in features(2, 3, 20, 4))
    R = penalty(g_next, g, all_valid(g), beta=0.5, estimator=estimator)
    into_next, into = torch.autograd.grad(R.sum(), (g_next, g), allow_unused=True)
    assert into_next is None and into is not None


def test_automatic_weight_survives_a_vanishing_penalty() -> None:
    running = torch.zeros(2, 1)
    assert automatic_weight(torch.zeros(1), torch.ones(1), 0.1, running).isfinite().all()


def test_automatic_weight_never_rewards_the_covariance() -> None:
    """A library's critic loss may be below zero: d3rlpy's CQL has 5 (gap - 10) in it."""
    assert automatic_weight(torch.ones(1), -torch.ones(1), 0.1, torch.zeros(2, 1)).item() == pytest.approx(0.1)


def test_traces_have_a_scale_free_form() -> None:
    g_next, g = features(2, 500, 6)
    valid = all_valid(g)
    torch.testing.assert_close(traces(g_next, g, valid)[1], traces(100 * g_next, 0.01 * g, valid)[1])
    C = cross_covariance(g_next, g, valid)
    torch.testing.assert_close(traces(g_next, g, valid)[0], C.diagonal(dim1=-2, dim2=-1).sum(-1) / 6)
    torch.testing.assert_close(traces(g, 2 * g, valid)[1], torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(traces(g, -g, valid)[1], -torch.ones(2, dtype=torch.float64))


def test_covariance_splits_within_from_between_clusters() -> None:
    """Two clouds with C_z = 0 whose centres move together: all of C is between clusters."""
    generator = torch.Generator().manual_seed(2)
    label = torch.arange(400) % 2
    centre = (2.0 * label - 1).double().unsqueeze(-1) * torch.tensor([3.0, 1.0], dtype=torch.float64)
    noise = torch.randn(2, 400, 2, generator=generator, dtype=torch.float64)
    g_next, g = centre + 0.1 * noise[0], centre + 0.1 * noise[1]
    valid = torch.ones(400)
    r = torch.nn.functional.one_hot(label, 2).double()
    seen = within_and_between(g_next, g, valid, r)
    assert seen["within_frobenius"] < 0.01 < 9 < seen["between_frobenius"]
    soft = torch.rand(400, 3, generator=generator, dtype=torch.float64)
    seen = within_and_between(g_next, g, valid, soft / soft.sum(-1, keepdim=True))
    C = cross_covariance(g_next, g, valid)
    torch.testing.assert_close(seen["within_trace"] + seen["between_trace"], C.trace())
    alone = within_and_between(g_next, g, valid, torch.ones(400, 1, dtype=torch.float64))
    torch.testing.assert_close(alone["within_frobenius"], C.norm())


def test_the_split_sees_valid_rows_alone_wherever_their_centre_lies() -> None:
    generator = torch.Generator().manual_seed(5)
    g_next, g = torch.randn(2, 60, 3, generator=generator, dtype=torch.float64) + 7
    r = torch.softmax(3 * torch.randn(60, 2, generator=generator, dtype=torch.float64), -1)
    valid = torch.arange(60) % 3 > 0
    expected = total_covariance(g_next[valid], g[valid], r[valid])
    garbage = torch.where(valid.unsqueeze(1), 0.0, 100.0)
    found = within_and_between(g_next + garbage, g - garbage, valid, r)
    for name, matrix in (("within", expected.within), ("between", expected.between)):
        torch.testing.assert_close(found[f"{name}_trace"], matrix.trace() * 40 / 39)
        torch.testing.assert_close(found[f"{name}_frobenius"], matrix.norm() * 40 / 39)


@pytest.mark.parametrize("estimator", ["plugin", "unbiased", "dot_product"])
def test_update_never_asks_the_device_for_a_value(estimator: str) -> None:
    """Meta tensors have shapes and no values: whatever would synchronise with the host fails on them."""
    g = torch.empty(3, 2, 16, 4, device="meta", requires_grad=True)
    g_next, valid = torch.empty(3, 2, 16, 4, device="meta"), torch.empty(3, 1, 16, device="meta")
    R = penalty(g_next, g, valid, beta=torch.empty(3, 1, device="meta"), estimator=estimator, scale="per_feature")
    weight = automatic_weight(R.mean(-1), R.mean(-1), 0.1, torch.empty(2, 3, device="meta"))
    (weight * R.mean(-1)).sum().backward()
    assert g.grad is not None and g.grad.shape == g.shape
    split = within_and_between(g_next, g, valid, torch.empty(3, 1, 16, 5, device="meta"))
    assert split["between_trace"].shape == (3, 2)


def test_traces_without_the_matrix_are_those_of_the_matrix() -> None:
    generator = torch.Generator().manual_seed(3)
    g_next, g = torch.randn(2, 2, 3, 40, 6, generator=generator, dtype=torch.float64)
    valid = torch.rand(2, 1, 40, generator=generator) > 0.2
    trace, of_next, of_g = (
        cross_covariance(x, y, valid).diagonal(dim1=-2, dim2=-1).sum(-1)
        for x, y in ((g_next, g), (g_next, g_next), (g, g))
    )
    per_feature, normalised = traces(g_next, g, valid)
    torch.testing.assert_close(per_feature, trace / 6)
    torch.testing.assert_close(normalised, trace / (of_next * of_g).sqrt())
