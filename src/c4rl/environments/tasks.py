"""The one table of tasks: ids, horizons, sizes of the published data and reference scores.

References are D4RL's own (to their published digits), sample and trajectory counts those of the paper's dataset table.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from c4rl.core.array import Array
from c4rl.core.errors import InputError
from c4rl.core.extras import how_to_install, installed, version_of

if TYPE_CHECKING:
    from rich.table import Table

PHYSICS = "d4rl-1"  # the simulator of D4RL's tasks; increased whenever scores may change


@dataclass(frozen=True)
class Task:
    """One dataset name of D4RL and the simulator its policies are scored in."""

    name: str
    domain: str  # locomotion, maze2d, antmaze, adroit, kitchen; gym for `gym:ID`, none for `none`
    environment: str | None  # gymnasium id, or what our own class of the domain calls it; None: no simulator
    horizon: int  # steps after which an episode is cut
    observation_dim: int | None  # None: whatever the data hold
    action_dim: int | None
    samples: int | None = None  # of the published dataset
    trajectories: int | None = None
    reference_min: float | None = None  # mean return of a random policy
    reference_max: float | None = None  # mean return of the expert
    dense: bool = False  # Maze2D: exp(-distance) instead of the goal's indicator

    def normalise(self, returns: Array | float) -> Array:
        """D4RL score 100 (R - min) / (max - min) of raw undiscounted returns; raw where there is no reference."""
        raw = np.asarray(returns, np.float64)
        if self.reference_min is None or self.reference_max is None:
            return raw
        return 100 * (raw - self.reference_min) / (self.reference_max - self.reference_min)

    @property
    def score_name(self) -> str:
        """The kind of score that `normalise` returns."""
        return "raw return" if self.reference_min is None else "normalised"


# (environment, observations, actions, reference min, reference max); Ant without its 84 contact numbers, which are all
# zero in D4RL's files
_LOCOMOTION = {
    "hopper": ("Hopper-v4", 11, 3, -20.272305, 3234.3),
    "halfcheetah": ("HalfCheetah-v4", 17, 6, -280.178953, 12135.0),
    "walker2d": ("Walker2d-v4", 17, 6, 1.629008, 4592.3),
    "ant": ("Ant-v4", 27, 8, -325.6, 3879.7),
}
ROBOTS = tuple(_LOCOMOTION)
_QUALITIES = ("expert", "medium", "medium-replay", "medium-expert", "full-replay")
# (samples, trajectories) in the order of _QUALITIES
_LOCOMOTION_DATA = {
    "hopper": ((10**6, 1028), (10**6, 2187), (402_000, 2041), (1_999_906, 3214), (10**6, 3515)),
    "halfcheetah": ((10**6, 1000), (10**6, 1000), (202_000, 202), (2 * 10**6, 2000), (10**6, 1000)),
    "walker2d": ((10**6, 1001), (10**6, 1191), (302_000, 1093), (1_999_995, 2191), (10**6, 1888)),
    "ant": ((10**6, 1035), (10**6, 1203), (302_000, 485), (1_999_946, 2237), (10**6, 1319)),
}
# (version, horizon, samples, trajectories, sparse min, sparse max, dense min, dense max)
_MAZE2D = {
    "open": ("v0", 150, 10**6, 22148, 0.01, 20.66, 11.17817, 27.16654),
    "umaze": ("v1", 300, 10**6, 12460, 23.85, 161.86, 68.537689, 193.66286),
    "medium": ("v1", 600, 2 * 10**6, 11889, 13.13, 277.39, 44.264742, 297.45525),
    "large": ("v1", 800, 4 * 10**6, 16727, 6.7, 273.99, 30.569041, 303.48574),
}
# (version, horizon, trajectories); score = success rate
_ANTMAZE = {
    "umaze": ("v2", 700, 10154),
    "umaze-diverse": ("v2", 700, 1035),
    "medium-play": ("v2", 1000, 10767),
    "medium-diverse": ("v2", 1000, 2958),
    "large-play": ("v2", 1000, 13516),
    "large-diverse": ("v2", 1000, 7188),
    "ultra-play": ("v0", 2000, 10536),
    "ultra-diverse": ("v0", 2000, 6076),
}
# (horizon, observations, actions, reference min, reference max, {kind: (samples, trajectories)})
_ADROIT = {
    "pen": (100, 45, 24, 96.262799, 3076.8331, ((5000, 25), (500_000, 3755), (499_206, 5000))),
    "hammer": (200, 46, 26, -274.856578, 12794.1348, ((11310, 25), (10**6, 3606), (10**6, 5000))),
    "door": (200, 39, 28, -56.512833, 2880.5693, ((6729, 25), (10**6, 4358), (10**6, 5000))),
    "relocate": (200, 39, 30, -6.425911, 4233.8778, ((9942, 25), (10**6, 3758), (10**6, 5000))),
}
# samples; the paper's table has no kitchen row
_KITCHEN = {"complete": 3680, "partial": 136_950, "mixed": 136_950}


def _locomotion() -> Iterable[Task]:
    for robot, (environment, observations, actions, low, high) in _LOCOMOTION.items():
        for quality, (samples, trajectories) in zip(_QUALITIES, _LOCOMOTION_DATA[robot], strict=True):
            yield Task(
                f"{robot}-{quality}-v2", "locomotion", environment, 1000, observations, actions,
                samples, trajectories, low, high,
            )  # fmt: skip


def _maze2d() -> Iterable[Task]:
    for maze, (version, horizon, samples, trajectories, *references) in _MAZE2D.items():
        for dense in (False, True):
            low, high = references[2:] if dense else references[:2]
            name = f"maze2d-{maze}{'-dense' if dense else ''}-{version}"
            yield Task(name, "maze2d", maze, horizon, 4, 2, samples, trajectories, low, high, dense)


def _antmaze() -> Iterable[Task]:
    for maze, (version, horizon, trajectories) in _ANTMAZE.items():
        yield Task(
            f"antmaze-{maze}-{version}", "antmaze", maze.partition("-")[0], horizon, 29, 8,
            10**6, trajectories, 0.0, 1.0,
        )  # fmt: skip


def _adroit() -> Iterable[Task]:
    for tool, (horizon, observations, actions, low, high, data) in _ADROIT.items():
        for kind, (samples, trajectories) in zip(("human", "cloned", "expert"), data, strict=True):
            yield Task(
                f"{tool}-{kind}-v1", "adroit", tool, horizon, observations, actions,
                samples, trajectories, low, high,
            )  # fmt: skip


def _kitchen() -> Iterable[Task]:
    for kind, samples in _KITCHEN.items():
        yield Task(f"kitchen-{kind}-v0", "kitchen", kind, 280, 60, 9, samples, None, 0.0, 4.0)


TASKS: dict[str, Task] = {
    task.name: task for part in (_locomotion, _maze2d, _antmaze, _adroit, _kitchen) for task in part()
}
_ALIASES = {re.sub(r"-v\d+$", "", name): name for name in TASKS}
# where AntMaze's behaviour agent learns; not in the table, since nobody has data of it
GOAL_ANT = Task("goal-ant", "antmaze", "open floor", 500, 29, 8)
_NO_TASK = Task("none", "none", None, 0, None, None)


def get_task(name: str) -> Task:
    """A task by D4RL name (`hopper-medium-v2`, or without version), `gym:ID` for any gymnasium id, or `none`."""
    if name == "none":
        return _NO_TASK
    if name == GOAL_ANT.name:
        return GOAL_ANT
    if name.startswith("gym:"):
        return _gym_task(name)
    found = TASKS.get(_ALIASES.get(name, name))
    if found is None:
        close = difflib.get_close_matches(name, [*TASKS, *_ALIASES], n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "`c4rl tasks` lists the known names."
        raise InputError(f"task: '{name}' is neither a known task nor 'gym:ID' nor 'none'; {hint}")
    return found


def imported_by(name: str) -> str | None:
    """The Python module that making this task's environment imports (gym:MODULE:ID), if it names one."""
    module, colon, _ = name.removeprefix("gym:").partition(":")
    return module if name.startswith("gym:") and colon else None


