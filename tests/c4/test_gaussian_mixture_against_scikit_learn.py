"""scikit-learn's GaussianMixture as the oracle, from the same start and for the same number of steps."""

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from c4rl.core.random import Streams
from c4rl.plugins.c4.gaussian_mixture import fit, kmeans_start
from c4rl.plugins.c4.principal_directions import principal_directions

STEPS, EPSILON = 10, 1e-4


def scikit_learn(z: np.ndarray, start: np.ndarray, covariance: str, steps: int) -> GaussianMixture:
    """`steps` E- and M-steps after the M-step from the hard responsibilities `start` [N, K]."""
    mass = start.sum(0)
    means = start.T @ z / mass[:, None]
    if covariance == "full":
        spread = [np.cov(z[start[:, k] > 0].T, bias=True) + EPSILON * np.eye(z.shape[1]) for k in range(len(mass))]
        precisions = np.linalg.inv(np.stack(spread))
    else:
        precisions = 1 / np.stack([z[start[:, k] > 0].var(0) + EPSILON for k in range(len(mass))])
    oracle = GaussianMixture(
        n_components=len(mass),
        covariance_type="full" if covariance == "full" else "diag",
        reg_covar=EPSILON,
        tol=0,
        max_iter=steps,
        weights_init=mass / mass.sum(),
        means_init=means,
        precisions_init=precisions,
        init_params="random",
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return oracle.fit(z)


def assert_agrees(y: Tensor, start: Tensor, covariance: str) -> None:
    """y: [R, N, D] float32, every run against its own scikit-learn fit in float64."""
    fitted = fit(y, start, covariance=covariance, epsilon=EPSILON, steps=STEPS)
    assert not fitted.failed.any()
    for r in range(len(y)):
        rows = y[r].double().numpy()
        z = (rows - rows.mean(0)) / rows.std(0)
        oracle = scikit_learn(z, start[r].double().numpy(), covariance, STEPS - 1)
        expected = oracle.score(z) - np.log(rows.std(0)).sum()  # our likelihood is in the original units
        assert float(fitted.log_likelihood[r, -1]) == pytest.approx(expected, rel=1e-4)
        same = oracle.predict(z) == fitted.responsibilities[r].argmax(1).numpy()
        assert same.mean() >= 0.99
        np.testing.assert_allclose(fitted.mixture.weights[r].numpy(), oracle.weights_, atol=2e-3)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_agrees_on_synthetic_clusters(covariance: str) -> None:
    draw = torch.Generator().manual_seed(3)
    label = torch.randint(4, (2, 3000), generator=draw)
    means = 1.5 * torch.randn(4, 12, generator=draw)
    y = means[label] + torch.randn(2, 3000, 12, generator=draw) * torch.rand(4, 12, generator=draw)[label] + 5
    assert_agrees(y, kmeans_start(y, Streams([0, 1], torch.tensor(0)), torch.tensor([4, 4]), 4), covariance)


def features(path: Path, rows: int) -> tuple[Tensor, Tensor]:
    """Penultimate features phi(s', a') and phi(s, a) of a random ReLU network on logged pairs, [1, N, 256] each."""
    with np.load(path, allow_pickle=False) as file:
        valid = np.flatnonzero(file["next_action_valid"])[:rows]
        observations, next_observations = file["observations"][valid], file["next_observations"][valid]
        actions, next_actions = file["actions"][valid], file["next_actions"][valid]
    mean, deviation = observations.mean(0), observations.std(0) + 1e-3
    draw = torch.Generator().manual_seed(0)
    weights = [
        torch.randn(fan_in, 256, generator=draw) * (2 / fan_in) ** 0.5
        for fan_in in (len(mean) + actions.shape[1], 256, 256)
    ]

    def network(observations: np.ndarray, actions: np.ndarray) -> Tensor:
        x = torch.from_numpy(np.concatenate([(observations - mean) / deviation, actions], 1))
        for weight in weights:
            x = torch.relu(x @ weight)
        return x.unsqueeze(0)

    return network(next_observations, next_actions), network(observations, actions)


@pytest.mark.parametrize("covariance", ["full", "diagonal"])
def test_agrees_on_features_of_real_transitions(shared: Callable[[str], Path], covariance: str) -> None:
    g_next, g = features(shared("data/d4rl-10k/hopper-medium-expert-v2.npz"), rows=6000)
    y = torch.cat([principal_directions(side, 16)(side) for side in (g_next, g)], 2)
    assert_agrees(y, kmeans_start(y, Streams([0], torch.tensor(0)), torch.tensor([5]), 5), covariance)


def test_principal_directions_hold_most_of_real_features_and_match_the_singular_vectors(
    shared: Callable[[str], Path],
) -> None:
    g_next, g = features(shared("data/d4rl-10k/hopper-medium-expert-v2.npz"), rows=3000)
    both = torch.cat([g_next, g])
    projection = principal_directions(both, 8)
    assert (projection.kept_variance > 0.6).all()
    for r in range(2):
        centred = (both[r] - both[r].mean(0)).double()
        _, values, directions = torch.linalg.svd(centred, full_matrices=False)
        overlap = (projection.directions[r].double().T @ directions[:8].T).abs()
        torch.testing.assert_close(overlap, torch.eye(8, dtype=torch.float64), rtol=0, atol=5e-3)
        kept = float(values[:8].square().sum() / values.square().sum())
        assert float(projection.kept_variance[r]) == pytest.approx(kept, rel=1e-4)
