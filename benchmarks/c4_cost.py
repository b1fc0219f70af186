"""What C4 costs on a CPU: `python benchmarks/c4_cost.py [--rounds 5] [--threads 2]`.

Time per TD3+BC update with C4 (penalty, single-cluster batches, and its refresh every 200 updates) over time without,
measured in turns in one process so that a busy machine disturbs all alike; and the share of training time that goes
into refreshes (clustering and the monitor's traces), at 10,000 and at 1,000,000 rows.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch

from c4rl.core.buffer import TransitionBuffer
from c4rl.data.dataset import Dataset
from c4rl.data.packing import Scaling, pack_datasets
from c4rl.jobs.config import empty_config
from c4rl.plugins.c4.feature_gradients import Mode
from c4rl.plugins.c4.plugin import C4Config
from c4rl.results.speed import made_up_dataset
from c4rl.training.launch import Launch

CPU = torch.device("cpu")
PERIOD = C4Config.period
MODES: tuple[Mode, ...] = ("proxy", "exact")


class Measured:
    """One run, advanced a piece at a time; seconds of its updates and of its refreshes."""

    def __init__(self, buffer: TransitionBuffer, mode: Mode | None) -> None:
        nowhere = Path("unused")
        plugins = ("c4",) if mode is not None else ("none",)
        options = (C4Config(mode=mode),) if mode is not None else ()
        config = empty_config("td3_bc", plugins, plugin_options=options, dataset=nowhere, task="none", output=nowhere)
        self.launch, self.step = Launch(config, [0], buffer, CPU), 0
        self.updates: list[float] = []  # seconds of one update, per piece
        self.refreshes: list[float] = []  # seconds of one refresh, per piece

    def piece(self, updates: int) -> None:
        """Some updates, and the refresh that is due every 200 of them."""
        self.launch.update(self.step + 1)  # warm
        began = time.perf_counter()
        for step in range(self.step + 2, self.step + 2 + updates):
            self.launch.update(step)
        self.updates.append((time.perf_counter() - began) / updates)
        self.step += PERIOD
        began = time.perf_counter()
        self.launch.refresh(self.step)
        self.refreshes.append(time.perf_counter() - began)

    def seconds(self, piece: int) -> float:
        """Per update, its share of a refresh included."""
        return self.updates[piece] + self.refreshes[piece] / PERIOD

    def share(self) -> float:
        """Of the training time that goes into refreshes."""
        update, refresh = statistics.median(self.updates), statistics.median(self.refreshes)
        return refresh / (refresh + PERIOD * update)


def measure(data: Dataset, rounds: int, updates: int) -> None:
    one, zero = torch.ones(data.observation_dim).numpy(), torch.zeros(data.observation_dim).numpy()
    buffer = pack_datasets([(data, Scaling(zero, one, data.action_low, data.action_high))], CPU)
    without = Measured(buffer, None)
    having = {mode: Measured(buffer, mode) for mode in MODES}
    for _ in range(rounds):
        for contestant in (without, *having.values()):
            contestant.piece(updates)
    print(f"\n{len(data):,} rows: {1e3 * statistics.median(without.updates):.1f} ms per update without C4")
    for mode, run in having.items():
        ratios = [run.seconds(i) / without.seconds(i) for i in range(rounds)]
        print(
            f"  {mode}: {statistics.median(ratios):.2f}x the time (min {min(ratios):.2f}, max {max(ratios):.2f}), "
            f"{1e3 * statistics.median(run.updates):.1f} ms per update + {statistics.median(run.refreshes):.2f} s per "
            f"refresh, {100 * run.share():.1f} % of the training time in refreshes"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=50, help="updates that are timed per round and contestant")
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    form = C4Config()
    print(
        f"TD3+BC with C4 (K = {form.K}, a refresh every {PERIOD} updates, at most {form.pool:,} rows each) "
        f"on {torch.get_num_threads()} threads, 17 + 6 numbers per row, median of {arguments.rounds} rounds"
    )
    for rows in arguments.rows:
        measure(made_up_dataset(rows, 17, 6), arguments.rounds, arguments.updates)


if __name__ == "__main__":
    main()
