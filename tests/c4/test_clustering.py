"""Re-clustering follows moving features, in small pools and in rotating ones."""

import pytest
import torch
from torch import Tensor

from c4rl.core.random import Streams
from c4rl.plugins.c4.clustering import FIT_ROWS, Clustering, ClusteringConfig
from c4rl.plugins.c4.gaussian_mixture import fit

ROWS, CLUSTERS = 900, 3


def blobs(scale: float, shift: float) -> tuple[Tensor, Tensor]:
    """Three groups of gradient pairs g', g [1, N, 4] and their labels; the same rows at any scale and place."""
    generator = torch.Generator().manual_seed(0)
    label = torch.arange(ROWS) % CLUSTERS
    centres = torch.eye(4, dtype=torch.float64)[:CLUSTERS] * 8
    y = torch.randn(1, ROWS, 4, generator=generator, dtype=torch.float64) + centres[label]
    return y * scale + shift, label


def refreshed(clustering: Clustering, index: int, scale: float, shift: float) -> tuple[dict[str, Tensor], Tensor]:
    y, label = blobs(scale, shift)
    streams = Streams([0], torch.tensor(index), torch.float64)

    def gradients(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return y[:, rows[0]].roll(1, 2), y[:, rows[0]], torch.ones(rows.shape, dtype=torch.bool)

    return clustering.refresh(gradients, streams, index * clustering.config.period), label


def made(pool: int) -> Clustering:
    return Clustering(ClusteringConfig(K=CLUSTERS, pool=pool, mode="exact"), [0], [0], [ROWS], torch.device("cpu"))


def test_a_warm_start_survives_features_that_shrink_and_move() -> None:
    clustering = made(pool=ROWS)
    first, _ = refreshed(clustering, 0, 1.0, 0.0)
    before = clustering.memberships.argmax(2).clone()
    for index, (scale, shift) in enumerate([(1e-3, 5.0), (40.0, -300.0), (1e-6, 0.0)], start=1):
        report, _ = refreshed(clustering, index, scale, shift)
        assert report["c4_effective_K"].item() == CLUSTERS
        assert (clustering.memberships.argmax(2) == before).float().mean() > 0.99  # the same cluster, the same name
    assert first["c4_effective_K"].item() == CLUSTERS


def test_a_rotating_pool_clusters_and_draws_its_own_rows() -> None:
    clustering = made(pool=300)
    seen = set()
    for index in range(3):
        report, _ = refreshed(clustering, index, 1.0, 0.0)
        assert report["c4_effective_K"].item() == CLUSTERS
        pool = set(clustering.tables.pool_rows(index)[0].tolist())
        streams = Streams([0], torch.tensor(100 + index), torch.float64)
        assert set(clustering.rows(streams, 64)[0].tolist()) <= pool
        seen |= pool
    assert seen == set(range(ROWS))
    assert clustering.memberships is None  # other rows each time: nothing to carry over


@pytest.mark.parametrize(("rows", "has_next_action"), [(FIT_ROWS + 2, True), (ROWS, False)])
def test_a_row_without_finite_gradients_fails_the_run_although_no_fit_sees_it(rows: int, has_next_action: bool) -> None:
    """Every second row of the large pool is fitted, and no row without a next action; all are drawn."""
    y = torch.randn(1, rows, 4, generator=torch.Generator().manual_seed(0))
    valid = torch.ones(1, rows, dtype=torch.bool)
    y[0, 777], valid[0, 777] = torch.nan, has_next_action
    clustering = Clustering(ClusteringConfig(K=2, mode="exact"), [0], [0], [rows], torch.device("cpu"))
    clustering.refresh(lambda at: (y[:, at[0]], y[:, at[0]], valid[:, at[0]]), Streams([0], torch.tensor(0)), 0)
    assert "non finite rows" in clustering.failures()[0][1]


@pytest.mark.parametrize(("start", "expected"), [("warm", [10, 2, 2]), ("cold", [10, 10, 10])])
def test_the_first_fit_and_cold_ones_take_ten_steps(
    start: str, expected: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    monkeypatch.setattr(
        "c4rl.plugins.c4.clustering.fit", lambda *given, **how: steps.append(how["steps"]) or fit(*given, **how)
    )
    config = ClusteringConfig(K=CLUSTERS, mode="exact", em_steps=2, mixture_start=start)
    clustering = Clustering(config, [0], [0], [ROWS], torch.device("cpu"))
    for index in range(3):
        refreshed(clustering, index, 1.0, 0.0)
    assert steps == expected
