"""DR3: the penalty and its gradient by hand, its mask, and what it does to a critic."""

from typing import Any

import pytest
import torch
from torch import Tensor

from c4rl.core.buffer import Batch
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic
from c4rl.plugins.dr3 import DR3, DR3Config
from c4rl.plugins.seams import CriticStep
from c4rl.training.launch import Launch
from tests.helpers import advance, make_launch, small_config

ROWS = 12


def launch_of(algorithm: str = "td3_bc", seeds: tuple[int, ...] = (0, 1), **options: Any) -> tuple[DR3, Launch]:
    launch = make_launch(small_config(algorithm, ("dr3",), seeds, plugin_options=(DR3Config(**options),)))
    plugin = launch.plugins.all[0]
    assert isinstance(plugin, DR3)
    return plugin, launch


def critic_step(launch: Launch, *, backup_actions: Tensor | None = None, **changed: Tensor) -> CriticStep:
    """One critic update of the launch, rows 0 and 3 terminal, rows 1 and 3 without a logged next action."""
    assert launch.algorithm.critics is not None
    critic, target = launch.algorithm.critics
    batch = launch.buffer.gather(torch.arange(ROWS).expand(2, -1))
    continues, valid = torch.ones(2, ROWS, dtype=torch.float64), torch.ones(2, ROWS, dtype=torch.float64)
    continues[:, [0, 3]], valid[:, [1, 3]] = 0, 0
    batch = batch._replace(continues=continues, next_valid=valid)._replace(**changed)
    if backup_actions is None:
        backup_actions = torch.linspace(-1, 1, 2 * ROWS * 2, dtype=torch.float64).view(2, ROWS, 2)
    return CriticStep(batch, critic, target, critic.at(batch.state_actions), backup_actions, torch.zeros(2, 2))


def features(critic: Critic, run: int, member: int, row: Tensor) -> Tensor:
    for w, b in zip(critic.mlp.weights[:-1], critic.mlp.biases[:-1], strict=True):
        row = (row @ w[run, member] + b[run, member]).clamp(min=0)
    return row


def by_hand(step: CriticStep, next_rows: Tensor, mask: Tensor, stop: bool = False) -> Tensor:
    """The mean of φ·φ' over rows whose mask is 1, row by row, [R, M]."""
    out = []
    for run in range(2):
        for member in range(2):
            products = []
            for row in torch.nonzero(mask[run]).flatten():
                here = features(step.critic, run, member, step.batch.state_actions[run, row])
                there = features(step.critic, run, member, next_rows[run, row])
                products.append(here @ (there.detach() if stop else there))
            out.append(torch.stack(products).mean())
    return torch.stack(out).view(2, 2)


def next_rows(step: CriticStep, choice: str) -> tuple[Tensor, Tensor]:
    if choice == "data":
        return step.batch.next_state_actions, step.batch.next_valid
    return torch.cat([step.batch.next_observations, step.backup_actions], dim=2), step.batch.continues


@pytest.mark.parametrize("stop", [False, True])
@pytest.mark.parametrize("choice", ["backup", "data"])
def test_value_and_gradient_equal_the_formula(choice: str, stop: bool) -> None:
    plugin, launch = launch_of(dr3_weight=0.5, dr3_next_action=choice, dr3_stop_gradient=stop)
    step = critic_step(launch)
    found, expected = plugin.critic_penalty(step), 0.5 * by_hand(step, *next_rows(step, choice), stop)
    torch.testing.assert_close(found, expected)
    layers = [*step.critic.mlp.weights[:-1], *step.critic.mlp.biases[:-1]]  # the last layer makes no features
    weights = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    gradients = (torch.autograd.grad((weights * loss).sum(), layers) for loss in (found, expected))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)
        assert theirs.any()


def test_without_a_stop_gradient_both_sides_are_lowered() -> None:
    """Where (s', a') is (s, a), the penalty is |φ|², and holding one side halves its gradient."""
    gradients = []
    for stop in (False, True):
        plugin, launch = launch_of(dr3_next_action="data", dr3_stop_gradient=stop)
        batch: Batch = critic_step(launch).batch
        step = critic_step(launch, next_state_actions=batch.state_actions)
        gradients.append(torch.autograd.grad(plugin.critic_penalty(step).sum(), step.critic.mlp.weights[0])[0])
    torch.testing.assert_close(gradients[0], 2 * gradients[1])


