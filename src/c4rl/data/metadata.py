"""What a dataset tells about itself: a JSON object inside its file. Names of sets recorded by c4rl begin with c4rl/."""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from c4rl.core.array import Array
from c4rl.data.checks import problem

C4RL = "c4rl"  # its name in HDF5 files and in Minari's metadata
LARGEST = 10**6  # bytes


def as_bytes(metadata: Mapping[str, Any]) -> Array:
    return np.frombuffer(json.dumps(dict(metadata), sort_keys=True).encode(), np.uint8)


def from_bytes(source: object, field: str, stored: Array) -> dict[str, Any]:
    """Read `as_bytes` back; anything else is refused."""
    metadata = None
    if stored.dtype == np.uint8 and stored.ndim == 1 and len(stored) <= LARGEST:
        with suppress(ValueError, RecursionError):
            metadata = json.loads(stored.tobytes().decode())
    return checked(source, field, metadata)


def checked(source: object, field: str, metadata: Any) -> dict[str, Any]:
    """Metadata from a file, which may hold anything: refused unless what we use of it is text."""
    if not isinstance(metadata, dict):
        raise problem(source, field, "is no JSON object", "the metadata that c4rl writes")
    for name in ("name", "task"):
        if not isinstance(metadata.get(name, ""), str):
            raise problem(source, field, f"has a '{name}' that is no text", "the metadata that c4rl writes")
    subset = metadata.get("subset", [])
    if not isinstance(subset, list) or not all(isinstance(sentence, str) for sentence in subset):
        raise problem(source, field, "has a 'subset' that is no list of sentences", "the metadata that c4rl writes")
    return metadata
