"""What a dataset tells about itself: a JSON object inside its file. Names of sets recorded by c4rl begin with c4rl/."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from c4rl.data.checks import problem
from c4rl.data.dataset import Array

C4RL = "c4rl"  # its name in HDF5 files and in Minari's metadata
LARGEST = 10**6  # bytes


def as_bytes(metadata: Mapping[str, Any]) -> Array:
    return np.frombuffer(json.dumps(dict(metadata), sort_keys=True).encode(), np.uint8)


def from_bytes(source: object, field: str, stored: Array) -> dict[str, Any]:
    """Read `as_bytes` back; anything else is refused."""
    metadata = None
    if stored.dtype == np.uint8 and stored.ndim == 1 and len(stored) <= LARGEST:
        try:
            metadata = json.loads(stored.tobytes().decode())
        except (ValueError, RecursionError):
            metadata = None
    if not isinstance(metadata, dict):
        raise problem(source, field, f"has shape {stored.shape} and dtype {stored.dtype}", "a JSON object in bytes")
    return metadata
