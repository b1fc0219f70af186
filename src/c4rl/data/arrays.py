"""Plain npz files: one array per field, nothing pickled."""

import math
import zipfile
from pathlib import Path

import numpy as np
from numpy.lib import format

from c4rl.core.array import Array
from c4rl.core.errors import InputError
from c4rl.data.assembly import BOUNDS, Log, breaks, ends_of
from c4rl.data.checks import (
    Allowance,
    as_column,
    as_flags,
    as_float32,
    as_ids,
    check_same_length,
    check_shapes,
    problem,
    reason,
    some,
)
from c4rl.data.metadata import from_bytes

REQUIRED = ("observations", "actions", "rewards")
OPTIONAL = ("next_observations", "next_actions", "next_action_valid", "terminals", "timeouts")
TRAJECTORY_IDS = ("trajectory_ids", "traj_id")
METADATA = "metadata"
KNOWN = (*REQUIRED, *OPTIONAL, *TRAJECTORY_IDS, *BOUNDS, METADATA)


def _read(path: Path) -> tuple[dict[str, Array], list[str]]:
    """The known arrays of the file, and the names of others, which are not even decompressed."""
    fields, allowance = {}, Allowance(path)
    with zipfile.ZipFile(path) as archive:
        stored: dict[str, list[zipfile.ZipInfo]] = {}
        for member in archive.infolist():
            stored.setdefault(member.filename.removesuffix(".npy"), []).append(member)
        for name in KNOWN:
            members = stored.get(name, [])
            if len(members) == 1:
                fields[name] = _read_member(path, name, archive, members[0], allowance)
            elif members:
                raise problem(path, name, f"is in the archive {len(members)} times", "each array once")
            elif name in REQUIRED:
                found = f"is missing among {some(sorted(stored))}"
                raise problem(path, name, found, f"the arrays {', '.join(REQUIRED)}")
    return fields, sorted(stored.keys() - set(KNOWN))


def _read_member(
    path: Path, name: str, archive: zipfile.ZipFile, member: zipfile.ZipInfo, allowance: Allowance
) -> Array:
    """An array, after its header was checked against its size in the archive; nothing is unpickled."""
    try:
        with archive.open(member) as file:
            version = format.read_magic(file)
            read_header = format.read_array_header_1_0 if version == (1, 0) else format.read_array_header_2_0
            shape, _, dtype = read_header(file)
            header = file.tell()
        if dtype.hasobject:
            found = "holds Python objects and would have to be unpickled, which is refused"
            raise problem(path, name, found, "an array of plain numbers")
        allowance.take(name, dtype, shape)
        if member.file_size != header + math.prod(shape) * dtype.itemsize:
            found = f"has shape {shape} and dtype {dtype}, but {member.file_size - header} bytes"
            raise problem(path, name, found, "as many bytes as its numbers take")
        with archive.open(member) as file:
            return format.read_array(file, allow_pickle=False)
    except InputError:
        raise
    except Exception as error:  # zipfile and NumPy raise some twenty kinds for damaged bytes
        found = f"is not readable as an npz file's array ({reason(error)})"
        raise problem(path, name, found, "a complete, undamaged array of plain numbers") from error


def _ends_by_id(path: Path, name: str, ids: Array) -> Array:
    """[N] bool: the last row of each trajectory; the rows of a trajectory must be one block."""
    ends = ends_of(ids)
    labels, blocks = np.unique(ids[ends], return_counts=True)
    if (blocks > 1).any():
        found = f"has the rows of trajectory {labels[np.argmax(blocks > 1)]} in several places"
        raise problem(path, name, found, "each trajectory's rows in one block")
    return ends


def read_arrays(path: Path) -> Log:
    """Read an npz file with the keys observations, actions and rewards.

    Optional: next_observations (else the following row's), terminals, timeouts, trajectory_ids (or traj_id),
    next_actions with next_action_valid, action_low, action_high. Where neither time-outs nor trajectory ids are stored,
    a trajectory also ends wherever the following row does not begin at the stored next observation.
    """
    fields, others = _read(path)
    raw_observations, raw_actions = fields.pop("observations"), fields.pop("actions")
    check_shapes(path, raw_observations, raw_actions)
    observations, actions = as_float32(raw_observations), as_float32(raw_actions)
    del raw_observations, raw_actions  # may be the float64 originals
    count = len(observations)
    successors: dict[str, Array] = {}
    for name, like in (("next_observations", observations), ("next_actions", actions)):
        if name in fields:
            values = fields.pop(name)
            if values.shape != like.shape:
                raise problem(path, name, f"has shape {values.shape}", f"{like.shape}")
            successors[name] = as_float32(values)
    flags = {
        name: as_flags(path, name, fields[name])
        for name in ("terminals", "timeouts", "next_action_valid")
        if name in fields
    }
    check_same_length(path, observations, **flags)

    notes = [f"Arrays with other names are not read: {some(others)}."] if others else []
    cuts = flags.get("timeouts", np.zeros(count, dtype=bool))
    id_name = next((name for name in TRAJECTORY_IDS if name in fields), None)
    if id_name is not None:
        ids = as_ids(path, id_name, fields[id_name])
        check_same_length(path, observations, **{id_name: ids})
        cuts = cuts | _ends_by_id(path, id_name, ids)
    elif "timeouts" not in flags and "next_observations" in successors:
        cuts = breaks(observations, successors["next_observations"])
        notes.append(
            f"The file marks no cuts: trajectories were told apart at {int(cuts.sum())} rows whose next observation "
            "is not the following row's observation."
        )
    elif "timeouts" not in flags:
        ended = "only terminals end a trajectory" if "terminals" in flags else "all rows are taken as one trajectory"
        notes.append(f"The file marks neither time-outs nor trajectories: {ended}.")
    if "terminals" not in flags:
        notes.append("The file has no 'terminals': no row is taken to end in a terminal state.")
    return Log(
        source=str(path),
        observations=observations,
        actions=actions,
        rewards=as_float32(as_column(path, "rewards", fields["rewards"])),
        terminals=flags.get("terminals", np.zeros(count, dtype=bool)),
        cuts=cuts,
        next_observations=successors.get("next_observations"),
        next_actions=successors.get("next_actions"),
        next_action_valid=flags.get("next_action_valid"),
        action_low=fields.get("action_low"),
        action_high=fields.get("action_high"),
        notes=notes,
        metadata=from_bytes(path, METADATA, fields[METADATA]) if METADATA in fields else {},
    )
