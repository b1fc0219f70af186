"""Adroit is D4RL's: logged rows, a whole demonstration, and the returns of D4RL's policies come out again."""

from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

pytest.importorskip("gymnasium_robotics", reason="needs the extra 'robotics'")

from gymnasium_robotics.envs.adroit_hand.adroit_door import AdroitHandDoorEnv
from gymnasium_robotics.envs.adroit_hand.adroit_hammer import AdroitHandHammerEnv
from gymnasium_robotics.envs.adroit_hand.adroit_pen import AdroitHandPenEnv
from gymnasium_robotics.envs.adroit_hand.adroit_relocate import AdroitHandRelocateEnv

from c4rl.core.errors import InputError
from c4rl.data.policy_files import read_policies
from c4rl.environments.adroit import ADROIT, Adroit, euler_angles
from c4rl.environments.d4rl_physics import D4RLPhysics
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import get_task

THEIRS = {
    "pen": AdroitHandPenEnv,
    "door": AdroitHandDoorEnv,
    "hammer": AdroitHandHammerEnv,
    "relocate": AdroitHandRelocateEnv,
}
# later versions pay for the palm's distance as D4RL does
HAS_SLIP = tuple(map(int, version("gymnasium-robotics").split(".")[:3])) <= (1, 4, 2)
SCENES = {"pen": "desired_orien", "door": "door_body_pos", "hammer": "board_pos"}


@cache
def adroit(tool: str) -> Adroit:
    environment = make_environment(get_task(f"{tool}-expert-v1"))
    assert isinstance(environment, Adroit)
    return environment


def relocate_scenes(environment: Any, logged: dict[str, np.ndarray], ends: np.ndarray) -> np.ndarray:
    """The file's own places are constants, of a view that was logged: an episode's first observation shows them."""
    scenes = np.zeros((len(ends), 6))
    for first in [0, *(np.flatnonzero(ends[:-1]) + 1)]:
        environment.set_state(logged["infos/qpos"][first], logged["infos/qvel"][first], np.zeros(6))
        palm, seen = environment._palm.copy(), logged["observations"][first]
        scenes[first:] = *(palm - seen[30:33]), *(palm - seen[33:36])
    return scenes


@pytest.mark.parametrize("kind", ["human", "cloned", "expert"])
@pytest.mark.parametrize("tool", ADROIT)
def test_logged_d4rl_rows_are_replayed(tool: str, kind: str, shared: Callable[[str], Path]) -> None:
    environment = adroit(tool)
    with h5py.File(shared(f"data/d4rl-hdf5/{tool}-{kind}-v1.hdf5")) as file:
        names = ("observations", "actions", "rewards", "infos/qpos", "infos/qvel")
        logged = {name: file[name][:] for name in names}
        ends = file["timeouts"][:] | file["terminals"][:]
        scenes = None if tool == "relocate" else file[f"infos/{SCENES[tool]}"][:]
    if scenes is None:
        scenes = relocate_scenes(environment, logged, ends)
    rows = np.random.default_rng(0).permutation(np.flatnonzero(~ends[:-1]))[:120]
    state_errors, reward_errors = [], []
    for row in rows:
        environment.set_state(logged["infos/qpos"][row], logged["infos/qvel"][row], scenes[row])
        observation, reward, *_ = environment.step(logged["actions"][row])
        state_errors.append(np.abs(observation - logged["observations"][row + 1]).max())
        reward_errors.append(abs(reward - logged["rewards"][row]))
    for errors in (state_errors, reward_errors):
        assert np.median(errors) <= 1e-5
        assert np.quantile(errors, 0.9) <= (1e-2 if (tool, kind) == ("door", "cloned") else 1e-3)


