"""Packages that only some jobs need, and how to install them."""

import importlib.metadata
from importlib.util import find_spec

# module -> the extra of this package that brings it
EXTRAS = {
    "gymnasium": "simulators",
    "mujoco": "simulators",
    "matplotlib": "figures",
    "tensorboard": "tensorboard",
    "minari": "minari",
    "onnx": "onnx",
    "d3rlpy": "d3rlpy",
    "ray": "ray",
    "optuna": "search",
    "torchrl": "torchrl",
    "gymnasium_robotics": "robotics",
}


def installed(module: str) -> bool:
    return find_spec(module) is not None


def version_of(module: str) -> str:
    """Of an installed module. One that was only copied into place has none that could be read: a run is worth more."""
    try:
        return importlib.metadata.version(module)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def how_to_install(module: str | None) -> str | None:
    """A sentence for a missing module; None if no extra provides it."""
    extra = EXTRAS.get((module or "").partition(".")[0])
    return None if extra is None else f"needs the package '{module}': pip install 'c4rl[{extra}]'"
