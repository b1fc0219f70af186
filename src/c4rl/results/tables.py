"""The tables: which runs each is made of, and how their scores are shown with the paper's."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from c4rl.core.errors import InputError
from c4rl.environments.tasks import PHYSICS
from c4rl.jobs.config import TrainConfig, preset_fields
from c4rl.results.statistics import bootstrap_interval, interquartile_mean, late_mean, mean, mean_interval
from c4rl.results.store import Entry, Store, determinants, identity
from c4rl.training.summary import MARK

HERE = Path(__file__).parent
EIGHT = (
    "halfcheetah-expert-v2",
    "halfcheetah-medium-replay-v2",
    "halfcheetah-medium-v2",
    "hopper-expert-v2",
    "hopper-medium-expert-v2",
    "hopper-medium-replay-v2",
    "walker2d-medium-expert-v2",
    "walker2d-medium-v2",
)
THREE = ("halfcheetah-medium-replay-v2", "hopper-medium-expert-v2", "walker2d-medium-v2")  # for screening


@dataclass(frozen=True)
class Method:
    """A row: an algorithm with its plug-ins and settings."""

    label: str
    algorithm: str
    plugins: tuple[str, ...] = ()
    preset: str = "published"
    options: dict[str, Any] = field(default_factory=dict)  # of the algorithm or a plug-in, instead of the preset's
    job: dict[str, Any] = field(default_factory=dict)  # fields of TrainConfig, likewise
    paper: str | None = None  # what the paper's table calls it


@dataclass(frozen=True)
class ResultTable:
    name: str
    title: str
    methods: tuple[Method, ...]
    tasks: tuple[str, ...] = EIGHT
    seeds: tuple[int, ...] = (0, 1, 2)
    updates: int = 100_000
    evaluations: int = 10
    episodes: int = 10
    note: str = ""

    def caption(self, score: str) -> str:
        which = {"late": "mean over the second half of a run's evaluations", "last": "last evaluation"}
        shown = which.get(score, "best evaluation, chosen in the simulator")
        budget = f"{len(self.seeds)} seeds, {self.updates:,} updates, {self.episodes} episodes per evaluation"
        meaning = f"± half a 95% interval (Student); after the slash the paper's mean; physics {PHYSICS}"
        return f"{self.title}. {budget}; {shown}; {meaning}. {self.note}".rstrip()

    def config(self, method: Method, task: str, seed: int, data: Path = Path(".")) -> TrainConfig:
        """The job of one run; data: the folder of TASK.npz."""
        found = preset_fields(method.preset, method.algorithm, method.plugins or None, task)
        owners = (found["options"], *found["plugin_options"])
        changed = [
            replace(owner, **{f.name: method.options[f.name] for f in fields(owner) if f.name in method.options})
            for owner in owners
        ]
        budget = {
            "updates": self.updates,
            "eval_every": self.updates // self.evaluations,
            "eval_episodes": self.episodes,
        }
        own = {"options": changed[0], "plugin_options": tuple(changed[1:]), "seeds": (seed,), "output": Path("unused")}
        where = {"algorithm": method.algorithm, "dataset": (data / f"{task}.npz",), "task": (task,)}
        return TrainConfig(**(found | budget | method.job | own | where))

    def wanted(self, data: Path = Path(".")) -> Iterator[tuple[Method, str, int, TrainConfig]]:
        for method in self.methods:
            for task in self.tasks:
                for seed in self.seeds:
                    yield method, task, seed, self.config(method, task, seed, data)


def get_table(name: str, methods: Sequence[str] | None = None) -> ResultTable:
    """A table by its name, whole or with these methods alone."""
    if name not in TABLES:
        raise InputError(f"table: found '{name}', expected one of {', '.join(TABLES)}")
    table = TABLES[name]
    labels = [method.label for method in table.methods]
    for label in methods or ():
        if label not in labels:
            raise InputError(f"--methods: found '{label}', expected some of {', '.join(labels)}")
    chosen = tuple(method for method in table.methods if methods is None or method.label in methods)
    return replace(table, methods=chosen)


@cache
def datasets() -> dict[str, dict[str, Any]]:
    """task -> sha256 and rows of the data that the tables are about."""
    return json.loads((HERE / "datasets.json").read_text())["sets"]


@cache
def paper() -> dict[str, Any]:
    return json.loads((HERE / "paper.json").read_text())


def identity_of(config: TrainConfig) -> str:
    """Of the run that the config describes, on the present physics."""
    (task,) = config.task
    return identity(determinants(config, datasets()[task]["sha256"], PHYSICS))


class Cell(NamedTuple):
    """One method on one task: the entries there are, in the order of their seeds."""

    entries: tuple[Entry, ...]

    @property
    def last(self) -> np.ndarray:
        return np.array([entry.scores[-1] for entry in self.entries])

    @property
    def late(self) -> np.ndarray:
        return np.array([late_mean(entry.scores) for entry in self.entries])

    @property
    def best(self) -> np.ndarray:
        return np.array([entry.scores.max() for entry in self.entries])

    @property
    def mark(self) -> str:
        """Of a cell with runs that failed."""
        return MARK if any(entry.data["stopped"] for entry in self.entries) else ""


Filled = dict[tuple[str, str], Cell]  # (method, task) -> cell; only those with entries


def fill(table: ResultTable, store: Store) -> Filled:
    known = store.by_identity()
    found: dict[tuple[str, str], list[Entry]] = {}
    for method, task, _, config in table.wanted():
        if (entry := known.get(identity_of(config))) is not None:
            found.setdefault((method.label, task), []).append(entry)
    return {place: Cell(tuple(entries)) for place, entries in found.items()}


Rows = list[list[str]]  # of words, the first row the headings


def score_rows(table: ResultTable, filled: Filled, which: str = "late") -> Rows:
    """A line per method: mean ± half a 95% interval of each task over the seeds, the paper's behind a slash."""
    rows = [["", *(short(task) for task in table.tasks), "mean [95%]", "IQM", "runs"]]
    for method in table.methods:
        cells = [filled.get((method.label, task)) for task in table.tasks]
        words = [
            show(getattr(cell, which) if cell else None, printed(method, task), cell.mark if cell else "")
            for cell, task in zip(cells, table.tasks, strict=True)
        ]
        whole = [cell for cell in cells if cell and len(cell.entries) == len(table.seeds)]
        complete = len(whole) == len(cells)
        overall = np.stack([getattr(cell, which) for cell in whole], axis=1) if complete else None
        runs = sum(len(cell.entries) for cell in cells if cell)
        rows.append([method.label, *words, *_overall(overall), f"{runs}/{len(cells) * len(table.seeds)}"])
    return rows


