"""A card of each dataset."""

from collections.abc import Sequence
from pathlib import Path

from c4rl.core.errors import InputError
from c4rl.data.info import describe
from c4rl.data.loading import load_for_task
from c4rl.diagnostics.page import Page
from c4rl.environments.tasks import get_task
from c4rl.jobs.config import TrainConfig
from c4rl.results.report.jobs import Job
from c4rl.training.summary import datasets_of

LARGEST_CARD = 300 * 2**20  # bytes of a dataset that is read for its card


def add_cards(page: Page, jobs: Sequence[Job]) -> None:
    page.section("Datasets")
    seen = set()
    for job in jobs:
        digests = {one["path"]: one["sha256"] for one in datasets_of(job.summary or {})}
        for dataset, task_name in zip(job.config.dataset, job.config.tasks, strict=True):
            if (dataset, task_name) not in seen:
                seen.add((dataset, task_name))
                _card(page, job.config, dataset, task_name, digests.get(str(dataset)))


def _card(page: Page, config: TrainConfig, path: Path, task_name: str, digest: str | None) -> None:
    name = path.name
    if path.is_file() and path.stat().st_size > LARGEST_CARD:
        page.text(f"{name}: too large to be read for this page.")
        return
    try:
        task = get_task(task_name)
        d = describe(load_for_task(path, task, config), task)
    except (InputError, OSError):
        page.text(f"{name}: no longer readable where the job found it.")
        return
    if digest is not None and digest != d["sha256"]:
        page.text(f"{name}: its bytes changed since the job.", kind="fault")
    shown = {"name": d["name"]} if d["name"] else {}
    shown |= {
        "rows": d["rows"],
        "trajectories": d["trajectories"],
        "observations": d["observation_dim"],
        "actions": d["action_dim"],
        "terminals": d["terminals"],
        "time-outs": d["timeouts"],
        "action numbers at a bound": d["action_saturation"],
    }
    page.table(("fact", name), [[key, value] for key, value in shown.items()], f"{name}, task {task_name}")
    ranges = {"length": d["lengths"], "return": d["returns"]}
    if d["normalised_returns"] is not None:
        ranges["normalised return"] = d["normalised_returns"]
    ranges |= {key.replace("_", " "): value for key, value in d["ranges"].items()}
    rows = [[key, value["min"], value["mean"], value["max"]] for key, value in ranges.items()]
    page.table(("of a trajectory or number", "min", "mean", "max"), rows, folded=f"ranges of {name}")
    page.listing([("faint", "warning:", sentence) for sentence in d["warnings"]])
