"""D4RL's Adroit on current MuJoCo: a hand with 24 joints turns a pen, opens a door, drives a nail, moves a ball.

The models are those of gymnasium-robotics, the rules D4RL's. They differ from AdroitHand*-v1 of gymnasium-robotics in
the sign of the palm's distance in three rewards, and in that a dropped pen ends the episode.

Positions of sites and bodies lag one substep of 2 ms behind the joints, in observations and rewards, as in D4RL.
"""

import math
from abc import abstractmethod
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np

from c4rl.core.array import Array
from c4rl.environments.d4rl_physics import compile_model, step
from c4rl.environments.robotics_assets import model_file

FRAMES = 5


class Adroit(gymnasium.Env):
    """A reset places the `scene` at random: the pen's target, the door, the nail or the ball."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium's own interface)
    tool: ClassVar[str]

    def __init__(self, horizon: int) -> None:
        self.horizon, self._steps = horizon, 0
        model = compile_model(model_file(f"adroit_hand/adroit_{self.tool}.xml"))
        for first, last, stiffness in (("A_WRJ1", "A_WRJ0", 10), ("A_FFJ3", "A_THJ0", 1)):
            actuators = slice(model.actuator(first).id, model.actuator(last).id + 1)
            model.actuator_gainprm[actuators, :3] = stiffness, 0, 0
            model.actuator_biasprm[actuators, :3] = 0, -stiffness, 0
        data = mujoco.MjData(model)
        self.model, self.data, self._position, self._velocity = model, data, data.qpos, data.qvel
        low, high = model.actuator_ctrlrange.T
        self._middle, self._half_range = (low + high) / 2, (high - low) / 2
        self._palm = data.site("S_grasp").xpos
        self._find(model, data)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (model.nu,), np.float32)
        mujoco.mj_forward(model, data)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, self._observation().shape, np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        model = self.model
        return self.set_state(model.qpos0, np.zeros(model.nv), self._random_scene(self.np_random)), {}

    def set_state(self, position: Array, velocity: Array, scene: Array) -> Array:
        """A state, as if an episode started there; returns the observation."""
        mujoco.mj_resetData(self.model, self.data)
        self._set_scene(scene)
        self._position[:], self._velocity[:] = position, velocity
        mujoco.mj_normalizeQuat(self.model, self._position)
        mujoco.mj_forward(self.model, self.data)
        self._steps = 0
        return self._observation()

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.data.ctrl[:] = self._middle + np.minimum(np.maximum(action, -1.0), 1.0) * self._half_range
        step(self.model, self.data, FRAMES)
        self._steps += 1
        return self._observation(), self._reward(), self._failed(), self._steps >= self.horizon, {}

    def _failed(self) -> bool:
        return False

    @abstractmethod
    def _find(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        """Keep views of what the task is about."""

    @abstractmethod
    def _random_scene(self, rng: np.random.Generator) -> Array: ...
    @abstractmethod
    def _set_scene(self, scene: Array) -> None: ...
    @abstractmethod
    def _observation(self) -> Array: ...
    @abstractmethod
    def _reward(self) -> float: ...


class Pen(Adroit):
    """Turn the pen to a wanted orientation. scene: the target's quaternion [4]."""

    tool = "pen"

    def _find(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._target = model.body("target").quat
        self._pen, self._wanted_place = data.body("Object").xpos, data.site("eps_ball").xpos
        ends = ("object_top", "object_bottom", "target_top", "target_bottom")
        self._top, self._bottom, self._wanted_top, self._wanted_bottom = (data.site(end).xpos for end in ends)
        mujoco.mj_forward(model, data)
        self._length = math.dist(self._top, self._bottom)
        self._wanted_length = math.dist(self._wanted_top, self._wanted_bottom)

    def _random_scene(self, rng: np.random.Generator) -> Array:
        about_x, about_y = (rng.uniform(-1, 1) / 2 for _ in range(2))
        x, y = (math.cos(about_x), math.sin(about_x)), (math.cos(about_y), math.sin(about_y))
        return np.array([x[0] * y[0], x[1] * y[0], x[0] * y[1], x[1] * y[1]])

    def _set_scene(self, scene: Array) -> None:
        self._target[:] = scene

    def _directions(self) -> tuple[Array, Array]:
        """Where the pen points, and where its target does."""
        return (self._top - self._bottom) / self._length, (self._wanted_top - self._wanted_bottom) / self._wanted_length

    def _observation(self) -> Array:
        pen, place = self._pen, self._wanted_place
        direction, wanted = self._directions()
        return np.concatenate(
            (self._position[:-6], pen, self._velocity[-6:], direction, wanted, pen - place, direction - wanted)
        )

    def _reward(self) -> float:
        direction, wanted = self._directions()
        distance, similarity = math.dist(self._pen, self._wanted_place), float(direction @ wanted)
        reward = similarity - distance
        if distance < 0.075:
            reward += 10 * (similarity > 0.9) + 50 * (similarity > 0.95)
        return reward - 5 * self._failed()

    def _failed(self) -> bool:
        return bool(self._pen[2] < 0.075)


class Door(Adroit):
    """Turn the latch and pull the door open. scene: the door frame's place [3]."""

    tool = "door"

    def _find(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._frame, self._handle = model.body("frame").pos, data.site("S_handle").xpos
        self._hinge = model.joint("door_hinge").qposadr[0]

    def _random_scene(self, rng: np.random.Generator) -> Array:
        return np.array([rng.uniform(-0.3, -0.2), rng.uniform(0.25, 0.35), rng.uniform(0.252, 0.35)])

    def _set_scene(self, scene: Array) -> None:
        self._frame[:] = scene

    def _observation(self) -> Array:
        position, palm, handle = self._position, self._palm, self._handle
        opened = position[self._hinge]
        return np.concatenate(
            (
                position[1:-2],
                (position[-1], opened),
                palm,
                handle,
                palm - handle,
                (1.0 if opened > 1.0 else -1.0,),
            )
        )

    def _reward(self) -> float:
        opened = float(self._position[self._hinge])
        reward = -0.1 * math.dist(self._palm, self._handle) - 0.1 * (opened - 1.57) ** 2
        reward -= 1e-5 * float(self._velocity @ self._velocity)
        return reward + 2 * (opened > 0.2) + 8 * (opened > 1.0) + 10 * (opened > 1.35)


class Hammer(Adroit):
    """Take the hammer and drive the nail into the board. scene: the board's place [3]."""

    tool = "hammer"

    def _find(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._board = model.body("nail_board").pos
        self._x, self._y, _ = self._board.tolist()
        self._hammer, self._orientation = data.body("Object").xpos, data.body("Object").xmat
        self._head, self._nail, self._goal = (data.site(name).xpos for name in ("tool", "S_target", "nail_goal"))
        self._impact = data.sensor("S_nail").data

    def _random_scene(self, rng: np.random.Generator) -> Array:
        return np.array([self._x, self._y, rng.uniform(0.1, 0.25)])

    def _set_scene(self, scene: Array) -> None:
        self._board[:] = scene

    def _observation(self) -> Array:
        return np.concatenate(
            (
                self._position[:-6],
                np.minimum(np.maximum(self._velocity[-6:], -1.0), 1.0),
                self._palm,
                self._hammer,
                euler_angles(self._orientation),
                self._nail,
                np.minimum(np.maximum(self._impact, -1.0), 1.0),
            )
        )

    def _reward(self) -> float:
        remaining = math.dist(self._nail, self._goal)
        reward = -0.1 * math.dist(self._palm, self._hammer) - math.dist(self._head, self._nail) - 10 * remaining
        reward -= 0.01 * math.sqrt(self._velocity @ self._velocity)
        lifted = self._hammer[2] > 0.04 and self._head[2] > 0.04
        return reward + 2 * bool(lifted) + 25 * (remaining < 0.02) + 75 * (remaining < 0.01)


class Relocate(Adroit):
    """Carry the ball to a target in the air. scene: the places of the ball and of the target [6]."""

    tool = "relocate"

    def _find(self, model: mujoco.MjModel, data: mujoco.MjData) -> None:
        self._start, self._goal = model.body("Object").pos, model.site("target").pos
        self._height = float(self._start[2])
        self._ball, self._target = data.body("Object").xpos, data.site("target").xpos

    def _random_scene(self, rng: np.random.Generator) -> Array:
        ball = rng.uniform(-0.15, 0.15), rng.uniform(-0.15, 0.3), self._height
        return np.array([*ball, rng.uniform(-0.2, 0.2), rng.uniform(-0.2, 0.2), rng.uniform(0.15, 0.35)])

    def _set_scene(self, scene: Array) -> None:
        self._start[:], self._goal[:] = scene[:3], scene[3:]

    def _observation(self) -> Array:
        palm, ball, target = self._palm, self._ball, self._target
        return np.concatenate((self._position[:-6], palm - ball, palm - target, ball - target))

    def _reward(self) -> float:
        distance = math.dist(self._ball, self._target)
        reward = -0.1 * math.dist(self._palm, self._ball)
        if self._ball[2] > 0.04:
            reward += 1.0 - 0.5 * math.dist(self._palm, self._target) - 0.5 * distance
        return reward + 10 * (distance < 0.1) + 20 * (distance < 0.05)


ADROIT: dict[str, type[Adroit]] = {kind.tool: kind for kind in (Pen, Door, Hammer, Relocate)}


def euler_angles(matrix: Array) -> tuple[float, float, float]:
    """Angles about the body's own x, y and z axes, applied in this order, of a rotation matrix [9] (row by row)."""
    m00, m01, m02, m10, m11, m12, _, _, m22 = matrix.tolist()
    flat = math.hypot(m22, m12)
    about_y = -math.atan2(-m02, flat)
    if flat < 1e-15:  # x and z turn about the same line: all of it counts as z
        return 0.0, about_y, -math.atan2(-m10, m11)
    return -math.atan2(m12, m22), about_y, -math.atan2(m01, m00)
