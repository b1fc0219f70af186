"""Local Minari datasets in their HDF5 format, read without the minari package and never downloaded.

A dataset is a directory `<root>/<id>/data` with `main_data.hdf5` and `metadata.json`. Each group `episode_k` holds T
actions, rewards, terminations and truncations and T + 1 observations, so every row has its true successor.

Dictionary observations become one vector:

- PointMaze {observation: 4, achieved_goal: 2, desired_goal: 2}: `observation` (x, y, vx, vy), which holds the position.
- AntMaze {observation: 27 or 105, achieved_goal: 2, desired_goal: 2}: `achieved_goal` (x, y), then `observation[:27]`,
  29 numbers in D4RL's order; the contact forces are left out.
- Kitchen {observation: 59, achieved_goal and desired_goal: one entry per subtask}: `observation`.

The desired goal is never part of the vector; where it differs between episodes a note says so.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from c4rl.core.errors import InputError
from c4rl.data.assembly import Log
from c4rl.data.checks import TaskLike, as_column, as_flags, as_float32, check_shapes, check_width, problem
from c4rl.data.dataset import Array

MAIN_FILE, PREFIX = "main_data.hdf5", "minari:"
GOAL_KEYS = {"observation", "achieved_goal", "desired_goal"}


def locate(dataset_id: str) -> Path:
    """The directory of a dataset id under MINARI_DATASETS_PATH, or Minari's default root."""
    root = os.environ.get("MINARI_DATASETS_PATH")
    directory = (Path(root) if root else Path.home() / ".minari" / "datasets") / dataset_id
    if not directory.is_dir():
        raise InputError(
            f"{PREFIX}{dataset_id}: no such dataset under {directory.parent}; expected a local Minari dataset "
            "(nothing is downloaded: run `minari download` first, or set MINARI_DATASETS_PATH)."
        )
    return directory


def main_file(directory: Path) -> Path:
    """The HDF5 file of a dataset directory, given either the dataset's folder or the `data` folder in it."""
    data = directory / "data" if (directory / "data").is_dir() else directory
    data_format = _metadata(data).get("data_format", "hdf5")
    if data_format != "hdf5":
        raise problem(directory, "data_format", f"is {data_format!r}", "'hdf5' (Minari's other formats are not read)")
    if not (data / MAIN_FILE).is_file():
        raise InputError(f"{directory}: the folder holds no '{MAIN_FILE}'; expected a local Minari dataset.")
    return data / MAIN_FILE


def _metadata(data: Path) -> dict[str, Any]:
    path = data / "metadata.json"
    if not path.is_file():
        return {}
    try:
        metadata = json.loads(path.read_text())
    except ValueError as error:
        raise InputError(f"{path}: not readable as JSON ({error}); expected Minari's metadata.") from error
    return metadata if isinstance(metadata, dict) else {}


def _space(metadata: dict[str, Any], name: str) -> dict[str, Any]:
    """A space as Minari writes it: JSON inside a string; empty where it is not stored."""
    stored = metadata.get(name)
    return json.loads(stored) if isinstance(stored, str) else {}


def _refuse_by_space(path: Path, metadata: dict[str, Any]) -> None:
    """Images may be stored as JPEG bytes and discrete actions in many dtypes: the space names them surely."""
    kind = _space(metadata, "action_space").get("type", "Box")
    if kind in ("Discrete", "MultiDiscrete", "MultiBinary"):
        raise problem(path, "actions", f"are {kind}: discrete actions are not supported", "a Box of continuous actions")
    space = _space(metadata, "observation_space")
    if len(space.get("shape", ())) > 1:
        found = f"have shape {space['shape']}: image observations are not supported"
        raise problem(path, "observations", found, "vectors")


def _parts(path: Path, observations: Any) -> list[tuple[str, int | None]]:
    """Which arrays make up the observation vector, in order, and how many columns of each (None: all)."""
    if isinstance(observations, h5py.Dataset):
        return [("", None)]
    keys = set(observations) if isinstance(observations, h5py.Group) else set()
    if keys == GOAL_KEYS and isinstance(observations["observation"], h5py.Dataset):
        width = observations["observation"].shape[-1]
        if isinstance(observations["achieved_goal"], h5py.Group) or width == 4:
            return [("observation", None)]
        if width in (27, 105):
            return [("achieved_goal", None), ("observation", 27)]
    found = f"has the parts {sorted(keys)}"
    raise problem(path, "observations", found, "one array, or the dictionary of PointMaze, AntMaze or Kitchen")


