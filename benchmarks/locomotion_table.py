"""Every algorithm on eight locomotion sets of about 10,000 rows, beside the C4 paper's numbers (docs/locomotion.md).

    python benchmarks/locomotion_table.py --data DIR --output DIR --minutes 9
    python benchmarks/locomotion_table.py --collect DIR

The first trains, one after the other, jobs in folders of --output; the sets of one robot are one job, each with its own
published settings. After --minutes it saves, says what is left and ends with code 3 (0: all done, 1: a job failed, 2:
bad input); the same command goes on from there, with --minutes 0 it only says what is left. Sets that --results holds
are done. The second copies finished jobs' summaries into --results and fills the page anew; without a DIR, the page
alone.
"""

import argparse
import json
import re
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

from c4rl.algorithms.algorithm import Stage
from c4rl.algorithms.bppo import BPPOConfig
from c4rl.config import TrainConfig, published_fields, read_config, to_json
from c4rl.errors import InputError
from c4rl.files import replacing, write_json
from c4rl.registry import algorithm_class
from c4rl.sweeps import differences
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
UPDATES, SEEDS, EPISODES = 100_000, (0, 1, 2), 10
LONG_STAGES = ("value_updates", "cloning_updates")  # options that --stage-fraction scales
RETRY_SECONDS = 0.002
FAR = 2  # of the paper's standard deviations
NOT_RUN = "not run yet"


class Score(NamedTuple):
    mean: float
    std: float | None = None  # None: not printed, or nothing to take it over

    def __str__(self) -> str:
        return f"{self.mean:.1f}" + ("" if self.std is None else f" ± {self.std:.1f}")


HEAD, *ROWS = (line.split() for line in PAPER_TABLE.strip().splitlines())
PAPER = {
    name: {row[0]: Score(*map(float, row[i].split("±"))) for row in ROWS if row[i] != "-"}
    for i, name in enumerate(HEAD[1:], start=1)
}
SETS = tuple(PAPER["td3_bc"])
REPLAY = tuple(task for task in SETS if "replay" in task)
RELATIONS = (("iql", "bc", REPLAY), ("tsrl", "td3_bc", SETS), ("doge", "td3_bc", SETS))  # claimed: above the second


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
        groups: dict[str, list[TrainConfig]] = {}  # jobs of one set each, by robot and settings
        for config in (one_set(arguments, algorithm, task) for task in SETS if task in arguments.sets):
            collected = by_set(stored.get(label(config), {})).get(config.task[0])
            if collected and budget(collected["config"]) == budget(to_json(config)):
                print(f"{label(config)} on {config.task[0]}: collected already")
            else:
                groups.setdefault(f"{config.task[0].split('-')[0]} {shared_settings(config)}", []).append(config)
        for group in groups.values():
            tasks = tuple(config.task[0] for config in group)
            robot, qualities = tasks[0].split("-")[0], "_".join(t.split("-", 1)[1].removesuffix("-v2") for t in tasks)
            output = arguments.output / f"{label(group[0])}-{robot}-{qualities}"
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
    job = {"seeds": tuple(arguments.seeds), "device": arguments.device, "output": arguments.output}
    return TrainConfig(algorithm=algorithm, dataset=(path,), task=(task,), **(fields | own | job))


def label(config: TrainConfig) -> str:
    return ".".join([config.algorithm, *(name for name in config.plugins if name != "none")])


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
    signal.siginterrupt(signal.SIGALRM, False)  # system calls of libraries go on
    signal.setitimer(signal.ITIMER_REAL, max(seconds, RETRY_SECONDS))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


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


def stages_of(config: TrainConfig) -> tuple[Stage, ...]:
    return algorithm_class(config.algorithm).plan(config.options, config.updates)


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


# -- results: a file for each algorithm, {"jobs": {name: {"config", "stages", "summary"}}}


def load(results: Path) -> dict[str, Any]:
    paths = (path for path in sorted(results.glob("*.json")) if path.name != "explanations.json")
    return {path.stem: json.loads(path.read_text())["jobs"] for path in paths}


def by_set(jobs: dict[str, Any]) -> dict[str, Any]:
    return {run["task"]: job for job in jobs.values() for run in job["summary"]["runs"]}


