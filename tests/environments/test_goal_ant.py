"""AntMaze's ant on an open floor: the same in all directions, paid for walking where it should."""

import mujoco
import numpy as np
import pytest

from c4rl.environments.ant_symmetry import goal_ant_symmetries
from c4rl.environments.antmaze import FRAMES, ant_model
from c4rl.environments.d4rl_physics import step
from c4rl.environments.goal_ant import GoalAnt, body_observation, upside_down
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import GOAL_ANT, get_task

FORWARD = np.array([1.0, 0.0])


@pytest.fixture(scope="module")
def model() -> mujoco.MjModel:
    return ant_model(np.zeros((0, 0), bool))


def one_step(model: mujoco.MjModel, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    """From a state with this observation, in which the wanted direction is +x, to the next observation."""
    up, wanted = -observation[1:4], observation[26:29]
    rotation = np.stack([wanted, np.cross(up, wanted), up])  # from the body to the world
    data = mujoco.MjData(model)
    mujoco.mju_mat2Quat(data.qpos[3:7], rotation.flatten())
    data.qpos[2], data.qpos[7:] = observation[0], observation[4:12]
    data.qvel[:3], data.qvel[3:6], data.qvel[6:] = rotation @ observation[12:15], observation[15:18], observation[18:26]
    np.testing.assert_allclose(body_observation(data.qpos, data.qvel, FORWARD), observation, atol=1e-9)
    data.ctrl[:] = action
    step(model, data, FRAMES)
    return body_observation(data.qpos, data.qvel, FORWARD)


def test_the_eight_symmetries_are_those_of_the_physics(model: mujoco.MjModel) -> None:
    rng, environment = np.random.default_rng(0), GoalAnt(500)
    observation, _ = environment.reset(seed=3)
    for _ in range(30):  # down to the floor, and moving
        observation, *_ = environment.step(rng.uniform(-1, 1, 8))
    action = rng.uniform(-1, 1, 8)
    following = one_step(model, observation, action)
    turns, moves = goal_ant_symmetries()
    assert len({turn.tobytes() for turn in turns}) == 8 and np.array_equal(turns[0], np.eye(29))
    for turn, move in zip(turns, moves, strict=True):
        np.testing.assert_allclose(one_step(model, observation @ turn, action @ move), following @ turn, atol=1e-10)


def test_walking_is_paid_and_lying_on_the_back_ends_the_episode() -> None:
    environment = GoalAnt(500)
    environment.reset(seed=0)
    before = environment._position[:2].copy()
    environment._velocity[:2] = 3 * environment._direction
    _, reward, terminated, truncated, _ = environment.step(np.zeros(8))
    way = (environment._position[:2] - before) @ environment._direction
    assert way > 0.1 and reward == pytest.approx(10 * way) and not terminated and not truncated
    environment._position[3:7] = (0, 1, 0, 0)
    assert upside_down(environment._position) and environment.step(np.zeros(8))[2]


def test_actions_cost_and_the_wanted_direction_changes_every_hundred_steps() -> None:
    environment, action = GoalAnt(500), np.linspace(-1, 1, 8)
    directions = []
    for seed in range(30):
        environment.reset(seed=seed)
        directions.append(environment._direction)
    angles = np.arctan2(*np.transpose(directions)[::-1])
    assert angles.min() < -2 and angles.max() > 2 and len(np.unique(angles)) == 30
    first = environment._direction
    for steps in range(1, 102):
        before = environment._position[:2].copy()
        wanted = environment._direction
        reward = environment.step(action)[1]
        way = (environment._position[:2] - before) @ wanted
        assert reward == pytest.approx(10 * way - 0.02 * (action**2).sum())
        assert (wanted == first).all() == (steps <= 100)


def test_upside_down_is_an_axis_below_the_horizon_however_the_ant_has_turned() -> None:
    half = np.radians([80, 100, 180]) / 2
    for axis in ((1, 0, 0), (0, 1, 0), (0.6, 0.8, 0)):
        for angle, lies in zip(half, (False, True, True), strict=True):
            position = np.array([0, 0, 0.5, np.cos(angle), *np.sin(angle) * np.array(axis)])
            assert upside_down(position) == lies
    assert not upside_down(np.array([0, 0, 0.5, 0, 0, 0, 1.0]))  # turned round on its feet


def test_the_task_makes_it_and_cuts_it_at_the_horizon() -> None:
    environment = make_environment(get_task(GOAL_ANT.name))
    environment.reset(seed=1)
    ends = [environment.step(np.zeros(8))[2:4] for _ in range(GOAL_ANT.horizon)]
    assert ends[-1] == (False, True) and not any(any(end) for end in ends[:-1])
