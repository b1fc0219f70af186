"""Each switch for a quirk of the authors' release does what its name says, and nothing where it is off."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.random import Streams
from c4rl.data.dataset import Dataset
from c4rl.plugins.c4.authors import AuthorsRelease, with_trajectory_tails, without_small_clusters
from c4rl.plugins.c4.clustering import Clustering
from c4rl.plugins.c4.feature_gradients import feature_gradients
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.seams import CriticStep
from c4rl.training.launch import Launch
from tests.helpers import CPU, advance, c4_of, make_launch, small_config, small_dataset, with_trajectories


def launch_of(form: C4Config, seeds: tuple[int, ...] = (0,), data: Dataset | None = None, **values: Any) -> Launch:
    data = with_trajectories(small_dataset(), 10) if data is None else data
    return make_launch(small_config("cql", ("c4",), seeds, plugin_options=(form,), **values), data)


# -- trajectory tails


def tails(labels: np.ndarray, trajectories: np.ndarray, clusters: int) -> np.ndarray:
    """Each cluster's rows, with tails, [K, N]; the rows are given in logged order."""
    members = torch.tensor(labels[None, :, None] == np.arange(clusters))
    count = int(trajectories.max()) + 1
    found = with_trajectory_tails(members, torch.tensor(trajectories)[None], torch.arange(len(labels))[None], count)
    return found[0].T.numpy()


def test_a_cluster_of_every_beginning_becomes_the_whole_data() -> None:
    trajectories = np.repeat(np.arange(10), 100)
    labels = (np.tile(np.arange(100), 10) >= 20).astype(int)
    first, second = tails(labels, trajectories, 2)
    assert first.all()
    assert np.array_equal(second, labels == 1)  # nothing follows the last row of a trajectory


def test_random_labels_gain_few_rows() -> None:
    rng = np.random.default_rng(0)
    labels, trajectories = rng.integers(0, 3, 10_000), np.repeat(np.arange(10), 1000)
    found = tails(labels, trajectories, 3)
    gained = found.sum() / 10_000 - 1
    assert 0 < gained < 0.01  # about two rows of a thousand per trajectory and cluster


