"""The ways to choose rows of a dataset, by name (data/subsets.py). Imports nothing, so that commands start fast."""

from typing import Literal

SubsetKind = Literal["trajectories", "rows", "with_replacement", "authors", "thinned", "low_return", "narrow"]
