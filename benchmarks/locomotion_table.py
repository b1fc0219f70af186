"""Every algorithm on eight locomotion sets of about 10,000 rows, next to the C4 paper's numbers (docs/locomotion.md).

    python benchmarks/locomotion_table.py --data DIR --output DIR --minutes 9
    python benchmarks/locomotion_table.py --collect DIR

The first trains, one after the other, jobs in folders of --output; the sets of one shape are one job, each with its own
published settings. After --minutes it saves, says what is left and ends with code 3 (0: all done, 1: a job failed, 2:
bad input); the same command goes on from there, with --minutes 0 it only says what is left. Sets that --results holds
are done. The second copies finished jobs' summaries into --results and fills the page anew; without a DIR, the page
alone.
"""

import argparse
import json
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path

from locomotion_results import (
    EPISODES,
    PAPER,
    SEEDS,
    SETS,
    UPDATES,
    Page,
    budget,
    by_set,
    collect,
    label,
    load,
    stages_of,
)
from safetensors import safe_open

from c4rl.algorithms.bppo import BPPOConfig
from c4rl.core.errors import InputError
from c4rl.core.files import write_json
from c4rl.core.ops import OFFERED
from c4rl.jobs.config import TrainConfig, published_fields, read_config, to_json
from c4rl.jobs.registry import algorithm_class
from c4rl.jobs.sweeps import differences
from c4rl.results.bench_tables import stopped_after
from c4rl.training.loop import Interrupted, resume, train

ROOT = Path(__file__).resolve().parents[1]
LONG_STAGES = ("value_updates", "cloning_updates")  # options that --stage-fraction scales


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="folder of SET.npz")
    parser.add_argument("--output", type=Path, metavar="DIR", help="folder of the job folders")
    parser.add_argument("--collect", type=Path, nargs="*", metavar="DIR", help="--output folders to collect from")
    parser.add_argument("--results", type=Path, metavar="DIR", default=ROOT / "results" / "locomotion-10k")
    parser.add_argument("--page", type=Path, metavar="FILE", default=ROOT / "docs" / "locomotion.md")
    parser.add_argument("--algorithms", nargs="+", choices=PAPER, default=list(PAPER))
    parser.add_argument("--plugins", nargs="+", default=["none"])
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--updates", type=int, default=UPDATES, help="of the critic (BC: of the policy)")
    parser.add_argument("--stage-fraction", type=float, default=1.0, help="scales other stages longer than --updates")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--precision", default="fp32", choices=OFFERED, help="of matrix products on a GPU")
    arguments = parser.parse_args(words)
    if arguments.collect is None and None in (arguments.data, arguments.output):
        parser.error("--data DIR and --output DIR are needed, or --collect")
    try:
        if arguments.collect is None:
            return run_jobs(plan(arguments), 60 * arguments.minutes)
        collect(arguments.collect, arguments.results)
        Page(arguments.results).fill(arguments.page)
        return 0
    except InputError as error:
        print(f"locomotion_table: {error}", file=sys.stderr)
        return 2


# -- what is to be trained


def plan(arguments: argparse.Namespace) -> list[TrainConfig]:
    """The jobs in their order; all that can be wrong with them is found here."""
    stored, jobs = load(arguments.results), []
    for algorithm in (name for name in PAPER if name in arguments.algorithms):
        groups: dict[str, list[TrainConfig]] = {}  # jobs of one set each, by shape and settings
        for config in (one_set(arguments, algorithm, task) for task in SETS if task in arguments.sets):
            collected = by_set(stored.get(label(config), {})).get(config.task[0])
            if collected and budget(collected["config"]) == budget(to_json(config)):
                print(f"{label(config)} on {config.task[0]}: collected already")
            else:
                groups.setdefault(f"{shape_of(config.task[0])} {shared_settings(config)}", []).append(config)
        for group in groups.values():
            tasks = tuple(config.task[0] for config in group)
            output = arguments.output / f"{label(group[0])}-{in_short(tasks)}"
            dataset = tuple(config.dataset[0] for config in group)
            words = differences([(config.options, config.plugin_options) for config in group])
            assert words is not None  # no published option is a list
            jobs.append(replace(group[0], dataset=dataset, task=tasks, output=output, by_dataset=tuple(words)))
    for config in (config for config in jobs if config.output.exists()):
        began = read_config(config.output)
        if (settings(began), began.task) != (settings(config), config.task):
            raise InputError(f"--output: found a job with other settings in {config.output}, expected them unchanged")
        if began != config and not (config.output / "summary.json").exists():
            print(f"{config.output.name}: began with other paths or another device, goes on with those given")
            write_json(config.output / "config.json", to_json(config))
    return jobs


def robot_of(task: str) -> str:
    return task.split("-")[0]


def shape_of(task: str) -> tuple[int, int]:
    """Numbers of observations and actions."""
    return {"halfcheetah": (17, 6), "hopper": (11, 3), "walker2d": (17, 6)}[robot_of(task)]


