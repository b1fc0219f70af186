"""A sound made-up dataset, and ways to break it: each with the finding that must name it."""

from collections.abc import Callable

import numpy as np

Arrays = dict[str, np.ndarray]
LENGTHS = (99, 250, 140, 250, 60, 180, 250, 120)  # 250 is the time limit; the others end by a terminal


def sound_arrays(seed: int = 0) -> Arrays:
    """A swinging body: smooth observations, noisy feedback actions, some falls, some time limits."""
    rng = np.random.default_rng(seed)
    pieces: dict[str, list[np.ndarray]] = {}
    for number, length in enumerate(LENGTHS):
        time = np.arange(length + 1)[:, None] * 0.1
        phase, speed = rng.uniform(0, 6, 5), rng.uniform(0.5, 1.5, 5)
        states = np.sin(speed * time + phase) + 0.02 * rng.normal(size=(length + 1, 5))
        actions = np.tanh(states[:-1, :3] + 0.2 * rng.normal(size=(length, 3))) * 0.9
        ids, terminals = np.full(length, number), np.zeros(length, bool)
        terminals[-1] = length < max(LENGTHS)
        piece = {
            "observations": states[:-1],
            "next_observations": states[1:],
            "actions": actions,
            "rewards": states[1:, 0] - 0.1 * np.square(actions).sum(1),
            "terminals": terminals,
            "trajectory_ids": ids,
        }
        for name, values in piece.items():
            pieces.setdefault(name, []).append(values)
    joined = {name: np.concatenate(parts) for name, parts in pieces.items()}
    return {name: values.astype(np.float32) if values.dtype == float else values for name, values in joined.items()}


def _ends(a: Arrays) -> np.ndarray:
    return np.flatnonzero(np.append(np.diff(a["trajectory_ids"]) != 0, True))


def _nan(name: str) -> Callable[[Arrays], None]:
    def spoil(a: Arrays) -> None:
        a[name].reshape(-1)[7] = np.nan

    return spoil


def _infinite_reward(a: Arrays) -> None:
    a["rewards"][3] = np.inf


def _beyond_bounds(a: Arrays) -> None:
    a["actions"] *= 3


def _short_rewards(a: Arrays) -> None:
    a["rewards"] = a["rewards"][:-1]


def _two_as_a_flag(a: Arrays) -> None:
    a["terminals"] = a["terminals"].astype(np.int64) * 2


def _shuffled(a: Arrays) -> None:
    order = np.random.default_rng(0).permutation(len(a["rewards"]))
    for name in a:
        a[name] = a[name][order]


def _constant_observation(a: Arrays) -> None:
    for name in ("observations", "next_observations"):
        a[name][:, 2] = 1.0


def _copied_observation(a: Arrays) -> None:
    for name in ("observations", "next_observations"):
        a[name][:, 2] = a[name][:, 4]


def _constant_action(a: Arrays) -> None:
    a["actions"][:, 1] = 0.25


def _copied_action(a: Arrays) -> None:
    a["actions"][:, 1] = a["actions"][:, 0]


def _repeated_rows(a: Arrays) -> None:
    again = np.flatnonzero(a["trajectory_ids"] == 4)
    number = a["trajectory_ids"].max() + 1
    for name in a:
        a[name] = np.concatenate([a[name], np.full(len(again), number) if name == "trajectory_ids" else a[name][again]])


def _terminals_at_the_limit(a: Arrays) -> None:
    a["terminals"][_ends(a)] = True


def _no_terminals(a: Arrays) -> None:
    a["terminals"][:] = False


def _terminals_inside(a: Arrays) -> None:
    a["terminals"][[10, 200, 500]] = True


def _timeouts_inside(a: Arrays) -> None:
    a["timeouts"] = np.arange(len(a["rewards"])) % 50 == 49


def _terminals_reversed(a: Arrays) -> None:
    a["terminals"] = ~a["terminals"]


def _two_episodes_joined(a: Arrays) -> None:
    a["trajectory_ids"][a["trajectory_ids"] == 2] = 1
    end = np.flatnonzero(a["trajectory_ids"] == 1)[249]
    a["next_observations"][end] = a["observations"][end + 1] + 3
    a["observations"][end + 1 :] += 3
    a["next_observations"][end + 1 :] += 3


