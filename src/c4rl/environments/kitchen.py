"""D4RL's Kitchen on current MuJoCo: a robot arm that has to do four things, in any order.

The model is that of gymnasium-robotics. The rules, the goal in the observation and the noise are D4RL's, which
FrankaKitchen-v1 of gymnasium-robotics changed.
"""

from functools import cache
from typing import Any, ClassVar

import gymnasium
import mujoco
import numpy as np

from c4rl.core.array import Array
from c4rl.environments.d4rl_physics import compile_model, step
from c4rl.environments.robotics_assets import model_file

MODEL = "kitchen_franka/kitchen_assets/kitchen_env_model.xml"
FRAMES = 40
REACH = 0.16  # how far action 1 moves a joint's set point from its last observed place
DONE_WITHIN = 0.3  # of its goal
ROBOT = 9  # joints of the arm and its two fingers; the other 21 positions are the kitchen's

# sub-task -> (first of its positions, where they should be)
SUBTASKS = {
    "bottom burner": (11, (-0.88, -0.01)),
    "light switch": (17, (-0.69, -0.05)),
    "slide cabinet": (19, (0.37,)),
    "microwave": (22, (-0.75,)),
    "kettle": (23, (-0.23, 0.75, 1.62, 0.99, 0.0, 0.0, -0.06)),
}
KITCHENS = {
    "complete": ("microwave", "kettle", "light switch", "slide cabinet"),
    "partial": ("microwave", "kettle", "light switch", "slide cabinet"),
    "mixed": ("microwave", "kettle", "bottom burner", "light switch"),
}
START = np.array(
    [
        1.48388023e-01, -1.76848573e00, 1.84390296e00, -2.47685760e00, 2.60252026e-01, 7.12533105e-01, 1.59515394e00,
        4.79267505e-02, 3.71350919e-02, -2.66279850e-04, -5.18043486e-05, 3.12877220e-05, -4.51199853e-05,
        -3.90842156e-06, -4.22629655e-05, 6.28065475e-05, 4.04984708e-05, 4.62730939e-04, -2.26906415e-04,
        -4.65501369e-04, -6.44129196e-03, -1.77048263e-03, 1.08009684e-03, -2.69397440e-01, 3.50383255e-01,
        1.61944683e00, 1.00618764e00, 4.06395120e-03, -6.62095997e-03, -2.68278933e-04,
    ]
)  # fmt: skip
LOWEST = np.array([-2.9, -1.8, -2.9, -3.1, -2.9, 0.0, -2.9, 0.0, 0.0])
HIGHEST = np.array([2.9, 1.8, 2.9, 0.0, 2.9, 3.8, 2.9, 0.04, 0.04])
# half widths of the uniform noise on the 30 observed positions
NOISE = np.repeat([0.01, 5e-4, 5e-5, 5e-4, 0.01, 5e-4, 0.01, 5e-4], [9, 2, 6, 3, 3, 3, 3, 1])


class Kitchen(gymnasium.Env):
    """Observation: 30 positions with noise, and the 30 of the goal. Reward: how many sub-tasks this step did for the
    first time; the episode ends with the last of them."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012 (gymnasium's own interface)
    # where frames are drawn from: the model has no camera of its own that shows the arm
    view: ClassVar = {"lookat": (-0.2, 0.5, 2.0), "distance": 2.2, "azimuth": 70.0, "elevation": -35.0}

    def __init__(self, kind: str, horizon: int, noise: float = 1.0, model: mujoco.MjModel | None = None) -> None:
        """noise: a factor. model: another one than D4RL's, to compare with."""
        self.horizon, self._steps, self._noise = horizon, 0, noise * NOISE
        self.model = model = model or _model()
        self.data = mujoco.MjData(model)
        self._position = self.data.qpos
        self.goal = np.zeros(30)
        self._subtasks = KITCHENS[kind]
        for first, wanted in map(SUBTASKS.__getitem__, self._subtasks):
            self.goal[first : first + len(wanted)] = wanted
        self._to_do: set[str] = set()
        self._seen = START
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (60,), np.float64)
        self.action_space = gymnasium.spaces.Box(-1.0, 1.0, (ROBOT,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        return self.set_state(START, np.zeros(self.model.nv)), {}

    def set_state(self, position: Array, velocity: Array) -> Array:
        """A state, as if an episode started there; returns the observation."""
        mujoco.mj_resetData(self.model, self.data)
        self._position[:], self.data.qvel[:] = position, velocity
        mujoco.mj_normalizeQuat(self.model, self._position)
        mujoco.mj_forward(self.model, self.data)
        self._steps, self._to_do = 0, set(self._subtasks)
        return self._observation()

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        # from the observed place: what noise adds to the observation enters the control, as in D4RL
        wanted = self._seen[:ROBOT] + REACH * np.minimum(np.maximum(action, -1.0), 1.0)
        self.data.ctrl[:] = np.minimum(np.maximum(wanted, LOWEST), HIGHEST)
        step(self.model, self.data, FRAMES)
        self._steps += 1
        observation = self._observation()
        done = {name for name in self._to_do if is_done(name, self._seen)}
        self._to_do -= done
        return observation, float(len(done)), not self._to_do, self._steps >= self.horizon, {}

    def _observation(self) -> Array:
        self._seen = self._position + self._noise * self.np_random.uniform(-1.0, 1.0, len(NOISE))
        return np.concatenate((self._seen, self.goal))


def is_done(name: str, position: Array) -> bool:
    first, wanted = SUBTASKS[name]
    return bool(np.linalg.norm(position[first : first + len(wanted)] - wanted) < DONE_WITHIN)


@cache  # compiling takes a second, and nothing changes it
def _model() -> mujoco.MjModel:
    model = compile_model(model_file(MODEL))
    pedestal = 1
    model.geom_contype[pedestal] = model.geom_conaffinity[pedestal] = 0  # nothing collides with it in D4RL
    return model
