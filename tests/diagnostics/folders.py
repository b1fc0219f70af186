"""Run folders with made-up logs, as c4rl train leaves them."""

import json
import math
from pathlib import Path
from typing import Any

from c4rl.core.files import write_json
from c4rl.jobs.config_file import to_json
from c4rl.jobs.runs import runs_of
from tests.helpers import small_config


def make_folder(
    folder: Path, updates: int = 1000, lines: int = 10, slope: float = 1.0, missing: tuple[str, ...] = (), **values: Any
) -> Path:
    """A job's config.json and metrics.jsonl. slope: of the score. missing: metrics that are not logged."""
    config = small_config("td3_bc", ("c4",), updates=updates, output=folder, **values)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", to_json(config))
    with open(folder / "metrics.jsonl", "w") as file:
        for step in range(1, lines + 1):
            update = updates * step // lines
            for i, run in enumerate(runs_of(config)):
                wave = math.sin(step + i)
                logged = {
                    "critic_loss": 2 + wave,
                    "actor_loss": -1.5 + wave,
                    "q": 10.0 * step / lines + i / 10,
                    "cross_covariance_trace_exact_normalised": 0.5 + wave / 9,
                    "cross_covariance_trace_proxy_normalised": 0.4 + wave / 9,
                    "c4_effective_K": 5.0,
                    "c4_cluster_0": 0.4 + wave / 20,
                    "c4_within_trace": 0.3,
                    "c4_between_trace": 0.2,
                }
                logged = {name: value for name, value in logged.items() if name not in missing}
                score = slope * step + i
                for record in (logged, {"score": score, "returns": [score]}):
                    file.write(json.dumps({"update": update, **run.facts, **record}) + "\n")
    return folder
