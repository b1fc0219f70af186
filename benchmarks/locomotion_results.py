"""Results of the locomotion table: summaries collected into files, and the page that shows them beside the paper's."""

import json
import math
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from c4rl.algorithms.algorithm import Stage
from c4rl.algorithms.bppo import BPPOConfig
from c4rl.core.errors import InputError
from c4rl.core.files import replacing, write_json
from c4rl.core.ops import OFFERED
from c4rl.jobs.config import TrainConfig, published_fields, read_config
from c4rl.jobs.registry import algorithm_class
from c4rl.jobs.runs import key_from

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
FAR = 2  # of the paper's standard deviations
NOT_RUN = "not run yet"
OLD_PHYSICS = "gymnasium's -v4"  # of summaries that do not say what they were scored on


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


def label(config: TrainConfig) -> str:
    return ".".join([config.algorithm, *(name for name in config.plugins if name != "none")])


def stages_of(config: TrainConfig) -> tuple[Stage, ...]:
    return algorithm_class(config.algorithm).plan(config.options, config.updates)


# -- results: a file for each algorithm, {"jobs": {name: {"config", "stages", "summary", "curves"}}}


def load(results: Path) -> dict[str, Any]:
    paths = (path for path in sorted(results.glob("*.json")) if path.name != "explanations.json")
    return {path.stem: json.loads(path.read_text())["jobs"] for path in paths}


def by_set(jobs: dict[str, Any]) -> dict[str, Any]:
    return {run["task"]: job for job in jobs.values() for run in job["summary"]["runs"]}


def physics(jobs: Iterable[dict[str, Any]]) -> str | None:
    """What all of these jobs were scored on; others are refused, because their scores do not compare."""
    found = {str(job["summary"].get("environment", OLD_PHYSICS)).split(",")[0] for job in jobs}
    if len(found) > 1:
        raise InputError(
            f"--results: found scores on {' and on '.join(sorted(found))}, expected one for the whole table"
        )
    return found.pop() if found else None


def collect(folders: Sequence[Path], results: Path) -> None:
    """Nothing is written unless all fits: one job for a set, one budget, one physics."""
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
        job["summary"].pop("timing", None)  # of a GPU that jobs shared
        job["curves"] = curves(folder / "metrics.jsonl")
        jobs = stored.setdefault(label(config), {})
        if any(by_set(jobs).get(task, job) != job for task in config.task):
            raise InputError(f"{folder}: --results holds other scores of its sets (nothing is overwritten)")
        jobs[folder.name] = job
    if len(found := {budget(job["config"]) for jobs in stored.values() for job in jobs.values()}) > 1:
        raise InputError(f"--collect: found {' and '.join(sorted(found))}, expected the same for the whole table")
    physics(job for jobs in stored.values() for job in jobs.values())
    results.mkdir(parents=True, exist_ok=True)
    for name, jobs in stored.items():
        if load(results).get(name) != jobs:
            write_json(results / f"{name}.json", {"jobs": jobs})
            print(f"{name}.json: {len(jobs)} jobs")


def curves(log: Path) -> dict[str, dict[str, list[float | None]]]:
    """Of each run, what it logged at every tenth of the way: where a run was lost, they say when."""
    logged: dict[str, list[dict[str, Any]]] = {}
    for line in map(json.loads, log.read_text().splitlines() if log.exists() else ()):
        if "critic_loss" in line:  # not an evaluation, nor a stage without a critic
            logged.setdefault(line.get("run", f"seed_{line['seed']}"), []).append(line)

    def short(value: float | None) -> float | None:
        return float(f"{value:.4g}") if value is not None and math.isfinite(value) else None

    tenths = {run: lines[::-1][:: max(1, len(lines) // 10)][::-1] for run, lines in logged.items()}
    names = ("update", "critic_loss", "q")
    return {run: {n: [short(line.get(n)) for line in lines] for n in names} for run, lines in tenths.items()}


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
        name = physics(jobs)
        scored_on = NOT_RUN if name is None else f"D4RL's physics ({name})"
        if name == OLD_PHYSICS:
            scored_on = (
                f"**{OLD_PHYSICS} physics, not D4RL's**: scores on D4RL's differ, see [environments](environments.md)"
            )
        others = ""
        for mode in OFFERED[1:]:
            own = [n for n in self.names if any(j["config"].get("precision") == mode for j in self.jobs[n].values())]
            others += f"; {mode}: {', '.join(self.titles[n] for n in own)}" if own else ""
        return (
            f"- seeds {', '.join(map(str, config['seeds']))}; budget: {config['updates']:,} critic updates (BC: of the "
            f"policy)\n- the last checkpoint, never the best; {config['eval_episodes']} evaluation episodes per run\n"
            f"- scored on: {scored_on}\n"
            f"- trained on: {'; '.join(sorted(versions)) or NOT_RUN}\n- matrix products: fp32{others}"
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
