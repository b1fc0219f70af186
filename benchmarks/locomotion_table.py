"""Every algorithm on eight locomotion sets of about 10,000 rows, beside the C4 paper's 10k columns (docs/locomotion.md).

    python benchmarks/locomotion_table.py --data DIR --output DIR --minutes 9
    python benchmarks/locomotion_table.py --collect DIR

The first trains, one after the other, jobs in folders of --output; sets of one robot whose published settings agree are one
job. After --minutes it saves, says what is left and ends with code 3 (0: all done, 1: a job failed, 2: bad input); the same
command goes on from there. --minutes 0 only says what is left. Sets that --results holds are not trained again. The second
copies finished jobs' summaries into --results and writes the page anew; without a DIR, only the page.
"""

import argparse
import json
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import safe_open

from c4rl.algorithms.bppo import BPPOConfig
from c4rl.config import PUBLISHED, TrainConfig, from_json, published_fields, read_config, to_json
from c4rl.errors import InputError
from c4rl.files import replacing, write_json
from c4rl.registry import algorithm_class
from c4rl.training.loop import Interrupted, resume, train
from c4rl.training.runs import key_from

ROOT = Path(__file__).resolve().parents[1]
# the C4 paper's table of 10k locomotion; BC from its table of tasks with at most 10k rows, which prints no deviations.
# Algorithms are trained in this order: cheapest updates first
PAPER_TABLE = """
-                            bc   td3_bc    iql       doge      a2pr      tsrl      bppo      sorl cql
halfcheetah-expert-v2        -    26.4±4.2  -1.1±3.8  1.4±3.1   36.0±7.8  42.0±26.4 6.5±3.4   -    5.8±1.3
halfcheetah-medium-replay-v2 25.2 29.1±8.3  34.1±6.3  26.3±3.1  23.6±4.7  27.7±3.8  34.4±4.2  -    16.3±4.9
halfcheetah-medium-v2        40.2 25.9±8.4  35.6±2.9  42.8±2.9  37.1±2.7  43.3±2.8  28.5±3.2  -    41.7±2.2
hopper-expert-v2             -    53.6±17.1 60.9±9.6  62.2±21.7 80.0±16.8 76.7±20.4 85.0±17.9 -    56.1±26.4
hopper-medium-expert-v2      38.2 22.6±13.9 51.7±7.0  36.8±34.5 49.7±10.7 56.6±13.9 27.9±15.2 -    43.2±6.9
hopper-medium-replay-v2      19.7 11.3±4.7  16.2±3.0  19.1±3.3  12.5±5.9  23.5±8.8  45.1±8.7  -    13.2±2.0
walker2d-medium-expert-v2    35.1 12.4±15.7 38.0±12.2 42.5±11.4 56.5±11.5 50.9±26.4 61.3±12.2 -    26.0±14.0
walker2d-medium-v2           25.4 11.2±19.2 34.2±5.2  53.7±12.6 5.9±5.2   47.3±10.1 54.7±11.4 -    54.1±15.5
"""
NAMES = {"td3_bc": "TD3+BC"}  # others: in capitals
UPDATES, SEEDS, EPISODES = 100_000, (0, 1, 2), 10
# stage -> the options that --stage-fraction scales
STAGES = {
    "tsrl": {"dynamics model": ("dynamics_updates", "encoder_ode_from")},
    "bppo": {"value": ("value_updates",), "cloning": ("cloning_updates",), "improvement": ("improvement_updates",)},
    "sorl": {"styles": ("style_rounds",)},
}
RETRY_SECONDS = 0.002


class Score(NamedTuple):
    mean: float
    std: float | None  # None: not printed, or of one seed

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + ("" if self.std is None else f" ± {self.std:.1f}")


def _paper() -> dict[str, dict[str, Score]]:
    head, *lines = (line.split() for line in PAPER_TABLE.strip().splitlines())
    out: dict[str, dict[str, Score]] = {name: {} for name in head[1:]}
    for task, *cells in lines:
        for name, (mean, _, std) in zip(head[1:], (cell.partition("±") for cell in cells), strict=True):
            out[name] |= {task: Score(float(mean), float(std) if std else None)} if mean != "-" else {}
    return out


