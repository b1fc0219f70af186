"""Recording Maze2D data."""

from pathlib import Path

import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.data.recording import record
from c4rl.environments.maze2d import MAZES
from c4rl.environments.tasks import get_task


def load(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, np.ndarray]:
    path, told = tmp_path_factory.mktemp("recorded") / "umaze.npz", []
    record("maze2d-umaze-dense-v1", 10_000, seed=0, path=path, progress=lambda *done: told.append(done))
    assert told == [(rows, 10_000) for rows in range(2000, 10_001, 2000)]
    return load(path)


def test_equal_arguments_give_equal_bytes_and_other_seeds_other_data(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        record("maze2d-medium-v1", 500, seed, tmp_path / f"{name}.npz")
    a, b, c = ((tmp_path / f"{name}.npz").read_bytes() for name in "abc")
    assert a == b
    assert a != c
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.npz", "b.npz", "c.npz"]


def test_rows_follow_each_other_as_in_one_endless_trajectory(recorded: dict[str, np.ndarray]) -> None:
    assert len(recorded["rewards"]) == 10_000
    np.testing.assert_array_equal(recorded["next_observations"][:-1], recorded["observations"][1:])
    assert not recorded["terminals"].any()
    np.testing.assert_array_equal(np.diff(recorded["trajectory_ids"]), recorded["timeouts"][:-1])


def test_next_actions_are_the_following_rows_within_a_trajectory(recorded: dict[str, np.ndarray]) -> None:
    valid = recorded["next_action_valid"]
    np.testing.assert_array_equal(~valid[:-1], recorded["timeouts"][:-1])
    assert not valid[-1]
    rows = np.flatnonzero(valid)
    np.testing.assert_array_equal(recorded["next_actions"][rows], recorded["actions"][rows + 1])
    assert not recorded["next_actions"][~valid].any()


def test_rewards_are_for_the_fixed_goal_and_the_position_reached(recorded: dict[str, np.ndarray]) -> None:
    distance = np.linalg.norm(recorded["next_observations"][:, :2] - np.array(MAZES["umaze"].goal), axis=1)
    np.testing.assert_allclose(recorded["rewards"], np.exp(-distance), rtol=1e-5)


def test_actions_are_noisy_and_within_bounds(recorded: dict[str, np.ndarray]) -> None:
    assert np.abs(recorded["actions"]).max() <= 1
    np.testing.assert_array_equal(recorded["action_low"], [-1, -1])
    np.testing.assert_array_equal(recorded["action_high"], [1, 1])
    assert 0.3 < np.std(np.diff(recorded["actions"], axis=0)) < 1.2


def test_trajectories_are_about_as_long_as_d4rls(recorded: dict[str, np.ndarray]) -> None:
    task = get_task("maze2d-umaze-dense-v1")
    assert task.samples is not None and task.trajectories is not None
    published = task.samples / task.trajectories
    assert len(recorded["rewards"]) / (recorded["trajectory_ids"][-1] + 1) == pytest.approx(published, rel=0.2)


def test_all_of_the_maze_is_visited(recorded: dict[str, np.ndarray]) -> None:
    visited = {MAZES["umaze"].cell_of(position) for position in recorded["observations"][:, :2]}
    assert visited == set(MAZES["umaze"].free_cells)


@pytest.mark.parametrize(
    ("task", "size", "seed", "name", "message"),
    [
        ("gym:Pendulum-v1", 10, 0, "a.npz", "found none, expected at least one file for 'gym:Pendulum-v1'"),
        ("maze2d-umaze-v1", 0, 0, "a.npz", "size: found 0"),
        ("maze2d-umaze-v1", 10, -1, "a.npz", "seed: found -1"),
        ("maze2d-umaze-v1", 10, 0, "a.hdf5", r"a\.hdf5: expected .*\.npz"),
        ("maze2d-umase-v1", 10, 0, "a.npz", "did you mean"),
    ],
)
def test_bad_requests_are_refused_before_anything_is_written(
    task: str, size: int, seed: int, name: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message):
        record(task, size, seed, tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(b"precious")
    with pytest.raises(InputError, match=r"mine\.npz exists already"):
        record("maze2d-umaze-v1", 10, 0, path)
    assert path.read_bytes() == b"precious"
