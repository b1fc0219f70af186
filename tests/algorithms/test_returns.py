"""Rows of better trajectories more often."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from c4rl.data.dataset import Dataset
from c4rl.data.packing import pack_datasets
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import Run, run_config, runs_of
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.returns import ReturnsConfig, fair_returns, spread_of_starts, weights_of_rows
from c4rl.training.launch import Launch
from tests.helpers import CPU, c4_of, make_launch, plain_scaling, small_config, small_dataset, with_trajectories

LENGTHS = (100, 100, 50, 1, 20)
IDS = torch.repeat_interleave(torch.arange(5), torch.tensor(LENGTHS))
REWARDS = torch.tensor([1.0, 3.0, 4.0, 50.0, 2.0], dtype=torch.float64)[IDS]
TERMINALS = torch.zeros(len(IDS), dtype=torch.bool)
TERMINALS[199] = TERMINALS[270] = True  # the second and the last trajectory fell


def test_a_cut_trajectory_counts_as_if_it_had_gone_on_and_a_short_piece_not_at_all() -> None:
    returns, lengths = fair_returns(REWARDS, TERMINALS, IDS)
    assert lengths.tolist() == list(LENGTHS)
    # whole, ended, cut half-way, one row, ended early
    assert returns.tolist() == [100.0, 300.0, 400.0, -torch.inf, 40.0]
    ids = torch.repeat_interleave(torch.arange(3), torch.tensor([100, 1, 2]))
    returns, _ = fair_returns(torch.ones(103).double(), torch.zeros(103), ids)
    assert returns.tolist() == [100.0, -torch.inf, 2.0]  # below a fiftieth of the longest, and just that long
    assert fair_returns(REWARDS, TERMINALS, IDS, 1.0)[0].tolist() == [100.0, 300.0, 200.0, -torch.inf, 40.0]
    fallen = TERMINALS.clone()
    fallen[249] = True  # half-way, where nothing was to follow
    assert fair_returns(REWARDS, fallen, IDS)[0].tolist() == [100.0, 300.0, 200.0, -torch.inf, 40.0]


def test_weights_are_exponential_in_the_return_on_the_scale_of_the_best_or_the_range() -> None:
    weights = weights_of_rows(REWARDS, TERMINALS, IDS, 0.1, 0.0, 0.0, 0.0)
    expected = np.exp((np.array([100, 300, 400, -np.inf, 40]) - 400) / (0.1 * 400))[IDS]
    np.testing.assert_allclose(weights.numpy(), expected / expected.sum())
    # returns of -500 to -100: their range is larger than the best
    below = weights_of_rows(REWARDS - 5, TERMINALS, IDS, 0.5, 0.0, 0.0, 0.0)
    fair = np.array([-400, -200, -100, -np.inf, -60])
    expected = np.exp((fair + 60) / (0.5 * 340))[IDS]
    np.testing.assert_allclose(below.numpy(), expected / expected.sum())


def test_top_floor_and_effective_rows() -> None:
    top = weights_of_rows(REWARDS, TERMINALS, IDS, 0.1, 0.25, 0.0, 0.0)
    expected = np.exp(-np.array([200, 0, 0, np.inf, 260]) / (0.1 * 400))[IDS]  # how far below 400 - 0.25 * 400
    np.testing.assert_allclose(top.numpy(), expected / expected.sum())
    floor = weights_of_rows(REWARDS, TERMINALS, IDS, 0.1, 0.0, 0.4, 0.0)
    plain = weights_of_rows(REWARDS, TERMINALS, IDS, 0.1, 0.0, 0.0, 0.0)
    torch.testing.assert_close(floor, 0.6 * plain + 0.4 / len(plain))
    effective = [
        1 / float(weights_of_rows(REWARDS, TERMINALS, IDS, 0.1, 0.0, 0.0, share).square().sum())
        for share in (0, 200 / len(IDS))
    ]
    assert effective[0] < 70 and 200 <= effective[1] < 230
    most = weights_of_rows(REWARDS, TERMINALS, IDS, 0.1, 0.0, 0.0, 1e9)  # more than there are: nearly all alike
    assert 1 / float(most.square().sum()) > 0.98 * 270


def alike(good: bool = True, count: int = 200) -> Dataset:
    """Trajectories of 20 rows that start in one place; in one of them every reward is 1, elsewhere 0."""
    data = with_trajectories(small_dataset(count), 20)
    observations = data.observations.copy()
    if good:
        observations[::20] = 0.5
    rewards = np.zeros(count, np.float32)
    rewards[40:60] = 1
    return replace(data, observations=observations, rewards=rewards)


@pytest.mark.parametrize("rows", ["actor", "all"])
def test_the_actors_rows_are_those_of_good_trajectories_and_the_critics_as_well_if_asked(rows) -> None:
    config = small_config("td3_bc", ("returns",), batch_size=500, plugin_options=(ReturnsConfig(weighted_rows=rows),))
    launch = make_launch(config, alike())
    launch.step.fill_(1)
    if rows == "actor":
        assert launch.actor_sampler is not None
        drawn = launch.actor_sampler.rows(launch.streams, 500)
        others = launch.sampler.rows(launch.streams, 500)
        assert len(others.unique()) > 150
    else:
        assert launch.actor_sampler is None
        drawn = launch.sampler.rows(launch.streams, 500)
    assert ((drawn >= 40) & (drawn < 60)).double().mean() > 0.98
    assert set(drawn.unique().tolist()) >= set(range(40, 60))
    launch.update(1)
    assert launch.read_metrics()[0]["effective_rows"] == pytest.approx(20, rel=0.02)


@pytest.mark.parametrize("actor_rows", ["cluster", "uniform"])
@pytest.mark.parametrize("plugins", [("returns", "c4"), ("c4", "returns")])
def test_beside_c4_the_actors_rows_are_still_those_of_good_trajectories(
    plugins: tuple[str, ...], actor_rows: Any
) -> None:
    options = {
        "returns": ReturnsConfig(),
        "c4": C4Config(K=2, actor_rows=actor_rows, divergence="kl", divergence_weight=1.0),
    }
    config = small_config("cql", plugins, batch_size=500, plugin_options=tuple(options[name] for name in plugins))
    launch = make_launch(config, alike())
    launch.step.fill_(1)
    assert launch.actor_sampler is not None
    drawn = launch.actor_sampler.rows(launch.streams, 500)
    assert ((drawn >= 40) & (drawn < 60)).double().mean() > 0.98
    c4 = c4_of(launch)
    assert c4.divergence is not None and not c4.divergence.own_cluster  # these rows are of no single cluster


@pytest.mark.parametrize(("cut", "effective"), [(0.3, 65), (1.0, 208)])
def test_whether_cut_trajectories_are_thought_to_go_on_is_an_option(cut: float, effective: int) -> None:
    """The last of three is half as long: best by its mean reward, worst by its own return."""
    data = with_trajectories(small_dataset(250), 100)
    row = np.arange(250)
    observations = np.where(row[:, None] % 100, data.observations, np.float32(0.5))
    data = replace(data, observations=observations, rewards=np.where(row < 200, 1, 1.5).astype(np.float32))
    launch = make_launch(small_config("bc", ("returns",), plugin_options=(ReturnsConfig(return_cut=cut),)), data)
    launch.update(1)
    assert launch.read_metrics()[0]["effective_rows"] == pytest.approx(effective, rel=0.01)


def test_returns_of_trajectories_that_start_apart_are_not_compared() -> None:
    data = alike(good=False)
    assert spread_of_starts(torch.tensor(data.observations).double(), torch.tensor(data.trajectory_ids)) > 0.5
    assert spread_of_starts(torch.tensor(alike().observations).double(), torch.tensor(data.trajectory_ids)) < 0.01
    launch = make_launch(small_config("bc", ("returns",)), data)
    launch.update(1)
    assert launch.read_metrics()[0]["effective_rows"] == pytest.approx(200)
    one = torch.zeros(200, dtype=torch.int64)
    assert spread_of_starts(torch.tensor(data.observations).double(), one) == torch.inf


def test_the_spread_of_starts_is_a_ratio_of_variances() -> None:
    """Trajectories of three rows; one column starts in 0 or 2, one always in 0, one never changes."""
    first, second = torch.tensor([0.0, 1, 5, 2, 3, 1]), torch.tensor([0.0, 2, 4, 0, 1, 5])
    observations = torch.stack([first, second, torch.ones(6)], 1).double()
    ids = torch.tensor([0, 0, 0, 1, 1, 1])
    assert spread_of_starts(observations[:, [0, 2]], ids) == pytest.approx(1 / float(first.var(unbiased=False)))
    assert spread_of_starts(observations[:, [1, 2]], ids) == 0


def test_runs_on_data_of_different_lengths_weigh_their_own_rows() -> None:
    config = small_config("bc", ("returns",))
    buffer = pack_datasets([(data, plain_scaling(data)) for data in (alike(), alike(count=100))], CPU, torch.float64)
    launch = Launch(config, [Run("long", 0), Run("short", 0, data=1)], buffer, CPU, torch.float64)
    launch.step.fill_(1)
    assert launch.actor_sampler is not None
    drawn = launch.actor_sampler.rows(launch.streams, 500) - torch.tensor([[0], [200]])
    assert ((drawn >= 40) & (drawn < 60)).double().mean(1).min() > 0.98


def test_runs_of_one_launch_weigh_by_their_own_temperature() -> None:
    config = small_config("bc", ("returns",), sweep=("return_temperature=0.2,5",))
    data = alike()
    buffer = pack_datasets([(data, plain_scaling(data))], CPU, torch.float64)

    def drawn(runs: Sequence[Run], config: TrainConfig = config) -> torch.Tensor:
        launch = Launch(config, runs, buffer, CPU, torch.float64)
        launch.step.fill_(3)
        assert launch.actor_sampler is not None
        return launch.actor_sampler.rows(launch.streams, 64)

    runs = runs_of(config)
    both = drawn(runs)
    for row, run in zip(both, runs, strict=True):
        assert torch.equal(row, drawn([Run(0, 0)], run_config(config, run))[0])
    assert not torch.equal(*both)
