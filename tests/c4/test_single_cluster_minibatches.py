"""z ~ Cat(p), rows ~ r_iz: batches from one cluster that leave the distribution of the data as it is."""

import numpy as np
import pytest
import torch
from torch import Tensor

from c4rl.core.random import Streams
from c4rl.plugins.c4.cluster_sampler import ClusterSampler


def soft_responsibilities(runs: int, rows: int, clusters: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.softmax(2 * torch.randn(runs, rows, clusters, generator=draw), 2)


def drawn(sampler: ClusterSampler, seeds: list[int], steps: int, batch: int) -> tuple[Tensor, Tensor]:
    """Rows [R, steps, B] and clusters [R, steps] of successive updates."""
    step = torch.zeros((), dtype=torch.int64)
    streams = Streams(seeds, step)
    rows, clusters = [], []
    for _ in range(steps):
        batch_rows, z = sampler.rows(streams, batch)
        rows.append(batch_rows)
        clusters.append(z)
        step += 1
    return torch.stack(rows, 1), torch.stack(clusters, 1)


def chi_square(counts: np.ndarray, expected: np.ndarray) -> float:
    """Standardised: about N(0, 1) for independent draws."""
    freedom = len(counts) - 1
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / np.sqrt(2 * freedom))


def probability_of_rows(sampler: ClusterSampler, run: int) -> Tensor:
    """sum_z p_z P(row | z) by what the tables hold, without drawing."""
    table = sampler.state()["cumulative"][run]
    return table.diff(prepend=table.new_zeros(1)).view(-1, sampler.pool_mask.shape[1]).sum(0) / table[-1]


