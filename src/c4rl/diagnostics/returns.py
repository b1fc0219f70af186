"""Returns of the logged trajectories, and what weighting rows by them (plug-in `returns`) would keep.

The effective number (sum w)^2 / sum w^2 says how many equally weighted rows would vary as much.
"""

from typing import Any

import numpy as np
import torch

from c4rl.core.array import Array
from c4rl.data.dataset import Dataset
from c4rl.data.subsets import trajectory_returns, trajectory_slices, whole_trajectories
from c4rl.environments.tasks import Task
from c4rl.jobs.presets.best import RECIPES, start_spread
from c4rl.jobs.presets.settings import values_of
from c4rl.plugins.returns import START_SPREAD, weights_of_rows

TEMPERATURES = (0.3, 0.1, 0.03)
BEST = "as --preset best"


def effective_number(weights: Array) -> float:
    return float(weights.sum() ** 2 / np.square(weights).sum())


def describe_returns(dataset: Dataset, task: Task) -> dict[str, Any]:
    """Returns of trajectories longer than a row, and of each weighting what is kept and the mean it would reach.

    Means are over rows, as batches see them. Scores are normalised where the task has reference scores. Where
    trajectories start apart, returns do not compare them: the plug-in then draws all rows alike, and so does `best`.
    """
    starts, stops = trajectory_slices(dataset)
    lengths, returns = stops - starts, trajectory_returns(dataset)
    chosen = lengths > 1 if (lengths > 1).any() else lengths > 0
    cut = int((~whole_trajectories(dataset) & chosen).sum())
    lengths, returns = lengths[chosen], returns[chosen]
    ids = torch.tensor(dataset.trajectory_ids).long()
    logged = torch.tensor(dataset.rewards).double(), torch.tensor(dataset.terminals), ids
    scores = np.asarray(task.normalise(returns))
    uniform = float(np.average(scores, weights=lengths))
    recipe = values_of(RECIPES["cloning"].plugins["returns"])
    of_best = {name: recipe.get(f"return_{name}", 0.0) for name in ("temperature", "top", "floor", "rows")}
    comparable = start_spread(dataset) < START_SPREAD
    if not comparable:
        of_best["floor"] = 1.0
    weightings = {f"temperature {t:g}": {"temperature": t, "top": 0.0, "floor": 0.0, "rows": 0.0} for t in TEMPERATURES}
    kept = []
    for name, weighting in (weightings | {BEST: of_best}).items():
        rows = weights_of_rows(*logged, **weighting).numpy()
        weights = rows[starts][chosen]
        kept.append(
            {
                "name": name,
                "effective_trajectories": effective_number(weights * lengths),
                "effective_rows": effective_number(rows),
                "mean": float(np.average(scores, weights=weights * lengths)),
            }
        )
    return {
        "kind": task.score_name,
        "trajectories": len(returns),
        "rows": int(lengths.sum()),
        "cut": cut,
        "comparable": comparable,
        "values": sorted(scores.tolist(), reverse=True),
        "uniform_mean": uniform,
        "best": float(scores.max()),
        "spread": float(scores.max() - scores.min()),
        "weighted": kept,
    }
