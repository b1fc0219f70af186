"""Datasets to files: npz, D4RL's HDF5, Minari, d3rlpy's dumps. What `load_dataset` reads from them is bit-equal."""

import json
import os
import re
import shutil
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from c4rl.core.array import Array
from c4rl.core.errors import InputError
from c4rl.core.extras import installed
from c4rl.core.files import replacing
from c4rl.data.assembly import BOUNDS, breaks, ends_of
from c4rl.data.checks import problem
from c4rl.data.d3rlpy import write_columns
from c4rl.data.dataset import Dataset
from c4rl.data.hdf5 import OWN_IN_D3RLPY, OWN_IN_D4RL
from c4rl.data.metadata import C4RL, as_bytes
from c4rl.data.minari import MAIN_FILE, PREFIX, root_folder
from c4rl.data.subsets import trajectory_slices
from c4rl.environments.tasks import TASKS, get_task

ROWS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
SUFFIXES = {".npz": "npz", ".hdf5": "hdf5", ".h5": "hdf5"}
MINARI_VERSION = "0.5.0"  # of the layout


def write_dataset(dataset: Dataset, output: str, format: str = "auto") -> Path:
    """Write a new file (npz, hdf5, d3rlpy) or a new folder (minari; its name, or minari:ID). auto: by the name."""
    if format == "auto":
        format = "minari" if output.startswith(PREFIX) else SUFFIXES.get(Path(output).suffix, "minari")
    path, dataset_id = Path(output), None
    if output.startswith(PREFIX):
        dataset_id = output.removeprefix(PREFIX)
        path = root_folder() / dataset_id
    if format == "minari":
        dataset_id = dataset_id or _minari_id(dataset, path)
        if re.fullmatch(r"([\w-][\w.-]*/)*[\w-][\w.-]*-v\d+", dataset_id) is None:
            raise InputError(
                f"{output}: found the Minari id '{dataset_id}', expected names joined by slashes, then -v0"
            )
    if not str(path).isprintable():
        raise InputError(f"{path}: expected a printable name")
    if os.path.lexists(path):
        raise InputError(f"{path} exists already and is not overwritten; choose another name")
    if format == "minari":
        _check_joined(dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    if format == "npz":
        names = (*ROWS, "trajectory_ids", "next_actions", "next_action_valid", *BOUNDS)
        write_npz(path, {name: getattr(dataset, name) for name in names}, dataset.metadata)
    elif format == "hdf5":
        _write_d4rl(path, dataset)
    elif format == "d3rlpy":
        _write_d3rlpy(path, dataset)
    else:
        assert dataset_id is not None
        _write_minari(path, dataset, dataset_id)
    return path


def write_npz(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, Any]) -> None:
    """np.savez with a fixed date inside, so that the bytes depend on the content alone; atomic."""
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED) as archive:
        for name, array in (*arrays.items(), *([("metadata", as_bytes(metadata))] if metadata else [])):
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(entry, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, np.asarray(array, order="C"), allow_pickle=False)


def _own_next_actions(dataset: Dataset) -> dict[str, Array]:
    """Next actions that a reader cannot tell from the following rows, as those after a row that was left out."""
    valid = ~ends_of(dataset.trajectory_ids)
    following = np.where(valid[:, None], np.roll(dataset.actions, -1, axis=0), 0)
    if np.array_equal(valid, dataset.next_action_valid) and np.array_equal(following, dataset.next_actions):
        return {}
    return {"next_actions": dataset.next_actions, "next_action_valid": dataset.next_action_valid}


def _metadata_bytes(dataset: Dataset) -> dict[str, Array]:
    return {"metadata": as_bytes(dataset.metadata)} if dataset.metadata else {}


def _write_d4rl(path: Path, dataset: Dataset) -> None:
    own = _own_next_actions(dataset) | {name: getattr(dataset, name) for name in BOUNDS} | _metadata_bytes(dataset)
    arrays = {name: getattr(dataset, name) for name in ROWS}
    arrays |= {OWN_IN_D4RL[name]: values for name, values in own.items()}
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        for name, values in arrays.items():
            file.create_dataset(name, data=values, compression="gzip", shuffle=True)


