"""D4RL's door-human-v1 rows from the 25 demonstrations of hand_dapg: actions clipped, replayed from the first states.

    python benchmarks/door_human.py DEMONSTRATIONS.npz door-human-v1.npz

DEMONSTRATIONS.npz has actions_raw, traj_id, and init_qpos, init_qvel, init_door_body_pos with a row per demonstration.
"""

import sys
from pathlib import Path

import numpy as np

from c4rl.core.version import __version__
from c4rl.data.writing import write_npz
from c4rl.environments.adroit import ADROIT
from c4rl.environments.tasks import get_task, simulator

NAME = "door-human-v1"


def main(source: Path, output: Path) -> None:
    with np.load(source, allow_pickle=False) as file:
        data = dict(file)
    task = get_task(NAME)
    rows: dict[str, list[np.ndarray]] = {
        name: [] for name in ("observations", "actions", "rewards", "next_observations")
    }
    ends = np.append(np.diff(data["traj_id"]) != 0, True)
    starts = np.concatenate(([0], np.flatnonzero(ends)[:-1] + 1))
    environment = ADROIT["door"](len(ends))
    for demonstration, start in enumerate(starts):
        state = (data[f"init_{name}"][demonstration] for name in ("qpos", "qvel", "door_body_pos"))
        observation = environment.set_state(*state)
        for action in np.clip(data["actions_raw"][start : start + np.argmax(ends[start:]) + 1], -1, 1):
            following, reward, *_ = environment.step(action)
            for name, value in zip(rows, (observation, action, reward, following), strict=True):
                rows[name].append(np.float32(value))
            observation = following
    arrays = {name: np.stack(values) for name, values in rows.items()}
    next_actions = np.where(ends[:, None], 0, np.roll(arrays["actions"], -1, axis=0))
    arrays |= {
        "terminals": np.zeros(len(ends), bool),
        "timeouts": ends,
        "trajectory_ids": np.concatenate(([0], np.cumsum(ends[:-1]))).astype(np.int32),
        "next_actions": next_actions.astype(np.float32),
        "next_action_valid": ~ends,
        "action_low": np.full(task.action_dim or 0, -1, np.float32),
        "action_high": np.full(task.action_dim or 0, 1, np.float32),
    }
    facts = {"task": NAME, "c4rl": __version__, "environment": simulator(task)}
    words = "25 human demonstrations (hand_dapg), clipped and replayed from their first states"
    write_npz(output, arrays, {"name": NAME, "behaviour": words} | facts)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
