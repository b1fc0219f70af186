"""Env-steps per second of EvaluationPool and of gymnasium's SyncVectorEnv: the same episodes, the same policy.

    python benchmarks/evaluation.py [--task hopper-medium] [--workers 2] [--repeats 5] [--policy policy.npz]

The two are measured in turns, so that other load on the machine affects both; prints the best and the median ratio.
--equal: SyncVectorEnv's policy, too, takes one product per row; the returns are then equal, which is checked.
Without it SyncVectorEnv's policy takes one product for all ten rows, which costs less and rounds differently.
--cpu-time, for a busy machine: env-steps per CPU second of SyncVectorEnv and of one worker's loop, and their ratio
times the number of workers, which is what as many free cores would give.
"""

import argparse
import os
import time
from itertools import pairwise

# the baseline is one process: small matrix products only lose time on a second thread
os.environ.setdefault("OMP_NUM_THREADS", "1")

import gymnasium
import numpy as np
from gymnasium.wrappers import TimeLimit

from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.environments.episodes import episode_returns, rollout
from c4rl.environments.evaluation import SIDE_BY_SIDE, EvaluationPool
from c4rl.environments.locomotion import gymnasium_environment
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import Task, get_task

EPISODES = 10


def lasting_policy(task: Task, seed: int = 0, candidates: int = 40) -> NumpyPolicy:
    """Of some random networks with four hidden layers of 256, the one whose episodes last longest."""
    rng = np.random.default_rng(seed)
    environment = make_environment(task)
    best, longest = None, 0
    s, a = task.observation_dim, task.action_dim
    assert s is not None and a is not None
    for _ in range(candidates):
        sizes = [s, 256, 256, 256, 256, a]
        weights = tuple(
            (rng.normal(size=shape) * np.sqrt(2 / shape[0])).astype(np.float32) for shape in pairwise(sizes)
        )
        biases = tuple(np.zeros(size, np.float32) for size in sizes[1:])
        ones = np.ones(a, np.float32)
        policy = NumpyPolicy(weights, biases, np.zeros(s, np.float32), np.ones(s, np.float32), -ones, ones)
        length = sum(len(rollout(environment, policy, e)["rewards"]) for e in range(3))
        if length > longest:
            best, longest = policy, length
        if longest == 3 * task.horizon:
            break
    assert best is not None
    return best


def plain_environment(task: Task) -> gymnasium.Env:
    """Without our faster step, where there is one."""
    if task.domain == "locomotion":
        return TimeLimit(gymnasium_environment(str(task.environment)), task.horizon)
    return make_environment(task)


def synchronous(
    task: Task, policy: NumpyPolicy, seed: int, by_cpu: bool = False, equal: bool = False
) -> tuple[np.ndarray, int, float]:
    """Returns, env-steps that count, and seconds of ten episodes in gymnasium's SyncVectorEnv."""
    vector = gymnasium.vector.SyncVectorEnv([lambda: plain_environment(task)] * EPISODES)
    observations, _ = vector.reset(seed=seed)
    returns, running, steps = np.zeros(EPISODES), np.ones(EPISODES, bool), 0
    start, cpu = time.perf_counter(), time.process_time()
    while running.any():
        actions = policy.act(observations[:, None])[:, 0] if equal else policy.act(observations)
        observations, rewards, terminated, truncated, _ = vector.step(actions)
        returns += rewards * running
        steps += int(running.sum())
        running &= ~(terminated | truncated)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
    vector.close()
    return returns, steps, cpu_seconds if by_cpu else seconds


def one_worker(task: Task, policy: NumpyPolicy, seed: int, workers: int) -> float:
    """CPU seconds of the ten episodes in a worker's loop."""
    side = min(SIDE_BY_SIDE.get(task.domain, 1), -(-EPISODES // workers))
    environments = [make_environment(task) for _ in range(side)]
    start = time.process_time()
    for first in range(0, EPISODES, side):
        episode_returns(environments, policy, range(seed + first, min(seed + first + side, seed + EPISODES)))
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--task", default="hopper-medium-v2")
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--equal", action="store_true")
    parser.add_argument("--policy", help="arrays of a NumpyPolicy for the task; without it a random network")
    arguments = parser.parse_args()
    task = get_task(arguments.task)
    if arguments.policy:
        policy = NumpyPolicy.from_arrays(np.load(arguments.policy, allow_pickle=False))
    else:
        policy = lasting_policy(task)
    environment = make_environment(task)
    ratios = []
    for repeat in range(arguments.repeats if arguments.cpu_time else 0):
        seed = EPISODES * repeat
        _, steps, seconds = synchronous(task, policy, seed, by_cpu=True, equal=arguments.equal)
        own = one_worker(task, policy, seed, arguments.workers)
        own_steps = sum(len(rollout(environment, policy, seed + e)["rewards"]) for e in range(EPISODES))
        ratios.append(arguments.workers * (own_steps / own) / (steps / seconds))
        print(
            f"steps per CPU second: SyncVectorEnv {steps / seconds:7.0f}   a worker {own_steps / own:7.0f}   "
            f"{arguments.workers} workers {ratios[-1]:.2f}"
        )
    if ratios:
        print(f"ratio with {arguments.workers} workers: best {max(ratios):.2f}, median {np.median(ratios):.2f}")
        return
    with EvaluationPool(task, arguments.workers) as pool:
        pool.evaluate([policy], 2 * arguments.workers, seed=0)  # the workers are up
        for repeat in range(arguments.repeats):
            seed = EPISODES * repeat
            returns, steps, seconds = synchronous(task, policy, seed, equal=arguments.equal)
            start = time.perf_counter()
            found = pool.evaluate([policy], EPISODES, seed)
            pool_seconds = time.perf_counter() - start
            assert not arguments.equal or np.array_equal(found[0], returns), "returns differ"
            # rounding differs between one row and ten, so the episodes' lengths may: count the pool's own steps
            pool_steps = sum(len(rollout(environment, policy, seed + e)["rewards"]) for e in range(EPISODES))
            ratios.append(pool_steps / pool_seconds / (steps / seconds))
            print(
                f"SyncVectorEnv {steps / seconds:7.0f} steps/s ({steps} steps)   "
                f"pool {pool_steps / pool_seconds:7.0f} steps/s ({pool_steps} steps)   ratio {ratios[-1]:.2f}"
            )
    print(f"ratio with {arguments.workers} workers: best {max(ratios):.2f}, median {np.median(ratios):.2f}")


if __name__ == "__main__":
    main()
