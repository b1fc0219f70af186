"""D4RL files in their original HDF5 layout: flat arrays of N rows at the root, next to `infos/` and `metadata/`.

Versions of these files differ, and the reader handles each difference:

- rewards may be [N, 1] or float64, flags may be float64, observations may be float64: everything is read as float32
  and bool.
- `timeouts` marks a cut (time limit), `terminals` a true end. Where `next_observations` is stored, a cut row keeps its
  true successor and stays. Where it is not, the following row is the successor, and cut rows and the very last row
  (even a terminal one) are left out, exactly as in D4RL's own `qlearning_dataset`. Adroit v0 files cut long
  demonstrations in pieces; their cut rows are left out too.
- A terminal row's following row belongs to another episode: its next observation is its own observation.
- Ant has 111 observation columns, of which 27 to 110 (contact forces) are all zero in most files: cut to 27.
- Files that c4rl wrote may have `infos/next_actions`, `metadata/action_low` and `metadata/c4rl` besides.
- Antmaze v0 flags the time-out some rows before the reset, and the reset not at all: a change of `infos/goal` shows it.
"""

from functools import partial
from pathlib import Path

import numpy as np

from c4rl.core.array import Array
from c4rl.data.assembly import Log, breaks
from c4rl.data.checks import (
    as_column,
    as_flags,
    as_float32,
    check_same_length,
    check_shapes,
    problem,
    some,
)
from c4rl.data.hdf5 import IN_FILE, OWN_IN_D4RL, Hdf5, Hdf5Array
from c4rl.data.own_fields import read_own_fields
from c4rl.environments.tasks import Task

ANT_WITH_CONTACT_FORCES, ANT, ANT_ACTIONS = 111, 27, 8


def _contact_forces_are_zero(values: Hdf5Array) -> bool:
    return not any(block[:, max(0, ANT - where[1].start) :].any() for where, block in values.blocks())


def _observation_width(path: Path, arrays: list[Hdf5Array], action_width: int, task: Task | None) -> int:
    """The columns to read: all, or 27 of Ant's 111 where the rest is zero (and the task does not have 111)."""
    width, wanted = arrays[0].shape[1], None if task is None else task.observation_dim
    if width != ANT_WITH_CONTACT_FORCES or action_width != ANT_ACTIONS or wanted == width:
        return width
    if all(_contact_forces_are_zero(values) for values in arrays):
        return ANT
    if wanted == ANT:
        found = f"has {width} columns and contact forces that are not zero in columns {ANT} to {width - 1}"
        raise problem(path, "observations", found, f"{ANT} columns, or zeros there, for Ant without contact forces")
    return width


def _unflagged_resets(file: Hdf5, flagged: Array) -> Array:
    """[N] bool: the goal changes after this row, so the episode ended here, but no flag says so."""
    resets = np.zeros(len(flagged), dtype=bool)
    stored = file.array("infos/goal", "one goal per row") if "infos/goal" in file else None
    if stored is not None and len(stored) == len(flagged):
        goals = stored.read().reshape(len(flagged), -1)
        resets[:-1] = (goals[1:] != goals[:-1]).any(axis=1)
    if resets.mean() > 0.5:  # a goal that moves, not one per episode
        resets[:] = False
    return resets & ~flagged


def read_d4rl(file: Hdf5, task: Task | None) -> Log:
    """Read a D4RL file; the module's docstring lists its variants."""
    path, notes = file.path, list[str]()
    if unread := [name for name in file.names("") if name not in (*IN_FILE, "infos", "metadata")]:
        notes.append(f"Arrays with other names are not read: {some(unread)}.")
    field = partial(file.array, expected="D4RL's arrays observations, actions, rewards and terminals")
    stored_observations, stored_actions = field("observations"), field("actions")
    check_shapes(path, stored_observations, stored_actions)
    stored_next = field("next_observations") if "next_observations" in file else None
    if stored_next is not None and stored_next.shape != stored_observations.shape:
        raise problem(path, "next_observations", f"has shape {stored_next.shape}", f"{stored_observations.shape}")
    arrays = [stored_observations] + ([] if stored_next is None else [stored_next])
    width = _observation_width(path, arrays, stored_actions.shape[1], task)
    if width != stored_observations.shape[1]:
        notes.append(f"Observation columns {ANT} to {ANT_WITH_CONTACT_FORCES - 1} are all zero and were cut off.")

    observations = stored_observations.read(np.float32, width)
    next_observations = None if stored_next is None else stored_next.read(np.float32, width)
    actions = stored_actions.read(np.float32)
    rewards = as_float32(as_column(path, "rewards", field("rewards").read()))
    terminals = as_flags(path, "terminals", field("terminals").read())
    check_same_length(path, observations, terminals=terminals)
    if "timeouts" in file:
        cuts = as_flags(path, "timeouts", field("timeouts").read())
        check_same_length(path, observations, timeouts=cuts)
    elif next_observations is not None:
        cuts = breaks(observations, next_observations)
        notes.append(
            "The file has no 'timeouts': trajectories were told apart where a row's next observation is not the "
            "following row's observation."
        )
    else:
        cuts = np.zeros(len(observations), dtype=bool)
        notes.append("The file has no 'timeouts': only terminals end a trajectory.")
    resets = _unflagged_resets(file, terminals | cuts)
    own = read_own_fields(file, OWN_IN_D4RL, next_actions=actions)
    if resets.any():
        cuts |= resets
        others = f" and {int(resets.sum()) - 1} other rows" if resets.sum() > 1 else ""
        notes.append(
            f"The goal in 'infos/goal' changes after row {int(np.argmax(resets))}{others} without a flag: the episode "
            "was reset there, and its trajectory ends."
        )
    if next_observations is None:
        terminals[-1], cuts[-1] = False, True  # qlearning_dataset never looks at the last row
    return Log(str(path), observations, actions, rewards, terminals, cuts, next_observations, notes=notes, **own)
