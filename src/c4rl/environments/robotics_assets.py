"""Where gymnasium-robotics keeps its models. Its code is not imported: Adroit and Kitchen are classes of our own."""

from importlib.util import find_spec
from pathlib import Path


def model_file(name: str) -> Path:
    """A model of gymnasium-robotics, by its path below the folder of all models."""
    spec = find_spec("gymnasium_robotics")
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError("No module named 'gymnasium_robotics'", name="gymnasium_robotics")
    return Path(spec.submodule_search_locations[0]) / "envs" / "assets" / name