PAPER = _paper()
SETS = tuple(PAPER["td3_bc"])
# the first is claimed to be above the second
RELATIONS = (
    ("iql", "bc", tuple(task for task in SETS if "replay" in task)),
    ("tsrl", "td3_bc", SETS),
    ("doge", "td3_bc", SETS),
)


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
    arguments = parser.parse_args(words)
    if arguments.collect is None and None in (arguments.data, arguments.output):
        parser.error("--data DIR and --output DIR are needed, or --collect")
    try:
        if arguments.collect is None:
            return run_jobs(plan(arguments), 60 * arguments.minutes)
        collect(arguments.collect, arguments.results)
        write_page(arguments.page, arguments.results)
        return 0
    except InputError as error:
        print(f"locomotion_table: {error}", file=sys.stderr)
        return 2


# -- what is to be trained


def plan(arguments: argparse.Namespace) -> list[TrainConfig]:
    """The jobs in their order; all that can be wrong with them is found here."""
    stored, jobs = load(arguments.results), []
    for algorithm in (name for name in PAPER if name in arguments.algorithms):
        groups: dict[str, list[TrainConfig]] = {}  # jobs of one set each, by robot and settings
        for config in (one_set(arguments, algorithm, task) for task in SETS if task in arguments.sets):
            collected = _by_set(stored.get(label(config), {})).get(config.task[0])
            if collected and _settings(from_json(collected["config"], "--results")) == _settings(config):
                print(f"{label(config)} on {config.task[0]}: collected already")
            else:
                groups.setdefault(f"{_robot(config)} {_settings(config)}", []).append(config)
        jobs += [_together(group, arguments.output) for group in groups.values()]
    for config in jobs:
        check_folder(config)
    return jobs


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
    for stage in algorithm_class(algorithm).plan(options, updates):
        for name in STAGES.get(algorithm, {}).get(stage.name, ()) if stage.updates > updates else ():
            options = replace(options, **{name: max(1, round(getattr(options, name) * fraction))})
    own = {"options": options, "updates": updates, "eval_every": 10**9, "eval_episodes": EPISODES}
    job = {"seeds": tuple(arguments.seeds), "device": arguments.device, "output": arguments.output}
    return TrainConfig(algorithm=algorithm, dataset=(path,), task=(task,), **(fields | own | job))


def _together(group: Sequence[TrainConfig], folder: Path) -> TrainConfig:
    tasks = tuple(config.task[0] for config in group)
    qualities = "_".join(task.split("-", 1)[1].removesuffix("-v2") for task in tasks)
    output = folder / f"{label(group[0])}-{_robot(group[0])}-{qualities}"
    return replace(group[0], dataset=tuple(config.dataset[0] for config in group), task=tasks, output=output)


def label(config: TrainConfig) -> str:
    return ".".join([config.algorithm, *(name for name in config.plugins if name != "none")])


def _robot(config: TrainConfig) -> str:
    return config.task[0].split("-")[0]


def _settings(config: TrainConfig) -> TrainConfig:
    """Without the data, and without what may differ between machines."""
    return replace(config, dataset=(Path("-"),), task=("none",), output=Path("-"), device="auto", threads=None)


def check_folder(config: TrainConfig) -> None:
    """A job that began elsewhere may go on here, one with other settings may not."""
    if not config.output.exists():
        return
    stored = read_config(config.output)
    if (_settings(stored), stored.task) != (_settings(config), config.task):
        raise InputError(f"--output: found a job with other settings in {config.output}, expected them unchanged")
    if stored != config and not (config.output / "summary.json").exists():
        write_json(config.output / "config.json", to_json(config))
        print(f"{config.output.name}: began with other paths or another device, goes on with those given")


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
            with ctrl_c_after(deadline - time.monotonic()):
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


@contextmanager
def ctrl_c_after(seconds: float) -> Iterator[None]:
    """After so many seconds, what Ctrl-C does to a job: it finishes its update, saves everything and stops."""
    outside = signal.getsignal(signal.SIGINT)

    def ring(number: int, frame: Any) -> None:
        listening = signal.getsignal(signal.SIGINT)
        if listening is outside:  # the job is being prepared, and does not listen yet
            signal.setitimer(signal.ITIMER_REAL, RETRY_SECONDS)
        elif callable(listening):
            listening(signal.SIGINT, frame)

    previous = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, RETRY_SECONDS))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


