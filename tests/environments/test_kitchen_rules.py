"""Kitchen has D4RL's rules: steps of gymnasium-robotics' class, with D4RL's goal, noise, rewards and ends."""

from functools import cache

import mujoco
import numpy as np
import pytest

pytest.importorskip("gymnasium_robotics", reason="needs the extra 'robotics'")

from gymnasium_robotics.envs.franka_kitchen.kitchen_env import KitchenEnv

from c4rl.environments.kitchen import KITCHENS, MODEL, NOISE, START, SUBTASKS, Kitchen
from c4rl.environments.making import make_environment
from c4rl.environments.robotics_assets import model_file
from c4rl.environments.tasks import get_task

STILL = np.zeros(29)


@cache
def compiled() -> mujoco.MjModel:
    environment = make_environment(get_task("kitchen-mixed-v0"))
    assert isinstance(environment, Kitchen)
    return environment.model


def kitchen(kind: str = "mixed", horizon: int = 280) -> Kitchen:
    environment = Kitchen(kind, horizon, model=compiled())
    environment.reset(seed=0)
    return environment


@pytest.mark.skipif(
    tuple(map(int, mujoco.__version__.split(".")[:2])) >= (3, 12), reason="FrankaKitchen-v1 raises from MuJoCo 3.12 on"
)
def test_steps_without_noise_equal_gymnasium_robotics_on_its_own_model() -> None:
    theirs = KitchenEnv(robot_noise_ratio=0, object_noise_ratio=0)
    start = theirs.robot_env.init_qpos
    start[26:30] /= np.linalg.norm(start[26:30])  # the kettle's quaternion, as D4RL's MuJoCo did
    ours = Kitchen("mixed", 280, 0.0, mujoco.MjModel.from_xml_path(str(model_file(MODEL))))
    theirs.reset(seed=0)
    ours.reset(seed=0)
    rng = np.random.default_rng(0)
    for _ in range(30):
        action = rng.uniform(-1.2, 1.2, 9)
        expected = theirs.step(action)[0]["observation"]
        np.testing.assert_array_equal(ours.step(action)[0][:30], np.concatenate((expected[:9], expected[18:39])))


@pytest.mark.parametrize("kind", KITCHENS)
def test_the_goal_is_observed_and_names_the_four_subtasks(kind: str) -> None:
    observation, _ = kitchen(kind).reset(seed=0)
    expected = np.zeros(30)
    expected[17:19], expected[22] = (-0.69, -0.05), -0.75
    expected[23:30] = -0.23, 0.75, 1.62, 0.99, 0, 0, -0.06
    if kind == "mixed":
        expected[11:13] = -0.88, -0.01
    else:
        expected[19] = 0.37
    np.testing.assert_array_equal(observation[30:], expected)


def test_noise_is_as_wide_as_d4rls() -> None:
    environment = kitchen()
    seen = np.stack([environment._observation()[:30] for _ in range(1000)]) - environment._position
    widths = np.abs(seen).max(axis=0)
    assert (widths <= NOISE).all() and (widths > 0.98 * NOISE).all()
    assert len(NOISE) == 30
    assert [NOISE[i] for i in (0, 8, 9, 11, 16, 17, 20, 22, 23, 26, 29)] == [
        0.01, 0.01, 5e-4, 5e-5, 5e-5, 5e-4, 0.01, 0.01, 5e-4, 0.01, 5e-4,
    ]  # fmt: skip


def with_done(*names: str) -> np.ndarray:
    position = START.copy()
    for name in names:
        first, wanted = SUBTASKS[name]
        position[first : first + len(wanted)] = wanted
    return position


def test_each_subtask_pays_once_and_the_last_ends_the_episode() -> None:
    environment, still = kitchen("complete"), np.zeros(9)
    for name in KITCHENS["complete"]:
        environment.set_state(with_done(name), STILL)
        assert [environment.step(still)[1:3] for _ in range(2)] == [(1.0, False), (0.0, False)]
    environment.set_state(with_done(*KITCHENS["complete"][:-1]), STILL)
    assert environment.step(still)[1:3] == (3.0, False)
    environment._position[:] = with_done(*KITCHENS["complete"])
    assert environment.step(still)[1:3] == (1.0, True)


def test_a_subtask_is_done_within_three_tenths_of_its_goal() -> None:
    environment, rewards = kitchen(), []
    for missing in (0.27, 0.33):  # of the microwave's 0.75
        position = START.copy()
        position[22] = -0.75 + missing
        environment.set_state(position, STILL)
        rewards.append(environment.step(np.zeros(9))[1])
    assert rewards == [1.0, 0.0]


def test_joints_are_driven_from_where_they_were_seen_to_bounds_that_they_never_pass() -> None:
    environment = kitchen()
    for sign, fingers in ((1, 0.04), (-1, 0.0)):
        seen = environment.reset(seed=3)[0][:9]
        assert np.abs(seen - environment._position[:9]).min() > 1e-5  # noise
        environment.step(np.full(9, 2.0 * sign))  # clipped to 1
        control = environment.data.ctrl
        wanted = seen[:7] + 0.16 * sign
        wanted[1] = max(wanted[1], -1.8)
        np.testing.assert_allclose(control[:7], wanted)
        np.testing.assert_array_equal(control[7:], fingers)
    assert control[1] == -1.8


def test_a_subtask_of_another_kitchen_pays_nothing() -> None:
    environment = kitchen("mixed")
    environment.set_state(with_done("slide cabinet"), STILL)
    assert environment.step(np.zeros(9))[1] == 0.0


def test_nothing_collides_with_the_robots_pedestal() -> None:
    model = compiled()
    np.testing.assert_allclose(model.geom_size[1][:2], [0.12, 0.9])
    assert model.geom_contype[1] == model.geom_conaffinity[1] == 0


def test_equal_seeds_give_equal_noise_and_the_horizon_cuts() -> None:
    first, second = (kitchen("mixed", 3) for _ in range(2))
    np.testing.assert_array_equal(first.reset(seed=7)[0], second.reset(seed=7)[0])
    for step in range(3):
        (observation, _, _, truncated, _), (other, *_) = first.step(np.ones(9)), second.step(np.ones(9))
        np.testing.assert_array_equal(observation, other)
        assert truncated == (step == 2)