def _overall(scores: np.ndarray | None) -> list[str]:
    if scores is None:
        return ["–", "–"]
    low, high = bootstrap_interval(mean, scores) if len(scores) > 1 else (np.nan, np.nan)
    return [f"{mean(scores):.1f} [{low:.1f}, {high:.1f}]", f"{interquartile_mean(scores):.1f}"]


def show(scores: np.ndarray | None, theirs: Sequence[float] | None, mark: str = "") -> str:
    ours = "–"
    if scores is not None:
        low, high = mean_interval(scores)
        ours = f"{scores.mean():.1f}" + (f" ± {(high - low) / 2:.1f}" if len(scores) > 1 else "") + mark
    return f"{ours} / {theirs[0]:.1f}" if theirs else ours


def printed(method: Method, task: str) -> Sequence[float] | None:
    """The paper's number: mean, and the standard deviation where there is one."""
    return paper()["locomotion-10k"].get(task, {}).get(method.paper)


def short(task: str) -> str:
    """halfcheetah-medium-replay-v2 -> hc-mr."""
    robot, _, quality = task.removesuffix("-v2").partition("-")
    robot = {"halfcheetah": "hc", "hopper": "hop", "walker2d": "w2d", "ant": "ant"}.get(robot, robot)
    return f"{robot}-{''.join(word[0] for word in quality.split('-'))}"


def markdown(rows: Rows) -> str:
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def latex(rows: Rows) -> str:
    def escaped(word: str) -> str:
        return (
            word.replace("±", r"$\pm$")
            .replace(MARK, r"\textdagger")
            .replace("–", "--")
            .replace("&", r"\&")
            .replace("%", r"\%")
            .replace("_", r"\_")
        )

    lines = [" & ".join(map(escaped, row)) + r" \\" for row in rows]
    rules = [r"\begin{tabular}{l" + "c" * (len(rows[0]) - 1) + "}", r"\toprule", lines[0], r"\midrule"]
    return "\n".join([*rules, *lines[1:], r"\bottomrule", r"\end{tabular}"])


def csv(table: ResultTable, filled: Filled) -> str:
    """Every run of the table, a line each."""
    lines = ["method,task,seed,update,score,late,best_in_simulator,failed_at"]
    for (label, task), cell in filled.items():
        for entry, last, late, best in zip(cell.entries, cell.last, cell.late, cell.best, strict=True):
            failed_at = (entry.data["stopped"] or {}).get("failed_at", "")
            numbers = f"{entry.updates[-1]},{last:.3f},{late:.3f},{best:.3f},{failed_at}"
            lines.append(f'"{label}",{task},{entry.seed},{numbers}')
    return "\n".join(lines)


def _published(label: str, algorithm: str, **values: Any) -> Method:
    return Method(label, algorithm, paper=label, **values)


def _td3_bc(alpha: float, **c4: Any) -> Method:
    label = f"TD3+BC, α {alpha}"
    if not c4:
        return Method(label, "td3_bc", options={"alpha": alpha})
    words = f"λ {c4['lambda_']}, actor rows {c4['actor_rows']}"
    return Method(f"{label} + C4, {words}", "td3_bc", ("c4",), options={"alpha": alpha, **c4})


TABLES = {
    table.name: table
    for table in (
        ResultTable(
            "baselines",
            "Every algorithm with the settings of its own publication, on eight locomotion sets of about 10,000 rows",
            (
                _published("BC", "bc"),
                _published("TD3+BC", "td3_bc"),
                _published("IQL", "iql"),
                _published("DOGE", "doge"),
                _published("A2PR", "a2pr"),
                _published("TSRL", "tsrl"),
                _published("BPPO", "bppo"),
                _published("SORL", "sorl"),
                _published("CQL", "cql"),
            ),
        ),
        ResultTable(
            "c4-on-td3_bc",
            "C4 (K 5, proxy) on TD3+BC, eight locomotion sets of about 10,000 rows",
            tuple(
                method
                for alpha in (0.5, 2.5)
                for method in (
                    _td3_bc(alpha),
                    _td3_bc(alpha, lambda_=0.3, actor_rows="cluster"),
                    _td3_bc(alpha, lambda_=0.3, actor_rows="uniform"),
                    _td3_bc(alpha, lambda_=0.0, actor_rows="uniform"),
                )
            ),
            seeds=(0, 1, 2, 3, 4),
            updates=30_000,
            evaluations=6,
            note="Clusters alone: λ 0.",
        ),
        ResultTable(
            "rebrac",
            "ReBRAC with its published settings, eight locomotion sets of about 10,000 rows",
            (Method("ReBRAC", "rebrac"),),
            updates=30_000,
            evaluations=6,
        ),
    )
}
