"""What the cross-covariance monitor reports, with C4 and without it."""

from typing import Any

import numpy as np
import pytest
import torch

from c4rl.plugins.c4.monitor import CrossCovarianceMonitor
from c4rl.plugins.c4.plugin import C4Config
from tests.c4.test_plugin_behaviour import each_algorithm, each_mode, launch_of
from tests.helpers import advance

KEYS = {"td_A", "td_B", "td_C"} | {
    f"cross_covariance_trace_{mode}{form}" for mode in ("exact", "proxy") for form in ("", "_normalised")
}


@each_algorithm
def test_the_monitor_reports_its_traces_for_any_critic_on_the_same_rows_for_every_seed(algorithm: str) -> None:
    launches = {
        "alone": launch_of(algorithm, None, seeds=(3, 8), monitor=True),
        "with c4": launch_of(algorithm, C4Config(K=2), seeds=(3, 8)),
        "another seed": launch_of(algorithm, None, seeds=(8,), monitor=True),
    }
    reports = {name: launch.refresh(200) for name, launch in launches.items()}
    for name, launch in launches.items():
        batch = next(p for p in launch.plugins.all if isinstance(p, CrossCovarianceMonitor)).batch
        assert torch.equal(batch.state_actions, batch.state_actions[:1].expand_as(batch.state_actions))
        for seed in launch.seeds:
            assert reports[name][seed].keys() >= KEYS
            for key in KEYS:  # the same networks on the same rows: the same numbers, whoever else is there
                assert reports[name][seed][key] == pytest.approx(reports["alone"][seed][key], rel=1e-9)
    for seed in (3, 8):
        assert all(abs(reports["alone"][seed][key]) <= 1 for key in KEYS if key.endswith("normalised"))
    assert reports["alone"][3] != reports["alone"][8]


@each_mode
def test_the_monitors_numbers_are_numpys_covariance(mode: Any) -> None:
    launch = launch_of("td3_bc", None, monitor=True)
    report = advance(launch, 3).refresh(200)[0]
    batch = next(p for p in launch.plugins.all if isinstance(p, CrossCovarianceMonitor)).batch
    assert launch.algorithm.critics is not None
    traces, normalised = [], []
    for head in range(2):
        sides = []
        for network, pairs in zip(
            launch.algorithm.critics, (batch.state_actions, batch.next_state_actions), strict=True
        ):
            x = pairs.clone().requires_grad_()
            output = network.at(x)
            rows = output.features if mode == "proxy" else torch.autograd.grad(output.q[0, head].sum(), x)[0][:, None]
            sides.append(rows[0, head if mode == "proxy" else 0].detach().numpy()[batch.next_valid[0].numpy() > 0])
        g, g_next = sides
        m = g.shape[1]
        joint = np.cov(np.concatenate([g_next, g], 1).T)
        traces.append(np.trace(joint[:m, m:]) / m)
        normalised.append(np.trace(joint[:m, m:]) / np.sqrt(np.trace(joint[:m, :m]) * np.trace(joint[m:, m:])))
    assert report[f"cross_covariance_trace_{mode}"] == pytest.approx(np.mean(traces), rel=1e-9)
    assert report[f"cross_covariance_trace_{mode}_normalised"] == pytest.approx(np.mean(normalised), rel=1e-9)


def test_without_a_critic_there_is_nothing_to_monitor() -> None:
    assert advance(launch_of("bc", None, monitor=True), 1).refresh(200) == {}


def test_without_asking_there_is_no_monitor() -> None:
    assert advance(launch_of("td3_bc", None), 1).refresh(200) == {}


def test_reports_may_lie_in_shared_memory() -> None:
    """As those of captured graphs do: a replay may write where an earlier graph has put its numbers."""
    launch = launch_of("td3_bc", C4Config(K=2))
    memory = torch.zeros(1)
    first, second = launch.plugins.all
    launch._refreshes[first] = lambda step: {"first": memory.fill_(1)}
    launch._refreshes[second] = lambda step: {"second": memory.fill_(2)}
    assert launch.refresh(200) == {0: {"first": 1, "second": 2}}
