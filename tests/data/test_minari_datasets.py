"""Local Minari datasets, written by minari itself, read without it."""

import json
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import h5py
import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.data import load_dataset

LENGTHS = [3, 12, 2]
Episode = dict[str, np.ndarray | dict[str, np.ndarray]]
Write = Callable[..., list[Episode]]


def sample(space: gym.Space, count: int, rng: np.random.Generator) -> np.ndarray | dict[str, np.ndarray]:
    if isinstance(space, gym.spaces.Dict):
        return {key: sample(part, count, rng) for key, part in space.spaces.items()}
    return rng.uniform(-1, 1, (count, *space.shape))


def box(width: int, bound: float = np.inf) -> gym.spaces.Box:
    return gym.spaces.Box(-bound, bound, (width,), dtype=np.float64)


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Create the dataset `made/up-v0` with minari, under a root of its own; its episodes as they were written."""
    minari = pytest.importorskip("minari")
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))

    def create(observation_space: gym.Space, bound: float = 2.0) -> list[Episode]:
        rng = np.random.default_rng(0)
        episodes: list[Episode] = []
        for k, length in enumerate(LENGTHS):
            terminated = np.zeros(length, dtype=bool)
            terminated[-1] = k == 1
            truncated = np.zeros(length, dtype=bool)
            truncated[-1] = k == 2  # the first episode just stops
            episodes.append(
                {
                    "observations": sample(observation_space, length + 1, rng),
                    "actions": rng.uniform(-bound, bound, (length, 8)),
                    "rewards": rng.normal(size=length),
                    "terminations": terminated,
                    "truncations": truncated,
                }
            )
        buffers = [EpisodeBuffer(id=k, infos={}, **episode) for k, episode in enumerate(episodes)]
        with pytest.warns(UserWarning):  # minari wants authors and links
            minari.create_dataset_from_buffers(
                "made/up-v0", buffer=buffers, observation_space=observation_space, action_space=box(8, bound)
            )
        return episodes

    return create


def test_every_row_has_its_true_successor(write: Write, tmp_path: Path) -> None:
    episodes = write(box(5))
    data = load_dataset("minari:made/up-v0")
    assert np.array_equal(np.unique(data.trajectory_ids, return_counts=True)[1], LENGTHS)
    assert np.array_equal(np.flatnonzero(data.terminals), [14])
    assert np.array_equal(np.flatnonzero(data.timeouts), [2, 16])
    start = 0
    for episode in episodes:
        rows = slice(start, start + len(episode["rewards"]))
        observations = np.float32(episode["observations"])
        assert np.array_equal(data.observations[rows], observations[:-1])
        assert np.array_equal(data.next_observations[rows], observations[1:])
        assert np.array_equal(data.next_actions[rows][:-1], np.float32(episode["actions"])[1:])
        assert np.array_equal(data.next_action_valid[rows], np.arange(rows.stop - start) < rows.stop - start - 1)
        start = rows.stop
    assert np.array_equal(data.action_low, np.full(8, -2.0)) and np.array_equal(data.action_high, np.full(8, 2.0))
    for path in ("made/up-v0", "made/up-v0/data", "made/up-v0/data/main_data.hdf5"):
        assert load_dataset(tmp_path / path).sha256 == data.sha256


def test_episodes_are_in_the_order_of_their_numbers(write: Write, tmp_path: Path) -> None:
    episodes = write(box(5))
    with h5py.File(tmp_path / "made/up-v0/data/main_data.hdf5", "a") as file:
        file.move("episode_1", "episode_9")
        file.move("episode_2", "episode_10")
    rewards = np.concatenate([episode["rewards"] for episode in episodes])
    assert np.array_equal(load_dataset("minari:made/up-v0").rewards, np.float32(rewards))


def test_maze_dictionaries_become_d4rl_vectors(write: Write) -> None:
    goals = {"achieved_goal": box(2), "desired_goal": box(2)}
    episodes = write(gym.spaces.Dict({"observation": box(105), **goals}))
    data = load_dataset("minari:made/up-v0")
    observations = episodes[0]["observations"]
    expected = np.concatenate([observations["achieved_goal"], observations["observation"][:, :27]], axis=1)
    assert data.observation_dim == 29 and np.array_equal(data.observations[:3], np.float32(expected[:-1]))
    assert "achieved_goal + observation[:27]" in data.notes[0] and "3 values" in data.notes[1]


def test_point_maze_uses_its_observation(write: Write) -> None:
    goals = {"achieved_goal": box(2), "desired_goal": box(2)}
    episodes = write(gym.spaces.Dict({"observation": box(4), **goals}))
    data = load_dataset("minari:made/up-v0")
    assert np.array_equal(data.observations[:3], np.float32(episodes[0]["observations"]["observation"][:-1]))


def test_kitchen_subtask_goals_are_left_out(write: Write) -> None:
    goals = gym.spaces.Dict({"kettle": box(7), "microwave": box(1)})
    write(gym.spaces.Dict({"observation": box(59), "achieved_goal": goals, "desired_goal": goals}))
    assert load_dataset("minari:made/up-v0").observation_dim == 59


def test_unknown_dictionaries_are_refused(write: Write) -> None:
    write(gym.spaces.Dict({"camera": box(3), "joints": box(4)}))
    with pytest.raises(InputError, match=r"has the parts \['camera', 'joints'\]"):
        load_dataset("minari:made/up-v0")


def edit_metadata(root: Path, **changes: object) -> None:
    path = root / "made/up-v0/data/metadata.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_other_formats_and_spaces_are_refused_by_name(write: Write, tmp_path: Path) -> None:
    write(box(5))
    edit_metadata(tmp_path, data_format="arrow")
    with pytest.raises(InputError, match="'data_format' is 'arrow'"):
        load_dataset("minari:made/up-v0")
    edit_metadata(tmp_path, data_format="hdf5", action_space=json.dumps({"type": "Discrete", "n": 4}))
    with pytest.raises(InputError, match="discrete actions are not supported"):
        load_dataset("minari:made/up-v0")
    images = json.dumps({"type": "Box", "dtype": "uint8", "shape": [8, 8, 3]})
    edit_metadata(tmp_path, action_space=None, observation_space=images)
    with pytest.raises(InputError, match="image observations are not supported"):
        load_dataset("minari:made/up-v0")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"action_space": "[1]"}, r"'action_space' is '\[1\]'; expected a space as Minari writes it"),
        ({"action_space": 3}, "'action_space' is 3; expected a space"),
        ({"observation_space": "null"}, "'observation_space' is 'null'; expected a space"),
        ({"observation_space": "[" * 100_000}, r"'observation_space' is '\[+\.\.\.; expected a space"),
        ({"action_space": json.dumps({"low": {}})}, "'action_space' is no number"),
        ({"action_space": json.dumps({"low": 10**400})}, "'action_space' is no number"),
        ({"action_space": json.dumps({"low": [-1] * 7})}, r"'action_low' has shape \(7,\)"),
        ({"data_format": []}, r"'data_format' is \[\]; expected 'hdf5'"),
    ],
)
def test_metadata_of_another_shape_is_named(
    write: Write, tmp_path: Path, change: dict[str, object], sentence: str
) -> None:
    write(box(5))
    edit_metadata(tmp_path, **change)
    with pytest.raises(InputError, match=sentence):
        load_dataset("minari:made/up-v0")


@pytest.mark.parametrize("content", [b"[1]", b"null", b"", b"\xff", b"[" * 100_000, b"1" * 5000])
def test_metadata_that_is_no_json_object_is_named(write: Write, tmp_path: Path, content: bytes) -> None:
    write(box(5))
    (tmp_path / "made/up-v0/data/metadata.json").write_bytes(content)
    with pytest.raises(InputError, match=r"metadata.json: (found a|not readable as JSON)"):
        load_dataset("minari:made/up-v0")


@pytest.mark.parametrize("name", ["episode_x", "episode_", "episode_\u0663", "episode_" + "9" * 5000])
def test_episodes_without_a_number_are_not_left_out(write: Write, tmp_path: Path, name: str) -> None:
    write(box(5))
    with h5py.File(tmp_path / "made/up-v0/data/main_data.hdf5", "a") as file:
        file.move("episode_1", name)
    with pytest.raises(InputError, match="has no number in its name; expected Minari's groups episode_0"):
        load_dataset("minari:made/up-v0")


def test_episodes_of_wrong_length_are_named(write: Write, tmp_path: Path) -> None:
    episodes = write(box(5))
    with h5py.File(tmp_path / "made/up-v0/data/main_data.hdf5", "a") as file:
        del file["episode_1/observations"]
        file["episode_1/observations"] = episodes[1]["observations"][:-1]
    with pytest.raises(InputError, match=r"'episode_1/observations' has 12 rows; expected 13"):
        load_dataset("minari:made/up-v0")
    with h5py.File(tmp_path / "made/up-v0/data/main_data.hdf5", "a") as file:
        del file["episode_1/observations"]
    with pytest.raises(InputError, match="'episode_1/observations' is missing among"):
        load_dataset("minari:made/up-v0")


def test_a_dataset_that_is_not_here_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    with pytest.raises(InputError, match="nothing is downloaded"):
        load_dataset("minari:D4RL/door/human-v2")
