"""What a table is: methods on tasks, the runs it is made of, and the cells that the store fills."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from c4rl.core.curves import late_mean
from c4rl.core.errors import InputError
from c4rl.environments.tasks import PHYSICS
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.preset_fields import preset_fields
from c4rl.jobs.presets.best import BEST, RECIPES
from c4rl.jobs.presets.settings import values_of
from c4rl.jobs.registry import algorithm_class
from c4rl.results.store import Entry, Store, determinants, identity

HERE = Path(__file__).parent
RECORDED = "c4rl/"  # how names of sets begin that this package recorded: the task is D4RL's, the rows are not
OF_A_RUN = {  # a number of each run -> what it is
    "late": "mean over the second half of a run's evaluations",
    "last": "last evaluation",
    "best": "best evaluation, chosen in the simulator",
    "selected": "evaluation selected by held-out trajectories (--select), without the simulator",
}
# what a table may be about -> how it is called
QUANTITIES = {
    "score": "D4RL-normalised score",
    "c4_effective_K": "clusters with a weight above 0.02",
    "cross_covariance_trace_exact": "tr(Ĉ)/m of gradients",
    "cross_covariance_trace_proxy": "tr(Ĉ)/m of features",
    "variance_lead": "cos(∇E[δ²], ∇Var[δ]) - cos(∇E[δ²], ∇(E[δ])²)",
}


@dataclass(frozen=True)
class Method:
    """A row: an algorithm with its plug-ins and settings."""

    label: str
    algorithm: str  # preset best: the recipe, or none for the one that its rule chooses
    plugins: tuple[str, ...] | None = ("none",)  # None: the preset's own
    preset: str = "published"
    options: dict[str, Any] = field(default_factory=dict)  # of the algorithm or a plug-in, instead of the preset's
    job: dict[str, Any] = field(default_factory=dict)  # fields of TrainConfig, likewise
    paper: str | None = None  # what the paper's table calls it
    seeds: int | None = None  # how many, where not as many as the table's
    first: int = 0  # seed
    members: int = 1  # seeds that act together as one policy: each such ensemble counts as one seed
    swept: str = ""  # the option in which it differs from other methods of its series
    series: str = ""  # what those methods have in common: a line of a figure
    x: float | None = None  # where on that line it stands
    factors: dict[str, bool] = field(default_factory=dict)  # of a design: what is on and what is off
    against: str = ""  # the method whose mean is subtracted from its own

    def on(self, name: str) -> "Method":
        """On this set; only --preset best depends on it."""
        if self.preset != BEST:
            return self
        recipe = RECIPES[self.algorithm or datasets()[name]["best"]]
        options = values_of(recipe.options)
        for own in recipe.plugins.values():
            options |= values_of(own)
        updates = recipe.training["updates"].value
        return replace(
            self,
            algorithm=recipe.algorithm,
            plugins=tuple(recipe.plugins),
            preset="none",
            options=options | self.options,
            job={"updates": updates, "eval_every": updates // 2} | self.job,
        )


@dataclass(frozen=True)
class ResultTable:
    """One table of runs."""

    name: str
    title: str
    methods: tuple[Method, ...]
    tasks: tuple[str, ...]  # the sets: the task's name for D4RL's rows, c4rl/TASK for those that this package recorded
    trained: tuple[str, ...] | None = None  # sets that are trained; the others show the paper's numbers alone
    seeds: int = 3
    updates: int = 100_000
    evaluations: int = 10
    episodes: int = 10
    quantity: str = "score"
    paper: str = "locomotion-10k"  # the part of paper.json it is compared with; none where the paper prints no numbers
    tasks_are_rows: bool = False
    x: str = ""  # what the methods' `x` is
    headline: tuple[str, ...] = ()  # methods whose means PAPER.md shows
    shows: str = ""  # what of the paper it repeats
    note: str = ""

    @property
    def measured(self) -> tuple[str, ...]:
        """The tasks whose data are known; sorted, so that a method has one interval in all tables."""
        return tuple(sorted(task for task in self.trained or self.tasks if task in datasets()))

    def seeds_of(self, method: Method) -> range:
        """Of an ensemble, its first."""
        count = (method.seeds or self.seeds) * method.members
        return range(method.first, method.first + count, method.members)

    @property
    def runs(self) -> int:
        return len(self.measured) * sum(len(self.seeds_of(method)) for method in self.methods)

    def config(self, method: Method, name: str, data: Path = Path(".")) -> TrainConfig:
        """The job of the first seed alone on a set; data: the folder of SET.npz."""
        method, task = method.on(name), task_of(name)
        found = preset_fields(method.preset, method.algorithm, method.plugins, task)
        owners = (found["options"], *found["plugin_options"])
        known = {f.name for owner in owners for f in fields(owner)}
        assert set(method.options) <= known, f"{method.label}: no such option"
        changed = [
            replace(owner, **{f.name: method.options[f.name] for f in fields(owner) if f.name in method.options})
            for owner in owners
        ]
        updates = method.job.get("updates", self.updates)
        budget = {
            "updates": updates,
            "eval_every": updates // self.evaluations,
            "eval_episodes": self.episodes,
            "monitor": algorithm_class(method.algorithm).has_critic,
            "ensemble": method.members if method.members > 1 else 0,
        }
        own = {"options": changed[0], "plugin_options": tuple(changed[1:]), "output": Path("unused")}
        own["seeds"] = tuple(range(method.members))
        where = {"algorithm": method.algorithm, "dataset": (data / f"{name}.npz",), "task": (task,)}
        return TrainConfig(**(found | budget | method.job | own | where))

    def wanted(self, data: Path = Path(".")) -> Iterator[tuple[Method, str, TrainConfig]]:
        """Its cells, with the job of the first seed."""
        for method in self.methods:
            for task in self.measured:
                yield method, task, self.config(method, task, data)

    def only(self, labels: Sequence[str] | None) -> "ResultTable":
        """With these methods alone."""
        known = [method.label for method in self.methods]
        for label in labels or ():
            if label not in known:
                raise InputError(f"--methods: found '{label}', expected some of {'; '.join(known)}")
        return replace(self, methods=tuple(m for m in self.methods if labels is None or m.label in labels))

    def on(self, starts: Sequence[str] | None) -> "ResultTable":
        """Of the sets that are trained, only those whose names start so."""
        if starts is None:
            return self
        for start in starts:
            if not any(name.startswith(start) for name in self.measured):
                raise InputError(f"--sets: found '{start}', expected the start of {', '.join(self.measured)}")
        chosen = tuple(n for n in self.tasks if n in self.measured and n.startswith(tuple(starts)))
        return replace(self, tasks=chosen, trained=None)

    def printed(self, method: Method, task: str) -> Sequence[float] | None:
        """The paper's number: mean, and the standard deviation where there is one."""
        part, task = paper().get(self.paper, {}), task_of(task)
        return part.get(task, part.get(task.partition("-")[0], {})).get(method.paper)