@pytest.mark.parametrize(("choice", "masked", "seen"), [("backup", [0, 3], 1), ("data", [1, 3], 0)])
def test_rows_without_a_next_pair_do_not_count(choice: str, masked: list[int], seen: int) -> None:
    plugin, launch = launch_of(dr3_next_action=choice)
    before = plugin.critic_penalty(critic_step(launch))

    def changed(rows: list[int]) -> Tensor:
        step = critic_step(launch)
        pairs = step.batch.next_state_actions.clone()
        pairs[:, rows] += 5
        return plugin.critic_penalty(critic_step(launch, next_state_actions=pairs, next_observations=pairs[..., :5]))

    assert torch.equal(changed(masked), before)
    assert not torch.isclose(changed([seen]), before).any()


def test_a_batch_of_terminals_costs_nothing() -> None:
    plugin, launch = launch_of()
    penalty = plugin.critic_penalty(critic_step(launch, continues=torch.zeros(2, ROWS, dtype=torch.float64)))
    assert torch.equal(penalty, torch.zeros(2, 2, dtype=torch.float64))


def test_the_target_network_and_the_actor_have_no_part_in_it() -> None:
    plugin, launch = launch_of()
    actions = torch.zeros(2, ROWS, 2, dtype=torch.float64, requires_grad=True)
    step = critic_step(launch, backup_actions=actions)
    before = plugin.critic_penalty(step)
    (gradient,) = torch.autograd.grad(before.sum(), actions, allow_unused=True)
    assert gradient is None
    with torch.no_grad():
        for p in step.target.parameters():
            p.add_(1)
    assert torch.equal(plugin.critic_penalty(step), before)


def test_the_absolute_value_is_taken_of_each_row() -> None:
    """Features of either sign, half of the rows turned around."""
    signs = torch.ones(ROWS, 1, dtype=torch.float64)
    signs[::2] = -1
    found = []
    for absolute in (False, True):
        plugin, launch = launch_of(dr3_absolute=absolute, dr3_weight=1.0)
        step = critic_step(launch)
        plain = plugin.critic_penalty(step)
        turned = step.output._replace(features=step.output.features * signs)
        found.append((plain, plugin.critic_penalty(step._replace(output=turned))))
    (plain, signed), (plain_absolute, turned_absolute) = found
    assert torch.equal(plain, plain_absolute)  # after a ReLU nothing is negative
    assert (signed < plain).all()
    torch.testing.assert_close(turned_absolute, plain)


@pytest.mark.parametrize("algorithm", ["td3_bc", "cql", "iql"])
def test_it_keeps_features_from_aligning(algorithm: str) -> None:
    """Lower than at the start, and than without it, in every run."""
    products = {}
    for weight in (0.0, 0.3):
        _, launch = launch_of(algorithm, dr3_weight=weight)
        for first in (0, 50):
            metrics = advance(launch, 50, start=first).read_metrics()
            products[weight, first] = [run["dr3_dot_product"] for run in metrics.values()]
    for run in (0, 1):
        assert products[0.3, 50][run] < products[0.3, 0][run]
        assert products[0.3, 50][run] < products[0.0, 50][run]


def test_metrics_are_the_unweighted_product_and_the_length_of_the_features() -> None:
    plugin, launch = launch_of(dr3_weight=0.25)
    step = critic_step(launch)
    penalty = plugin.critic_penalty(step)
    metrics = plugin.metrics()
    torch.testing.assert_close(metrics["dr3_dot_product"], penalty.detach().mean(1) / 0.25)
    torch.testing.assert_close(metrics["dr3_feature_norm"], step.output.features.detach().norm(dim=3).mean((1, 2)))


@pytest.mark.parametrize("weight", [-1.0, float("nan")])
def test_an_impossible_weight_is_refused(weight: float) -> None:
    with pytest.raises(InputError, match="--dr3-weight: found"):
        DR3Config(dr3_weight=weight)
