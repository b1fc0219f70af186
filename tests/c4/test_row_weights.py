"""A weight per row: plug-ins choose how often rows are drawn, alone or inside clusters (z ~ sum_i w_i r_iz)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.options import Options
from c4rl.core.random import Streams
from c4rl.data.packing import pack_datasets
from c4rl.jobs.registry import PLUGINS
from c4rl.jobs.runs import Run
from c4rl.plugins.c4.behaviour_model import BehaviourModel
from c4rl.plugins.c4.cluster_sampler import ClusterSampler
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.returns import ReturnsConfig
from c4rl.plugins.seams import Host, Plugin, Plugins
from c4rl.results.speed import made_up_dataset
from c4rl.training.launch import Launch
from tests.c4.test_single_cluster_minibatches import chi_square, drawn
from tests.helpers import (
    CPU,
    SMALL,
    advance,
    make_launch,
    plain_scaling,
    small_config,
    small_dataset,
    with_trajectories,
)

ROWS = 60


@dataclass(frozen=True)
class WeigherConfig(Options):
    kind: str = "rising"
    period: int | None = None


class Weigher(Plugin):
    """Rows weigh 1, or their number (from 1), or 1 if it is even and 0 if not; `refresh` reverses their order."""

    def __init__(self, config: WeigherConfig) -> None:
        self.config, self.period = config, config.period

    def row_weights(self, buffer: TransitionBuffer) -> Tensor:
        place = torch.arange(int(buffer.lengths.max())).expand(len(buffer.lengths), -1)
        kinds = {"equal": torch.ones_like(place), "rising": place + 1, "even": 1 - place % 2, "broken": place - 5}
        self.weights = kinds[self.config.kind].double().contiguous()
        return self.weights

    def refresh(self, algorithm: Host, step: int) -> dict[str, Tensor]:
        self.weights.copy_(self.weights.flip(1))
        return {}

    def state(self) -> dict[str, Tensor]:
        return {"weights": self.weights}


class Halver(Weigher):
    """Another one, whose weights multiply with the first's."""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(PLUGINS, "weigher", (WeigherConfig, Weigher))
    monkeypatch.setitem(PLUGINS, "halver", (WeigherConfig, Halver))
    yield


def launch_of(algorithm: str, plugins: dict[str, Any], states: Any = None, seeds: tuple[int, ...] = (0,)) -> Launch:
    config = small_config(algorithm, tuple(plugins), seeds, plugin_options=tuple(plugins.values()))
    return make_launch(config, with_trajectories(small_dataset(ROWS), 6), states=states)


def counts_of(launch: Launch, updates: int = 400, batch: int = 32) -> np.ndarray:
    """How often each row of the first run is drawn."""
    counts = np.zeros(ROWS)
    for step in range(1000, 1000 + updates):
        launch.step.fill_(step)
        counts += np.bincount(launch.sampler.rows(launch.streams, batch)[0].numpy(), minlength=ROWS)
    return counts


def expected_of(weights: np.ndarray, total: float) -> np.ndarray:
    return total * weights / weights.sum()


def test_clusters_and_their_rows_are_drawn_by_weight_times_responsibility() -> None:
    r = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.5, 0.5], [0.2, 0.8], [0.0, 1.0]]).unsqueeze(0)
    w = torch.tensor([[1.0, 2.0, 0.0, 4.0, 0.5]])
    sampler = ClusterSampler([0], [7], [5], [2])
    sampler.refresh(r, 0, row_weights=w)
    joint = (w.unsqueeze(2) * r)[0].double().numpy()  # w_i r_iz, [N, K]
    np.testing.assert_allclose(sampler.weights[0].numpy(), joint.sum(0) / joint.sum(), rtol=1e-6)
    batches, z = drawn(sampler, [0], 5000, 1)
    rows, z = batches[0, :, 0].numpy() - 7, z[0].numpy()
    assert abs(chi_square(np.bincount(z, minlength=2), expected_of(joint.sum(0), 5000))) < 4
    for k in range(2):
        own = np.bincount(rows[z == k], minlength=5)
        possible = joint[:, k] > 0
        assert not own[~possible].any()
        assert abs(chi_square(own[possible], expected_of(joint[possible, k], own.sum()))) < 4
    overall = np.bincount(rows, minlength=5)
    assert abs(chi_square(overall[[0, 1, 3, 4]], expected_of(w[0, [0, 1, 3, 4]].numpy(), 5000))) < 4


@pytest.mark.parametrize(
    ("algorithm", "chooser"),
    [
        ("bc", {}),
        ("td3_bc", {}),
        ("bc", {"sorl": PLUGINS["sorl"][0](**SMALL["sorl"] | {"styles": 2})}),
        ("td3_bc", {"c4": C4Config(K=1)}),
        ("td3_bc", {"c4": C4Config(K=3, sampler="uniform")}),
    ],
)
def test_rows_of_a_launch_come_up_in_proportion_to_their_weights(algorithm: str, chooser: dict[str, Any]) -> None:
    for plugins in ({"weigher": WeigherConfig()} | chooser, chooser | {"weigher": WeigherConfig()}):
        counts = counts_of(launch_of(algorithm, plugins))
        if "sorl" in chooser:  # all rows of a batch have one style: draws are not independent
            np.testing.assert_allclose(counts / counts.sum(), expected_of(np.arange(1.0, ROWS + 1), 1), atol=0.005)
        else:
            assert abs(chi_square(counts, expected_of(np.arange(1.0, ROWS + 1), counts.sum()))) < 4