def collect(folders: Sequence[Path], results: Path) -> None:
    """Nothing is written unless all fits: one job for a set, one budget."""
    stored = load(results)
    if missing := [str(folder) for folder in folders if not folder.is_dir()]:
        raise InputError(f"--collect: found no folder {', '.join(missing)}, expected what --output named")
    for folder in sorted(path.parent for parent in folders for path in parent.glob("*/config.json")):
        if not (folder / "summary.json").exists():
            print(f"{folder.name}: not finished, left out")
            continue
        job = {n: without_paths(json.loads((folder / f"{n}.json").read_text())) for n in ("config", "summary")}
        config = read_config(folder)
        job["stages"] = stage_lengths(config)
        jobs = stored.setdefault(label(config), {})
        if any(by_set(jobs).get(task, job) != job for task in config.task):
            raise InputError(f"{folder}: --results holds other scores of its sets (nothing is overwritten)")
        jobs[folder.name] = job
    if len(found := {budget(job["config"]) for jobs in stored.values() for job in jobs.values()}) > 1:
        raise InputError(f"--collect: found {' and '.join(sorted(found))}, expected the same for the whole table")
    results.mkdir(parents=True, exist_ok=True)
    for name, jobs in stored.items():
        if load(results).get(name) != jobs:
            write_json(results / f"{name}.json", {"jobs": jobs})
            print(f"{name}.json: {len(jobs)} jobs")


def budget(config: dict[str, Any]) -> str:
    return ", ".join(f"{n} {config[n]}" for n in ("preset", "seeds", "updates", "eval_episodes", "eval_seed"))


def stage_lengths(config: TrainConfig) -> list[list[Any]]:
    """Name, updates here and as published."""
    published = published_fields(config.algorithm, config.plugins, config.task[0])
    there = algorithm_class(config.algorithm).plan(published["options"], published["updates"])
    return [[a.name, a.updates, b.updates] for a, b in zip(stages_of(config), there, strict=True)]


def planned_job(algorithm: str) -> TrainConfig:
    """As far as the lengths of its stages go."""
    fields = published_fields(algorithm, ("none",), SETS[0]) | {"updates": UPDATES}
    return TrainConfig(algorithm=algorithm, dataset=(Path("-"),), task=(SETS[0],), output=Path("-"), **fields)


def without_paths(value: Any, key: str = "") -> Any:
    """File names instead of paths, which are a machine's own."""
    if isinstance(value, dict):
        return {name: without_paths(v, name) for name, v in value.items()}
    if isinstance(value, list):
        return [without_paths(v, key) for v in value]
    return Path(value).name if isinstance(value, str) and key in ("path", "dataset", "output") else value


# -- the page