@given(st.data())
def test_tails_are_the_rows_after_the_last_member_in_any_order_of_rows(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    trajectories = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    labels = np.array(data.draw(st.lists(st.integers(0, 2), min_size=sum(lengths), max_size=sum(lengths))))
    order = np.array(data.draw(st.permutations(range(sum(lengths)))))
    members = torch.tensor(labels[order][None, :, None] == np.arange(3))
    rows = torch.tensor(order + 100)[None]  # a run's rows begin somewhere in the buffer
    found = with_trajectory_tails(members, torch.tensor(trajectories[order])[None], rows, len(lengths))[0].numpy()
    for z in range(3):
        expected = set(np.flatnonzero(labels == z))
        for t in set(trajectories[labels == z]):
            mine = np.flatnonzero(trajectories == t)
            expected |= set(mine[mine > mine[labels[mine] == z].max()])
        assert set(order[found[:, z]]) == expected


def separated(beginnings: int, length: int, rows: int) -> Tensor:
    """g of rows that lie near 0 at the beginning of each trajectory, near 10 after it, [1, N, 2]."""
    late = (torch.arange(rows) % length >= beginnings).double().unsqueeze(1)
    noise = torch.randn(rows, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return (10 * late + noise).unsqueeze(0)


def clustered(config: C4Config, g: Tensor, length: int, steps: tuple[int, ...] = (0,)) -> Clustering:
    rows = g.shape[1]
    buffer = TransitionBuffer(torch.zeros(rows, 7), (torch.arange(rows) // length).int(), (1, 1), [rows])
    clustering = Clustering(config, [0], [0], [rows], CPU, authors=AuthorsRelease(config, buffer, torch.float64))
    step = torch.zeros((), dtype=torch.int64)
    streams = Streams([0], step, torch.float64)

    def gradients(chosen: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return g[:, chosen[0]], g[:, chosen[0]], torch.ones(1, chosen.shape[1], dtype=torch.bool)

    for at in steps:
        step.fill_(at)
        clustering.refresh(gradients, streams, at)
    return clustering


def drawn_by_cluster(clustering: Clustering, count: int = 400) -> dict[int, set[int]]:
    out: dict[int, set[int]] = {}
    step = torch.zeros((), dtype=torch.int64)
    streams = Streams([0], step, torch.float64)
    for at in range(count):
        step.fill_(at)
        rows = clustering.rows(streams, 256)
        out.setdefault(int(clustering.cluster[0]), set()).update(rows[0].tolist())
    return out


@pytest.mark.parametrize("pool", [2000, 900])
def test_batches_come_from_members_and_tails(pool: int) -> None:
    config = C4Config(K=2, sampler="hard", trajectory_tails=True, pool=pool)
    clustering = clustered(config, separated(20, 100, 2000), 100)
    drawn, pool_rows = drawn_by_cluster(clustering), clustering.tables.pool_rows(0)[0]
    assert clustering.responsibilities is not None
    for z, rows in drawn.items():
        assert set(pool_rows[clustering.responsibilities[0].argmax(1) == z].tolist()) <= rows
    by_size, seen = sorted(drawn.values(), key=len), set(pool_rows.tolist())
    assert by_size[1] == seen
    assert by_size[0] == {row for row in seen if row % 100 >= 20}
    sizes = torch.tensor([len(rows) for rows in by_size], dtype=torch.float64)
    torch.testing.assert_close(clustering.tables.weights.sort(1).values[0], sizes / sizes.sum())  # p after tails


def test_small_clusters_are_dropped_by_their_size_after_tails() -> None:
    g = separated(5, 100, 2000)  # 100 rows in one cluster, below the least size of 256
    plain = C4Config(K=2, sampler="hard")
    weights = {
        name: clustered(replace(plain, **options), g, 100).tables.weights[0].sort().values.tolist()
        for name, options in {
            "kept": {},
            "dropped": {"drop_small": True},
            "saved by its tails": {"drop_small": True, "trajectory_tails": True},
        }.items()
    }
    assert weights["kept"] == pytest.approx([0.05, 0.95])
    assert weights["dropped"] == [0, 1]
    assert weights["saved by its tails"] == pytest.approx([1900 / 3900, 2000 / 3900])


def test_small_clusters_are_dropped_unless_all_are_small() -> None:
    label = torch.zeros(4000, dtype=torch.int64)
    label[:300], label[300:900] = 1, 2  # the limit is max(256, 4000 // 10) = 400
    members, components = torch.nn.functional.one_hot(label, 3).float().unsqueeze(0), torch.tensor([3])
    found = without_small_clusters(members, torch.ones(1, 4000, dtype=torch.bool), components)
    assert found.sum(1).tolist() == [[3100, 0, 600]]
    half = torch.arange(4000) < 2000  # what is not in the pool does not raise the limit
    found = without_small_clusters(members * half.unsqueeze(1), half.unsqueeze(0), components)
    assert found.sum(1).tolist() == [[1100, 300, 600]]
    many = without_small_clusters(members, torch.ones(1, 4000, dtype=torch.bool), torch.tensor([20]))
    assert many.sum(1).tolist() == [[3100, 300, 600]]  # 4000 // 20 is below 256
    tiny = members[:, 200:500]
    assert torch.equal(without_small_clusters(tiny, torch.ones(1, 300, dtype=torch.bool), components), tiny)


def test_what_fills_up_the_pool_of_a_short_run_makes_no_cluster_large() -> None:
    """300 rows beside a run of 600: one cluster holds the sixth row of every ten, and with tails half of them."""
    buffer = TransitionBuffer(torch.zeros(300, 7), (torch.arange(300) // 10).int(), (1, 1), [300])
    config = C4Config(K=2, sampler="hard", trajectory_tails=True, drop_small=True)
    pool, mask = (torch.arange(600) % 300).unsqueeze(0), (torch.arange(600) < 300).unsqueeze(0)
    members = torch.stack([pool % 10 == 5, pool % 10 != 5], 2) & mask.unsqueeze(2)
    found = AuthorsRelease(config, buffer, torch.float64).members(
        members.double(), pool, mask, torch.tensor([2]), first=False
    )
    assert found.sum(1).tolist() == [[0, 270]]


def test_cold_fits_forget_and_warm_ones_do_not() -> None:
    g = torch.randn(1, 600, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)

    def mean(start: Any, steps: tuple[int, ...]) -> Tensor:
        mixture = clustered(C4Config(K=3, period=10, mixture_start=start), g, 100, steps).mixture
        assert mixture is not None
        return mixture.means

    assert torch.equal(mean("cold", (0, 10, 20)), mean("cold", (20,)))
    assert not torch.allclose(mean("warm", (0, 10, 20)), mean("warm", (20,)))


# -- the first clusters


def two_groups(rows: int = 400) -> Dataset:
    """A tenth of the rows lies elsewhere in [s, a]."""
    data = small_dataset(rows)
    shift = np.float32(20) * (np.arange(rows) % 10 == 0)[:, None]
    return with_trajectories(replace(data, observations=data.observations + shift), 10)


@pytest.mark.parametrize("sampler", ["hard", "soft"])
@pytest.mark.parametrize("drop_small", [True, False])
def test_the_first_clusters_are_of_state_and_action_and_drawn_equally(sampler: Any, drop_small: bool) -> None:
    form = C4Config(K=2, period=3, sampler=sampler, drop_small=drop_small, initial_clusters="state_action")
    launch = launch_of(form, seeds=(0, 1), data=two_groups())
    clustering = c4_of(launch).clustering
    torch.testing.assert_close(clustering.tables.weights, torch.full((2, 2), 0.5, dtype=torch.float64))
    for step in range(1, 20):
        launch.step.fill_(step)
        rows = launch.sampler.rows(launch.streams, 32)
        minority = (rows % 10 == 0).double().mean(1)
        assert ((minority == 0) | (minority == 1)).all()
    advance(launch, 3)
    refitted = clustering.tables.weights
    assert not torch.allclose(refitted, torch.full_like(refitted, 0.5), atol=0.01)


def test_later_clusters_are_those_of_the_gradients() -> None:
    plain = C4Config(K=2, period=3, mixture_start="cold")
    forms = [plain, replace(plain, initial_clusters="state_action")]
    launches = [launch_of(form, data=two_groups()) for form in forms]
    for launch in launches:
        c4_of(launch).refresh(launch.algorithm, 3)  # of the same untrained critic
    tables = [c4_of(launch).clustering.tables.state() for launch in launches]
    assert all(torch.equal(tables[0][name], tables[1][name]) for name in tables[0])


def test_tails_need_hard_labels() -> None:
    with pytest.raises(InputError, match="--trajectory-tails: found --sampler soft, expected --sampler hard"):
        C4Config(trajectory_tails=True)


# -- critics and next actions


def penalty_of(launch: Launch) -> tuple[Tensor, Any]:
    """λR of each head on the first rows of the data, and their batch."""
    critic, target = launch.algorithm.critics  # type: ignore[misc]
    batch = launch.buffer.gather(torch.arange(40).expand(len(launch.seeds), -1))
    td = torch.ones(len(launch.seeds), 2, dtype=torch.float64)
    step = CriticStep(batch, critic, target, critic.at(batch.state_actions), batch.actions, td)
    found = c4_of(launch).critic_penalty(step)
    assert found is not None
    return found, batch


def dot_product(launch: Launch, batch: Any, next_pairs: Tensor, valid: Tensor) -> Tensor:
    critic, target = launch.algorithm.critics  # type: ignore[misc]
    g = feature_gradients("proxy", critic, batch.state_actions)
    g_next = feature_gradients("proxy", target, next_pairs)
    products = (g * g_next).sum(3) * valid.unsqueeze(1)
    return products.sum(2) / valid.sum(1, keepdim=True)


@pytest.mark.parametrize("zeroed", [True, False])
@pytest.mark.parametrize("mask", [True, False])
def test_the_penalty_loses_its_next_actions_at_the_first_refit(zeroed: bool, mask: bool) -> None:
    form = C4Config(
        K=2, mode="proxy", period=2, estimator="dot_product", lambda_=0.3, zero_next_actions=zeroed, mask_invalid=mask
    )
    launch = launch_of(form, seeds=(0, 1))
    for updates in (1, 1, 1):  # the refit is after the second
        found, batch = penalty_of(launch)
        pairs = batch.next_state_actions.clone()
        if zeroed and launch.step >= 2:
            pairs[..., launch.buffer.widths[0] :] = 0
        valid = batch.next_valid if mask else torch.ones_like(batch.next_valid)
        assert (batch.next_valid == 0).any()
        torch.testing.assert_close(found, 0.3 * dot_product(launch, batch, pairs, valid))
        advance(launch, updates, start=int(launch.step))
    assert launch.step == 3


def test_without_the_mask_all_rows_shape_the_mixture() -> None:
    """Rows without a next action, moved far away: only a fit that sees them notices."""
    spread = {}
    for mask in (True, False):
        data = with_trajectories(small_dataset(400), 4)
        far = np.float32(200) * ~data.next_action_valid[:, None]
        launch = launch_of(
            C4Config(K=2, mode="proxy", mask_invalid=mask), data=replace(data, observations=data.observations + far)
        )
        mixture = c4_of(launch).clustering.mixture
        assert mixture is not None
        spread[mask] = float(mixture.scale.max())
    assert spread[False] > 5 * spread[True]


@pytest.mark.parametrize("average", [True, False])
def test_refits_overwrite_both_critics_by_their_average(average: bool) -> None:
    launch = launch_of(C4Config(K=2, period=3, average_critics=average), seeds=(0, 1))
    critic, target = launch.algorithm.critics  # type: ignore[misc]
    advance(launch, 2)
    launch.update(3)
    before = {name: p.detach().clone() for name, p in critic.named_parameters()}
    targets = {name: p.detach().clone() for name, p in target.named_parameters()}
    moments = {name: tensor.clone() for name, tensor in launch.algorithm.optimizers["critic"].state().items()}
    launch.refresh(3)
    for name, p in critic.named_parameters():
        expected = before[name].mean(1, keepdim=True).expand_as(p) if average else before[name]
        torch.testing.assert_close(p.detach(), expected)
        assert torch.equal(p[:, 0], p[:, 1]) == average
    assert all(torch.equal(p, targets[name]) for name, p in target.named_parameters())
    assert all(torch.equal(t, moments[name]) for name, t in launch.algorithm.optimizers["critic"].state().items())


@pytest.mark.parametrize("network", ["target", "online"])
def test_the_network_that_gives_the_next_gradients(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    launch = advance(launch_of(C4Config(K=2, mode="proxy", period=100, next_features=network)), 3)
    seen: list[Any] = []
    monkeypatch.setattr(c4_of(launch).clustering, "refresh", lambda gradients, *rest: seen.append(gradients) or {})
    c4_of(launch).refresh(launch.algorithm, 100)
    rows = torch.arange(20).unsqueeze(0)
    critic, target = launch.algorithm.critics  # type: ignore[misc]
    batch = launch.buffer.gather(rows)
    g_next, g, _ = seen[0](rows)
    chosen = target if network == "target" else critic
    assert torch.equal(g_next, feature_gradients("proxy", chosen, batch.next_state_actions)[:, 0])
    assert torch.equal(g, feature_gradients("proxy", critic, batch.state_actions)[:, 0])
    assert not torch.equal(
        feature_gradients("proxy", critic, batch.state_actions), feature_gradients("proxy", target, batch.state_actions)
    )