def _write_d3rlpy(path: Path, dataset: Dataset) -> None:
    episodes: list[dict[str, Any]] = []
    for start, stop in zip(*trajectory_slices(dataset), strict=True):
        rows = slice(start, stop)
        episode = {"observations": dataset.observations[rows], "actions": dataset.actions[rows]}
        episodes.append(episode | {"rewards": dataset.rewards[rows, None], "terminated": dataset.terminals[stop - 1]})
    own = {name: getattr(dataset, name) for name in ("next_observations", *BOUNDS)}
    own |= _own_next_actions(dataset) | _metadata_bytes(dataset)
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        write_columns(file, episodes)
        for name, values in own.items():
            file.create_dataset(OWN_IN_D3RLPY[name], data=values, compression="gzip", shuffle=True)


def _minari_id(dataset: Dataset, folder: Path) -> str:
    if folder.resolve().is_relative_to(root_folder().resolve()):
        return str(folder.resolve().relative_to(root_folder().resolve()))
    name = re.sub(r"[^A-Za-z0-9_/-]+", "-", str(dataset.metadata.get("name") or f"converted/{folder.name}"))
    return name if re.search(r"-v\d+$", name) else f"{name}-v0"


def _check_joined(dataset: Dataset) -> None:
    """A Minari episode of T rows has T + 1 observations: each row must begin where the last one ended."""
    apart = breaks(dataset.observations, dataset.next_observations) & ~ends_of(dataset.trajectory_ids)
    if apart.any():
        found = f"differs from the following row's observation at row {int(np.argmax(apart))} inside a trajectory"
        raise problem(dataset.source, "next_observations", found, "joined rows for Minari; npz and hdf5 keep them")


def _write_minari(path: Path, dataset: Dataset, dataset_id: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    shutil.rmtree(temporary, ignore_errors=True)
    data = temporary / "data"
    data.mkdir(parents=True)
    try:
        own, (starts, stops) = _own_next_actions(dataset), trajectory_slices(dataset)
        with h5py.File(data / MAIN_FILE, "w", track_order=True) as file:
            for k, (start, stop) in enumerate(zip(starts, stops, strict=True)):
                group, rows = file.create_group(f"episode_{k}"), slice(start, stop)
                group.attrs["id"], group.attrs["total_steps"] = k, int(stop - start)
                observations = np.concatenate((dataset.observations[rows], dataset.next_observations[stop - 1 : stop]))
                group["observations"] = observations
                for name, source in (("terminations", "terminals"), ("truncations", "timeouts")):
                    group[name] = getattr(dataset, source)[rows]
                for name in ("actions", "rewards"):
                    group[name] = getattr(dataset, name)[rows]
                for name, values in own.items():
                    group[f"infos/{name}"] = values[rows]
        (data / "metadata.json").write_text(json.dumps(_minari_metadata(dataset, dataset_id, data, len(stops))))
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _minari_metadata(dataset: Dataset, dataset_id: str, data: Path, episodes: int) -> dict[str, Any]:
    unbounded = np.full(dataset.observation_dim, np.inf)
    metadata = {
        "dataset_id": dataset_id,
        "total_episodes": episodes,
        "total_steps": len(dataset),
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "minari_version": MINARI_VERSION,
        "dataset_size": round((data / MAIN_FILE).stat().st_size / 1e6, 1),
        "observation_space": _box(-unbounded, unbounded),
        "action_space": _box(dataset.action_low, dataset.action_high),
        C4RL: dict(dataset.metadata),
    }
    task = dataset.metadata.get("task")
    if task in TASKS:
        known = get_task(task)
        metadata |= {"ref_min_score": known.reference_min, "ref_max_score": known.reference_max}
        if installed("gymnasium"):
            metadata["env_spec"] = _environment(task)
    return metadata


def _box(low: Array, high: Array) -> str:
    bounds = {"low": low.tolist(), "high": high.tolist()}
    return json.dumps({"type": "Box", "dtype": "float32", "shape": list(low.shape), **bounds})


def _environment(task: str) -> str:
    """How Minari's `recover_environment` makes the simulator of this task."""
    from gymnasium.envs.registration import EnvSpec

    return EnvSpec(
        id=f"c4rl/{task}",
        entry_point="c4rl.environments.making:environment_of",
        kwargs={"task": task},
        disable_env_checker=True,
        order_enforce=False,
    ).to_json()
