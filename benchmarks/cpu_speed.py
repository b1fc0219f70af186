"""Our speed against the yardstick's, alternating in one process: `python benchmarks/cpu_speed.py [--rounds 5]`.

Prints, per algorithm, the ratio of run-updates per second (above 1: ours is faster) for one run and for five.
"""

import argparse
import statistics
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

import yardstick

from c4rl.results.speed import TimedRuns, bench_config, calls_per_second, made_up_dataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    cpu = torch.device("cpu")
    data = made_up_dataset(10_000, 17, 6)
    tensors = yardstick.Data(
        *(torch.tensor(x) for x in (data.observations, data.actions, data.rewards, data.next_observations)),
        torch.tensor(~data.terminals, dtype=torch.float32),
    )
    for name, plain in (("td3_bc", yardstick.TD3BC), ("cql", yardstick.CQL)):
        contestants = {
            "yardstick": (plain(tensors).update, 1),
            "1 run": (TimedRuns(bench_config(name, "none", 1), data, cpu).update, 1),
            "5 runs": (TimedRuns(bench_config(name, "none", 5), data, cpu).update, 5),
        }
        rates: dict[str, list[float]] = {key: [] for key in contestants}
        for _ in range(arguments.rounds):
            for key, (advance, runs) in contestants.items():
                rates[key].append(calls_per_second(advance, arguments.seconds, cpu, warm_up=1) * runs)
        for key in ("1 run", "5 runs"):
            ratios = [ours / theirs for ours, theirs in zip(rates[key], rates["yardstick"], strict=True)]
            print(
                f"{name:8s} {key:7s} {statistics.median(rates[key]):7.1f} run-updates/s, "
                f"yardstick {statistics.median(rates['yardstick']):7.1f}, ratio median "
                f"{statistics.median(ratios):.2f} (min {min(ratios):.2f}, max {max(ratios):.2f})"
            )


if __name__ == "__main__":
    main()