def in_short(tasks: Sequence[str]) -> str:
    """hopper-expert-v2, hopper-medium-v2, walker2d-medium-v2 -> hopper-expert_medium-walker2d-medium."""
    qualities = {
        robot: [t.removeprefix(f"{robot}-").removesuffix("-v2") for t in own] for robot, own in groupby(tasks, robot_of)
    }
    return "-".join(f"{robot}-{'_'.join(own)}" for robot, own in qualities.items())


def one_set(arguments: argparse.Namespace, algorithm: str, task: str) -> TrainConfig:
    """The published settings but for --updates, BPPO's acceptance, --stage-fraction, and when to evaluate."""
    path, updates, fraction = arguments.data / f"{task}.npz", arguments.updates, arguments.stage_fraction
    if not path.exists():
        raise InputError(f"--data: found no '{path.name}' in {arguments.data}, expected a file for each of --sets")
    if not 0 < fraction <= 1:
        raise InputError(f"--stage-fraction: found {fraction}, expected above 0 and at most 1")
    fields = published_fields(algorithm, tuple(arguments.plugins), task)
    options = fields["options"]
    if isinstance(options, BPPOConfig):  # the published rule asks the simulator after every update
        options = replace(options, acceptance=BPPOConfig.acceptance)
    for name in LONG_STAGES:
        if (length := getattr(options, name, 0)) > updates:
            options = replace(options, **{name: max(1, round(length * fraction))})
    own = {"options": options, "updates": updates, "eval_every": 10**9, "eval_episodes": EPISODES}
    job = {"seeds": tuple(arguments.seeds), "device": arguments.device, "precision": arguments.precision}
    job |= {"output": arguments.output}
    return TrainConfig(algorithm=algorithm, dataset=(path,), task=(task,), **(fields | own | job))


def settings(config: TrainConfig) -> TrainConfig:
    """Without the data, and without what may differ between machines."""
    names = tuple(Path(path.name) for path in config.dataset)
    return replace(config, dataset=names, task=("none",), output=Path("-"), device="auto", threads=None)


def shared_settings(config: TrainConfig) -> str:
    """What runs of one job have in common: all but options that each dataset may have of its own (--by-dataset)."""
    plain = algorithm_class(config.algorithm).config_type()
    return f"{replace(settings(config), dataset=(Path('-'),), options=plain)} {stages_of(config)}"


# -- training


def run_jobs(jobs: Sequence[TrainConfig], seconds: float) -> int:
    deadline, failed, interrupted, first = time.monotonic() + seconds, 0, False, seconds > 0
    for config in jobs:
        if (config.output / "summary.json").exists():
            continue
        if interrupted or (time.monotonic() >= deadline and not first):
            break
        first = False  # however little time there is, it brings some updates
        try:
            with stopped_after(deadline - time.monotonic()):
                _ = resume(config.output) if config.output.exists() else train(config)
        except (Interrupted, KeyboardInterrupt) as stop:
            print(str(stop) or "interrupted")
            interrupted = time.monotonic() < deadline
        except Exception:  # time is dear, and other jobs may well succeed
            traceback.print_exc()
            print(f"{config.output.name}: failed, going on with the next")
            failed += 1
    left = print_left(jobs)
    return 130 if interrupted else 1 if failed else 3 if left else 0


def print_left(jobs: Sequence[TrainConfig]) -> int:
    """What is left of each job, and how long that takes at the algorithm's speed so far; how many jobs."""
    done = {config.output: progress(config) for config in jobs}
    left = [config for config in jobs if not (config.output / "summary.json").exists()]
    known, unknown = 0.0, 0
    for config in left:
        alike = [config] if done[config.output][0] else [other for other in jobs if label(other) == label(config)]
        updates, seconds = (sum(done[other.output][i] for other in alike) for i in (0, 1))
        total = sum(stage.updates for stage in stages_of(config))
        minutes = (total - done[config.output][0]) * seconds / updates / 60 if updates else None
        known, unknown = known + (minutes or 0), unknown + (minutes is None)
        guess = "speed not measured yet" if minutes is None else f"about {minutes:.1f} min"
        print(f"left: {config.output.name}: {total - done[config.output][0]:,} of {total:,} updates, {guess}")
    print(f"left: {len(left)} of {len(jobs)} jobs; about {known:.1f} min, and {unknown} jobs not measured yet")
    return len(left)


def progress(config: TrainConfig) -> tuple[int, float]:
    """Updates done, and the seconds they took."""
    summary, checkpoint = config.output / "summary.json", config.output / "checkpoint.safetensors"
    if summary.exists():
        return sum(s.updates for s in stages_of(config)), json.loads(summary.read_text())["timing"]["total_seconds"]
    if not checkpoint.exists():
        return 0, 0.0
    with safe_open(checkpoint, "np") as file:  # its header alone is read
        facts = json.loads(file.metadata()["progress"])
    return facts["update"], facts["training_seconds"]


if __name__ == "__main__":
    sys.exit(main())
