"""d3rlpy's own dumps (`ReplayBuffer.dump`, HDF5), read without d3rlpy.

Episode i is `observations_i`, `actions_i`, `rewards_i` and one flag `terminated_i`: its last row is terminal, or cut.
A dump holds no next observations, so that the last row of a cut episode, of which d3rlpy makes no transition either, is
left out. Dumps that c4rl wrote have a group `c4rl` besides, which d3rlpy does not look at, with what would be lost.
"""

from functools import partial
from typing import Any

import h5py
import numpy as np

from c4rl.core.array import Array
from c4rl.data.assembly import Log
from c4rl.data.checks import as_column, as_float32, check_same_length, check_shapes, problem
from c4rl.data.hdf5 import OWN_IN_D3RLPY, Hdf5
from c4rl.data.own_fields import read_own_fields

COUNT = "num_episodes"  # tells a dump from other HDF5 files
COLUMNS = ("observations", "actions", "rewards", "terminated")
VERSION = "2.1"  # of d3rlpy's layout


def read_d3rlpy(file: Hdf5) -> Log:
    path = file.path
    expected = f"d3rlpy's arrays {', '.join(f'{name}_0' for name in COLUMNS)}, ... of vectors"
    array = partial(file.array, expected=expected)
    count = file.number(COUNT, "the number of episodes")
    names = len(file.names(""))
    if not 1 <= count <= names:
        raise problem(path, COUNT, f"is {count} in a file of {names} names", "1 or more, all in it")
    parts: dict[str, list[Array]] = {name: [] for name in ("observations", "actions", "rewards", "ends")}
    for i in range(count):
        observations, actions = array(f"observations_{i}").read(), array(f"actions_{i}").read()
        check_shapes(f"{path}: episode {i}", observations, actions)
        rewards = as_column(path, f"rewards_{i}", array(f"rewards_{i}").read())
        check_same_length(f"{path}: episode {i}", observations, actions=actions, rewards=rewards)
        ends = np.zeros((2, len(rewards)), dtype=bool)  # terminal, cut
        ends[0 if file.number(f"terminated_{i}", "0 or 1") else 1, -1:] = True
        for name, values in zip(parts, (observations, actions, rewards, ends.T), strict=True):
            parts[name].append(values if name == "ends" else as_float32(values))
    for name in ("observations", "actions"):
        if len(widths := {values.shape[1] for values in parts[name]}) > 1:
            raise problem(path, name, f"have the widths {sorted(widths)}", "one width in all episodes")
    rows = {name: np.concatenate(values) for name, values in parts.items()}
    own = read_own_fields(file, OWN_IN_D3RLPY, next_observations=rows["observations"], next_actions=rows["actions"])
    ends = rows.pop("ends")
    own |= {"terminals": ends[:, 0].copy(), "cuts": ends[:, 1].copy()}
    return Log(str(path), rows["observations"], rows["actions"], rows["rewards"], **own)


def write_columns(file: h5py.File, episodes: list[dict[str, Any]]) -> None:
    """As d3rlpy's `dump` does. episodes: arrays and a flag by their columns."""
    file["columns"], file[COUNT], file["version"] = list(COLUMNS), len(episodes), VERSION
    for i, episode in enumerate(episodes):
        for name in COLUMNS:
            file[f"{name}_{i}"] = episode[name]
