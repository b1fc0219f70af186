"""Kitchen's scripted arm does its sub-tasks, one after the other, from what a policy sees."""

import numpy as np
import pytest

pytest.importorskip("gymnasium_robotics", reason="needs the extra 'robotics'")

from c4rl.environments.kitchen import KITCHENS, SUBTASKS
from c4rl.environments.kitchen_arm import KitchenArm, orders


def test_the_task_is_done_in_its_order() -> None:
    arm = KitchenArm("complete", 280)
    rng = np.random.default_rng(3)
    observation, _ = arm.reset(seed=3)
    assert arm.order == list(KITCHENS["complete"])
    total, done, left = 0.0, False, [len(arm.order)]
    while not done:
        observation, reward, terminated, truncated, _ = arm.step(arm.act(observation, rng))
        total, done = total + reward, terminated or truncated
        left.append(len(arm.order))
        assert arm.order == list(KITCHENS["complete"])[4 - left[-1] :]
    assert (total, terminated, left[-1]) == (4, True, 0)


def test_an_episode_ends_with_its_last_sub_task() -> None:
    """By truncation: the task is not done."""
    arm = KitchenArm("mixed", 280)
    observation, _ = arm.reset(seed=0)
    arm.order, arm._current = ["slide cabinet"], ""
    for _ in range(80):
        observation, reward, terminated, truncated, _ = arm.step(arm.act(observation))
        if truncated:
            break
    assert (reward, terminated, truncated, arm.order) == (0, False, True, [])  # mixed does not pay for it


def test_orders_are_those_of_the_set() -> None:
    assert orders("complete") == [KITCHENS["complete"]]
    assert len(set(orders("partial"))) == 120
    mixed = orders("mixed")
    assert len(mixed) == 96 and all("slide cabinet" in order for order in mixed)
    assert {name for order in mixed for name in order} == set(SUBTASKS)
    arm = KitchenArm("mixed", 280)
    drawn = [tuple(arm.reset(seed=seed) and arm.order) for seed in range(20)]
    assert len(set(drawn)) > 10 and set(drawn) <= set(mixed)


def test_actions_are_noisy_only_with_a_generator() -> None:
    arm = KitchenArm("complete", 280)
    observation, _ = arm.reset(seed=0)
    calm = arm.act(observation)
    noisy = arm.act(observation, np.random.default_rng(0))
    assert calm.dtype == np.float32 and np.abs(calm).max() <= 1
    assert 0.02 < np.abs(noisy - calm).max() < 0.5