def test_weights_compose_with_clusters_that_are_fitted_without_them() -> None:
    plain, weighed = (
        launch_of("td3_bc", p) for p in ({"c4": C4Config(K=3)}, {"c4": C4Config(K=3), "weigher": WeigherConfig()})
    )
    clusterings = [launch.plugins.all[0].clustering for launch in (plain, weighed)]  # type: ignore[attr-defined]
    assert torch.equal(*(clustering.responsibilities for clustering in clusterings))
    w = torch.arange(1, ROWS + 1).double()
    expected = (w.unsqueeze(1) * clusterings[0].responsibilities[0]).sum(0)
    torch.testing.assert_close(clusterings[1].tables.weights[0], expected / expected.sum())


def test_the_behaviour_of_clusters_is_fitted_by_weight_times_responsibility() -> None:
    """For a run whose rows lie behind those of another dataset."""
    before, own = small_dataset(40), made_up_dataset(ROWS, 5, 2, seed=1)
    buffer = pack_datasets([(data, plain_scaling(data)) for data in (before, own)], CPU, torch.float64)
    options = (C4Config(K=2, divergence="kl", divergence_weight=1.0), WeigherConfig())
    config = small_config("cql", ("c4", "weigher"), plugin_options=options)
    plugin: Any = Launch(config, [Run("own", 0, dataset=1, data=1)], buffer, CPU, torch.float64).plugins.all[0]
    weights = plugin.clustering.responsibilities * torch.arange(1, ROWS + 1).double().view(1, -1, 1)
    expected = BehaviourModel(1, 2, 5, 2, dtype=torch.float64)
    expected.fit(torch.tensor(own.observations)[None].double(), torch.tensor(own.actions)[None].double(), weights)
    for name in ("weight", "bias", "log_std", "log_p"):
        torch.testing.assert_close(getattr(plugin.divergence.behaviour, name), getattr(expected, name), msg=name)


@pytest.mark.parametrize("plugins", [{"c4": C4Config(K=3, period=3)}, {"c4": C4Config(K=2, period=3, sampler="hard")}])
def test_equal_weights_in_clusters_change_nothing(plugins: dict[str, Any]) -> None:
    without, equal = (
        advance(launch_of("td3_bc", plugins | more, seeds=(0, 1)), 8).live_state()
        for more in ({}, {"weigher": WeigherConfig("equal")})
    )
    assert all(torch.equal(tensor, equal[name]) for name, tensor in without.items())


def test_equal_weights_alone_draw_all_rows_alike() -> None:
    counts = counts_of(launch_of("bc", {"weigher": WeigherConfig("equal")}))
    assert abs(chi_square(counts, np.full(ROWS, counts.sum() / ROWS))) < 4


def test_weights_of_several_plugins_multiply() -> None:
    for more in ({}, {"c4": C4Config(K=1)}):
        plugins = {"weigher": WeigherConfig(), "halver": WeigherConfig("even")} | more
        counts = counts_of(launch_of("td3_bc", plugins))
        assert not counts[1::2].any()
        assert abs(chi_square(counts[::2], expected_of(np.arange(1.0, ROWS + 1, 2), counts.sum()))) < 4


def test_weights_may_be_refreshed_in_place_and_survive_a_restart() -> None:
    plugins = {"weigher": WeigherConfig(period=3)}
    launch = launch_of("td3_bc", plugins)
    falling = np.arange(ROWS, 0.0, -1)
    advance(launch, 3)
    counts = counts_of(launch)
    assert abs(chi_square(counts, expected_of(falling, counts.sum()))) < 4
    resumed = launch_of("td3_bc", plugins, states=launch.run_states())
    assert (counts_of(resumed) == counts).all()
    clustered = advance(launch_of("td3_bc", plugins | {"c4": C4Config(K=1, period=4)}), 3)
    rising = counts_of(clustered)
    assert abs(chi_square(rising, expected_of(falling[::-1], rising.sum()))) < 4
    advance(clustered, 1, start=3)  # clusters take the new weights up when they are refitted
    assert abs(chi_square(counts_of(clustered), expected_of(falling, rising.sum()))) < 4


def test_refreshed_weights_reach_rows_of_the_actor_alone() -> None:
    launch = launch_of("td3_bc", {"weigher": WeigherConfig("even", period=3), "returns": ReturnsConfig()})
    for odd in (0, 1):
        assert launch.actor_sampler is not None
        assert (launch.actor_sampler.rows(launch.streams, 200) % 2 == odd).all()
        advance(launch, 3)


def test_runs_of_different_length_draw_as_if_alone() -> None:
    packed, ids = torch.zeros(90, 7), torch.zeros(90, dtype=torch.int32)
    step = torch.zeros((), dtype=torch.int64)

    def rows(seeds: list[int], datasets: list[int]) -> Tensor:
        buffer = TransitionBuffer(packed, ids, (1, 1), [30, 60], datasets)
        buffer.weights = Plugins([Weigher(WeigherConfig())]).row_weights(buffer)
        return buffer.sampler().rows(Streams(seeds, step), 500)

    together, alone = rows([0, 1], [0, 1]), [rows([0], [0]), rows([1], [1])]
    assert torch.equal(together, torch.cat(alone))
    assert together[0].max() < 30 and together[1].min() >= 30


def test_weights_that_are_none_are_refused() -> None:
    with pytest.raises(InputError, match="Weigher: found weights of rows that are negative, not finite or all 0"):
        launch_of("bc", {"weigher": WeigherConfig("broken")})
