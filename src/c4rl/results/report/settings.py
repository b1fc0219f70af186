"""How the jobs were made: timings, and the options that differ."""

import json
from collections.abc import Sequence
from typing import Any

from c4rl.diagnostics.page import Page
from c4rl.jobs.config_file import to_json
from c4rl.results.report.jobs import TIMINGS, Job


def add_timings(page: Page, jobs: Sequence[Job]) -> None:
    rows = []
    for job in jobs:
        if job.summary is not None:
            timing = job.summary["timing"]
            rows.append([job.label, job.summary["device"], *(float(timing[name]) for name in TIMINGS)])
        else:
            rows.append([job.label, "not finished", None, None, None, None])
    page.section("Timings")
    page.table(("job", "device", "seconds", "of them evaluating", "of them clustering", "run-updates per second"), rows)


def _flat(value: Any, prefix: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        return {k: v for name, one in value.items() for k, v in _flat(one, f"{prefix}{name}.").items()}
    if isinstance(value, list) and any(isinstance(one, dict) for one in value):
        return {k: v for i, one in enumerate(value) for k, v in _flat(one, f"{prefix}{i}.").items()}
    return {prefix.rstrip("."): json.dumps(value) if not isinstance(value, str) else value}


def add_differences(page: Page, jobs: Sequence[Job]) -> None:
    page.section("Settings")
    flat = [_flat(to_json(job.config)) for job in jobs]
    names = list(dict.fromkeys(name for one in flat for name in one))
    if len(jobs) > 1:
        differ = [name for name in names if len({one.get(name) for one in flat}) > 1 and name != "output"]
        rows = [[name, *(one.get(name, "–") for one in flat)] for name in differ]
        if rows:
            page.table(("option", *(job.label for job in jobs)), rows, "Options that differ between the jobs")
        else:
            page.text("The jobs have the same options.")
    page.table(
        ("option", "value"),
        [[name, flat[0][name]] for name in names if name in flat[0]],
        f"All options of {jobs[0].label}",
        folded=f"all options of {jobs[0].label}",
    )
