"""Offline reinforcement learning for small data, with Clustered Cross-Covariance Control (C4)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from c4rl.errors import InputError

if TYPE_CHECKING:
    from c4rl.config import TrainConfig
    from c4rl.data import Dataset, load_dataset
    from c4rl.training.loop import resume, train
    from c4rl.training.scoring import load_policy

__version__ = "0.1.0"
__all__ = ["Dataset", "InputError", "TrainConfig", "load_dataset", "load_policy", "resume", "train"]

_ROOMS = {
    "Dataset": "c4rl.data",
    "load_dataset": "c4rl.data",
    "TrainConfig": "c4rl.config",
    "train": "c4rl.training.loop",
    "resume": "c4rl.training.loop",
    "load_policy": "c4rl.training.scoring",
}


def __getattr__(name: str) -> Any:
    """Rooms open on first use: evaluation workers must not wait for PyTorch."""
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module 'c4rl' has no attribute '{name}'")