class Page:
    """What is between its comments is filled from the results, the text around them stays."""

    def __init__(self, results: Path) -> None:
        stored = load(results)
        self.names = [*PAPER, *(name for name in stored if name not in PAPER)]
        self.jobs = {name: by_set(stored.get(name, {})) for name in self.names}
        self.titles = {name: title(name, self.jobs[name]) for name in self.names}
        self.ours = {n: {task: result(job, task) for task, job in self.jobs[n].items()} for n in self.names}
        self.explanations = results / "explanations.json"
        pairs = [(n, t, self.ours[n].get(t), PAPER.get(n, {}).get(t)) for n in self.names for t in SETS]
        self.far = [(name, task) for name, task, own, paper in pairs if is_far(own, paper)]

    def fill(self, page: Path) -> None:
        text = page.read_text() if page.exists() else ""
        for block in (self.protocol, self.scores, self.differences, self.stages, self.relations):
            found = re.search(rf"<!-- {block.__name__} -->\n(.*?)<!-- end -->", text, re.DOTALL)
            if found is None:
                raise InputError(f"{page}: found no block '{block.__name__}', expected the page as the project has it")
            text = f"{text[: found.start(1)]}\n{block()}\n\n{text[found.end(1) :]}"
        with replacing(page) as temporary:
            temporary.write_text(text)

    def protocol(self) -> str:
        jobs = [job for own in self.jobs.values() for job in own.values()]
        config: dict[str, Any] = {"seeds": SEEDS, "updates": UPDATES, "eval_episodes": EPISODES}
        config |= jobs[0]["config"] if jobs else {}
        versions = {f"{job['summary']['device']}, torch {job['summary']['versions']['torch']}" for job in jobs}
        return (
            f"- seeds {', '.join(map(str, config['seeds']))}; budget: {config['updates']:,} critic updates (BC: of the "
            f"policy)\n- the last checkpoint, never the best; {config['eval_episodes']} evaluation episodes per run\n"
            f"- trained on: {'; '.join(sorted(versions)) or NOT_RUN}"
        )

    def scores(self) -> str:
        def cell(name: str, task: str) -> str:
            mark = " †" if (name, task) in self.far else ""
            return f"{self.ours[name].get(task, NOT_RUN)}{mark} / {PAPER.get(name, {}).get(task, '–')}"

        return table(["", *map(short, SETS)], [[self.titles[n], *(cell(n, task) for task in SETS)] for n in self.names])

    def differences(self) -> str:
        """Cells far from the paper's with their explanations, then runs that did not reach the end."""
        known = json.loads(self.explanations.read_text()) if self.explanations.exists() else {}
        if new := {f"{n} {t}": "" for n, t in self.far if f"{n} {t}" not in known}:
            write_json(self.explanations, known | new)  # places to fill
        lines = [
            f"- † {self.titles[n]}, {short(t)}, {self.ours[n][t]} / {PAPER[n][t]}: "
            + (known.get(f"{n} {t}") or "no explanation yet")
            for n, t in self.far
        ]
        for name, task in [(n, t) for n in self.names for t in self.jobs[n]]:
            summary = self.jobs[name][task]["summary"]
            for run in (run for run in summary["runs"] if run["task"] == task):
                if why := summary["stopped"].get(str(key_from(run["name"]))):
                    end = f"stopped at update {why['failed_at']:,} ({why['reason']}), scored as of {why['update']:,}"
                    lines.append(f"- {self.titles[name]}, {short(task)}, seed {run['seed']}: {end}")
        return "\n".join(lines) or "None so far."

    def stages(self) -> str:
        rows = []
        for name in self.names:
            found = [tuple(stage) for job in self.jobs[name].values() for stage in job["stages"]]
            planned = "" if found else " (planned)"
            for stage, updates, published in dict.fromkeys(found) or stage_lengths(planned_job(name)):
                rows.append([self.titles[name], stage, f"{updates:,}{planned}", f"{published:,}"])
        return table(["", "stage", "updates", "published"], rows)

    def relations(self) -> str:
        rows = []
        for above, below, sets in RELATIONS:
            for tasks in (*((task,) for task in sets), sets):
                row = [
                    f"{self.titles[above]} > {self.titles[below]}",
                    short(tasks[0]) if len(tasks) == 1 else "**mean**",
                ]
                for scores in (self.ours, PAPER):
                    pair = [mean_over(scores[name], tasks) for name in (above, below)]
                    if pair[0] is None or pair[1] is None:
                        row += ["–", "not run"]
                    else:
                        row += [f"{pair[0]} : {pair[1]}", "held" if pair[0].mean > pair[1].mean else "not held"]
                rows.append(row)
        return table(["claim", "set", "ours", "", "C4 paper", ""], rows)


def result(job: dict[str, Any], task: str) -> Score:
    scores = [run["last"] for run in job["summary"]["runs"] if run["task"] == task]
    return Score(float(np.mean(scores)), float(np.std(scores, ddof=1)) if len(scores) > 1 else None)


def is_far(own: Score | None, paper: Score | None) -> bool:
    return bool(own and paper and paper.std is not None and abs(own.mean - paper.mean) > FAR * paper.std)


def mean_over(scores: dict[str, Score], tasks: Sequence[str]) -> Score | None:
    if any(task not in scores for task in tasks):
        return None
    return scores[tasks[0]] if len(tasks) == 1 else Score(float(np.mean([scores[task].mean for task in tasks])))


def title(name: str, jobs: dict[str, Any]) -> str:
    algorithm, *plugins = name.split(".")
    names = {"td3_bc": "TD3+BC"}
    if algorithm == "bppo":
        rules = {job["config"]["options"]["acceptance"] for job in jobs.values()} or {BPPOConfig.acceptance}
        names["bppo"] = f"BPPO (acceptance {' and '.join(sorted(rules))})"
    return " + ".join([names.get(algorithm, algorithm.upper()), *plugins])


def short(task: str) -> str:
    return task.removesuffix("-v2").replace("-", " ", 1)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


if __name__ == "__main__":
    sys.exit(main())
