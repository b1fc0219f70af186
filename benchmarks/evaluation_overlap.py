"""What evaluation and checkpoints cost a job: run-updates per second with them over those without.

    python benchmarks/evaluation_overlap.py [--dataset FILE.npz --task halfcheetah-medium-v2] [--eval-every 10000]

Trains the same job several times: without evaluations, with them in the background, with them in line, and in the
background with a checkpoint on the disk each thousand updates. Timed from half an evaluation period on (graphs are
captured by then) over whole periods, so that each holds as many evaluations as it would in a long job. Without a
dataset the rows are made up: scores mean nothing then, but a HalfCheetah episode takes its thousand steps. Prints
one JSON line. Without a GPU the networks and the job are tiny: a check that it runs, not a measurement.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

from c4rl.environments.tasks import get_task
from c4rl.jobs.config import TrainConfig, empty_config
from c4rl.jobs.registry import algorithm_class, plugin_names
from c4rl.results.speed import made_up_dataset
from c4rl.training.launch import Launch
from c4rl.training.loop import train

TINY = {"hidden_layers": 2, "hidden_width": 32, "batch_size": 64}


def arguments() -> argparse.Namespace:
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", type=Path)
    parser.add_argument("--task", default="halfcheetah-medium-v2" if gpu else "maze2d-open-dense-v0")
    parser.add_argument("--algorithm", default="cql" if gpu else "td3_bc")
    parser.add_argument("--plugins", nargs="*", default=["c4"])
    parser.add_argument("--runs", type=int, default=20 if gpu else 2)
    parser.add_argument("--eval-every", type=int, default=10_000 if gpu else 100)
    parser.add_argument("--eval-episodes", type=int, default=10 if gpu else 1)
    parser.add_argument("--periods", type=int, default=2, help="of --eval-every updates, timed")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--modes", nargs="+", choices=list(MODES), default=list(MODES))
    return parser.parse_args()


# the config's fields, but for `eval_every` of jobs that are not to evaluate
MODES: dict[str, dict[str, Any]] = {
    "without": {},
    "background": {"eval_in_background": "yes"},
    "in_line": {"eval_in_background": "no"},
    "every_checkpoint": {"eval_in_background": "yes", "checkpoint_seconds": 0.0},
}


def made_up_file(task: str, folder: Path) -> Path:
    chosen = get_task(task)
    assert chosen.observation_dim is not None and chosen.action_dim is not None
    data = made_up_dataset(10_000, chosen.observation_dim, chosen.action_dim)
    timeouts = np.arange(len(data)) % 100 == 99
    fields = {name: getattr(data, name) for name in ("observations", "actions", "rewards", "next_observations")}
    np.savez(folder / "data.npz", terminals=np.zeros(len(data), bool), timeouts=timeouts, **fields)
    return folder / "data.npz"


def timed(config: TrainConfig, first: int, last: int) -> tuple[float, dict[str, Any]]:
    """Run-updates per second from update `first` to `last`, and the job's summary."""
    began_and_ended: dict[int, float] = {}
    update = Launch.update

    def noting(self: Launch, step: int) -> None:
        update(self, step)
        if step in (first, last):
            if self.device.type == "cuda":
                torch.cuda.synchronize()
            began_and_ended[step] = time.monotonic()

    Launch.update = noting  # type: ignore[method-assign]
    try:
        summary = train(config, Console(quiet=True))
    finally:
        Launch.update = update  # type: ignore[method-assign]
    return (last - first) * len(config.seeds) / (began_and_ended[last] - began_and_ended[first]), summary


def main() -> None:
    given = arguments()
    half, last = given.eval_every // 2, given.eval_every // 2 + given.periods * given.eval_every
    option_type = algorithm_class(given.algorithm).config_type
    options = option_type() if torch.cuda.is_available() else option_type(**TINY)
    result: dict[str, Any] = {"device": "cpu", "run_updates_per_second": {}, "evaluation_seconds": {}}
    if torch.cuda.is_available():
        result["device"] = torch.cuda.get_device_name()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        dataset = given.dataset or made_up_file(given.task, folder)
        for mode in given.modes:
            config = empty_config(
                given.algorithm,
                plugin_names(tuple(given.plugins) or ("none",), given.algorithm),
                options=options,
                dataset=dataset,
                task=given.task,
                output=folder / mode,
                seeds=tuple(range(given.runs)),
                updates=last,
                eval_every=given.eval_every if mode != "without" else last,  # the last one is not timed
                eval_episodes=given.eval_episodes,
                threads=given.threads,
                **MODES[mode],
            )
            rate, summary = timed(config, half, last)
            result["run_updates_per_second"][mode] = round(rate, 1)
            result["evaluation_seconds"][mode] = round(summary["timing"]["evaluation_seconds"], 2)
    rates = result["run_updates_per_second"]
    if "without" in rates:
        result["ratio"] = {mode: round(rate / rates["without"], 4) for mode, rate in rates.items() if mode != "without"}
    names = ("task", "algorithm", "plugins", "runs", "eval_every", "eval_episodes", "periods")
    print(json.dumps({name: getattr(given, name) for name in names} | result))


if __name__ == "__main__":
    main()
