"""The behaviour agents that ship with the package: snapshots of trainings by `c4rl data train-behaviour`, with cards.

One file per robot holds its snapshots in the order of training."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from c4rl.core.files import read_json
from c4rl.environments.tasks import GOAL_ANT, ROBOTS, TASKS, Task, get_task

FOLDER = Path(__file__).parent / "behaviour"
CARDS = FOLDER / "cards.json"
RANDOM = "random"
ARM = "scripted arm"  # of Kitchen


@cache
def cards() -> dict[str, Any]:
    """By robot: its file, how the agents were trained and chosen, and `snapshots` with each one's steps and returns."""
    return read_json(CARDS, "the cards of the behaviour agents")


def set_of(name: str) -> tuple[Task, str]:
    """The task and kind of a set's name: D4RL's names without version, and ROBOT-random."""
    robot, _, kind = name.partition("-")
    if robot in ROBOTS and kind == RANDOM:
        return get_task(f"{robot}-medium"), RANDOM
    task = get_task(name)
    return task, task.name.partition("-")[2].rpartition("-v")[0] if task.domain == "locomotion" else ""


def shipped_policies(task: Task, kind: str) -> tuple[list[str], str]:
    """Policies for `c4rl data record`, in the order of their rows, and how they were chosen, in words."""
    if kind == RANDOM:
        return [RANDOM], "uniform actions"
    if task.domain == "kitchen":
        return [ARM], "c4rl's scripted arm"
    if task.domain == "antmaze":
        return [str(FOLDER / cards()[GOAL_ANT.name]["file"])], "c4rl's goal-reaching ant along shortest paths"
    if task.domain != "locomotion":
        return [], ""
    card = cards()[task.name.partition("-")[0]]
    steps = [snapshot["steps"] for snapshot in card["snapshots"]]
    medium, expert = card["medium"], card["expert"]
    chosen: dict[str, Sequence[int]] = {
        "medium": [medium],
        "expert": [expert],
        "medium-expert": [medium, expert],
        "medium-replay": range(medium + 1),
        "full-replay": range(expert + 1),
    }
    own = chosen[kind]
    if len(own) > 2:
        which = "medium" if own[-1] == medium else "expert"
        words = f"equal shares of {len(own)} snapshots from {steps[own[0]]:,} steps of training up to the {which} agent"
    else:
        words = " and ".join(f"the {'medium' if k == medium else 'expert'} agent, {steps[k]:,} steps" for k in own)
    return [f"{FOLDER / card['file']}@{k}" for k in own], f"c4rl's SAC agents: {words}"


def locomotion_sets() -> list[str]:
    """The sets of the paper's table that the agents record."""
    return [name.rpartition("-v")[0] for name, task in TASKS.items() if task.domain == "locomotion"]