def _episode(path: Path, name: str, group: Any, parts: list[tuple[str, int | None]]) -> dict[str, Array]:
    """The arrays of one episode of T rows; observations have T + 1."""
    try:
        pieces = [group[f"observations/{part}".rstrip("/")][()][..., :width] for part, width in parts]
        actions, rewards = group["actions"][()], group["rewards"][()]
        flags = {key: group[key][()] for key in ("terminations", "truncations")}
    except (KeyError, TypeError) as error:
        missing = "observations, actions, rewards, terminations and truncations"
        raise problem(path, name, f"lacks an array ({error.args[0]})", missing) from error
    observations = np.concatenate(pieces, axis=-1) if len(pieces) > 1 else pieces[0]
    check_shapes(f"{path}: {name}", observations, actions)
    rewards = as_column(path, f"{name}/rewards", rewards)
    fields = {"observations": observations, "actions": actions, "rewards": rewards}
    fields |= {key: as_flags(path, f"{name}/{key}", values) for key, values in flags.items()}
    for key, values in fields.items():
        expected = len(rewards) + (key == "observations")
        if len(values) != expected:
            found = f"has {len(values)} rows"
            raise problem(path, f"{name}/{key}", found, f"{expected} (rewards has {len(rewards)})")
    return fields


def read_minari(path: Path, task: TaskLike | None = None) -> Log:
    """Read the `main_data.hdf5` of a local Minari dataset; see the module for its layout."""
    metadata = _metadata(path.parent)
    _refuse_by_space(path, metadata)
    episodes: list[dict[str, Array]] = []
    goals: set[bytes] = set()
    with h5py.File(path, "r") as file:
        numbered = [
            (int(match[1]), name)
            for name in file
            if (match := re.fullmatch(r"episode_(\d+)", name)) and isinstance(file[name], h5py.Group)
        ]
        if not numbered:
            raise problem(
                path, "episode_0", f"is missing among {sorted(file)}", "Minari's groups episode_0, episode_1, ..."
            )
        first = file[min(numbered)[1]].get("observations")
        parts = _parts(path, first)
        for _, name in sorted(numbered):
            episode = _episode(path, name, file[name], parts)
            if len(episode["rewards"]):
                for key in ("observations", "actions", "rewards"):
                    episode[key] = as_float32(episode[key])
                episodes.append(episode)
            goal = file[name].get("observations/desired_goal")
            if isinstance(goal, h5py.Dataset) and len(goal):
                goals.add(goal[0].tobytes())
    if not episodes:
        raise problem(path, "rewards", "has no rows in any episode", "at least one row")
    widths = {(episode["observations"].shape[1], episode["actions"].shape[1]) for episode in episodes}
    if len(widths) > 1:
        raise problem(
            path, "observations", f"and actions have the widths {sorted(widths)}", "one width in all episodes"
        )

    def joined(key: str, rows: slice = slice(None)) -> Array:
        return np.concatenate([episode[key][rows] for episode in episodes])

    truncations = [episode["truncations"] for episode in episodes]
    for truncated in truncations:
        truncated[-1] = True  # an episode that stops without a flag was cut as well
    notes = []
    if len(parts) > 1 or parts[0][0]:
        described = " + ".join(part + (f"[:{width}]" if width else "") for part, width in parts)
        notes.append(f"The dictionary observations were made one vector: {described}.")
    if len(goals) > 1:
        notes.append(f"The desired goal takes {len(goals)} values and is not part of the observation.")
    action_space = _space(metadata, "action_space")
    bounds = [np.asarray(action_space.get(side, np.nan), dtype=np.float32) for side in ("low", "high")]
    low, high = (bound if np.isfinite(bound).all() else None for bound in bounds)
    log = Log(
        source=str(path),
        observations=joined("observations", slice(None, -1)),
        actions=joined("actions"),
        rewards=joined("rewards"),
        terminals=joined("terminations"),
        cuts=joined("truncations"),
        next_observations=joined("observations", slice(1, None)),
        action_low=low,
        action_high=high,
        notes=notes,
    )
    if task is not None:
        check_width(path, "observations", log.observations.shape[1], task.observation_dim, task)
        check_width(path, "actions", log.actions.shape[1], task.action_dim, task)
    return log