def one_hot(responsibilities: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(responsibilities.argmax(2), responsibilities.shape[2]).double()


@pytest.mark.parametrize("assignment", ["soft", "hard"])
def test_every_row_comes_up_equally_often(assignment: str) -> None:
    rows = 120
    sampler = ClusterSampler([3], [0], [rows], [4])
    responsibilities = soft_responsibilities(1, rows, 4)
    sampler.refresh(responsibilities if assignment == "soft" else one_hot(responsibilities), 0)
    torch.testing.assert_close(
        probability_of_rows(sampler, 0), torch.full((rows,), 1 / rows, dtype=torch.float64), rtol=1e-6, atol=0
    )
    # one row per update, so that the draws are independent of each other
    counts = np.bincount(drawn(sampler, [3], 6_000, 1)[0].flatten().numpy(), minlength=rows)
    assert abs(chi_square(counts, np.full(rows, 6_000 / rows))) < 4


def test_a_batch_follows_the_responsibilities_of_its_cluster() -> None:
    rows, responsibilities = 80, soft_responsibilities(1, 80, 3)
    sampler = ClusterSampler([0], [0], [rows], [3])
    sampler.refresh(responsibilities, 0)
    batches, z = drawn(sampler, [0], 600, 64)
    shares = responsibilities[0].double().mean(0)
    torch.testing.assert_close(sampler.weights[0], shares)
    assert abs(chi_square(np.bincount(z[0].numpy(), minlength=3), 600 * shares.numpy())) < 4
    for k in range(3):
        members = batches[0, z[0] == k].flatten().numpy()
        expected = responsibilities[0, :, k].double().numpy()
        assert abs(chi_square(np.bincount(members, minlength=rows), len(members) * expected / expected.sum())) < 4


def test_a_hard_batch_holds_rows_of_one_cluster_only() -> None:
    responsibilities = soft_responsibilities(2, 300, 5)
    sampler = ClusterSampler([0, 1], [0, 300], [300, 300], [5, 5])
    sampler.refresh(one_hot(responsibilities), 0)
    batches, z = drawn(sampler, [0, 1], 200, 32)
    labels = responsibilities.argmax(2)
    for r in range(2):
        assert (labels[r, batches[r] - 300 * r] == z[r].unsqueeze(1)).all()
        assert set(z[r].tolist()) == set(range(5))


def test_one_cluster_is_uniform_sampling_over_all_rows() -> None:
    sampler = ClusterSampler([0], [50], [90], [1])
    before = drawn(sampler, [0], 200, 64)
    sampler.refresh(torch.ones(1, 90, 1), 0)
    after = drawn(sampler, [0], 200, 64)
    assert torch.equal(before[0], after[0])
    counts = np.bincount(after[0].flatten().numpy() - 50, minlength=90)
    assert abs(chi_square(counts, np.full(90, 200 * 64 / 90))) < 4


def test_before_the_first_refresh_rows_are_uniform_and_z_is_zero() -> None:
    sampler = ClusterSampler([0, 1], [0, 1000], [1000, 40], [5, 5], pool_size=100)
    batches, z = drawn(sampler, [0, 1], 400, 32)
    assert not z.any()
    for run, (offset, length) in enumerate([(0, 1000), (1000, 40)]):
        counts = np.bincount(batches[run].flatten().numpy() - offset, minlength=length)
        assert len(counts) == length
        assert abs(chi_square(counts, np.full(length, 400 * 32 / length))) < 4


def test_runs_of_different_length_and_number_of_clusters_draw_as_if_alone() -> None:
    seeds, offsets, lengths, components = [4, 9], [0, 200], [200, 130], [2, 5]
    stacked = ClusterSampler(seeds, offsets, lengths, components)
    responsibilities = torch.zeros(2, 200, 5)
    responsibilities[0, :, :2] = soft_responsibilities(1, 200, 2)[0]
    responsibilities[1] = soft_responsibilities(1, 200, 5, seed=1)[0]  # the rows beyond 130 are padding
    stacked.refresh(responsibilities, 0)
    batches, z = drawn(stacked, seeds, 100, 16)
    assert z[0].max() < 2
    for r in range(2):
        alone = ClusterSampler(seeds[r : r + 1], offsets[r : r + 1], lengths[r : r + 1], components[r : r + 1])
        alone.refresh(responsibilities[r : r + 1, : lengths[r], : components[r]], 0)
        own_batches, own_z = drawn(alone, seeds[r : r + 1], 100, 16)
        assert torch.equal(own_batches[0], batches[r])
        assert torch.equal(own_z[0], z[r])
        assert batches[r].min() >= offsets[r]
        assert batches[r].max() < offsets[r] + lengths[r]


def test_rows_of_weight_zero_and_empty_clusters_never_come_up() -> None:
    responsibilities = torch.zeros(1, 100, 4)
    responsibilities[0, 10:60, 1], responsibilities[0, 60:90, 3] = 1, 1
    sampler = ClusterSampler([0], [0], [100], [4])
    sampler.refresh(responsibilities, 0)
    batches, z = drawn(sampler, [0], 500, 64)
    assert set(z.flatten().tolist()) == {1, 3}
    assert batches[z == 1].min() >= 10
    assert batches[z == 1].max() < 60
    assert batches[z == 3].min() >= 60
    assert batches[z == 3].max() < 90


def test_a_million_rows_keep_their_probability() -> None:
    """A running sum in float32 stops growing by 1e-3 beyond 16384 and would lose most of these rows."""
    rows = 1_000_000
    responsibilities = torch.full((1, rows, 2), 1e-3)
    responsibilities[..., 1] = 1 - 1e-3
    sampler = ClusterSampler([0], [0], [rows], [2], pool_size=rows)
    sampler.refresh(responsibilities, 0)
    expected = torch.full((rows,), 1 / rows, dtype=torch.float64)
    torch.testing.assert_close(probability_of_rows(sampler, 0), expected, rtol=1e-5, atol=0)
    batches, _ = drawn(sampler, [0], 1, 200_000)
    assert abs(chi_square(torch.bincount(batches[0, 0] // 10_000).numpy(), np.full(100, 2000.0))) < 4
    assert abs(chi_square(torch.bincount(batches[0, 0] % 16).numpy(), np.full(16, 12_500.0))) < 4


def test_a_refresh_is_written_in_place_and_a_failed_fit_leaves_its_run_as_it_was() -> None:
    seeds = [0, 1]
    sampler = ClusterSampler(seeds, [0, 0], [500, 500], [3, 3], pool_size=100)
    tables = sampler.state()
    addresses = {name: table.data_ptr() for name, table in tables.items()}
    sampler.refresh(soft_responsibilities(2, 100, 3), 0)
    before = drawn(sampler, seeds, 20, 16)[0]
    broken = soft_responsibilities(2, 100, 3, seed=1)
    broken[1] = torch.nan
    sampler.refresh(broken, 1, failed=torch.tensor([False, True]))
    after = drawn(sampler, seeds, 20, 16)[0]
    assert {name: table.data_ptr() for name, table in sampler.state().items()} == addresses
    assert not torch.equal(after[0], before[0])
    assert torch.equal(after[1], before[1])


def test_a_restored_sampler_draws_the_same_batches() -> None:
    sampler, restored = (ClusterSampler([0], [0], [500], [3], pool_size=100) for _ in range(2))
    sampler.refresh(soft_responsibilities(1, 100, 3), 2)
    for name, table in restored.state().items():
        table.copy_(sampler.state()[name])
    assert torch.equal(drawn(sampler, [0], 20, 16)[0], drawn(restored, [0], 20, 16)[0])


def test_the_pool_walks_through_all_rows_equally_often() -> None:
    sampler = ClusterSampler([0, 1, 2], [0, 1000, 0], [1000, 60, 1000], [3, 3, 3], pool_size=150)
    visits = torch.zeros(3, 1060, dtype=torch.int64)
    for refresh in range(20):  # 20 * 150 = 3 * 1000
        rows = sampler.pool_rows(refresh)
        for r in range(3):
            own = rows[r, sampler.pool_mask[r]]
            assert len(own.unique()) == len(own)
            visits[r, own] += 1
    assert (visits[0, :1000] == 3).all()
    assert (visits[2, :1000] == 3).all()
    assert (visits[1, 1000:] == 20).all()
    assert not visits[1, :1000].any()
    assert not torch.equal(sampler.pool_rows(0)[0], sampler.pool_rows(0)[2])
    assert torch.equal(sampler.pool_rows(4)[0], ClusterSampler([0], [0], [1000], [3], pool_size=150).pool_rows(4)[0])


def test_batches_come_from_the_pool_of_the_last_refresh() -> None:
    sampler = ClusterSampler([0], [7], [1000], [3], pool_size=150)
    for refresh in (0, 3):
        sampler.refresh(soft_responsibilities(1, 150, 3), refresh)
        assert torch.isin(drawn(sampler, [0], 50, 64)[0], sampler.pool_rows(refresh)).all()