def test_a_demonstration_is_replayed_from_its_first_state_alone(shared: Callable[[str], Path]) -> None:
    with np.load(shared("data/d4rl-10k/door-human-v1.npz"), allow_pickle=False) as file:
        data = dict(file)
    with h5py.File(shared("data/d4rl-hdf5/door-human-v1.hdf5")) as file:
        logged = file["observations"][:]
    environment, total = adroit("door"), 0.0
    environment.set_state(*(data[f"init_{name}"][0] for name in ("qpos", "qvel", "door_body_pos")))
    actions = data["actions_raw"][data["traj_id"] == 0]
    for step, action in enumerate(actions):
        observation, reward, *_ = environment.step(action)
        total += reward
        if step + 1 < len(actions):
            np.testing.assert_allclose(observation, logged[step + 1], rtol=0, atol=1e-4)
    assert total == pytest.approx(520.42, abs=0.05)


@pytest.mark.parametrize("tool", ADROIT)
def test_gymnasium_robotics_differs_by_the_sign_of_the_palms_distance_alone(tool: str) -> None:
    ours, theirs = adroit(tool), type("Repaired", (D4RLPhysics, THEIRS[tool]), {})()
    rng = np.random.default_rng(0)
    np.testing.assert_allclose(ours.reset(seed=5)[0], theirs.reset(seed=5)[0], rtol=0, atol=1e-12)
    for _ in range(20):
        action = rng.uniform(-1.2, 1.2, ours.action_space.shape).astype(np.float32)
        (observation, reward, *_), (expected, their_reward, *_) = ours.step(action), theirs.step(action)
        np.testing.assert_allclose(observation, expected, rtol=0, atol=1e-9)
        if tool != "pen" and HAS_SLIP:
            aim = ours._handle if tool == "door" else ours._hammer if tool == "hammer" else ours._ball
            their_reward -= 0.2 * np.linalg.norm(ours._palm - aim)
        assert reward == pytest.approx(their_reward, abs=1e-9)


def test_a_dropped_pen_costs_5_and_ends_the_episode() -> None:
    environment = adroit("pen")
    environment.reset(seed=0)
    rewards, ends = [], []
    for height in (0.45, 0.05):  # of the pen, beside the hand
        position = environment.model.qpos0.copy()
        position[24:26] = 0.25 - height, -0.3
        environment.set_state(position, np.zeros(30), np.array([1, 0, 0, 0.0]))
        _, reward, terminated, *_ = environment.step(np.zeros(24))
        rewards.append(reward)
        ends.append(terminated)
    assert ends == [False, True]
    assert rewards[1] == pytest.approx(rewards[0] - 5, abs=0.1)


def episode(tool: str, seed: int, policy: Any) -> float:
    environment, total, done = adroit(tool), 0.0, False
    observation, _ = environment.reset(seed=seed)
    while not done:
        observation, reward, terminated, truncated, _ = environment.step(policy(observation))
        total, done = total + reward, terminated or truncated
    return total


@pytest.mark.parametrize(
    ("tool", "episodes", "low", "high"),
    [("door", 4, 2950, 3060), ("hammer", 2, 15000, 17000), ("relocate", 4, 3900, 5000)],
)
def test_d4rls_experts_reach_their_returns(
    tool: str, episodes: int, low: float, high: float, shared: Callable[[str], Path]
) -> None:
    (policy,) = read_policies(shared(f"policies/{tool}-expert-v1-d4rl-dapg.npz"), get_task(f"{tool}-expert-v1"))
    returns = [episode(tool, seed, policy.act) for seed in range(100, 100 + episodes)]
    assert low < np.mean(returns) < high


@pytest.mark.parametrize("tool", ["door", "relocate"])
def test_random_actions_give_the_lower_reference(tool: str) -> None:
    rng, task = np.random.default_rng(0), get_task(f"{tool}-expert-v1")
    returns = [episode(tool, seed, lambda _: rng.uniform(-1, 1, task.action_dim)) for seed in range(5)]
    assert np.mean(returns) == pytest.approx(task.reference_min, abs=4 * np.std(returns, ddof=1) / np.sqrt(5))


def aside(distance: float) -> np.ndarray:
    return np.array([distance, 0.0, 0.0])


