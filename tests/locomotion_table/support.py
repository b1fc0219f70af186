"""The script of the locomotion table, and jobs as it plans and leaves them."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from c4rl.core.files import write_json
from c4rl.jobs.config import TrainConfig, to_json

ROOT = Path(__file__).resolve().parents[2]
SCRIPT, PAGE = ROOT / "benchmarks" / "locomotion_table.py", ROOT / "docs" / "locomotion.md"
HOPPER = ("hopper-expert-v2", "hopper-medium-expert-v2", "hopper-medium-replay-v2")


def _load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("locomotion_table", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    sys.path.insert(0, str(SCRIPT.parent))  # where Python looks when the script is run
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(SCRIPT.parent))
    return module


script: Any = _load()


def planned(folders: SimpleNamespace, **changes: Any) -> list[TrainConfig]:
    given: dict[str, Any] = {
        "algorithms": list(script.PAPER),
        "plugins": ["none"],
        "sets": list(script.SETS),
        "updates": 100_000,
        "seeds": [0, 1, 2],
        "stage_fraction": 1.0,
        "device": "cpu",
        "precision": "fp32",
    }
    return script.plan(SimpleNamespace(**vars(folders) | given | changes))


def finish(config: TrainConfig, scores: dict[str, list[float]], **summary: Any) -> None:
    """A job folder as a finished job leaves it, with these scores per set and seed."""
    several = len(config.task) > 1
    runs = [
        {
            "name": f"{task},seed={seed}" if several else f"seed_{seed}",
            "seed": seed,
            "task": task,
            "dataset": str(path),
            "values": {},
            "last": score,
            "best": score + 1,
        }
        for task, path in zip(config.task, config.dataset, strict=True)
        for seed, score in zip(config.seeds, scores[task], strict=True)
    ]
    facts = {"stopped": {}, "device": "cpu", "versions": {"torch": "2"}, "timing": {"total_seconds": 50.0}}
    config.output.mkdir(parents=True)
    write_json(config.output / "config.json", to_json(config))
    write_json(config.output / "summary.json", {"runs": runs, **facts, **summary})


def collect(folders: SimpleNamespace) -> int:
    words = ["--collect", folders.output, "--results", folders.results, "--page", folders.page]
    return script.main([str(word) for word in words])


def cells(folders: SimpleNamespace, row: str) -> dict[str, str]:
    """A row of the table of scores, by set."""
    (line,) = (
        line for line in folders.page.read_text().splitlines() if line.startswith(f"| {row} | ") and " / " in line
    )
    return dict(zip(script.SETS, line.strip("| ").split(" | ")[1:], strict=True))
