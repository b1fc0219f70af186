"""The entries that a finished job adds to the results store, from its folder."""

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.errors import InputError
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.config_file import to_json
from c4rl.jobs.runs import Run, ensembles_of, key_of, run_config, runs_of
from c4rl.results.store import RESULTS, SCHEMA, determinants
from c4rl.training.records import CRITERIA, read_metrics, selected_records
from c4rl.training.run_directory import job_config, job_summary
from c4rl.training.summary import datasets_of

# what is kept of the metrics, where a run logs it; the first entries have none. Some have cosine_with_*, which nothing
# reads: of the error of the evaluated policy, not of the algorithm's own TD loss
WATCHED = (
    "q",
    "c4_effective_K",
    *(f"cross_covariance_trace_{mode}" for mode in ("exact", "proxy")),
    *(f"td_{term}" for term in "ABC"),
    "td_cosine_with_variance",
    "td_cosine_with_mean",
    *CRITERIA.values(),
)


def entries_of(folder: Path) -> list[dict[str, Any]]:
    """The entries of a finished job's runs."""
    config = job_config(folder)
    summary = job_summary(folder, config)
    if summary is None:
        raise InputError(f"{folder}: has no summary.json, expected the folder of a finished job")
    runs = runs_of(config)
    curves: dict[Any, dict[int, list[float]]] = {}
    logged: dict[Any, list[dict[str, Any]]] = {}
    for record in read_metrics(folder / "metrics.jsonl", {run.key for run in runs}):
        logged.setdefault(key_of(record), []).append(record)
        if "returns" in record:
            curves.setdefault(key_of(record), {})[record["update"]] = [round(r, 3) for r in record["returns"]]
    facts = datasets_of(summary)

    def entry(run: Run) -> dict[str, Any]:
        own, dataset = run_config(config, run), facts[run.data]
        stored = to_json(own)
        return {
            "schema": SCHEMA,
            "results": RESULTS,
            "run": determinants(own, dataset["sha256"], summary["environment"]),
            "config": {name: stored[name] for name in ("preset", "precision", "eval_every")},
            "dataset": {"name": Path(dataset["path"]).name, "rows": dataset["rows"]},
            "environment": summary["environment"],
            "versions": summary["versions"],
            "curve": sorted([update, returns] for update, returns in curves[run.key].items()),
            "watched": _watched(logged[run.key], sorted(curves[run.key])),
            **_selected(config.select, logged[run.key]),
            "stopped": summary["stopped"].get(str(run.key)),
            "made": {"device": summary["device"], "timing": summary["timing"], "runs": len(summary["runs"])},
        }

    return [entry(run) for run in runs] + [
        (one := entry(first))
        | {"run": one["run"] | {"members": config.ensemble}, "curve": [[last, returns]], "watched": {}}
        for first, last, returns in _ensembles(config, runs, summary)
    ]


def _selected(select: str, records: list[dict[str, Any]]) -> dict[str, Any]:
    """What --select chose, and by which held-out error."""
    if select == "none":
        return {}
    criterion = CRITERIA[select]
    (chosen,) = selected_records(records, criterion).values()
    return {"selected": {"criterion": criterion, "update": chosen["update"], "value": chosen[criterion]}}


def _ensembles(
    config: TrainConfig, runs: Sequence[Run], summary: dict[str, Any]
) -> Iterator[tuple[Run, int, list[float]]]:
    """The first run, the last update and the returns of each ensemble."""
    if not config.ensemble or config.select != "none":  # of selected members: neither a last score nor one of theirs
        return
    together = ensembles_of([run for run in runs if str(run.key) not in summary["stopped"]], config.ensemble)
    # those that the seeds name; where a run failed, the others are grouped anew, into ensembles of other seeds
    planned = {members for several in ensembles_of(runs, config.ensemble).values() for members in several}
    scored = {group["name"]: group for group in summary["groups"]} if "groups" in summary else {"": summary}
    for group, several in together.items():
        for members, returns in zip(several, scored[group]["ensemble"]["returns"], strict=True):
            if members in planned:
                yield members[0], summary["updates"], [round(r, 3) for r in returns]


def _watched(records: list[dict[str, Any]], updates: list[int]) -> dict[str, list[list[float]]]:
    """For each watched metric, means of what was logged between evaluations."""
    found: dict[str, list[list[float]]] = {}
    for start, end in itertools.pairwise([0, *updates]):
        between = [record for record in records if start < record["update"] <= end]
        for name in WATCHED:
            values = [r[name] for r in between if isinstance(r.get(name), int | float) and math.isfinite(r[name])]
            if values:
                found.setdefault(name, []).append([end, float(f"{np.mean(values):.4g}")])
    return found
