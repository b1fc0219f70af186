"""What any policy may be trained with: averaged weights, their decay, a falling step size, dropout, LayerNorm."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from c4rl.core.errors import InputError
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.core.optimizers import FlatAdam
from c4rl.core.policies import dropout_masks
from c4rl.core.random import Streams
from c4rl.jobs.registry import ALGORITHMS
from tests.helpers import advance, make_launch, plain_scaling, small_config, small_dataset

WITH_AVERAGE = [name for name in ALGORITHMS if name != "bppo"]


@pytest.mark.parametrize("algorithm", WITH_AVERAGE)
def test_the_evaluated_policy_is_the_mean_of_the_weights_at_first_and_their_fading_average_later(algorithm) -> None:
    launch = make_launch(small_config(algorithm, actor_average=0.25, actor_lr=1e-2, updates=40))
    optimizer, expected, seen = launch.algorithm.optimizers["actor"], None, 0
    observations = torch.randn(1, 7, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = make_launch(small_config(algorithm, actor_lr=1e-2, updates=40))
    for step in range(1, 25):
        advance(launch, 1, step - 1)
        advance(plain, 1, step - 1)
        if int(optimizer.count) > seen:
            seen = int(optimizer.count)
            rate = max(1 / seen, 0.25)
            expected = optimizer.flat.clone() if expected is None else expected.lerp(optimizer.flat, rate)
    assert seen >= 8 and expected is not None
    average = launch.algorithm.networks["average_actor"]
    torch.testing.assert_close(torch.cat([p.reshape(-1) for p in average.parameters()]), expected)
    # averaging changes what is evaluated, not what is learnt
    assert torch.equal(optimizer.flat, plain.algorithm.optimizers["actor"].flat)
    shown = launch.algorithm.act(observations)
    assert not torch.equal(shown, plain.algorithm.act(observations))
    optimizer.flat.copy_(expected)
    with_average = launch.algorithm.networks.pop("average_actor")
    torch.testing.assert_close(launch.algorithm.act(observations), shown)
    launch.algorithm.networks["average_actor"] = with_average


def test_decay_is_that_of_adamw_for_each_run() -> None:
    """One value for all, and one per run; with and without a factor of the step size."""

    def module() -> nn.ParameterList:
        generator = torch.Generator().manual_seed(0)
        return nn.ParameterList(nn.Parameter(torch.randn(2, 3, dtype=torch.float64, generator=generator)) for _ in "ab")

    decays = torch.tensor([0.3, 2.0], dtype=torch.float64)
    for decay in (0.3, decays):
        ours, theirs = module(), [nn.Parameter(p.detach().clone()) for p in module()]
        adam = FlatAdam(ours, 0.05, decay=decay)
        groups = [{"params": [p], "weight_decay": 0.3} for p in theirs]
        reference = torch.optim.AdamW(groups, lr=0.05)
        for factor in (1.0, 0.5, 0.1):
            adam.step(sum((p - 1).square().sum(1) for p in ours), factor)
            for group in reference.param_groups:
                group["lr"] = 0.05 * factor
            reference.zero_grad()
            sum((p - 1).square().sum() for p in theirs).backward()
            reference.step()
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine[0], other[0])  # the first run has 0.3 in both forms
            assert torch.allclose(mine[1], other[1]) is not isinstance(decay, torch.Tensor)


@pytest.mark.parametrize("algorithm", ["cql", "iql"])
def test_only_the_policys_weights_decay(algorithm) -> None:
    launches = (make_launch(small_config(algorithm, actor_decay=decay)) for decay in (0.0, 1.0))
    plain, decayed = (advance(launch, 1).algorithm.optimizers for launch in launches)
    assert [name for name in plain if not torch.equal(plain[name].flat, decayed[name].flat)] == ["actor"]


@pytest.mark.parametrize("algorithm", ["bc", "td3_bc", "cql", "iql", "sorl", "tsrl"])
def test_a_scheduled_step_size_falls_from_whole_to_nothing(algorithm) -> None:
    def flat(schedule: str, updates: int) -> torch.Tensor:
        launch = make_launch(small_config(algorithm, actor_schedule=schedule, updates=6))
        before = sum(stage.updates for stage in launch.algorithm.stages[:-1])
        advance(launch, before + updates)
        if updates == 1 and schedule == "cosine":
            assert float(launch.algorithm.actor_lr_factor) == 1
        if updates == 6 and schedule == "cosine":
            assert 0 < float(launch.algorithm.actor_lr_factor) < 0.1
            launch.step.add_(1)
            assert float(launch.algorithm.actor_lr_factor) == 0
        return launch.algorithm.optimizers["actor"].flat.clone()

    torch.testing.assert_close(flat("cosine", 1), flat("constant", 1))
    assert not torch.allclose(flat("cosine", 6), flat("constant", 6), rtol=1e-9, atol=0)


def test_a_constant_step_size_has_no_table_of_all_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would take gigabytes for --updates 1000000000, which is a way to train until one stops it."""
    monkeypatch.setattr("c4rl.algorithms.algorithm.CosineSchedule", None)
    advance(make_launch(small_config("td3_bc", updates=10**9)), 2)
    with pytest.raises(TypeError):
        make_launch(small_config("td3_bc", actor_schedule="cosine"))


