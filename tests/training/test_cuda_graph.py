"""On a GPU: a captured update is the eager one to the bit, and a stacked run is the lone one."""

import pytest
import torch

from c4rl.data.packing import pack_datasets
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.registry import ALGORITHMS
from c4rl.plugins.c4.plugin import C4Config
from c4rl.training.launch import Launch
from tests.algorithms.test_contract import COMBINATIONS, config_of
from tests.helpers import advance, plain_scaling, small_config, small_dataset

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine")

UPDATES = 60  # through every stage of small algorithms, with at least 20 refreshes of C4 between replays


def launch_on_gpu(config: TrainConfig, dtype: torch.dtype = torch.float32) -> Launch:
    gpu, data = torch.device("cuda"), small_dataset(600)
    return Launch(config, list(config.seeds), pack_datasets([(data, plain_scaling(data))], gpu, dtype), gpu, dtype)


@pytest.mark.parametrize(("algorithm", "plugins"), COMBINATIONS)
def test_graph_and_eager_updates_are_bit_equal(algorithm, plugins) -> None:
    states = []
    for graph in (True, False):
        launch = advance(launch_on_gpu(config_of(algorithm, plugins, seeds=(0, 1), cuda_graph=graph)), UPDATES)
        assert (launch._graphed is not None) == graph
        assert not launch.failures()
        states.append(launch.run_states())
    for seed in (0, 1):
        for name, tensor in states[0][seed].items():
            assert torch.equal(tensor, states[1][seed][name]), name


def test_products_of_split_numbers_are_the_same_in_a_graph() -> None:
    """In networks wide enough for them."""
    wide = {"hidden_width": 128, "batch_size": 256, "plugin_options": (C4Config(K=2, period=50),)}
    states = [
        advance(launch_on_gpu(small_config("cql", ("c4",), (0, 1), **wide, **values)), 100).run_states()[1]
        for values in ({"precision": "bf16x3"}, {"precision": "bf16x3", "cuda_graph": False}, {"precision": "fp32"})
    ]
    assert all(torch.equal(tensor, states[1][name]) for name, tensor in states[0].items())
    assert not all(torch.equal(tensor, states[2][name]) for name, tensor in states[0].items()), "nothing was split"


@pytest.mark.parametrize("plugins", [(), ("c4",)], ids=["none", "c4"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_fused_kernels_follow_the_plain_ones(algorithm: str, plugins: tuple[str, ...]) -> None:
    """Over 50 updates within 1% of the way that weights went (one-ulp changes to initial weights: 0.01%, on a CPU).

    Batches are uniform: a cluster's border may put a row on its other side, and then the batches differ.
    """
    if plugins and not ALGORITHMS[algorithm].has_critic:
        pytest.skip("no critic to plug into")
    options = (C4Config(K=2, period=1000, sampler="uniform"),) if plugins else ()
    launches = [
        launch_on_gpu(small_config(algorithm, plugins, plugin_options=options, fused_kernels=fused))
        for fused in (True, False)
    ]
    start = {name: optimizer.flat.clone() for name, optimizer in launches[0].algorithm.optimizers.items()}
    for launch in launches:
        advance(launch, 50)
    fused, plain = (launch.algorithm.optimizers for launch in launches)
    for name, first in start.items():
        way = (plain[name].flat - first).norm()
        assert (fused[name].flat - plain[name].flat).norm() <= 0.01 * way, name


@pytest.mark.parametrize("algorithm", ["td3_bc", "cql"])
def test_a_run_in_a_graphed_stack_equals_the_same_run_alone(algorithm: str) -> None:
    options = (C4Config(K=3, period=50, directions=4),)
    stacked, alone = (
        advance(launch_on_gpu(small_config(algorithm, ("c4",), seeds, plugin_options=options), torch.float64), 300)
        for seeds in ((4, 2, 7), (2,))
    )
    for name, tensor in alone.run_states()[2].items():
        torch.testing.assert_close(stacked.run_states()[2][name], tensor, rtol=1e-9, atol=1e-9, msg=name)


def test_an_update_never_waits_for_the_host() -> None:
    launch = launch_on_gpu(small_config("cql", ("c4",), cuda_graph=False, plugin_options=(C4Config(K=3, period=1000),)))
    advance(launch, 2)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(3, 6):
            launch._update(step)
    finally:
        torch.cuda.set_sync_debug_mode("default")
