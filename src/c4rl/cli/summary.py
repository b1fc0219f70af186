"""What `c4rl train` says at the end: the scores of a finished job, or its held-out errors, from its summary."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from c4rl.core.errors import printable
from c4rl.training.evaluation import explain_held_out
from c4rl.training.summary import MARK, datasets_of, describe_failure, show_score

SEEDS_SHOWN = 5  # as columns: more do not fit into 80 characters
CHECKPOINTS = {"last": "last", "late": "late mean", "selected": "selected, held out", "best": "best in simulator"}
Group = dict[str, Any]  # runs that differ only by seed, as the summary has them


def print_summary(summary: dict[str, Any], console: Console | None = None) -> None:
    console = console or Console()
    groups = summary.get("groups", [summary | {"name": ""}])

    def score(value: float | None) -> str:
        return show_score(value, summary["score"])

    if groups[0]["best"] is None:
        lines = list(_held_out_lines(summary, groups))
    else:
        console.print(_score_table(summary, groups, score))
        lines = [line for group in groups for line in _score_lines(summary, group, score)]
    legend = [f"{MARK} {run['name']}: {describe_failure(run['failed'])}" for run in summary["runs"] if run["failed"]]
    for line in (*lines, *legend):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def _held_out_lines(summary: dict[str, Any], groups: Sequence[Group]) -> Iterator[str]:
    for group in groups:
        for name, values in group["last"].items():
            shown = " ".join(_marked(group, values, "{:.4g}".format))
            yield f"{_prefix(group)}{name.replace('_', ' ')} per seed: {shown}"
        yield from _selected_lines(group)
    for name in groups[0]["last"]:
        yield f"{name.replace('_', ' ')}: {explain_held_out(name, datasets_of(summary))}"


def _score_table(summary: dict[str, Any], groups: Sequence[Group], score: Callable[[float | None], str]) -> Table:
    tasks = summary["task"] if isinstance(summary["task"], str) else " and ".join(summary["task"])
    method = " + ".join([summary["algorithm"], *summary["plugins"]])
    table = Table(title=f"{method} on {tasks} ({summary['score']})", title_justify="left", caption_justify="left")
    if names := dict.fromkeys(one["name"] for one in datasets_of(summary) if "name" in one):
        table.caption = Text(printable(f"trained on {', '.join(names)}"))
    named = ["runs"] if len(groups) > 1 else []
    few = len(summary["seeds"]) <= SEEDS_SHOWN
    spread = [f"seed {seed}" for seed in summary["seeds"]] if few else ["lowest", "highest"]
    for heading in (*named, "checkpoint", "mean", "std over seeds", *spread):
        # the end of a name tells runs apart: wrap names, never cut them; of the others the headings give way
        left, whole = heading in ("runs", "checkpoint"), heading == "checkpoint"
        table.add_column(heading, justify="left" if left else "right", overflow="fold", no_wrap=whole)
    for group in groups:
        for which, checkpoint in CHECKPOINTS.items():
            if which not in group:
                continue
            result, mark = group[which], MARK if group["failed"] else ""
            name = [group["name"] if which == "last" else ""] if named else []
            own = dict(zip(group["seeds"], _marked(group, result["scores"], score), strict=True))
            ends = [score(end(result["scores"])) for end in (np.min, np.max)]
            cells = [own.get(seed, "") for seed in summary["seeds"]] if few else ends
            table.add_row(*name, checkpoint, score(result["mean"]) + mark, score(result["std"]), *cells)
    return table


def _score_lines(summary: dict[str, Any], group: Group, score: Callable[[float | None], str]) -> Iterator[str]:
    """What the table leaves out of a group."""
    if len(summary["seeds"]) > SEEDS_SHOWN:
        yield f"{_prefix(group)}last, per seed: {' '.join(_marked(group, group['last']['scores'], score))}"
    yield _prefix(group) + _curve_words(group, score)
    yield from _selected_lines(group)
    if (ensemble := group.get("ensemble")) is not None:
        scores = " ".join(map(score, ensemble["scores"]))
        which = f"{ensemble['checkpoint']} checkpoints, " if "checkpoint" in ensemble else ""
        words = f"{ensemble['members']} seeds acting together, {which}the mean of their actions"
        yield f"{_prefix(group)}{words}: {scores}"


def _prefix(group: Group) -> str:
    return f"{group['name']}: " if group["name"] else ""


def _marked(group: Group, values: Sequence[float], show: Callable[[float], str]) -> list[str]:
    """A number per seed, those of failed runs marked."""
    marks = [MARK if seed in group["failed"] else "" for seed in group["seeds"]]
    return [show(value) + mark for value, mark in zip(values, marks, strict=True)]


def _selected_lines(group: Group) -> Iterator[str]:
    if (selected := group.get("selected")) is not None:
        pairs = zip(selected["updates"], selected["values"], strict=True)
        found = ", ".join(f"{update:,} ({value:.4g})" for update, value in pairs)
        criterion = selected["criterion"].replace("_", " ")
        yield f"{_prefix(group)}selected per seed, the update with the least {criterion}: {found}"


def _curve_words(group: Group, score: Callable[[float], str]) -> str:
    """The mean of the seeds at some ten evaluations, the last one among them."""
    updates, curves = group["curve"]["updates"], group["curve"]["scores"]
    means = [sum(scores) / len(scores) for scores in zip(*curves, strict=True)]
    shown = list(zip(updates, means, strict=True))[::-1][:: -(-len(updates) // 10)][::-1]
    words = ", ".join(f"{score(mean)} at {update:,}" for update, mean in shown)
    return f"mean of the seeds, by updates: {words}"
