"""--preset best: what scored most on small datasets, chosen by a rule that looks at the data alone (docs/recipe.md).

Where trajectories start alike, their returns compare behaviours: clone the better ones. Where they start apart, as in a
maze, a good policy has to be put together from pieces of many: learn values. But not where their states hardly
meet, as those of an ant in a maze: there is nothing to put together, and cloning scores more. Settings and reasons are
in best.json.
"""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from c4rl.data.dataset import Dataset
from c4rl.jobs.presets.settings import Settings, settings_from
from c4rl.plugins.returns import spread_of_starts

BEST = "best"
APART = 0.35  # of the variance of all observations: first ones have 0 to 0.2 in locomotion data, 0.55 to 1.2 in mazes
# standard deviations: the gap is 0.07 to 0.11 in mazes, 0.15 to 0.37 in locomotion, 0.5 and more for an ant
NEAR = 0.125
SAMPLE = 1000  # rows; always as many, so that the gap measures the states and not the rows
AWAY = 100  # rows of the same trajectory are another way from there on


class Recipe(NamedTuple):
    algorithm: str
    training: Settings  # fields of TrainConfig
    options: Settings  # of the algorithm
    plugins: dict[str, Settings]

    @property
    def method(self) -> str:
        return " + ".join([self.algorithm, *self.plugins])

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Recipe":
        plugins = {name: settings_from(own) for name, own in entry["plugins"].items()}
        return cls(entry["algorithm"], settings_from(entry["training"]), settings_from(entry["options"]), plugins)


RECIPES = {
    name: Recipe.of(entry) for name, entry in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")).items()
}


def best_for(dataset: Dataset) -> tuple[Recipe, str]:
    """The recipe, and why."""
    spread, gap = start_spread(dataset), state_gap(dataset)
    recipe = RECIPES["values" if spread >= APART and gap < NEAR else "cloning"]
    if spread == math.inf:
        if dataset.trajectory_ids[-1] == 0:
            return recipe, "There is only one trajectory: returns cannot be compared."
        return recipe, "Only one trajectory is long enough, or no observation changes: returns cannot be compared."
    starts = f"First observations vary {spread:.2f} times as much as all observations (median over dimensions)"
    if spread < APART:
        return recipe, f"{starts}, below {APART:g}: trajectories start alike, so their returns can be compared."
    near = f"below {NEAR:g}: paths meet, so values are learned"
    far = f"not below {NEAR:g}: paths hardly meet, so cloning is safer"
    states = f"states lie {gap:.2f} standard deviations from the nearest on another path, {near if gap < NEAR else far}"
    return recipe, f"{starts}, not below {APART:g}: trajectories start apart; {states}."


def start_spread(dataset: Dataset) -> float:
    observations = torch.tensor(dataset.observations, dtype=torch.float64)
    return spread_of_starts(observations, torch.tensor(dataset.trajectory_ids).long())


def state_gap(dataset: Dataset) -> float:
    """How far a row's state lies from the nearest one that was met on another way, in standard deviations of each
    dimension: the median over rows drawn at equal distances. Infinite where no row has another."""
    rows = np.unique(np.linspace(0, len(dataset) - 1, SAMPLE).astype(np.int64))
    states, ids = dataset.observations[rows].astype(np.float64), dataset.trajectory_ids[rows]
    std = states.std(0)
    states = (states - states.mean(0))[:, std > 0] / std[std > 0]
    squares = np.square(states).sum(1)
    squared = np.maximum(squares[:, None] + squares - 2 * states @ states.T, 0)
    same_way = (ids[:, None] == ids) & (np.abs(rows[:, None] - rows) < AWAY)
    return float(np.median(np.sqrt(np.where(same_way, np.inf, squared).min(1) / max(states.shape[1], 1))))
