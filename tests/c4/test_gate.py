"""The gate of the divergence term: open where the data does not reach, as the mixture of g sees it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from c4rl.data.dataset import Dataset
from c4rl.data.info import observation_statistics
from c4rl.data.loading import load_dataset
from c4rl.data.packing import Scaling, pack_datasets
from c4rl.plugins.c4.divergence_term import DivergenceTerm
from c4rl.plugins.c4.feature_gradients import Mode, feature_gradients
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.seams import ActorStep
from c4rl.training.launch import Launch
from tests.helpers import CPU, advance, c4_of, small_config, small_dataset

UPDATES = 200


def launch_of(data: Dataset, algorithm: str, updates: int = UPDATES, **form: Any) -> Launch:
    settings: dict[str, Any] = {
        "K": 5,
        "period": 100,
        "divergence": "mse",
        "divergence_weight": 0.1,
        "divergence_gate": 0.1,
    }
    options = (C4Config(**(settings | form)),)
    sizes: dict[str, Any] = {"hidden_width": 64, "hidden_layers": 3, "batch_size": 64}
    config = small_config(algorithm, ("c4",), plugin_options=options, **sizes)
    scaling = Scaling(*observation_statistics(data.observations), data.action_low, data.action_high)
    return advance(Launch(config, [0], pack_datasets([(data, scaling)], CPU), CPU), updates)


def gate_of(launch: Launch) -> DivergenceTerm:
    found = c4_of(launch).divergence
    assert found is not None
    return found


def data_pairs(launch: Launch) -> Tensor:
    return launch.buffer.unpack(launch.buffer.packed.unsqueeze(0)).state_actions


def with_far_actions(launch: Launch, factor: float) -> Tensor:
    """The data's states with actions far outside [-1, 1], in the directions of the logged ones."""
    pairs = data_pairs(launch).clone()
    pairs[..., launch.buffer.widths[0] :] *= factor
    return pairs


def open_share(launch: Launch, pairs: Tensor) -> float:
    assert launch.algorithm.critics is not None
    return float(gate_of(launch).open_at(launch.algorithm.critics[0], pairs, data_pairs(launch)).mean())


@pytest.fixture(scope="module")
def hopper(shared: Callable[[str], Path]) -> Dataset:
    return load_dataset(shared("data/d4rl-10k/hopper-medium-expert-v2.npz"))


@pytest.mark.parametrize("mode", ["proxy", "exact"])
@pytest.mark.parametrize("quantile", [0.05, 0.3])
def test_it_is_open_on_the_chosen_share_of_the_data(hopper: Dataset, mode: str, quantile: float) -> None:
    launch = launch_of(hopper, "td3_bc", mode=mode, divergence_gate=quantile)
    assert open_share(launch, data_pairs(launch)) == pytest.approx(quantile, abs=0.005)


@pytest.mark.parametrize("mode", ["proxy", "exact"])
def test_rows_that_the_mixture_has_not_seen_pass_like_the_others(hopper: Dataset, mode: str) -> None:
    launch = launch_of(hopper, "td3_bc", mode=mode, pool=5000)
    clustering = gate_of(launch).clustering
    unseen = torch.ones(len(hopper), dtype=torch.bool)
    unseen[clustering.tables.pool_rows(clustering.last_index)[0]] = False
    assert int(unseen.sum()) == len(hopper) - 5000
    assert open_share(launch, data_pairs(launch)[:, unseen]) == pytest.approx(0.1, abs=0.03)


@pytest.mark.parametrize("algorithm", ["td3_bc", "cql"])
def test_in_proxy_mode_it_opens_for_actions_far_from_the_data(hopper: Dataset, algorithm: str) -> None:
    launch = launch_of(hopper, algorithm, mode="proxy")
    assert open_share(launch, with_far_actions(launch, 10)) > 0.9


def test_in_proxy_mode_also_on_made_up_data() -> None:
    launch = launch_of(small_dataset(1000), "td3_bc", mode="proxy")
    assert open_share(launch, data_pairs(launch)) == pytest.approx(0.1, abs=0.005)
    assert open_share(launch, with_far_actions(launch, 10)) > 0.9


def test_in_exact_mode_distance_alone_does_not_open_it(hopper: Dataset) -> None:
    """Far out a ReLU critic is linear: its input gradient stops changing, and may well be one of the data's.

    Features grow with the distance, so in proxy mode the gate opens in the end for every action.
    """
    modes: tuple[Mode, ...] = ("proxy", "exact")
    found = {}
    for mode in modes:
        launch = launch_of(hopper, "td3_bc", mode=mode)
        assert launch.algorithm.critics is not None
        far = [with_far_actions(launch, factor) for factor in (1e5, 1e6)]
        near, further = (feature_gradients(mode, launch.algorithm.critics[0], pairs) for pairs in far)
        still = torch.isclose(near, further, rtol=1e-3).all(-1).float().mean().item()
        found[mode] = still, [open_share(launch, pairs) for pairs in far]
    still, shares = found["exact"]
    assert still > 0.9 and shares[0] == pytest.approx(shares[1], abs=0.05)
    still, shares = found["proxy"]
    assert still < 0.05 and shares == [1.0, 1.0]


def actor_step(launch: Launch) -> ActorStep:
    assert launch.algorithm.critics is not None
    batch = launch.buffer.gather(launch.sampler.rows(launch.streams, 64))
    actions = launch.algorithm.actor(batch.observations)
    assert isinstance(actions, Tensor)
    return ActorStep(batch, launch.algorithm.critics[0], actions, None, None)


def test_the_term_counts_the_states_where_the_gate_is_open_and_no_others() -> None:
    gated = launch_of(small_dataset(1000), "td3_bc", mode="proxy", divergence_gate=0.3)
    term, step = gate_of(gated), actor_step(gated)
    gate = term.gate(step)
    assert 0 < gate.sum() < gate.numel() and not gate.requires_grad
    (gradient,) = torch.autograd.grad(term(step, gated.streams).sum(), step.actions, retain_graph=True)
    assert torch.equal((gradient.abs().sum(2) > 0), gate > 0)
    per_state = (step.actions - step.batch.actions).square().mean(2)
    expected = 0.1 * (per_state * gate).mean()
    torch.testing.assert_close(term(step, gated.streams)[0].detach(), expected.detach())


def test_it_does_not_go_stale_between_refreshes(hopper: Dataset) -> None:
    launch = launch_of(hopper, "td3_bc", updates=299, mode="proxy")  # 99 updates after a refresh
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(len(hopper), (1, 64, 64), generator=generator)  # 64 batches of 64 rows
    shares = []
    for batch_rows in rows[0]:
        pairs = launch.buffer.gather(batch_rows.unsqueeze(0)).state_actions
        assert launch.algorithm.critics is not None
        shares.append(gate_of(launch).open_at(launch.algorithm.critics[0], pairs, pairs).mean().item())
    assert sum(shares) / len(shares) == pytest.approx(0.1, abs=0.02)
    assert open_share(launch, with_far_actions(launch, 10)) > 0.9
