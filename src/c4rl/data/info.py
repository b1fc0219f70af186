"""Describes a dataset in numbers and warnings, and renders them for a terminal."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from c4rl.core.array import Array
from c4rl.core.errors import printable
from c4rl.data.assembly import breaks, ends_of
from c4rl.data.checks import row_blocks
from c4rl.data.dataset import Dataset
from c4rl.data.subsets import trajectory_returns, trajectory_slices
from c4rl.environments.tasks import Task

STD_OFFSET = 1e-3  # added to the standard deviation of states, as in every D4RL baseline
AT_BOUND = 1e-3  # an action this near to its bound, relative to the range, counts as saturated
OUTLIER = 1e6
SCALE_RATIO = 1e4
FAINT = 1e-4  # standard deviation of a column that STD_OFFSET leaves below a tenth of the others once normalised
COARSE = 10  # steps of float32 that a column's standard deviation should have
NAMED = 8  # columns that a sentence lists


def _moments(values: Array) -> tuple[Array, Array]:
    """Mean and standard deviation of each column, in float64, without a float64 copy of all rows."""
    mean = values.mean(axis=0, dtype=np.float64)
    squares = sum(((values[rows] - mean) ** 2).sum(axis=0) for rows in row_blocks(len(values)))
    return mean, np.sqrt(squares / len(values))


def observation_statistics(observations: Array) -> tuple[Array, Array]:
    """(mean, std + 1e-3) of each column, [s] float32 each: z = (s - mean) / std."""
    mean, std = _moments(observations)
    # a policy may see other values of a column that never changes in training: they must not count a thousandfold
    std[observations.min(axis=0) == observations.max(axis=0)] = 1.0
    return mean.astype(np.float32), (std + STD_OFFSET).astype(np.float32)


def _summary(values: Array) -> dict[str, float]:
    return {"min": float(values.min()), "mean": float(values.mean(dtype=np.float64)), "max": float(values.max())}


def _duplicates(dataset: Dataset) -> int:
    """Rows that repeat an earlier (s, a, r, s', terminal), found by a 64-bit hash of their bits."""
    fields = (dataset.observations, dataset.actions, dataset.rewards[:, None], dataset.next_observations)
    width = sum(field.shape[1] for field in fields)
    multipliers = np.random.Generator(np.random.PCG64(0)).integers(1, 2**63, width + 1, dtype=np.uint64) * 2 + 1
    hashes = dataset.terminals * multipliers[-1]
    for rows in row_blocks(len(dataset), 1 + 2**21 // width):  # 16 MiB of bits
        joined = np.concatenate([field[rows] for field in fields], axis=1)
        bits = joined.view(np.uint32).astype(np.uint64)
        bits ^= bits << np.uint64(29)  # spread the low bits, which a product alone would not
        hashes[rows] += (bits * multipliers[:-1]).sum(axis=1, dtype=np.uint64)
    hashes.sort()
    return int((hashes[1:] == hashes[:-1]).sum())


def _disagreements(dataset: Dataset) -> int:
    """Rows inside a trajectory whose next observation is not the following row's observation."""
    broken = breaks(dataset.observations, dataset.next_observations)
    return int((broken & ~ends_of(dataset.trajectory_ids)).sum())


def _saturation(dataset: Dataset) -> float:
    """The share of action numbers that lie at a bound."""
    slack = AT_BOUND * (dataset.action_high - dataset.action_low)
    low, high = dataset.action_low + slack, dataset.action_high - slack
    at_bound = sum(
        int(((dataset.actions[rows] <= low) | (dataset.actions[rows] >= high)).sum())
        for rows in row_blocks(len(dataset))
    )
    return at_bound / dataset.actions.size


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def _some(indices: Array) -> str:
    """A few of many column numbers, for a sentence."""
    shown = ", ".join(str(int(i)) for i in indices[:NAMED])
    return shown + (f" and {len(indices) - NAMED} more" if len(indices) > NAMED else "")


def findings(dataset: Dataset, description: dict[str, Any]) -> dict[str, str]:
    """What looks wrong, by its name: one sentence each."""
    found: dict[str, str] = {}
    rows, lengths = description["rows"], description["lengths"]

    _, std = _moments(dataset.observations)
    constant = np.flatnonzero(dataset.observations.min(axis=0) == dataset.observations.max(axis=0))
    if rows > 1 and len(constant):
        found["constant_observations"] = (
            f"{len(constant)} observation columns never change (columns {_some(constant)})."
        )
    varying = np.delete(std, constant)
    if len(varying) and varying.max() > SCALE_RATIO * varying.min():
        found["scales"] = (
            f"Observation columns differ in scale by a factor of {varying.max() / varying.min():.0e}: train with "
            "--normalize-observations, the default."
        )
    faint = np.setdiff1d(np.flatnonzero(std < FAINT), constant)
    if rows > 1 and len(faint):
        found["faint_observations"] = (
            f"Observations vary by less than {FAINT:g} in columns {_some(faint)}. Normalising divides by std + "
            f"{STD_OFFSET:g}, so networks hardly see them: store them in smaller units."
        )
    rounding = np.spacing(np.maximum(-dataset.observations.min(axis=0), dataset.observations.max(axis=0)))
    coarse = np.setdiff1d(np.flatnonzero(std < COARSE * rounding), constant)
    if rows > 1 and len(coarse):
        found["coarse_observations"] = (
            f"float32 rounds away most of what varies in columns {_some(coarse)} of the observations: subtract a "
            "constant before you store them."
        )
    for name in ("observations", "next_observations", "rewards"):
        extremes = description["ranges"][name]
        largest = max(abs(extremes["min"]), abs(extremes["max"]))
        if largest > OUTLIER:
            found[f"large_{name}"] = f"'{name}' holds values as large as {largest:.1e}."

    rewards = description["ranges"]["rewards"]
    if rewards["min"] == rewards["max"]:
        found["constant_rewards"] = f"All rewards are {rewards['min']:g}: there is nothing to learn from them."
    smallest, largest = dataset.actions.min(axis=0), dataset.actions.max(axis=0)
    unused = np.flatnonzero(smallest == largest)
    if rows > 1 and len(unused):
        found["constant_actions"] = f"{len(unused)} action components never change (components {_some(unused)})."
    filled = (largest - smallest) / (dataset.action_high - dataset.action_low)
    narrow = np.flatnonzero((filled < 0.1) & (smallest < largest))
    if rows >= 100 and len(narrow):
        found["narrow_actions"] = (
            f"Action components {_some(narrow)} use less than 10% of their bounds: are the bounds right?"
        )
    if rows >= 100 and all(len(np.unique(column)) <= 3 for column in dataset.actions[:10_000].T):
        found["discrete_actions"] = "Actions take three values or fewer per component: they look discrete."
    if description["action_saturation"] > 0.5:
        found["saturated_actions"] = (
            f"{description['action_saturation']:.0%} of the action numbers lie at their bounds."
        )

    if description["trajectories"] == 1 and not description["terminals"] and rows > 1:
        found["no_ends"] = "No terminal and no time-out is marked before the last row: all rows form one trajectory."
    if lengths["one_row"]:
        found["one_row"] = f"{lengths['one_row']} of {description['trajectories']} trajectories have a single row."
    disagreements = _disagreements(dataset)
    if disagreements:
        found["disagreements"] = (
            f"{disagreements} next observations differ from the following row's observation inside a trajectory."
        )
    if description["duplicates"]:
        share = description["duplicates"] / rows
        found["duplicate_rows"] = f"{description['duplicates']} rows ({share:.1%}) repeat an earlier row exactly."
    return found


def _recorded(metadata: Mapping[str, Any]) -> str | None:
    """What the bytes of a recording follow from: task, seed, versions."""
    if "environment" not in metadata:
        return None
    words = {"task": "", "seed": "seed ", "environment": "", "c4rl": "c4rl "}
    return ", ".join(f"{word}{metadata[name]}" for name, word in words.items() if name in metadata)


def describe(dataset: Dataset, task: Task | None = None) -> dict[str, Any]:
    """The dataset in plain numbers (all JSON-able), with `warnings` on what looks wrong."""
    return describe_with_findings(dataset, task)[0]


def describe_with_findings(dataset: Dataset, task: Task | None = None) -> tuple[dict[str, Any], dict[str, str]]:
    """The description, and the sentences of its warnings by their names.

    Returns are sums of rewards per trajectory; one-row trajectories are left out of them where there are longer ones.
    Normalised returns need a task with reference scores.
    """
    starts, stops = trajectory_slices(dataset)
    lengths = stops - starts
    returns = trajectory_returns(dataset)
    if (lengths > 1).any():
        returns = returns[lengths > 1]
    normalised = None
    if task is not None and task.reference_min is not None and task.reference_max is not None:
        normalised = _summary(np.asarray(task.normalise(returns)))
    names = ("observations", "next_observations", "actions", "rewards")
    description: dict[str, Any] = {
        "source": dataset.source,
        "sha256": dataset.sha256,
        "name": dataset.metadata.get("name"),
        "recorded": _recorded(dataset.metadata),
        "subset": list(dataset.metadata.get("subset", ())),
        "task": None if task is None else task.name,
        "rows": len(dataset),
        "trajectories": len(starts),
        "observation_dim": dataset.observation_dim,
        "action_dim": dataset.action_dim,
        "lengths": _summary(lengths) | {"one_row": int((lengths == 1).sum())},
        "returns": _summary(returns),
        "normalised_returns": normalised,
        "terminals": int(dataset.terminals.sum()),
        "timeouts": int(dataset.timeouts.sum()),
        "valid_next_actions": int(dataset.next_action_valid.sum()),
        "ranges": {name: _summary(getattr(dataset, name)) for name in names},
        "action_low": dataset.action_low.tolist(),
        "action_high": dataset.action_high.tolist(),
        "action_saturation": _saturation(dataset),
        "duplicates": _duplicates(dataset),
        "notes": list(dataset.notes),
    }
    found = findings(dataset, description)
    return description | {"warnings": list(found.values())}, found


def _number(value: float) -> str:
    """Short and readable: 1,234 for whole numbers, four significant digits otherwise."""
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e7 else f"{value:.2e}"
    return f"{value:.4g}"


def _bounds(low: list[float], high: list[float]) -> str:
    same = len(set(low)) == 1 and len(set(high)) == 1
    return f"[{low[0]:g}, {high[0]:g}]" if same else f"[{min(low):g}, {max(high):g}], per component"


def render(description: dict[str, Any]) -> RenderableType:
    """A description for a terminal."""
    rows, lengths = description["rows"], description["lengths"]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="bold")
    facts.add_column()
    facts.add_row("file", Text(printable(description["source"]), overflow="fold"))
    if description["sha256"]:
        facts.add_row("sha256", Text(description["sha256"][:16] + "…", style="dim"))
    if description["name"]:
        facts.add_row("name", Text(printable(str(description["name"]))))
    if description["recorded"]:
        facts.add_row("recorded", Text(printable(description["recorded"])))
    for sentence in description["subset"]:
        facts.add_row("subset", Text(printable(str(sentence))))
    if description["task"]:
        facts.add_row("task", description["task"])
    facts.add_row(
        "rows",
        f"{rows:,} in {description['trajectories']:,} trajector{'y' if description['trajectories'] == 1 else 'ies'}",
    )
    facts.add_row(
        "shape",
        f"{_count(description['observation_dim'], 'observation')}, {_count(description['action_dim'], 'action')}",
    )
    facts.add_row(
        "ends", f"{_count(description['terminals'], 'terminal')}, {_count(description['timeouts'], 'time-out')}"
    )
    valid = description["valid_next_actions"]
    facts.add_row("next actions", f"{valid:,} valid ({valid / rows:.1%} of the rows)")
    saturation = f"{description['action_saturation']:.1%} of the numbers at a bound"
    bounds = Text(_bounds(description["action_low"], description["action_high"]))  # brackets are markup otherwise
    facts.add_row("action bounds", bounds.append(f", {saturation}"))
    facts.add_row("duplicates", _count(description["duplicates"], "row"))

    ranges = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    ranges.add_column("")
    for name in ("min", "mean", "max"):
        ranges.add_column(name, justify="right")
    ranked = "return, one-row pieces left out" if 0 < lengths["one_row"] < description["trajectories"] else "return"
    summaries = {"trajectory length": lengths, ranked: description["returns"]}
    if description["normalised_returns"] is not None:
        summaries["normalised " + ranked] = description["normalised_returns"]
    summaries |= {name.replace("_", " "): values for name, values in description["ranges"].items()}
    for name, values in summaries.items():
        ranges.add_row(Text(name, style="bold"), *(_number(values[key]) for key in ("min", "mean", "max")))

    sections: list[RenderableType] = [facts, "", ranges]
    for name, style in (("notes", "cyan"), ("warnings", "yellow")):
        if description[name]:
            listed = Table.grid(padding=(0, 1))
            for sentence in description[name]:
                listed.add_row(Text("!" if name == "warnings" else "-", style=style), Text(sentence))
            sections += ["", Text(name, style=f"bold {style}"), Padding(listed, (0, 0, 0, 2))]
    return Group(*sections)
