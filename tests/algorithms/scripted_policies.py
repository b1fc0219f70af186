"""Logged experience of two scripted policies in one environment: who acted is known."""

import numpy as np

from c4rl.data.dataset import Dataset


def good_action(states: np.ndarray) -> np.ndarray:
    return np.tanh(states @ np.array([[1.5, 0.0], [0.0, 1.5], [1.0, -1.0]]))


def scripted(seed: int, trajectories: int = 24, short: int = 0) -> tuple[Dataset, np.ndarray]:
    """Two policies in one linear system, a = +f(s) and a = -f(s) with noise: mean states and actions tell nothing.

    Every third trajectory is by the first, which the reward likes. The last `short` ones have two steps only.
    """
    rng = np.random.default_rng(seed)
    good = np.arange(trajectories) % 3 == 0
    parts: dict[str, list[np.ndarray]] = {"s": [], "a": [], "id": [], "next": []}
    for trajectory, sign in enumerate(np.where(good, 1, -1)):
        state = rng.normal(size=3)
        for _ in range(2 if trajectory >= trajectories - short else int(rng.integers(20, 60))):
            action = np.clip(sign * good_action(state) + 0.2 * rng.normal(size=2), -1, 1)
            following = 0.7 * state + 0.3 * np.append(action, -action[0]) + 0.5 * rng.normal(size=3)
            for name, value in zip(parts, (state, action, np.array(trajectory), following), strict=True):
                parts[name].append(value)
            state = following
    states, actions, ids, following = (np.stack(parts[name]) for name in parts)
    ends = np.append(np.diff(ids) > 0, True)
    data = Dataset(
        observations=states.astype(np.float32),
        actions=actions.astype(np.float32),
        rewards=np.exp(-np.square(actions - good_action(states)).sum(1)).astype(np.float32),
        next_observations=following.astype(np.float32),
        terminals=np.zeros(len(ids), bool),
        timeouts=ends,
        trajectory_ids=ids.astype(np.int32),
        next_actions=np.where(ends[:, None], 0, np.roll(actions, -1, 0)).astype(np.float32),
        next_action_valid=~ends,
        action_low=-np.ones(2, np.float32),
        action_high=np.ones(2, np.float32),
    )
    return data, good
