"""--preset best: what scored most on small datasets, chosen by a rule that looks at the data alone (docs/recipe.md).

Where trajectories start alike, their returns compare behaviours: clone the better ones. Where they start apart, as in a
maze, a good policy has to be put together from pieces of many: learn values. But not where the end alone is paid, as in
AntMaze: few rows teach no values then, and cloning scores more. Settings and reasons are in best.json.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch

from c4rl.data.dataset import Dataset
from c4rl.jobs.presets.c4 import Setting, Settings
from c4rl.plugins.returns import START_SPREAD, spread_of_starts

BEST = "best"


class Recipe(NamedTuple):
    algorithm: str
    training: Settings  # fields of TrainConfig
    options: Settings  # of the algorithm
    plugins: dict[str, Settings]

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Recipe":
        def settings(given: dict[str, Any]) -> Settings:
            return {
                name: Setting(tuple(value) if isinstance(value, list) else value, source)
                for name, (value, source) in given.items()
            }

        plugins = {name: settings(own) for name, own in entry["plugins"].items()}
        return cls(entry["algorithm"], settings(entry["training"]), settings(entry["options"]), plugins)


RECIPES = {
    name: Recipe.of(entry) for name, entry in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")).items()
}


def best_for(dataset: Dataset) -> Recipe:
    clones = start_spread(dataset) < START_SPREAD or only_ends_pay(dataset)
    return RECIPES["alike" if clones else "apart"]


def start_spread(dataset: Dataset) -> float:
    observations = torch.tensor(dataset.observations, dtype=torch.float64)
    return spread_of_starts(observations, torch.tensor(dataset.trajectory_ids).long())


def only_ends_pay(dataset: Dataset) -> bool:
    """Whether terminal rows have more reward than the others, which all have the same."""
    others, ends = dataset.rewards[~dataset.terminals], dataset.rewards[dataset.terminals]
    return bool(len(others) and len(ends) and others.min() == others.max() < ends.max())