def _gym_task(name: str) -> Task:
    # imported here: the table itself needs no simulator
    from c4rl.environments.gym_ids import gym_dimensions

    environment = name.removeprefix("gym:")
    observation_dim, action_dim, horizon = gym_dimensions(environment)
    return Task(name, "gym", environment, horizon, observation_dim, action_dim)


def missing(task: Task) -> str | None:
    """What this machine lacks to score a policy of this task, or None."""
    if task.domain == "none":
        return "no simulator was asked for (task 'none')"
    return next((how_to_install(module) for module in _needed(task) if not installed(module)), None)


def _needed(task: Task) -> tuple[str, ...]:
    """The packages of the task's simulator."""
    if task.domain == "gym":
        return ("gymnasium",)
    models = ("gymnasium_robotics",) if task.domain in ("adroit", "kitchen") else ()
    return ("gymnasium", "mujoco", *models)


def simulator(*tasks: Task) -> str | None:
    """The simulator of these tasks, with its version: scores of different simulators are not comparable."""
    names = []
    for task in tasks:
        if task.domain == "gym":
            names.append(f"{task.environment}, gymnasium {version_of('gymnasium')}")
        elif task.environment is not None:
            names.append(f"{PHYSICS}, mujoco {version_of('mujoco')}")
    return " and ".join(dict.fromkeys(names)) or None


