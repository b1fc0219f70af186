"""AntMaze's behaviour: episodes lead along shortest paths to their targets."""

import numpy as np
import pytest

from c4rl.core.behaviour_policy import BehaviourPolicy
from c4rl.environments.antmaze import START, goal_near, place
from c4rl.environments.maze_walk import MazeWalk, SteeredWalker

GOAL = place((3, 1)) + 0.5


def policy() -> BehaviourPolicy:
    """Its action is the wanted direction in the body's frame."""
    weight = np.zeros((29, 8), np.float32)
    weight[26:, :3] = np.eye(3)
    zeros = np.zeros(29, np.float32)
    return BehaviourPolicy((), (weight, np.zeros(8, np.float32)), None, zeros, zeros + 1, squash="clip")


def test_episodes_start_and_lead_where_their_kind_says() -> None:
    for kind in ("umaze", "play", "diverse"):
        walk = MazeWalk("umaze", kind, GOAL)  # type: ignore[arg-type]
        starts, targets = zip(*((walk.reset(seed=s)[0][:2], walk.target) for s in range(40)), strict=True)
        cells = [{tuple(np.rint(place / 4).astype(int).tolist()) for place in places} for places in (starts, targets)]
        assert [len(some) for some in cells] == {"umaze": [1, 1], "play": [7, 1], "diverse": [7, 7]}[kind]
        assert (walk.env.goal == GOAL).all()


def test_a_walker_is_steered_around_the_wall() -> None:
    """From the start the goal is straight up, behind the wall: the way is right, up, and back left."""
    walk = MazeWalk("umaze", "umaze", GOAL)
    observation, _ = walk.reset(seed=0)
    walker = SteeredWalker(walk, policy())
    upright = observation.copy()
    upright[3:7] = (1, 0, 0, 0)
    for cell, direction in (((1, 1), (1, 0)), ((1, 2), (1, 0)), ((1, 3), (0, 1)), ((2, 3), (0, 1)), ((3, 3), (-1, 0))):
        upright[:2] = place(cell)
        np.testing.assert_allclose(walker.act(upright)[:3], [*direction, 0], atol=1e-6)
    # from the cell next to the goal's, and where the ant has climbed a wall: straight to the goal
    for cell, way in (((3, 2), (-3.5, 0.5)), ((2, 2), (-3.5, 4.5))):
        upright[:2] = place(cell)
        np.testing.assert_allclose(walker.act(upright)[:2], np.array(way) / np.hypot(*way), atol=1e-6)
    upright[:2] = place((3, 1))
    np.testing.assert_allclose(walker.act(upright)[:2], [0.5**0.5, 0.5**0.5], atol=1e-6)
    noisy = walker.act(upright, np.random.default_rng(0))
    assert 0.02 < np.abs(noisy - walker.act(upright)).max() < 1


def test_the_goal_is_terminal_and_another_target_is_not() -> None:
    walk = MazeWalk("umaze", "diverse", GOAL)
    observation, _ = walk.reset(seed=1)
    walk.target = place(START) + np.array([0.2, 0.0])
    observation[:2] = walk.target
    walk.env.set_state(observation[:15], observation[15:])
    _, reward, terminated, truncated, _ = walk.step(np.zeros(8))
    assert (reward, terminated, truncated) == (0, False, True)
    observation[:2] = GOAL
    walk.env.set_state(observation[:15], observation[15:])
    _, reward, terminated, _, _ = walk.step(np.zeros(8))
    assert (reward, terminated) == (1, True)


def test_goals_are_drawn_as_the_task_draws_them() -> None:
    drawn = np.array([goal_near((3, 1), np.random.default_rng(s)) for s in range(200)]) - place((3, 1))
    assert drawn.min() >= 0 and drawn.max() <= 1.5 and drawn.mean() == pytest.approx(0.75, abs=0.06)
