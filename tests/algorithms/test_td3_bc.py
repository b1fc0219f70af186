"""TD3+BC and ReBRAC against their equations, and the details people get wrong."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from c4rl.algorithms.td3 import TD3
from c4rl.training.launch import Launch
from tests.algorithms.plain_td3 import PlainTD3
from tests.helpers import advance, batch_at, flat, make_launch, small_config, small_dataset, with_trajectories

ROWS = 8


def algorithm_of(name: str = "td3_bc", **options: Any) -> tuple[TD3, Launch]:
    """On data of short trajectories: a third of them ends, the rest is cut off."""
    data = with_trajectories(small_dataset(), 4)
    ends = data.timeouts & (np.arange(len(data)) % 3 == 0)
    data = replace(data, terminals=ends, timeouts=data.timeouts & ~ends)
    launch = make_launch(small_config(name, batch_size=ROWS, **options), data)
    assert isinstance(launch.algorithm, TD3)
    return launch.algorithm, launch


CASES: list[tuple[str, dict[str, Any]]] = [
    ("td3_bc", {}),
    ("td3_bc", {"alpha": 0.7, "discount": 0.9, "tau": 0.1, "policy_noise": 0.9, "noise_clip": 0.3}),
    ("td3_bc", {"critic_cloning": 0.6, "discount": 0.9}),
    ("rebrac", {"hidden_layers": 3}),
    ("rebrac", {"actor_cloning": 0.4, "critic_cloning": 0.7, "alpha": 2.0, "discount": 0.9, "tau": 0.1}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_updates_equal_the_equations_row_by_row(name: str, options: dict[str, Any]) -> None:
    """Losses, and after six updates every weight of both networks and their targets, by an independent program."""
    algorithm, launch = algorithm_of(name, **({"actor_lr": 3e-3, "critic_lr": 3e-3} | options))
    plain = PlainTD3(algorithm)
    kinds = set()
    for step in range(1, 7):
        batch = batch_at(launch, step, ROWS)
        kinds |= set(zip(batch.continues[0].tolist(), batch.next_valid[0].tolist(), strict=True))
        metrics = algorithm.update(batch, step, batch)
        critic_loss = plain.update_critics(batch, launch.streams.normal("target_noise", ROWS, 2)[0])
        torch.testing.assert_close(metrics["critic_loss"][0], critic_loss)
        if step % 2 == 0:
            torch.testing.assert_close(metrics["actor_loss"][0], plain.update_actor(batch))
        plain.assert_equal_networks(algorithm)
    assert kinds == {(1.0, 1.0), (1.0, 0.0), (0.0, 0.0)}, "rows that go on, are cut off and end"


@pytest.mark.parametrize("name", ["td3_bc", "rebrac"])
def test_q_is_logged_as_the_mean_over_rows_and_critics(name: str) -> None:
    algorithm, launch = algorithm_of(name)
    batch = batch_at(launch, 1, ROWS)
    expected = algorithm.critic(batch.observations, batch.actions).q.mean()
    torch.testing.assert_close(algorithm.update(batch, 1, batch)["q"][0], expected)


def test_actor_and_both_targets_move_on_every_second_update_only() -> None:
    algorithm, launch = algorithm_of()
    parts = (algorithm.actor, algorithm.target_actor, algorithm.target_critic)
    before = [flat(p) for p in parts]
    advance(launch, 1)
    assert all(torch.equal(flat(p), b) for p, b in zip(parts, before, strict=True))
    advance(launch, 1, start=1)
    assert not any(torch.equal(flat(p), b) for p, b in zip(parts, before, strict=True))


def test_actor_first_counts_from_the_first_update() -> None:
    algorithm, launch = algorithm_of(actor_first=True, policy_delay=3)
    moved, before = [], flat(algorithm.actor)
    for step in range(1, 8):
        advance(launch, 1, start=step - 1)
        moved.append(not torch.equal(flat(algorithm.actor), before))
        before = flat(algorithm.actor)
    assert [step for step, one in enumerate(moved, 1) if one] == [1, 4, 7]


def test_larger_rewards_leave_the_weight_of_the_q_term_alone() -> None:
    """Q is divided by its own mean size: ten times the Q, the same actor's gradient."""
    gradients = []
    for factor in (1.0, 10.0):
        algorithm, launch = algorithm_of(critic_lr=1e-300)
        with torch.no_grad():
            for p in (algorithm.critic.mlp.weights[-1], algorithm.critic.mlp.biases[-1]):
                p.mul_(factor)
        batch = batch_at(launch, 2, ROWS)
        algorithm.update(batch, 2, batch)
        gradients.append(algorithm.optimizers["actor"].gradient.clone())
    torch.testing.assert_close(*gradients)


def test_critics_of_rebrac_carry_layer_norm_and_those_of_td3_bc_do_not() -> None:
    assert len(algorithm_of("rebrac")[0].critic.mlp.gains) == 2
    assert len(algorithm_of("td3_bc")[0].critic.mlp.gains) == 0