def physics(simulator: str) -> str:
    """What decides whether scores compare: every version of the libraries named behind it gives the same."""
    return " and ".join(dict.fromkeys(name.partition(",")[0] for name in simulator.split(" and ")))


def tasks_list() -> list[dict[str, Any]]:
    """The table as data: one dictionary per task; `missing` is None where it can be evaluated here."""
    rows = []
    for task in TASKS.values():
        absent = missing(task)
        rows.append(asdict(task) | {"missing": absent, "simulator": None if absent else simulator(task)})
    return rows


def _absent_packages() -> str:
    """The packages that keep tasks from running here, as the end of a sentence."""
    absent: dict[str, list[str]] = {}
    for task in TASKS.values():
        if (sentence := missing(task)) is not None and task.domain not in absent.setdefault(sentence, []):
            absent[sentence].append(task.domain)
    return "".join(f"; {', '.join(domains)}: {sentence}" for sentence, domains in absent.items())


def tasks_table() -> "Table":
    """The table for people."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    words = (
        f"run: can be evaluated on this machine, on D4RL's physics ({PHYSICS}, docs/environments.md); "
        f"also gym:ID (any gymnasium id with flat Box spaces) and none{_absent_packages()}"
    )
    table = Table(
        title="Tasks",
        box=box.SIMPLE,  # fits 80 columns
        pad_edge=False,
        padding=0,
        caption=Text(words, style="table.caption"),  # brackets of extras are markup otherwise
    )
    table.add_column("task", no_wrap=True)
    for column in ("obs", "act", "steps", "samples", "traj.", "min", "max"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("run")
    domain = None
    for task in TASKS.values():
        if domain not in (None, task.domain):
            table.add_section()
        domain = task.domain
        absent = missing(task)
        table.add_row(
            task.name,
            str(task.observation_dim),
            str(task.action_dim),
            str(task.horizon),
            f"{task.samples:,}",
            "?" if task.trajectories is None else f"{task.trajectories:,}",
            f"{task.reference_min:.1f}",
            f"{task.reference_max:.1f}",
            "yes" if absent is None else "no",
        )
    return table
