"""Theorem 2, the single-cluster bound and the alignment lemma on gradients of a critic trained on real transitions."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from c4rl.core.random import Streams
from c4rl.data.info import observation_statistics
from c4rl.data.loading import load_dataset
from c4rl.data.packing import Scaling, pack_datasets
from c4rl.plugins.c4.feature_gradients import feature_gradients
from c4rl.plugins.c4.gaussian_mixture import fit, kmeans_start
from c4rl.plugins.c4.principal_directions import principal_directions
from c4rl.theory.total_covariance import TotalCovariance, alignment_lower_bound, total_covariance, within_bound_chain
from c4rl.training.launch import Launch
from tests.helpers import CPU, advance, small_config

K = 5


class Clustered(NamedTuple):
    """g', g [n, m] of all rows with a valid next action, and responsibilities [n, K] of a mixture fitted to them."""

    g_next: Tensor
    g: Tensor
    soft: Tensor

    def decomposed(self, labels: str) -> TotalCovariance:
        responsibilities = self.soft
        if labels == "hard":
            responsibilities = torch.nn.functional.one_hot(self.soft.argmax(1), K).double()
        return total_covariance(self.g_next, self.g, responsibilities)


@pytest.fixture(scope="module")
def launch(shared: Callable[[str], Path]) -> Launch:
    """TD3+BC, 200 updates in float64 on 10,000 rows of hopper-medium-expert."""
    data = load_dataset(shared("data/d4rl-10k/hopper-medium-expert-v2.npz"))
    scaling = Scaling(*observation_statistics(data.observations), data.action_low, data.action_high)
    buffer = pack_datasets([(data, scaling)], CPU, torch.float64)
    config = small_config("td3_bc", hidden_layers=3, hidden_width=32, batch_size=128)
    return advance(Launch(config, [0], buffer, CPU, torch.float64), 200)


@pytest.fixture(scope="module", params=["proxy", "exact"])
def clustered(request: pytest.FixtureRequest, launch: Launch) -> Clustered:
    mode: Any = request.param
    assert launch.algorithm.critics is not None
    critic, target = launch.algorithm.critics
    batch = launch.buffer.unpack(launch.buffer.packed.unsqueeze(0))
    valid = batch.next_valid[0] > 0
    g_next = feature_gradients(mode, target, batch.next_state_actions, slice(1))[0, 0, valid]
    g = feature_gradients(mode, critic, batch.state_actions, slice(1))[0, 0, valid]
    sides = [principal_directions(x.unsqueeze(0), 8)(x.unsqueeze(0)) for x in (g_next, g)]
    y = torch.cat(sides, dim=2)
    streams = Streams([0], torch.zeros((), dtype=torch.int64), torch.float64)
    found = fit(y, kmeans_start(y, streams, torch.tensor([K]), K))
    assert not found.failed.any()
    return Clustered(g_next, g, found.responsibilities[0])


labels_of_both_kinds = pytest.mark.parametrize("labels", ["soft", "hard"])


@labels_of_both_kinds
def test_the_covariance_is_within_plus_between(clustered: Clustered, labels: str) -> None:
    """C term by term by the definitions, and as the covariance of all rows."""
    decomposed = clustered.decomposed(labels)
    scale = torch.linalg.matrix_norm(decomposed.C)
    assert torch.linalg.matrix_norm(decomposed.C - decomposed.within - decomposed.between) < 1e-10 * scale
    m = clustered.g.shape[1]
    joint = torch.cov(torch.cat([clustered.g_next, clustered.g], 1).T, correction=0)
    assert torch.linalg.matrix_norm(decomposed.C - joint[:m, m:]) < 1e-10 * scale
    # neither part is negligible here, or the identity would say nothing
    assert min(torch.linalg.matrix_norm(x) for x in (decomposed.within, decomposed.between)) > 0.05 * scale


@labels_of_both_kinds
def test_the_trace_bound_holds_link_by_link_and_is_lower_inside_clusters(clustered: Clustered, labels: str) -> None:
    decomposed, m = clustered.decomposed(labels), clustered.g.shape[1]
    generator = torch.Generator().manual_seed(0)
    caps = []
    for z in range(K):
        C_z, Sigma_next, Sigma = decomposed.C_z[z], decomposed.Sigma_next_z[z], decomposed.Sigma_z[z]
        U, _, Vh = torch.linalg.svd(C_z)
        directions = [(U[:, 0], Vh[0])]  # the worst case, where the first link is an equality
        for _ in range(20):
            w = torch.nn.functional.normalize(torch.randn(2, m, generator=generator, dtype=torch.float64), dim=1)
            directions.append((w[0], w[1]))
        for w_next, w in directions:
            chain = within_bound_chain(C_z, Sigma_next, Sigma, w_next, w)
            assert all(low <= high * (1 + 1e-10) for low, high in pairwise(chain))
        worst = within_bound_chain(C_z, Sigma_next, Sigma, *directions[0])
        assert worst[0] == pytest.approx(worst[1].item(), rel=1e-9)
        caps.append(worst[-1])
    whole = torch.cov(torch.cat([clustered.g_next, clustered.g], 1).T, correction=0)
    unclustered = (whole[:m, :m].trace() * whole[m:, m:].trace()).sqrt()
    assert decomposed.p @ torch.stack(caps) < unclustered


@labels_of_both_kinds
def test_the_alignment_lemma_holds_for_every_cluster(clustered: Clustered, labels: str) -> None:
    decomposed, m = clustered.decomposed(labels), clustered.g.shape[1]
    generator = torch.Generator().manual_seed(1)
    for C_z in [*decomposed.C_z, decomposed.C]:
        U, S, Vh = torch.linalg.svd(C_z)
        assert alignment_lower_bound(C_z, U[:, 0], Vh[0]) == pytest.approx(S[0].item(), rel=1e-9)
        for noise in (0.1, 1.0, 10.0):
            shifts = noise * torch.randn(2, m, generator=generator, dtype=torch.float64) / m**0.5
            w_next = torch.nn.functional.normalize(U[:, 0] + shifts[0], dim=0)
            w = torch.nn.functional.normalize(Vh[0] + shifts[1], dim=0)
            assert w_next @ C_z @ w >= alignment_lower_bound(C_z, w_next, w) - 1e-10 * S[0]
