"""What only files written by c4rl have: without it, a file in another library's format would lose it."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from c4rl.core.array import Array
from c4rl.data.checks import as_flags, problem
from c4rl.data.hdf5 import Hdf5
from c4rl.data.metadata import from_bytes


def read_own_fields(file: Hdf5, places: Mapping[str, str], **like: Array) -> dict[str, Any]:
    """Fields of a `Log`, where the file has them. places: of each field; like: an array of a field's shape."""
    own: dict[str, Any] = {}
    for name, place in places.items():
        if (places["next_action_valid"] if name == "next_actions" else place) not in file:  # the two go together
            continue
        stored = file.array(place, "c4rl's own")
        if name in like and stored.shape != like[name].shape:
            raise problem(file.path, place, f"has shape {stored.shape}", f"{like[name].shape}")
        own[name] = stored.read(np.float32 if name in like else None)
    if "next_action_valid" in own:
        own["next_action_valid"] = as_flags(file.path, places["next_action_valid"], own["next_action_valid"])
    if "metadata" in own:
        own["metadata"] = from_bytes(file.path, places["metadata"], own["metadata"])
    return own
