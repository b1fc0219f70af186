"""EM on y = [g', g]: the E- and M-step of Algorithm 1, for a stack of runs."""

from typing import Any

import pytest
import torch
from safetensors.torch import load, save
from torch import Tensor

from c4rl.core.random import Streams
from c4rl.plugins.c4.gaussian_mixture import Failure, Fit, Mixture, _factorise, fit, kmeans_start
from tests.c4.original_units import centres, omega

FULL_AND_DIAGONAL = pytest.mark.parametrize("covariance", ["full", "diagonal"])


def pairs(runs: int, rows: int, dim: int, clusters: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    """Rows from overlapping Gaussian clusters, in units far from standardised."""
    draw = torch.Generator().manual_seed(seed)
    means = torch.randn(runs, clusters, dim, generator=draw, dtype=torch.float64)
    factors = torch.randn(runs, clusters, dim, dim, generator=draw, dtype=torch.float64) / dim**0.5
    label = torch.randint(clusters, (runs, rows), generator=draw)
    run = torch.arange(runs).unsqueeze(1)
    noise = torch.randn(runs, rows, dim, 1, generator=draw, dtype=torch.float64)
    z = means[run, label] + (factors[run, label] @ noise).squeeze(3)
    return (z * torch.logspace(-2, 2, dim, dtype=torch.float64) + 3).to(dtype)


def streams(seeds: list[int], step: int = 0) -> Streams:
    return Streams(seeds, torch.tensor(step))


def cold_start(y: Tensor, clusters: int, valid: Tensor | None = None, seeds: list[int] | None = None) -> Tensor:
    seeds = list(range(len(y))) if seeds is None else seeds
    return kmeans_start(y, streams(seeds), torch.full((len(y),), clusters), clusters, valid)


def run_of(fitted: Fit, r: int) -> list[Tensor]:
    return [*(x[r] for x in fitted.mixture), fitted.responsibilities[r], fitted.log_likelihood[r]]


def assert_same(one: list[Tensor], other: list[Tensor]) -> None:
    for a, b in zip(one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_a_covariance_that_is_not_positive_gets_the_least_jitter_and_leaves_its_neighbours_alone() -> None:
    regular = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    slightly, hopeless = regular.clone(), regular.clone()
    slightly[0, 0], hopeless[0, 0] = -1e-4, -1.0  # a jitter is a share of the mean variance, 5/3 and 4/3
    found, factors, sound = _factorise(torch.stack([regular, slightly, hopeless]).unsqueeze(1))
    assert sound.tolist() == [True, True, False]
    assert torch.equal(found[0, 0], regular) and torch.equal(factors[0, 0], regular.diagonal().rsqrt().diag())
    jitter = 1e-4 * slightly.diagonal().mean()
    torch.testing.assert_close(found[1, 0], slightly + jitter * torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(factors[1, 0].mT @ factors[1, 0], found[1, 0].inverse())


def test_a_cluster_counts_as_effective_above_a_fiftieth() -> None:
    mixture = fit(y := pairs(1, 60, 2, 3), cold_start(y, 4)).mixture
    weights = torch.tensor([[0.5, 0.46, 0.021, 0.019]], dtype=torch.float64)
    assert mixture._replace(weights=weights).effective_clusters().tolist() == [3]


def test_rounding_noise_of_a_constant_dimension_is_not_blown_up() -> None:
    y = pairs(1, 200, 3, 2)
    y[:, :, 1] = 1e6 + 1e-4 * y[:, :, 0].sign()  # less than a millionth of its size
    fitted = fit(y, cold_start(y, 2))
    assert fitted.mixture.scale[0, 1] == 1 and not fitted.failed.any()
    y[:, :, 1] = 1e6
    torch.testing.assert_close(fit(y, cold_start(y, 2)).responsibilities, fitted.responsibilities)


@FULL_AND_DIAGONAL
def test_a_stack_of_runs_fits_each_run_as_if_alone(covariance: str) -> None:
    y = pairs(3, 700, 6, 3)
    valid = torch.rand(3, 700, generator=torch.Generator().manual_seed(1)) > 0.1
    together = fit(y, cold_start(y, 3, valid, [5, 6, 7]), valid, covariance=covariance)
    for r in range(3):
        alone = slice(r, r + 1)
        start = cold_start(y[alone], 3, valid[alone], [5 + r])
        assert_same(run_of(fit(y[alone], start, valid[alone], covariance=covariance), 0), run_of(together, r))


@FULL_AND_DIAGONAL
def test_the_likelihood_never_falls_and_a_warm_start_carries_on(covariance: str) -> None:
    y = pairs(2, 800, 6, 4)
    cold = fit(y, cold_start(y, 4), covariance=covariance, epsilon=0.0, steps=12)
    warm = fit(y, cold.mixture.responsibilities(y), covariance=covariance, epsilon=0.0, steps=12)
    curve = torch.cat([cold.log_likelihood, warm.log_likelihood], 1)
    assert (curve.diff(dim=1) > -1e-10).all()
    assert (curve[:, -1] > curve[:, 0] + 1e-3).all()
    torch.testing.assert_close(warm.mixture.log_prob(y).mean(1), warm.log_likelihood[:, -1])


def test_epsilon_costs_likelihood_only_of_its_own_size() -> None:
    y = pairs(2, 800, 6, 4)
    curve = fit(y, cold_start(y, 4), epsilon=1e-4, steps=25).log_likelihood
    assert (curve.diff(dim=1) > -1e-3).all()


def test_float32_agrees_with_float64() -> None:
    y = pairs(2, 3000, 16, 4)
    start = cold_start(y, 4)
    exact, single = fit(y, start), fit(y.float(), start.float())
    torch.testing.assert_close(single.log_likelihood, exact.log_likelihood, rtol=1e-5, atol=1e-4)
    assert (single.responsibilities.argmax(2) == exact.responsibilities.argmax(2)).double().mean() > 0.998


def test_narrow_clusters_far_from_the_mean_stay_exact_in_float32() -> None:
    """Second moments about the origin would lose this cluster's variance to rounding."""
    draw = torch.Generator().manual_seed(0)
    y = torch.randn(1, 4000, 4, generator=draw, dtype=torch.float64)
    y[:, :200] = y[:, :200] * 1e-3 + 30
    start = torch.zeros(1, 4000, 2, dtype=torch.float64)
    start[:, :200, 0], start[:, 200:, 1] = 1, 1
    exact = omega(fit(y, start, epsilon=1e-8, steps=3).mixture)
    single = omega(fit(y.float(), start.float(), epsilon=1e-8, steps=3).mixture)
    torch.testing.assert_close(single[..., 2:, 2:], exact[..., 2:, 2:], rtol=1e-2, atol=0)


@FULL_AND_DIAGONAL
def test_rows_without_a_next_action_take_no_part_in_the_fit(covariance: str) -> None:
    y = pairs(1, 900, 6, 3)
    valid = torch.ones(1, 900, dtype=torch.bool)
    valid[:, ::3] = False
    start = cold_start(y, 3, valid)
    spoiled = y.clone()
    spoiled[:, ::3, :3] = torch.nan  # g' of these rows does not exist
    masked = fit(spoiled, start, valid, covariance=covariance)
    assert not masked.failed.any()
    kept = fit(y[valid].unsqueeze(0), start[valid].unsqueeze(0), covariance=covariance)
    for a, b in zip(masked.mixture, kept.mixture, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(masked.log_likelihood, kept.log_likelihood)
    torch.testing.assert_close(masked.responsibilities[valid], kept.responsibilities[0])
    from_g = masked.mixture.marginal_responsibilities(y[..., 3:])
    torch.testing.assert_close(masked.responsibilities[~valid], from_g[~valid])
    torch.testing.assert_close(masked.mixture.responsibilities(spoiled, valid), masked.responsibilities)


def test_densities_are_those_of_the_parameters_in_original_units() -> None:
    y = pairs(1, 600, 6, 2)
    mixture = fit(y, cold_start(y, 2)).mixture
    means, covariances = centres(mixture)[0], omega(mixture)[0]
    weights = mixture.weights[0].log().unsqueeze(1)
    joint = torch.distributions.MultivariateNormal(means.unsqueeze(1), covariances.unsqueeze(1))
    log_joint = weights + joint.log_prob(y)
    torch.testing.assert_close(mixture.log_prob(y)[0], log_joint.logsumexp(0))
    torch.testing.assert_close(mixture.responsibilities(y)[0], log_joint.softmax(0).T)
    g = y[..., 3:]
    marginal = torch.distributions.MultivariateNormal(means[:, 3:].unsqueeze(1), covariances[:, 3:, 3:].unsqueeze(1))
    torch.testing.assert_close(mixture.marginal().log_prob(g)[0], (weights + marginal.log_prob(g)).logsumexp(0))


def test_one_component_is_the_sample_mean_and_covariance() -> None:
    y = pairs(1, 500, 4, 3)
    mixture = fit(y, torch.ones(1, 500, 1, dtype=y.dtype), epsilon=0.0, steps=1).mixture
    torch.testing.assert_close(centres(mixture)[0, 0], y[0].mean(0))
    torch.testing.assert_close(omega(mixture)[0, 0], y[0].T.cov(correction=0))


@FULL_AND_DIAGONAL
def test_a_step_takes_the_means_and_covariances_of_the_responsibilities_before_it(covariance: Any) -> None:
    y = pairs(1, 400, 4, 3)
    start = cold_start(y, 3)
    first, second = (fit(y, start, covariance=covariance, epsilon=0.0, steps=steps).mixture for steps in (1, 2))
    r = first.responsibilities(y)[0].T
    expected = [torch.cov(y[0].T, correction=0, aweights=weights) for weights in r]
    torch.testing.assert_close(second.weights[0], r.mean(1))
    torch.testing.assert_close(centres(second)[0], r @ y[0] / r.sum(1, keepdim=True))
    for found, own in zip(omega(second)[0], expected, strict=True):
        torch.testing.assert_close(found, own if covariance == "full" else own.diagonal().diag())
    assert (centres(second) - centres(first)).abs().max() > 0.1


def test_each_run_has_its_own_number_of_components() -> None:
    y = pairs(1, 600, 4, 5).expand(3, -1, -1).contiguous()
    start = kmeans_start(y, streams([1, 1, 1]), torch.tensor([1, 3, 5]), 5)
    stacked = fit(y, start)
    assert (stacked.mixture.weights > 0).sum(1).tolist() == [1, 3, 5]
    assert stacked.mixture.effective_clusters().tolist()[0] == 1
    assert torch.equal(stacked.responsibilities[1, :, 3:], torch.zeros(600, 2, dtype=y.dtype))
    three = fit(y[1:2], start[1:2, :, :3])
    torch.testing.assert_close(stacked.log_likelihood[1], three.log_likelihood[0])


@FULL_AND_DIAGONAL
def test_an_empty_component_keeps_its_mean_and_takes_the_covariance_of_all_rows(covariance: str) -> None:
    y = pairs(1, 400, 4, 2)
    start = torch.cat([cold_start(y, 2), torch.zeros(1, 400, 1, dtype=y.dtype)], 2)
    fitted = fit(y, start, covariance=covariance, epsilon=0.0)
    assert not fitted.failed.any()
    assert fitted.mixture.weights[0, 2] == 0
    torch.testing.assert_close(centres(fitted.mixture)[0, 2], y[0].mean(0))
    torch.testing.assert_close(omega(fitted.mixture)[0, 2].diagonal(), y[0].var(0, correction=0))
    without = fit(y, start[:, :, :2], covariance=covariance, epsilon=0.0)
    torch.testing.assert_close(fitted.log_likelihood, without.log_likelihood)


def test_a_component_of_a_few_equal_rows_stays_regular() -> None:
    y = pairs(1, 400, 8, 2, dtype=torch.float32)
    y[:, :3] = y[:, :1]
    start = torch.zeros(1, 400, 2)
    start[:, :3, 0], start[:, 3:, 1] = 1, 1
    fitted = fit(y, start, steps=1)
    assert not fitted.failed.any()
    variance = fitted.mixture.covariances[0, 0].diagonal().mean()
    assert 0.5 < variance < 1  # three of nine rows are its own: two thirds come from the covariance of all rows


def test_constant_dimensions_and_duplicate_rows_are_no_failure() -> None:
    y = pairs(1, 300, 4, 2, dtype=torch.float32)
    y[..., 1] = 1234.5  # a dead unit
    y[:, 150:] = y[:, :1]
    fitted = fit(y, cold_start(y, 5))
    assert not fitted.failed.any()
    assert fitted.responsibilities.isfinite().all()
    identical = torch.ones(1, 50, 4)
    assert fit(identical, cold_start(identical, 3)).responsibilities.isfinite().all()


def test_a_fit_that_cannot_be_done_is_reported_and_leaves_its_neighbours_alone() -> None:
    y = pairs(4, 300, 4, 2)
    sound = fit(y, cold_start(y, 2))
    y[1, 7, 2] = torch.inf
    valid = torch.ones(4, 300, dtype=torch.bool)
    valid[2] = False
    y[3] *= 1e200
    fitted = fit(y, cold_start(y, 2, valid), valid)
    assert fitted.failed.tolist() == [False, True, True, True]
    codes = [Failure(code) for code in fitted.failure.tolist()]
    assert Failure.NON_FINITE_ROWS in codes[1]
    assert Failure.TOO_FEW_ROWS_WITH_A_NEXT_ACTION in codes[2]
    assert Failure.NON_FINITE_PARAMETERS in codes[3]
    assert_same(run_of(fitted, 0), run_of(sound, 0))


def test_a_start_is_a_function_of_seed_and_step() -> None:
    y = pairs(2, 500, 4, 4)
    components = torch.tensor([4, 4])
    first = kmeans_start(y, streams([3, 4], 10), components, 4, lloyd_steps=0)
    assert torch.equal(first, kmeans_start(y, streams([3, 4], 10), components, 4, lloyd_steps=0))
    assert not torch.equal(first, kmeans_start(y, streams([3, 4], 11), components, 4, lloyd_steps=0))


def test_a_start_finds_separate_clusters() -> None:
    draw = torch.Generator().manual_seed(0)
    label = torch.randint(4, (1, 800), generator=draw)
    y = torch.randn(1, 800, 4, generator=draw) + 40 * torch.eye(4)[label]
    for seed in range(5):
        found = cold_start(y, 4, seeds=[seed]).argmax(2)
        for k in range(4):
            assert len(found[label == k].unique()) == 1
        assert len(found.unique()) == 4


def test_a_start_takes_its_centres_far_from_each_other() -> None:
    draw = torch.Generator().manual_seed(0)
    label = torch.arange(8).repeat(25)
    y = (torch.randn(200, 8, generator=draw) + 1000 * torch.eye(8)[label]).unsqueeze(0)
    for seed in range(20):
        found = kmeans_start(y, streams([seed]), torch.tensor([8]), 8, lloyd_steps=0)[0].argmax(1)
        assert len(set(zip(label.tolist(), found.tolist(), strict=True))) == len(found.unique()) == 8


def test_a_start_moves_until_each_row_is_nearest_to_the_mean_of_its_own_cluster() -> None:
    y, valid = pairs(1, 300, 4, 3), torch.ones(1, 300, dtype=torch.bool)
    valid[:, ::7] = False  # they join a cluster and do not move it
    y[:, ::7] += 1.0
    found = kmeans_start(y, streams([0]), torch.tensor([4]), 4, valid, lloyd_steps=100)[0].argmax(1)
    z = (y[0] - y[valid].mean(0)) / y[valid].std(0, correction=0)
    means = torch.stack([z[(found == k) & valid[0]].mean(0) for k in range(4)])
    kept = valid[0]
    assert torch.equal(torch.cdist(z, means).argmin(1)[kept], found[kept])


def test_large_data_is_worked_off_in_chunks_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    y = pairs(2, 1000, 6, 3)
    start = cold_start(y, 3)
    whole = fit(y, start)
    monkeypatch.setattr("c4rl.plugins.c4.gaussian_mixture._CHUNK_ELEMENTS", {"cpu": 1})
    chunked = fit(y, start)
    for r in range(2):
        assert_same(run_of(chunked, r), run_of(whole, r))


def test_parameters_go_through_a_safetensors_file() -> None:
    y = pairs(2, 300, 4, 2)
    mixture = fit(y, cold_start(y, 2)).mixture
    restored = Mixture(**load(save(mixture._asdict())))
    assert torch.equal(restored.responsibilities(y), mixture.responsibilities(y))