def _one_long_episode(a: Arrays) -> None:
    a["trajectory_ids"][:] = 0
    a["terminals"][:] = False


def _shifted_next_observations(a: Arrays) -> None:
    a["next_observations"] = np.roll(a["next_observations"], -1, axis=0)


def _permuted_next_observations(a: Arrays) -> None:
    a["next_observations"] = a["next_observations"][np.random.default_rng(0).permutation(len(a["rewards"]))]


def _unmoved(a: Arrays) -> None:
    a["next_observations"] = a["observations"].copy()
    a["timeouts"] = np.ones(len(a["rewards"]), bool)  # even where each row stands alone


def _frozen_sensor(a: Arrays) -> None:
    a["observations"][300:400] = a["observations"][300]
    a["next_observations"][299:399] = a["observations"][300]


def _constant_rewards(a: Arrays) -> None:
    a["rewards"][:] = 1.0


def _huge_rewards(a: Arrays) -> None:
    a["rewards"][11] = 5e7


def _placeholder_reward(a: Arrays) -> None:
    a["rewards"][11] = -9999.0


def _placeholder_observation(a: Arrays) -> None:
    a["observations"][12, 1] = a["next_observations"][11, 1] = -999.0


def _clipped_actions(a: Arrays) -> None:
    np.clip(a["actions"], -0.5, 0.5, out=a["actions"])


def _small_actions(a: Arrays) -> None:
    a["actions"] *= 0.02


def _discrete_actions(a: Arrays) -> None:
    a["actions"] = np.sign(a["actions"])


def _wrong_next_actions(a: Arrays) -> None:
    a["next_actions"] = np.zeros_like(a["actions"])
    a["next_action_valid"] = np.ones(len(a["rewards"]), bool)
    a["next_action_valid"][_ends(a)] = False


# what the reader refuses with one sentence -> a word of it
REFUSED: dict[str, tuple[Callable[[Arrays], None], str]] = {
    "nan observation": (_nan("observations"), "'observations' holds nan"),
    "nan action": (_nan("actions"), "'actions' holds nan"),
    "infinite reward": (_infinite_reward, "'rewards' holds inf"),
    "actions beyond their bounds": (_beyond_bounds, "outside their bounds"),
    "a reward too few": (_short_rewards, "'rewards' has"),
    "flags that are none": (_two_as_a_flag, "expected 0 or 1"),
    "shuffled rows": (_shuffled, "in several places"),
}
# what it lets pass -> the name of the fault
FAULTS: dict[str, tuple[Callable[[Arrays], None], str]] = {
    "constant observation": (_constant_observation, "constant_observations"),
    "copied observation": (_copied_observation, "duplicate_columns"),
    "constant action": (_constant_action, "constant_actions"),
    "copied action": (_copied_action, "duplicate_columns"),
    "repeated rows": (_repeated_rows, "duplicate_rows"),
    "time limits as terminals": (_terminals_at_the_limit, "terminals_at_time_limit"),
    "falls without a terminal": (_no_terminals, "missing_terminals"),
    "terminals inside episodes": (_terminals_inside, "ends_inside_episodes"),
    "time-outs inside episodes": (_timeouts_inside, "ends_inside_episodes"),
    "terminals the wrong way round": (_terminals_reversed, "too_many_terminals"),
    "a missing end": (_two_episodes_joined, "jumps"),
    "all in one episode": (_one_long_episode, "missing_timeouts"),
    "shifted next observations": (_shifted_next_observations, "disagreements"),
    "permuted next observations": (_permuted_next_observations, "disagreements"),
    "rows that do not move": (_unmoved, "standing_still"),
    "a frozen sensor": (_frozen_sensor, "standing_still"),
    "constant rewards": (_constant_rewards, "constant_rewards"),
    "a huge reward": (_huge_rewards, "large_rewards"),
    "a placeholder reward": (_placeholder_reward, "outlying_rewards"),
    "a placeholder observation": (_placeholder_observation, "outlying_observations"),
    "clipped actions": (_clipped_actions, "clipped_actions"),
    "actions in other units": (_small_actions, "narrow_actions"),
    "discrete actions": (_discrete_actions, "discrete_actions"),
    "wrong next actions": (_wrong_next_actions, "next_actions"),
}