def test_a_pen_that_points_as_wanted_is_paid_within_seven_and_a_half_centimetres() -> None:
    pen: Any = adroit("pen")
    pen.reset(seed=0)
    pen._bottom[:] = 0
    pen._top[:] = (pen._wanted_top - pen._wanted_bottom) / pen._wanted_length * pen._length
    for distance, bonus in ((0.076, 0), (0.074, 60)):
        pen._pen[:] = pen._wanted_place + aside(distance)
        assert pen._reward() == pytest.approx(1 - distance + bonus) and not pen._failed()
    for height, penalty in ((0.076, 0), (0.074, 5)):
        pen._pen[2] = height
        away = np.linalg.norm(pen._pen - pen._wanted_place)
        assert pen._reward() == pytest.approx(1 - away - penalty) and pen._failed() == (penalty > 0)


def test_a_nail_and_a_ball_are_paid_by_how_far_they_are_from_their_goals() -> None:
    hammer: Any = adroit("hammer")
    hammer.reset(seed=0)
    hammer._velocity[:], hammer._hammer[:], hammer._palm[:], hammer._head[2] = 0, 0, 0, 0
    for remaining, bonus in ((0.021, 0), (0.019, 25), (0.011, 25), (0.009, 100)):
        hammer._nail[:] = hammer._goal + aside(remaining)
        hammer._head[:2] = hammer._nail[:2]
        expected = bonus - 10 * remaining - np.linalg.norm(hammer._head - hammer._nail)
        assert hammer._reward() == pytest.approx(expected)
    relocate: Any = adroit("relocate")
    relocate.reset(seed=0)
    for distance, bonus in ((0.11, 0), (0.09, 10), (0.051, 10), (0.049, 30)):
        relocate._palm[:] = relocate._ball[:] = relocate._target + aside(distance)
        assert relocate._reward() == pytest.approx(1 - distance + bonus)
    for height, lifted in ((0.039, False), (0.041, True)):
        relocate._palm[:] = relocate._ball[:] = [1, 1, height]
        distance = np.linalg.norm(relocate._ball - relocate._target)
        assert relocate._reward() == pytest.approx(1 - distance if lifted else 0)


def test_a_door_is_paid_by_how_far_it_is_open() -> None:
    door: Any = adroit("door")
    door.reset(seed=0)
    door._velocity[:], door._palm[:] = 0, door._handle
    for opened, bonus in ((0.19, 0), (0.21, 2), (0.99, 2), (1.01, 10), (1.34, 10), (1.36, 20)):
        door._position[door._hinge] = opened
        assert door._reward() == pytest.approx(bonus - 0.1 * (opened - 1.57) ** 2)


def rotation(x: float, y: float, z: float) -> np.ndarray:
    about_x = [[1, 0, 0], [0, np.cos(x), -np.sin(x)], [0, np.sin(x), np.cos(x)]]
    about_y = [[np.cos(y), 0, np.sin(y)], [0, 1, 0], [-np.sin(y), 0, np.cos(y)]]
    about_z = [[np.cos(z), -np.sin(z), 0], [np.sin(z), np.cos(z), 0], [0, 0, 1]]
    return np.array(about_x) @ about_y @ about_z


def test_angles_give_their_rotation_also_where_two_axes_are_one() -> None:
    for about_y in (-np.pi / 2, -1.0, 0.3, np.pi / 2):
        matrix = rotation(0.4, about_y, -1.1)
        angles = euler_angles(matrix.flatten())
        np.testing.assert_allclose(rotation(*angles), matrix, atol=1e-12)
        if abs(about_y) < 1.5:
            np.testing.assert_allclose(angles, (0.4, about_y, -1.1))


def test_a_policy_of_another_task_is_refused(shared: Callable[[str], Path]) -> None:
    with pytest.raises(
        InputError, match=r"takes 39 observations and gives 28 actions; expected 45 and 24 for task pen"
    ):
        read_policies(shared("policies/door-expert-v1-d4rl-dapg.npz"), get_task("pen-expert-v1"))
