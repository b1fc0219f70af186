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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.array import Array
from c4rl.core.errors import InputError
from c4rl.data.assembly import Log
from c4rl.data.checks import (
    LARGEST,
    as_bound,
    as_column,
    as_flags,
    as_float32,
    check_shapes,
    problem,
    reason,
)
from c4rl.data.hdf5 import EPISODE, Hdf5
from c4rl.data.metadata import C4RL, checked

MAIN_FILE, PREFIX = "main_data.hdf5", "minari:"
ID = r"[\w-][\w.-]*(/[\w-][\w.-]*)*"
PER_ROW = ("actions", "rewards", "terminations", "truncations")
GOAL_KEYS = {"observation", "achieved_goal", "desired_goal"}


def root_folder() -> Path:
    """Where Minari keeps its datasets."""
    root = os.environ.get("MINARI_DATASETS_PATH")
    return Path(root) if root else Path.home() / ".minari" / "datasets"


def locate(dataset_id: str) -> Path:
    """The directory of a dataset id under MINARI_DATASETS_PATH, or Minari's default root."""
    if re.fullmatch(ID, dataset_id) is None:
        raise InputError(f"{PREFIX}{dataset_id}: no Minari dataset id; expected names joined by slashes.")
    directory = root_folder() / dataset_id
    if not directory.is_dir():
        raise InputError(
            f"{PREFIX}{dataset_id}: no such dataset under {directory.parent}; expected a local Minari dataset "
            "(nothing is downloaded: run `minari download` first, or set MINARI_DATASETS_PATH)."
        )
    return directory


def main_file(directory: Path) -> Path:
    """The HDF5 file of a dataset directory, given either the dataset's folder or the `data` folder in it."""
    data = directory / "data" if (directory / "data").is_dir() else directory
    data_format = _metadata(data, within=directory).get("data_format", "hdf5")
    if data_format != "hdf5":
        raise problem(directory, "data_format", f"is {data_format!r}", "'hdf5' (Minari's other formats are not read)")
    return _regular_file(directory, data / MAIN_FILE)


def _regular_file(directory: Path, file: Path) -> Path:
    """The file, if it is one and no link leads out of the directory that the user named."""
    if not os.path.lexists(file):
        raise InputError(f"{directory}: the folder holds no '{file.name}'; expected a local Minari dataset.")
    if not file.resolve().is_relative_to(directory.resolve()):
        raise InputError(f"{file}: a link out of {directory}, which is refused; expected a file in that folder.")
    if not file.is_file():
        raise InputError(f"{file}: not a regular file; expected a local Minari dataset.")
    return file


