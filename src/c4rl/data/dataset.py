"""The one dataset type: immutable rows of logged experience."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from c4rl.core.array import Array


@dataclass(frozen=True)
class Dataset:
    """N transitions in logged order; the rows of a trajectory are contiguous. Arrays are read-only.

    Actions are in the units they were logged in; `action_low` and `action_high` bound them. Terminal rows stay in the
    data and have no valid next action; nor does the last row of a trajectory, unless the file has one.
    """

    observations: Array  # [N, s] float32
    actions: Array  # [N, a] float32
    rewards: Array  # [N] float32
    next_observations: Array  # [N, s] float32; unspecified at terminals (masked in every TD target)
    terminals: Array  # [N] bool: the episode truly ended here
    timeouts: Array  # [N] bool: the trajectory was cut here
    trajectory_ids: Array  # [N] int32, non-decreasing from 0
    next_actions: Array  # [N, a] float32: the action logged at next_observations; zero where not valid
    next_action_valid: Array  # [N] bool
    action_low: Array  # [a] float32
    action_high: Array  # [a] float32
    source: str = ""  # the file it was read from
    sha256: str = ""  # of that file's bytes
    notes: tuple[str, ...] = ()  # what the reader changed, one sentence each
    metadata: Mapping[str, Any] = field(default_factory=dict)  # from the file: name, task, behaviour

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def observation_dim(self) -> int:
        return int(self.observations.shape[1])

    @property
    def action_dim(self) -> int:
        return int(self.actions.shape[1])
