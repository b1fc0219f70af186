"""One block of a recording: whole episodes of one policy. What the worker processes of `policy_recording` do."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from c4rl.core.array import Array
from c4rl.core.worker_process import Message, Parent, described
from c4rl.data.behaviour_agents import ARM, RANDOM
from c4rl.data.checks import LARGEST, check_finite
from c4rl.data.policy_files import read_policies, trained_for
from c4rl.data.writing import write_npz
from c4rl.environments.tasks import GOAL_ANT, Task

if TYPE_CHECKING:
    import gymnasium

PER_ROW = ("observations", "actions", "rewards", "next_observations")


def block_file(folder: Path, k: int, b: int) -> Path:
    return folder / f"{k}-{b}.npz"


class Actor(Protocol):
    def act(self, observation: Array, rng: np.random.Generator | None = None) -> Array: ...


class Recorder:
    """Records blocks of one task."""

    def __init__(self, task: Task) -> None:
        from c4rl.environments.making import make_environment

        self._task, self._environment = task, make_environment(task)
        self._actors: dict[tuple[str, int], tuple[gymnasium.Env, Actor | None]] = {}

    def record(self, job: Message) -> None:
        key = job["file"], job["snapshot"] or 0
        if key not in self._actors:
            self._actors[key] = self._actor(*key, job["seed"])
        arrays = record_block(*self._actors[key], [job["seed"], job["k"], job["b"]], job["rows"])
        check_finite(f"simulated rows (block {job['k']}-{job['b']})", **{name: arrays[name] for name in PER_ROW})
        write_npz(block_file(Path(job["folder"]), job["k"], job["b"]), arrays, {})

    def _actor(self, file: str, snapshot: int, seed: int) -> "tuple[gymnasium.Env, Actor | None]":
        """The environment and who acts in it; None: uniform actions. seed: of the recording."""
        if file == RANDOM:
            return self._environment, None
        if file == ARM:
            from c4rl.environments.kitchen_arm import KitchenArm

            assert self._task.environment is not None
            arm = KitchenArm(self._task.environment, self._task.horizon)
            return arm, arm
        policy = read_policies(Path(file), self._task)[snapshot]
        in_maze = self._task.domain == "antmaze" and self._task.name != GOAL_ANT.name
        if not in_maze or trained_for(Path(file)) != GOAL_ANT.name:
            return self._environment, policy
        from c4rl.environments.antmaze import MAZES, goal_near
        from c4rl.environments.maze_walk import Kind, MazeWalk, SteeredWalker

        assert self._task.environment is not None
        last = self._task.name.rpartition("-v")[0].rpartition("-")[2]
        kind: Kind = "diverse" if last == "diverse" else "play" if last == "play" else "umaze"
        goal = goal_near(MAZES[self._task.environment].goal, np.random.default_rng(seed))
        walk = MazeWalk(self._task.environment, kind, goal)
        return walk, SteeredWalker(walk, policy)


def serve() -> None:
    """The worker's side: a task, then blocks to record."""
    parent, recorder = Parent(), None
    requests = parent.requests()
    task = Task(**next(requests)[0])
    for job, _ in requests:
        try:
            recorder = recorder or Recorder(task)
            recorder.record(job)
            parent.answer({})
        except (Exception, SystemExit) as error:  # a script's environment may exit
            parent.answer({"error": described(error)})


def record_block(
    environment: "gymnasium.Env", policy: "Actor | None", key: Sequence[int], rows: int
) -> dict[str, Array]:
    """At least `rows` rows of whole episodes, with sampled actions; None: uniform actions."""
    space: Any = environment.action_space
    observations: list[Array] = []
    actions: list[Array] = []
    rewards: list[float] = []
    following: list[Array] = []
    lengths: list[int] = []
    ends: list[bool] = []
    while len(rewards) < rows:
        rng = np.random.default_rng([*key, len(lengths)])
        observation, _ = environment.reset(seed=int(rng.integers(2**31)))
        first, done = len(rewards), False
        while not done:
            if policy is None:
                action = rng.uniform(space.low, space.high).astype(np.float32)
            else:
                action = policy.act(observation, rng)
            observations.append(np.array(observation, np.float32))
            actions.append(np.array(action))  # before the step, which may change it
            observation, reward, terminated, truncated, _ = environment.step(action)
            rewards.append(float(reward))
            following.append(np.array(observation, np.float32))
            done = terminated or truncated
        lengths.append(len(rewards) - first)
        ends.append(bool(terminated))
    return {
        "observations": np.stack(observations),
        "actions": np.stack(actions),
        "rewards": np.array(rewards, np.float32),
        "next_observations": np.stack(following),
        "lengths": np.array(lengths),
        "terminated": np.array(ends),
        "action_low": _bound(space.low, getattr(policy, "action_low", -1.0)),
        "action_high": _bound(space.high, getattr(policy, "action_high", 1.0)),
    }


def _bound(stored: Array, acting: Array | float) -> Array:
    """The environment's bounds; where it has none, those of who acts."""
    return np.where(np.abs(stored) <= LARGEST, stored, acting).astype(np.float32)
