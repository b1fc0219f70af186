"""Do runs score the same, stacked and alone?

    python benchmarks/stacked_and_lone.py --dataset FILE --task TASK --output DIR [--updates 20000] [--seeds 0 1 2 3 4]

Trains the seeds as one job and then each as a job of its own, and compares the last checkpoints' scores. The random
numbers of a seed are the same in both; what differs is the order of additions, which training makes large. The p-value
is that of a permutation test on the means: how often a random split of all runs in two halves lies as far apart.
"""

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
from rich.console import Console

from c4rl.jobs.config import empty_config
from c4rl.jobs.registry import plugin_names
from c4rl.training.loop import resume, train


def permutation_p(a: np.ndarray, b: np.ndarray) -> float:
    """Two-sided, over all splits."""
    both = np.concatenate([a, b])
    found = abs(a.mean() - b.mean())
    splits = [list(chosen) for chosen in itertools.combinations(range(len(both)), len(a))]
    means = np.array([both[chosen].mean() for chosen in splits])
    others = (both.sum() - len(a) * means) / len(b)
    return float((np.abs(means - others) >= found - 1e-9).mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path, required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--algorithm", default="td3_bc")
    parser.add_argument("--plugins", nargs="+", default=["c4"])
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    given = parser.parse_args()

    def scores(name: str, seeds: tuple[int, ...]) -> list[float]:
        output = given.output / name
        config = empty_config(
            given.algorithm,
            plugin_names(tuple(given.plugins), given.algorithm) or ("none",),
            dataset=given.dataset,
            task=given.task,
            output=output,
            seeds=seeds,
            updates=given.updates,
            eval_every=given.updates,
            eval_episodes=given.episodes,
        )
        summary = resume(output, Console(quiet=True)) if output.exists() else train(config, Console(quiet=True))
        found = [round(float(score), 2) for score in summary["last"]["scores"]]
        print(
            json.dumps({name: found, "run_updates_per_second": summary["timing"]["run_updates_per_second"]}), flush=True
        )
        return found

    stacked = np.array(scores("stacked", tuple(given.seeds)))
    alone = np.array([scores(f"seed_{seed}", (seed,))[0] for seed in given.seeds])
    means = {"stacked": stacked.mean(), "alone": alone.mean()}
    print(json.dumps({"means": means, "permutation p": permutation_p(stacked, alone)}))


if __name__ == "__main__":
    main()