@cache
def _data() -> dict[str, dict[str, Any]]:
    return json.loads((HERE / "datasets.json").read_text())


def datasets() -> dict[str, dict[str, Any]]:
    """set -> sha256 and rows of the data that the tables are about; the recipe that --preset best chooses on it; the
    task, and the seed of a recording, where the name does not tell them."""
    return _data()["sets"]


def recording_of(name: str) -> dict[str, Any]:
    """What the bytes of a recorded set follow from, as its metadata call it."""
    known = datasets()[name]
    return {"size": known["rows"], "seed": known.get("seed", 0)} | _data()["recorded"]


def task_of(name: str) -> str:
    """The task of a set."""
    return datasets().get(name, {}).get("task", name.removeprefix(RECORDED))


@cache
def paper() -> dict[str, Any]:
    return json.loads((HERE / "paper.json").read_text())


def identities(config: TrainConfig, name: str, seeds: Iterable[int]) -> list[str]:
    """Of the runs, or ensembles, on this set that the config describes but for the seed, on the present physics."""
    run = determinants(config, datasets()[name]["sha256"], PHYSICS)
    run |= {"members": config.ensemble} if config.ensemble else {}
    return [identity(run | {"seed": seed}) for seed in seeds]


class Cell(NamedTuple):
    """One method on one task: the entries there are, in the order of their seeds."""

    entries: tuple[Entry, ...]

    def values(self, which: str, quantity: str = "score") -> np.ndarray:
        """A number for each run that has the quantity; selected: that was trained with --select."""
        if which == "selected":
            return np.array([score for entry in self.entries if (score := entry.selected) is not None])
        of_curve: dict[str, Callable[[np.ndarray], float]]
        of_curve = {"late": late_mean, "last": lambda curve: curve[-1], "best": np.max}
        curves = (entry.curve(quantity)[1] for entry in self.entries)
        return np.array([of_curve[which](curve) for curve in curves if len(curve)])


Filled = dict[tuple[str, str], Cell]  # (method, task) -> cell; only those with entries


def fill(table: ResultTable, store: Store) -> Filled:
    known = store.by_identity()
    found = {}
    for method, task, config in table.wanted():
        entries = (known.get(name) for name in identities(config, task, table.seeds_of(method)))
        if whole := tuple(entry for entry in entries if entry and len(entry.curve(table.quantity)[1])):
            found[method.label, task] = Cell(whole)
    return found


def overall(table: ResultTable, filled: Filled, method: Method, which: str) -> np.ndarray | None:
    """[runs, tasks] of a method, where every task has all its runs, or three at least; as many of each task."""
    cells = [filled.get((method.label, task)) for task in table.measured]
    values = [cell.values(which, table.quantity) for cell in cells if cell]
    runs = min(map(len, values), default=0)
    enough = len(values) == len(cells) and runs >= min(3, len(table.seeds_of(method)))
    return np.stack([v[:runs] for v in values], axis=1) if enough and runs else None


def left_out(table: ResultTable, filled: Filled) -> str:
    """A sentence, where a mean over sets leaves out runs because another set has fewer."""
    for method in table.methods:
        counts = {len(cell.entries) for task in table.measured if (cell := filled.get((method.label, task)))}
        if len(counts) > 1 and overall(table, filled, method, "last") is not None:
            return "means over sets use equally many runs of each set, the first ones"
    return ""
