"""Returns of the logged trajectories, and what weighting rows by them would keep.

p(row) ~ exp((G - Gmax) / (T scale)), scale = max(|Gmax|, Gmax - Gmin): rows of better trajectories come up more often.
The effective number (sum w)^2 / sum w^2 says how many equally weighted rows would vary as much.
"""

from typing import Any

import numpy as np

from c4rl.data.dataset import Array, Dataset
from c4rl.data.subsets import trajectory_returns, trajectory_slices, whole_trajectories
from c4rl.environments.tasks import Task

TEMPERATURES = (0.3, 0.1, 0.03)


def return_weights(returns: Array, temperature: float) -> Array:
    """The weight of a row of each trajectory, [trajectories]; 1 for those of the best."""
    scale = max(abs(float(returns.max())), float(returns.max() - returns.min()))
    return np.exp((returns - returns.max()) / (temperature * scale)) if scale > 0 else np.ones(len(returns))


def effective_number(weights: Array) -> float:
    return float(weights.sum() ** 2 / np.square(weights).sum())


def describe_returns(dataset: Dataset, task: Task) -> dict[str, Any]:
    """Returns of trajectories longer than a row, and of each temperature what is kept and the mean it would reach.

    Means are over rows, as batches see them. Scores are normalised where the task has reference scores.
    """
    starts, stops = trajectory_slices(dataset)
    lengths, returns = stops - starts, trajectory_returns(dataset)
    chosen = lengths > 1 if (lengths > 1).any() else lengths > 0
    cut = int((~whole_trajectories(dataset) & chosen).sum())
    lengths, returns = lengths[chosen], returns[chosen]
    scores = np.asarray(task.normalise(returns))
    uniform = float(np.average(scores, weights=lengths))
    kept = []
    for temperature in TEMPERATURES:
        weights = return_weights(returns, temperature)
        rows = np.repeat(weights, lengths)
        kept.append(
            {
                "temperature": temperature,
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
        "values": sorted(scores.tolist(), reverse=True),
        "uniform_mean": uniform,
        "best": float(scores.max()),
        "spread": float(scores.max() - scores.min()),
        "weighted": kept,
    }
