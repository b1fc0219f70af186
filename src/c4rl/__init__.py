"""Offline reinforcement learning for small data, with Clustered Cross-Covariance Control (C4)."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from c4rl.core.errors import InputError
from c4rl.core.version import __version__

if TYPE_CHECKING:
    from c4rl.data import Dataset, load_dataset
    from c4rl.jobs.config import TrainConfig, empty_config
    from c4rl.plugins.c4.anywhere import C4Anywhere, C4AnywhereConfig
    from c4rl.results.policies import load_policy
    from c4rl.training.loop import resume, train

__all__ = [
    "C4Anywhere",
    "C4AnywhereConfig",
    "Dataset",
    "InputError",
    "TrainConfig",
    "__version__",
    "empty_config",
    "load_dataset",
    "load_policy",
    "resume",
    "train",
]

_ROOMS = {
    "C4Anywhere": "c4rl.plugins.c4.anywhere",
    "C4AnywhereConfig": "c4rl.plugins.c4.anywhere",
    "Dataset": "c4rl.data",
    "load_dataset": "c4rl.data",
    "TrainConfig": "c4rl.jobs.config",
    "empty_config": "c4rl.jobs.config",
    "train": "c4rl.training.loop",
    "resume": "c4rl.training.loop",
    "load_policy": "c4rl.results.policies",
}


def __getattr__(name: str) -> Any:
    """Rooms open on first use: evaluation workers must not wait for PyTorch."""
    if name in _ROOMS:
        return getattr(import_module(_ROOMS[name]), name)
    raise AttributeError(f"module 'c4rl' has no attribute '{name}'")


def __dir__() -> list[str]:
    """For completion, also before the rooms are open."""
    return sorted({*globals(), *__all__})