def print_left(jobs: Sequence[TrainConfig]) -> int:
    """What is left of each job and the time it takes at the algorithm's speed so far; how many jobs."""
    done = {config.output: progress(config) for config in jobs}
    left = [config for config in jobs if not (config.output / "summary.json").exists()]
    sum_of_minutes, unknown = 0.0, 0
    for config in left:
        alike = [config] if done[config.output][0] else [other for other in jobs if label(other) == label(config)]
        updates, seconds = (sum(done[other.output][i] for other in alike) for i in (0, 1))
        total = total_updates(config)
        minutes = (total - done[config.output][0]) * seconds / updates / 60 if updates else None
        sum_of_minutes, unknown = sum_of_minutes + (minutes or 0), unknown + (minutes is None)
        guess = "speed not measured yet" if minutes is None else f"about {minutes:.1f} min"
        print(f"left: {config.output.name}: {total - done[config.output][0]:,} of {total:,} updates, {guess}")
    print(f"left: {len(left)} of {len(jobs)} jobs, {sum_of_minutes:.1f} min and {unknown} of unknown speed")
    return len(left)


def total_updates(config: TrainConfig) -> int:
    return sum(stage.updates for stage in algorithm_class(config.algorithm).plan(config.options, config.updates))


def progress(config: TrainConfig) -> tuple[int, float]:
    """Updates done, and the seconds they took."""
    summary, checkpoint = config.output / "summary.json", config.output / "checkpoint.safetensors"
    if summary.exists():
        return total_updates(config), json.loads(summary.read_text())["timing"]["total_seconds"]
    if not checkpoint.exists():
        return 0, 0.0
    with safe_open(checkpoint, "np") as file:  # its header alone is read
        facts = json.loads(file.metadata()["progress"])
    return facts["update"], facts["training_seconds"]


# -- results: a file for each algorithm, {"jobs": {name: {"config", "stages", "summary"}}}


def load(results: Path) -> dict[str, Any]:
    paths = (path for path in sorted(results.glob("*.json")) if path.name != "explanations.json")
    return {path.stem: json.loads(path.read_text())["jobs"] for path in paths}


def _by_set(jobs: dict[str, Any]) -> dict[str, Any]:
    return {run["task"]: job for job in jobs.values() for run in job["summary"]["runs"]}


def collect(folders: Sequence[Path], results: Path) -> None:
    """Nothing is written unless all fits: one job for a set, all of one budget."""
    stored = load(results)
    for folder in sorted(path.parent for parent in folders for path in parent.glob("*/summary.json")):
        config = read_config(folder)
        published = published_fields(config.algorithm, config.plugins, config.task[0])
        plans = [
            algorithm_class(config.algorithm).plan(options, updates)
            for options, updates in ((config.options, config.updates), (published["options"], published["updates"]))
        ]
        job = {
            "config": without_paths(json.loads((folder / "config.json").read_text())),
            "stages": [{"name": a.name, "updates": a.updates, "published": b.updates} for a, b in zip(*plans, strict=True)],
            "summary": without_paths(json.loads((folder / "summary.json").read_text())),
        }
        jobs = stored.setdefault(label(config), {})
        if any(other != job for other in (_by_set(jobs).get(task, job) for task in config.task)):
            raise InputError(f"{folder}: --results holds other scores of its sets, expected none (nothing is overwritten)")
        jobs[folder.name] = job
    if len(budgets := {budget(job) for jobs in stored.values() for job in jobs.values()}) > 1:
        raise InputError(f"--collect: found {' and '.join(map(str, budgets))}, expected one budget for the whole table")
    results.mkdir(parents=True, exist_ok=True)
    for name, jobs in stored.items():
        if load(results).get(name) != jobs:
            write_json(results / f"{name}.json", {"jobs": jobs})
            print(f"{name}.json: {len(jobs)} jobs")


def budget(job: dict[str, Any]) -> tuple[Any, ...]:
    config = job["config"]
    return config["preset"], tuple(config["seeds"]), config["updates"], config["eval_episodes"], config["eval_seed"]


def without_paths(value: Any) -> Any:
    """File names instead of paths, which are a machine's own."""
    if isinstance(value, dict):
        return {name: without_paths(v) for name, v in value.items()}
    if isinstance(value, list):
        return [without_paths(v) for v in value]
    return value.rsplit("/", 1)[-1] if isinstance(value, str) else value


# -- the page


def write_page(page: Path, results: Path) -> None:
    stored = load(results)
    ...