def _metadata(data: Path, within: Path) -> dict[str, Any]:
    path = data / "metadata.json"
    if not os.path.lexists(path):
        return {}
    try:
        metadata = json.loads(_regular_file(within, path).read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not readable as JSON ({reason(error)}); expected Minari's metadata.") from error
    if not isinstance(metadata, dict):
        raise InputError(f"{path}: found a {type(metadata).__name__}; expected the JSON object that Minari writes.")
    return metadata


def _space(path: Path, metadata: dict[str, Any], name: str) -> dict[str, Any]:
    """A space as Minari writes it: JSON inside a string; empty where it is not stored."""
    stored = metadata.get(name)
    try:
        space = {} if stored is None else json.loads(stored)
    except (TypeError, ValueError, RecursionError):
        space = None
    if not isinstance(space, dict):
        raise problem(path, name, f"is {stored!r}", "a space as Minari writes it, a JSON object inside a string")
    return space


def _bounds(path: Path, metadata: dict[str, Any]) -> list[Array | None]:
    """The action space's bounds, -1 and 1 for an action without; None where no action has one. Discrete actions may be
    stored in many dtypes and images as JPEG bytes: the spaces identify them, and they are refused."""
    action_space = _space(path, metadata, "action_space")
    kind = action_space.get("type", "Box")
    if kind in ("Discrete", "MultiDiscrete", "MultiBinary"):
        raise problem(path, "actions", f"are {kind}: discrete actions are not supported", "a Box of continuous actions")
    shape = _space(path, metadata, "observation_space").get("shape")
    if isinstance(shape, list) and len(shape) > 1:
        found = f"have shape {shape}: image observations are not supported"
        raise problem(path, "observations", found, "vectors")
    stored = [action_space.get(side) for side in ("low", "high")]
    bounds = [as_bound(path, "action_space", np.nan if value is None else value) for value in stored]
    usable = [np.abs(bound) <= LARGEST for bound in bounds]
    return [
        np.where(used, bound, default) if used.any() else None
        for used, bound, default in zip(usable, bounds, (-1, 1), strict=True)
    ]


def _observation_layout(file: Hdf5, name: str) -> list[tuple[str, int | None]]:
    """Which arrays make up the observation vector, in order, and how many columns of each (None: all)."""
    if not file.is_group(name):
        return [("", None)]
    keys, shape = file.names(name), file.shape(f"{name}/observation")
    if set(keys) == GOAL_KEYS and shape is not None:
        width = (shape or (0,))[-1]
        if file.is_group(f"{name}/achieved_goal") or width == 4:
            return [("/observation", None)]
        if width in (27, 105):
            return [("/achieved_goal", None), ("/observation", 27)]
    found = f"has the parts {keys}"
    raise problem(file.path, name, found, "one array, or the dictionary of PointMaze, AntMaze or Kitchen")


def _episode(file: Hdf5, name: str, layout: list[tuple[str, int | None]]) -> dict[str, Array]:
    """The arrays of one episode of T rows; observations have T + 1."""
    path, array = file.path, partial(file.array, expected=f"Minari's arrays observations, {', '.join(PER_ROW)}")
    pieces = [array(f"{name}/observations{part}").read()[..., :width] for part, width in layout]
    if len({piece.shape[:-1] for piece in pieces}) > 1:
        raise problem(path, f"{name}/observations", f"has parts of shape {[p.shape for p in pieces]}", "equal rows")
    fields = {key: array(f"{name}/{key}").read() for key in PER_ROW}
    fields["observations"] = np.concatenate(pieces, axis=-1) if len(pieces) > 1 else pieces[0]
    check_shapes(f"{path}: {name}", fields["observations"], fields["actions"])
    fields["rewards"] = as_column(path, f"{name}/rewards", fields["rewards"])
    for key in ("terminations", "truncations"):
        fields[key] = as_flags(path, f"{name}/{key}", fields[key])
    if f"{name}/infos/next_action_valid" in file:  # written by c4rl
        fields["next_actions"] = as_float32(array(f"{name}/infos/next_actions").read())
        valid = array(f"{name}/infos/next_action_valid").read()
        fields["next_action_valid"] = as_flags(path, f"{name}/infos/next_action_valid", valid)
        if fields["next_actions"].shape != fields["actions"].shape:
            raise problem(
                path, f"{name}/infos/next_actions", f"has shape {fields['next_actions'].shape}", "one per row"
            )
    count = len(fields["rewards"])
    for key, values in fields.items():
        expected = count + (key == "observations")
        if len(values) != expected:
            raise problem(path, f"{name}/{key}", f"has {len(values)} rows", f"{expected} (rewards has {count})")
    for key in ("observations", "actions", "rewards"):
        fields[key] = as_float32(fields[key])
    return fields


def read_minari(file: Hdf5) -> Log:
    """Read the `main_data.hdf5` of a local Minari dataset; the module's docstring describes the format."""
    path = file.path
    stored = _metadata(path.parent, within=path.parent)
    low, high = _bounds(path.parent / "metadata.json", stored)
    metadata = checked(path.parent / "metadata.json", C4RL, stored.get(C4RL, {}))
    episodes: list[dict[str, Array]] = []
    goals: set[bytes] = set()
    for name in file.episodes:
        if re.fullmatch(r"episode_[0-9]{1,18}", name) is None:
            raise problem(path, name, "has no number in its name", "Minari's groups episode_0, episode_1, ...")
    names = sorted(file.episodes, key=lambda name: int(name.removeprefix(EPISODE)))
    layout = _observation_layout(file, f"{names[0]}/observations")
    for name in names:
        episode = _episode(file, name, layout)
        if len(episode["rewards"]):
            episodes.append(episode)
        goal = f"{name}/observations/desired_goal"
        if file.shape(goal) is not None:
            goals.update(row.tobytes() for row in file.array(goal, "numbers").read()[:1])
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
    if layout[0][0]:
        described = " + ".join(part[1:] + (f"[:{width}]" if width else "") for part, width in layout)
        notes.append(f"The dictionary observations were joined into one vector: {described}.")
    if len(goals) > 1:
        notes.append(f"The desired goal takes {len(goals)} values and is not part of the observation.")
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
        metadata=metadata,
    )
    if all("next_actions" in episode for episode in episodes):
        log.next_actions, log.next_action_valid = joined("next_actions"), joined("next_action_valid")
    return log
