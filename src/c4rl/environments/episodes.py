"""Episodes of a policy: one observation at a time, or several episodes side by side with the same numbers, bit for bit.

A matrix product rounds differently with the number of rows; one row at a time costs about a tenth of a step. In Maze2D
the network costs more than the simulator. There several episodes are stepped side by side: all their rows share every
call of NumPy, but each has matrix products of its own, so that nothing rounds differently.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from c4rl.core.array import Array
from c4rl.core.numpy_policy import NumpyPolicy

if TYPE_CHECKING:
    import gymnasium  # of the extra "simulators"


def steps(environment: "gymnasium.Env", policy: NumpyPolicy, seed: int) -> Iterator[tuple[Array, Array, float, Array]]:
    """(observation, action, reward, next observation) of one episode."""
    observation, _ = environment.reset(seed=seed)
    done = False
    while not done:
        action = policy.act(observation)
        following, reward, terminated, truncated, _ = environment.step(action)
        yield observation, action, float(reward), following
        observation, done = following, terminated or truncated


def episode_return(environment: "gymnasium.Env", policy: NumpyPolicy, seed: int) -> float:
    """Raw undiscounted return of one episode."""
    total = 0.0
    for _, _, reward, _ in steps(environment, policy, seed):
        total += reward
    return total


def episode_returns(environments: "Sequence[gymnasium.Env]", policy: NumpyPolicy, seeds: Sequence[int]) -> list[float]:
    """`episode_return` for each seed, bit for bit; there are at least as many environments."""
    if len(seeds) == 1 or policy.weights[0].ndim == 3:  # an ensemble has an axis of its own
        return [episode_return(environments[0], policy, seed) for seed in seeds]
    running, totals = list(range(len(seeds))), [0.0] * len(seeds)
    observations = np.array([environments[i].reset(seed=seeds[i])[0] for i in running])
    step = getattr(environments[0], "step_together", step_together)  # an environment may have a faster one
    together = environments[: len(seeds)]
    while running:
        actions = policy.act(observations[:, None])[:, 0]  # [B, 1, s]: a product for each row
        observations, rewards, ended = step(together, actions)
        for i, reward in zip(running, rewards, strict=True):
            totals[i] += reward
        if any(ended):
            running = [i for i, end in zip(running, ended, strict=True) if not end]
            observations = observations[np.logical_not(ended)]
            together = [environments[i] for i in running]
    return totals


def step_together(environments: "Sequence[gymnasium.Env]", actions: Array) -> tuple[Array, list[float], list[bool]]:
    """A step of each with its action [B, a]: observations [B, s], rewards, and which episodes end."""
    found = [environment.step(action) for environment, action in zip(environments, actions, strict=True)]
    return (
        np.array([one[0] for one in found]),
        [float(one[1]) for one in found],
        [bool(one[2] or one[3]) for one in found],
    )


def rollout(environment: "gymnasium.Env", policy: NumpyPolicy, seed: int) -> dict[str, Array]:
    """One episode of T steps: observations [T + 1, s], actions [T, a], rewards [T]."""
    observations, actions, rewards, following = zip(*steps(environment, policy, seed), strict=True)
    return {
        "observations": np.stack([*observations, following[-1]]),
        "actions": np.stack(actions),
        "rewards": np.array(rewards),
    }
