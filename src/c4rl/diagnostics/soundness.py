"""Is the data sound? Faults that spoil training, and notes on what is unusual but may be meant."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from c4rl.core.array import Array
from c4rl.data.dataset import Dataset
from c4rl.data.info import AT_BOUND
from c4rl.data.subsets import trajectory_slices
from c4rl.environments.tasks import Task

FEW = 5  # with fewer trajectories a column or the rewards may be constant by chance
ENOUGH_ROWS = 1000  # quantiles of fewer rows say little about the largest step
JUMP = 6.0  # times the 99% quantile, in two columns at once; 4.9 is the most in D4RL's own files
SENTINEL = 100.0  # times the 99% quantile; 10 is the most there
REWARD_SENTINEL = 1000.0  # a goal's bonus or a fall's penalty may well be 100 times a usual reward
CLIPPED = 0.01  # of the rows at one and the same extreme
REPEATED = 0.01  # of the rows
EPISODES_END = ("hopper", "walker2d", "ant-")  # tasks whose episodes end by a fall
# of the findings of `c4rl data info`; the others are notes
FAULTS = {"large_observations", "large_next_observations", "large_rewards", "discrete_actions", "disagreements"}
FAULTS_WITHOUT_CHANCE = {"constant_observations", "constant_actions", "constant_rewards"}

Level = Literal["fault", "note"]


class Finding(NamedTuple):
    level: Level
    name: str
    sentence: str


def check_soundness(
    dataset: Dataset, description: dict[str, Any], findings: dict[str, str], task: Task
) -> list[Finding]:
    """All that is wrong or unusual, faults first. description, findings: of `data.info.describe_with_findings`."""
    starts, stops = trajectory_slices(dataset)
    several = int((stops - starts > 1).sum()) >= FEW
    found = [
        Finding(_level(name, dataset, description, several), name, sentence) for name, sentence in findings.items()
    ]
    found += [Finding("note", "reader", note) for note in dataset.notes]
    for check in (_columns, _outliers, _actions, _ends, _transitions):
        found += check(dataset, task, several)
    return sorted(found, key=lambda finding: finding.level != "fault")


def _level(name: str, dataset: Dataset, description: dict[str, Any], several: bool) -> Level:
    narrow = (dataset.actions.max(0) - dataset.actions.min(0)) < 0.1 * (dataset.action_high - dataset.action_low)
    is_fault = (
        name in FAULTS
        or (name in FAULTS_WITHOUT_CHANCE and several)
        or (name == "narrow_actions" and bool(narrow.all()))
        or (name == "duplicate_rows" and description["duplicates"] >= REPEATED * len(dataset))
    )
    return "fault" if is_fault else "note"


def _columns(dataset: Dataset, task: Task, several: bool) -> Iterator[Finding]:
    """Columns that are copies of others."""
    for name, values in (("observation", dataset.observations), ("action", dataset.actions)):
        first: dict[bytes, int] = {}
        for j, column in enumerate(np.ascontiguousarray(values.T)):
            if column.min() == column.max():
                continue  # constant, which has a finding of its own
            k = first.setdefault(column.tobytes(), j)
            if k != j:
                sentence = f"{name.capitalize()} column {j} is a copy of column {k}."
                yield Finding("fault" if several else "note", "duplicate_columns", sentence)


def _outliers(dataset: Dataset, task: Task, several: bool) -> Iterator[Finding]:
    """Numbers so far from all others that they look like a placeholder for a missing value."""
    for name, values, limit in (
        ("observations", dataset.observations, SENTINEL),
        ("rewards", dataset.rewards[:, None], REWARD_SENTINEL),
    ):
        distance = np.abs(values - np.median(values, axis=0))
        usual = np.quantile(distance, 0.99, axis=0)
        beyond = (distance > limit * usual) & (usual > 0)
        if len(dataset) >= ENOUGH_ROWS and beyond.any():
            row, column = (int(i) for i in np.argwhere(beyond)[0])
            where = f" column {column}" if name == "observations" else ""
            sentence = (
                f"{int(beyond.any(1).sum())} rows of '{name}' lie over {limit:g} times farther out than 99% of the "
                f"others: {values[row, column]:g} in row {row}{where}. Is it a placeholder?"
            )
            yield Finding("fault", f"outlying_{name}", sentence)


def _actions(dataset: Dataset, task: Task, several: bool) -> Iterator[Finding]:
    """Actions that were clipped inside their bounds, and next actions that are not those of the next row."""
    actions, slack = dataset.actions, AT_BOUND * (dataset.action_high - dataset.action_low)
    for extreme, inside in (
        (actions.max(0), actions.max(0) < dataset.action_high - slack),
        (actions.min(0), actions.min(0) > dataset.action_low + slack),
    ):
        share = (actions == extreme).mean(0)
        clipped = np.flatnonzero(inside & (share >= CLIPPED) & (share < 1))
        few_values = all(len(np.unique(column)) <= 3 for column in actions.T)  # discrete: a finding of its own
        if len(dataset) >= ENOUGH_ROWS and len(clipped) and not few_values:
            j = int(clipped[0])
            sentence = (
                f"{share[j]:.1%} of the actions' component {j} are exactly {extreme[j]:g}, inside the bounds "
                f"[{dataset.action_low[j]:g}, {dataset.action_high[j]:g}]: they were clipped, or the bounds are wrong."
            )
            yield Finding("fault", "clipped_actions", sentence)
    followed = dataset.next_action_valid[:-1] & (dataset.trajectory_ids[1:] == dataset.trajectory_ids[:-1])
    other = int((followed & (dataset.next_actions[:-1] != actions[1:]).any(1)).sum())
    if other:
        sentence = f"{other} next actions differ from the following row's action inside a trajectory."
        yield Finding("fault", "next_actions", sentence)


def _ends(dataset: Dataset, task: Task, several: bool) -> Iterator[Finding]:
    """Terminals and time-outs where there should be none, and none where there should be some."""
    starts, stops = trajectory_slices(dataset)
    lengths, ended = stops - starts, dataset.terminals[stops - 1]
    if dataset.terminals.mean() > 0.5:
        sentence = f"{dataset.terminals.mean():.0%} of the rows are terminals: are the flags inverted?"
        yield Finding("fault", "too_many_terminals", sentence)
    at = stops[:-1] - 1
    goes_on = (dataset.observations[at + 1] == dataset.next_observations[at]).all(1)
    for name, some in (("terminal", goes_on & ended[:-1]), ("time-out", goes_on & ~ended[:-1])):
        if some.any():
            # Maze2D's goals change without a reset, so its episodes do go on
            sure = name == "terminal" or task.domain not in ("maze2d", "none")
            sentence = (
                f"{int(some.sum())} {name}s fall inside an episode: the following row continues from there "
                f"(first after row {int(at[np.argmax(some)])})."
            )
            yield Finding("fault" if sure else "note", "ends_inside_episodes", sentence)
    longest = int(lengths.max())
    at_limit = int((ended & (lengths == longest)).sum())
    # a reader that had no next observations left out the last row of those that end by a time-out
    cut_too = bool((~ended & (lengths >= longest - 1)).any())
    if longest > 1 and at_limit >= 3 and at_limit >= 0.1 * int((lengths > 1).sum()) and not cut_too:
        sentence = (
            f"{at_limit} trajectories of the greatest length, {longest}, all end in a terminal: a time limit must be a "
            "time-out, or their last values are learned as 0."
        )
        yield Finding("fault", "terminals_at_time_limit", sentence)
    if task.domain not in ("none", "maze2d") and longest > task.horizon:
        sentence = (
            f"A trajectory has {longest} rows, more than the {task.horizon} steps of an episode: a time-out is missing."
        )
        yield Finding("fault", "missing_timeouts", sentence)
    short = int((lengths[lengths > 1] < 0.9 * longest).sum())
    if not dataset.terminals.any() and several and short >= FEW:
        falls = task.name.startswith(EPISODES_END)
        why = "episodes of this task end in a fall." if falls else "do episodes of this task end?"
        sentence = f"No terminal is marked, and {short} trajectories are at least 10% shorter than the longest: {why}"
        yield Finding("fault" if falls else "note", "missing_terminals", sentence)


def _transitions(dataset: Dataset, task: Task, several: bool) -> Iterator[Finding]:
    """Steps that no episode takes: standing still, or a jump as at a reset."""
    going = np.flatnonzero(~dataset.terminals)
    if not len(going):
        return
    step = np.abs(dataset.next_observations[going] - dataset.observations[going])
    still = int((step == 0).all(1).sum())
    if still >= REPEATED * len(dataset):
        why = "nothing moved, or next observations are shifted"
        sentence = f"{still} rows have the same observation before and after: {why}."
        yield Finding("fault", "standing_still", sentence)
    usual = np.quantile(step, 0.99, axis=0)
    step, usual = step[:, usual > 0], usual[usual > 0]
    if len(dataset) < ENOUGH_ROWS or len(usual) < 2:
        return
    jumps = np.flatnonzero(_second_largest(step / usual) > JUMP)
    if len(jumps):
        sentence = (
            f"{len(jumps)} transitions jump over {JUMP:g} times farther than 99% of the others in two observation "
            f"columns or more (first in row {int(going[jumps[0]])}): is an end of an episode missing?"
        )
        yield Finding("fault", "jumps", sentence)


def _second_largest(values: Array) -> Array:
    return np.partition(values, -2, axis=1)[:, -2]