def test_dropout_keeps_the_mean_of_what_it_thins() -> None:
    streams = Streams([3], torch.tensor(1), torch.float64)
    masks = dropout_masks(streams, "masks", 0.25, (64, 64), 500)
    assert masks is not None and len(masks) == 2
    for mask in masks:
        assert mask.unique().tolist() == pytest.approx([0, 4 / 3]) and float(mask.mean()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in ("bppo", "tsrl", "sorl")])
def test_dropout_thins_the_policy_in_its_own_loss_alone(algorithm) -> None:
    plain = make_launch(small_config(algorithm))
    launch = make_launch(small_config(algorithm, actor_dropout=0.25, hidden_width=64))
    observations = torch.randn(1, 500, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    own = launch.algorithm

    def mean(policy: Any) -> torch.Tensor:
        return policy if isinstance(policy, torch.Tensor) else policy.mean

    thinned, whole = mean(own.trained_policy(observations)), mean(own.actor(observations))
    assert not torch.isclose(thinned, whole).any()
    launch.step.add_(1)
    assert not torch.equal(mean(own.trained_policy(observations)), thinned)  # other units every time
    assert torch.equal(own.act(observations), own.act(observations))
    torch.testing.assert_close(own.act(observations), torch.tanh(own.actor.mlp(observations))[..., :2])
    other = plain.algorithm
    assert torch.equal(mean(other.trained_policy(observations)), mean(other.actor(observations)))

    seen: list[int] = []  # an update calls it where the actor learns
    own.trained_policy = lambda x, wrapped=own.trained_policy: (seen.append(x.shape[1]), wrapped(x))[1]
    advance(launch, 2)
    assert len(seen) in (1, 2)


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in ("bppo", "sorl")])
def test_layer_norm_is_trained_with_the_policy_and_goes_wherever_it_goes(algorithm) -> None:
    """Not before the head, and not in other networks; averages, arrays and ensembles have it too."""
    launch = make_launch(small_config(algorithm, actor_layer_norm=True, actor_average=0.5, actor_lr=1e-2))
    own = launch.algorithm
    advance(launch, sum(stage.updates for stage in own.stages[:-1]) + 6)
    mlp = own.networks["average_actor"].mlp
    assert all(not torch.equal(gain, torch.ones_like(gain)) for gain in mlp.gains)
    plain = make_launch(small_config(algorithm, actor_average=0.5))
    added = launch.live_state().keys() - plain.live_state().keys()
    assert added and all("actor" in name and ("gains" in name or "shifts" in name) for name in added)
    x = observations = torch.randn(1, 50, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for w, b, gain, shift in zip(mlp.weights[:-1], mlp.biases[:-1], mlp.gains, mlp.shifts, strict=True):
        x = F.layer_norm(x @ w[0] + b[0], w.shape[-1:], gain[0, 0], shift[0, 0]).relu()
    expected = torch.tanh(x @ mlp.weights[-1][0] + mlp.biases[-1][0])[..., :2]
    torch.testing.assert_close(own.act(observations), expected)

    scaling = plain_scaling(small_dataset())
    (policy,) = launch.policies(scaling).values()
    low, high = scaling.action_low, scaling.action_high
    actions = low + (expected[0].detach().numpy() + 1) / 2 * (high - low)
    for one in (policy, NumpyPolicy.from_arrays(policy.arrays()), *NumpyPolicy.ensemble([policy, policy]).members()):
        assert one.misfit() is None
        np.testing.assert_allclose(one.act(observations[0].numpy()), actions, atol=2e-6)
    np.testing.assert_allclose(NumpyPolicy.ensemble([policy] * 2).act(observations[0].numpy()), actions, atol=2e-6)
    arrays = policy.arrays()
    del arrays["shift0"]
    assert "gains and" in (NumpyPolicy.from_arrays(arrays).misfit() or "")


def test_what_an_algorithm_cannot_follow_is_refused() -> None:
    for algorithm, option, value in (
        ("bppo", "actor_average", 0.1),
        ("bppo", "actor_decay", 0.1),
        ("bppo", "actor_schedule", "cosine"),
        ("bppo", "actor_dropout", 0.1),
        ("bppo", "actor_layer_norm", True),
        ("sorl", "actor_dropout", 0.1),
        ("sorl", "actor_layer_norm", True),
        ("tsrl", "actor_dropout", 0.1),
        ("tsrl", "critic_cloning", 0.1),
    ):
        with pytest.raises(InputError, match=f"--{option.replace('_', '-')}: found {value}, expected "):
            ALGORITHMS[algorithm].config_type(**{option: value})
