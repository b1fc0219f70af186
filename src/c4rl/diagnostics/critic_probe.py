"""What a critic's gradients look like on this dataset after a short training: spectrum and clusters."""

import time
from pathlib import Path
from typing import Any

import torch

from c4rl.algorithms.td3_bc import TD3BCConfig
from c4rl.data.dataset import Dataset
from c4rl.data.info import observation_statistics
from c4rl.data.packing import Scaling, pack_datasets
from c4rl.diagnostics.cluster_structure import describe_clusters, find_clusters, row_facts
from c4rl.diagnostics.gradients import gradient_pairs, sample_rows
from c4rl.diagnostics.spectra import describe_spectrum
from c4rl.jobs.config import empty_config
from c4rl.training.launch import Launch

CPU = torch.device("cpu")
SAMPLE = 2048  # rows


def probe_critic(dataset: Dataset, updates: int = 2000, seconds: float = 30.0, width: int = 128) -> dict[str, Any]:
    """Train a small TD3+BC, without C4, for `updates` or `seconds`; exact gradients of its first critic."""
    options = TD3BCConfig(hidden_layers=2, hidden_width=width, actor_lr=3e-4)
    config = empty_config(
        "td3_bc", ("none",), options=options, dataset=Path("probe"), task="none", output=Path("probe"), updates=updates
    )
    scaling = Scaling(*observation_statistics(dataset.observations), dataset.action_low, dataset.action_high)
    launch = Launch(config, [0], pack_datasets([(dataset, scaling)], CPU), CPU)
    deadline, update = time.monotonic() + seconds, 0
    while update < updates and time.monotonic() < deadline:
        update += 1
        launch.update(update)
    sample = sample_rows(launch, SAMPLE)
    g_next, g = (pair[0, 0] for pair in gradient_pairs(launch, sample.batch))
    return {
        "updates": update,
        "spectrum": describe_spectrum(g_next, g),
        "clusters": describe_clusters(find_clusters(g_next, g), row_facts(dataset, sample.rows)),
    }
