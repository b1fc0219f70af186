"""How much of the space the data cover: effective dimensions, and how far a new trajectory lies from the others."""

from typing import Any

import numpy as np

from c4rl.core.array import Array
from c4rl.data.dataset import Dataset
from c4rl.data.info import observation_statistics

SAMPLE = 2000  # rows whose neighbours are searched among as many others


def participation_ratio(eigenvalues: Array) -> float:
    """(sum l)^2 / sum l^2: m for m equal eigenvalues, 1 for a single one."""
    total = float(np.square(eigenvalues).sum())
    return float(eigenvalues.sum() ** 2 / total) if total > 0 else 0.0


def directions_for(eigenvalues: Array, share: float) -> int:
    """How many of the largest eigenvalues hold this share of their sum."""
    ordered = np.sort(eigenvalues)[::-1].cumsum()
    return int(np.searchsorted(ordered, share * ordered[-1] * (1 - 1e-9)) + 1) if ordered[-1] > 0 else 0


def spectrum(rows: Array) -> Array:
    """Eigenvalues of the rows' covariance, largest first; 0 for a single row."""
    if len(rows) < 2:
        return np.zeros(rows.shape[1])
    return np.clip(np.linalg.eigvalsh(np.cov(rows.T.astype(np.float64)).reshape(rows.shape[1], -1))[::-1], 0, None)


def _scale_ratio(observations: Array) -> float:
    """The largest standard deviation against the smallest, of columns that vary."""
    varying = observations[:, observations.min(0) < observations.max(0)].std(axis=0, dtype=np.float64)
    return float(varying.max() / varying.min()) if len(varying) else 1.0


def describe_coverage(dataset: Dataset) -> dict[str, Any]:
    """Numbers on normalised observations, and on actions scaled to [-1, 1].

    novelty: how far a state lies from the nearest one of other trajectories, against the nearest of its own trajectory
    that is not a neighbour in time; about 1 where trajectories overlap. neighbour_action_rmse: how much the actions
    of those nearest states of other trajectories differ, which no clone without memory can undercut by much.
    """
    mean, std = observation_statistics(dataset.observations)
    states = (dataset.observations - mean) / std
    low, high = dataset.action_low, dataset.action_high
    actions = (dataset.actions - low) / (high - low) * 2 - 1
    state_values, action_values = spectrum(states), spectrum(actions)
    out: dict[str, Any] = {
        "observation_dim": dataset.observation_dim,
        "action_dim": dataset.action_dim,
        "state_effective_dimension": participation_ratio(state_values),
        "state_directions_99": directions_for(state_values, 0.99),
        "action_effective_dimension": participation_ratio(action_values),
        "action_spread": actions.std(axis=0, dtype=np.float64).tolist(),
        "state_spectrum": (state_values / max(state_values.sum(), 1e-12)).tolist(),
        "scale_ratio": _scale_ratio(dataset.observations),
        "novelty": None,
        "neighbour_action_rmse": None,
    }
    rng = np.random.default_rng(0)
    chosen = np.sort(rng.choice(len(dataset), min(SAMPLE, len(dataset)), replace=False))
    states, actions, ids = states[chosen], actions[chosen], dataset.trajectory_ids[chosen]
    squares = np.square(states).sum(1)
    distance = np.sqrt(np.maximum(squares[:, None] + squares - 2 * states @ states.T, 0))
    same = ids[:, None] == ids
    if same.all() or len(chosen) < 3:
        return out
    near_in_time = np.abs(chosen[:, None] - chosen) < 10
    elsewhere = np.where(same, np.inf, distance)
    at_home = np.where(same & ~near_in_time, distance, np.inf).min(1)
    nearest = elsewhere.argmin(1)
    found = np.isfinite(at_home)
    if found.any():
        out["novelty"] = float(np.median(elsewhere.min(1)[found]) / max(np.median(at_home[found]), 1e-12))
    out["neighbour_action_rmse"] = float(np.sqrt(np.mean(np.square(actions - actions[nearest])) / 2))
    return out
