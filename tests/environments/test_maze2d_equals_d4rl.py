"""Maze2D behaves as D4RL's: its rules, and the reference scores that D4RL's scripts measured in it."""

import numpy as np
import pytest

from c4rl.environments.making import make_environment
from c4rl.environments.maze2d import BALL_RADIUS, CELL_SHIFT, MAZES, Maze2D
from c4rl.environments.tasks import get_task
from c4rl.environments.waypoint_controller import WaypointController, shortest_path

MAPS = list(MAZES)


def controlled_episode(environment: Maze2D, controller: WaypointController, seed: int) -> np.ndarray:
    """The positions reached in one episode, [horizon, 2]."""
    observation, _ = environment.reset(seed=seed)
    positions, done = [], False
    while not done:
        action, _ = controller.act(observation[:2], observation[2:])
        observation, _, _, done, _ = environment.step(action)
        positions.append(observation[:2])
    return np.array(positions)


def make(name: str) -> Maze2D:
    environment = make_environment(get_task(name))
    assert isinstance(environment, Maze2D)
    return environment


@pytest.mark.parametrize("maze", MAPS)
def test_the_controller_reaches_the_goal_from_every_start(maze: str) -> None:
    environment = make(f"maze2d-{maze}-dense")
    for cell in environment.maze.free_cells:
        observation = environment.set_state(np.array(cell, np.float64), np.zeros(2))
        controller = WaypointController(environment.maze, np.random.default_rng(0))
        controller.plan(observation[:2], environment.maze.goal)
        arrived, truncated = False, False
        while not arrived and not truncated:
            action, arrived = controller.act(observation[:2], observation[2:])
            observation, _, _, truncated, _ = environment.step(action)
        assert arrived, f"from {cell}"


@pytest.mark.parametrize("maze", MAPS)
def test_sparse_and_dense_rewards_pay_for_the_position_reached(maze: str) -> None:
    sparse, dense = make(f"maze2d-{maze}"), make(f"maze2d-{maze}-dense")
    goal, rng = np.array(sparse.maze.goal), np.random.default_rng(0)
    start = goal + CELL_SHIFT
    sparse.set_state(start, np.zeros(2)), dense.set_state(start, np.zeros(2))
    paid = set()
    for _ in range(100):
        action = rng.choice([-1.0, 1.0]) * np.ones(2)
        observation, indicator, *_ = sparse.step(action)
        _, reward, *_ = dense.step(action)
        distance = np.linalg.norm(observation[:2] - goal)
        assert indicator == float(distance <= 0.5)
        assert reward == pytest.approx(np.exp(-distance), rel=1e-12)
        paid.add(indicator)
    assert 1.0 in paid


@pytest.mark.parametrize(("maze", "horizon"), [("open", 150), ("umaze", 300), ("medium", 600), ("large", 800)])
def test_episodes_end_at_the_horizon_only(maze: str, horizon: int) -> None:
    environment = make(f"maze2d-{maze}")
    environment.reset(seed=0)
    ends = [environment.step(np.zeros(2))[2:4] for _ in range(horizon)]
    assert ends == [(False, False)] * (horizon - 1) + [(False, True)]


def test_the_goal_is_reached_at_half_a_cell() -> None:
    environment = make("maze2d-open")
    x, y = environment.maze.goal
    paid = [environment._reward(x + way, y) for way in (-0.51, -0.5, 0.0, 0.5, 0.51)]
    assert paid == [0, 1, 1, 1, 0]


def test_speed_is_clipped_before_each_step() -> None:
    environment = make("maze2d-open")
    environment.set_state(np.array([2.0, 1.0]), np.array([0.0, 50.0]))
    observation, *_ = environment.step(np.zeros(2))
    assert observation[1] == pytest.approx(1.05, abs=1e-3)  # 0.01 s at speed 5
    assert abs(observation[3]) <= 5


def test_a_free_ball_moves_as_newton_and_the_damping_say() -> None:
    environment = make("maze2d-open")
    environment.set_state(np.array([2.0, 2.0]), np.zeros(2))
    observation, *_ = environment.step(np.array([0.5, 0.0]))
    mass, damping, dt = 1000 * 4 / 3 * np.pi * BALL_RADIUS**3, 1.0, 0.01
    speed = dt * 50 / (mass + dt * damping)  # Euler with implicit damping; gear 100, half throttle
    np.testing.assert_allclose(observation, [2 + dt * speed, 2, speed, 0], atol=1e-9)


@pytest.mark.parametrize("maze", MAPS)
def test_walls_cannot_be_crossed(maze: str) -> None:
    environment = make(f"maze2d-{maze}")
    rng = np.random.default_rng(0)
    walls = environment.maze.walls
    for seed in range(3):
        observation, _ = environment.reset(seed=seed)
        cell = environment.maze.cell_of(observation[:2])
        for t in range(600):
            if t % 25 == 0:
                action = rng.choice([-1.0, 1.0], size=2)
            observation, *_ = environment.step(action)
            following = environment.maze.cell_of(observation[:2])
            assert not walls[following]
            assert abs(following[0] - cell[0]) + abs(following[1] - cell[1]) <= 2
            cell = following


def test_a_seed_fixes_the_whole_episode() -> None:
    def episode() -> list[np.ndarray]:
        environment = make("maze2d-medium")
        observations = [environment.reset(seed=7)[0]]
        rng = np.random.default_rng(0)
        return observations + [environment.step(rng.uniform(-1, 1, 2))[0] for _ in range(200)]

    np.testing.assert_array_equal(episode(), episode())


def test_a_used_environment_resets_like_a_new_one() -> None:
    used, new = make("maze2d-umaze"), make("maze2d-umaze")
    used.reset(seed=1)
    for _ in range(50):
        used.step(np.ones(2))
    used.reset(seed=2), new.reset(seed=2)
    for _ in range(50):
        np.testing.assert_array_equal(used.step(np.ones(2))[0], new.step(np.ones(2))[0])


def test_starts_are_free_cells_with_small_noise() -> None:
    environment = make("maze2d-umaze")
    starts = np.array([environment.reset(seed=seed)[0] for seed in range(300)])
    cells = np.rint(starts[:, :2]).astype(int)
    assert {tuple(cell) for cell in cells.tolist()} == set(environment.maze.free_cells)
    assert np.abs(starts[:, :2] - cells).max() <= 0.1
    assert np.std(starts[:, 2:]) == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize("maze", ["umaze", "medium", "large"])
def test_d4rls_reference_returns_are_met(maze: str) -> None:
    """D4RL's reference script plans once: after its first episode the controller steers straight at the goal.

    Returns scatter by as much as their mean, and D4RL's are means of 100 episodes: compared within 3 standard errors.
    """
    sparse, dense = get_task(f"maze2d-{maze}"), get_task(f"maze2d-{maze}-dense")
    environment = make(sparse.name)
    goal = np.array(environment.maze.goal, np.float64)
    controller = WaypointController(environment.maze, np.random.default_rng(0))
    controller.plan(goal, environment.maze.goal)
    positions = np.array([controlled_episode(environment, controller, seed) for seed in range(100)])
    distance = np.linalg.norm(positions - goal, axis=-1)
    for task, rewards in ((sparse, distance <= 0.5), (dense, np.exp(-distance))):
        returns = rewards.sum(axis=1)
        assert abs(returns.mean() - task.reference_max) < 3 * returns.std() * np.sqrt(2 / 100), task.name


def test_random_actions_get_the_reference_minimum() -> None:
    task = get_task("maze2d-umaze-dense")
    environment, rng, returns = make(task.name), np.random.default_rng(0), []
    for seed in range(100):
        environment.reset(seed=seed)
        returns.append(sum(environment.step(rng.uniform(-1, 1, 2))[1] for _ in range(task.horizon)))
    assert abs(np.mean(returns) - task.reference_min) < 3 * np.std(returns) * np.sqrt(2 / 100)


def test_paths_are_shortest() -> None:
    path = shortest_path(MAZES["umaze"], (3, 1), (1, 1))
    assert path == [(3, 2), (3, 3), (2, 3), (1, 3), (1, 2), (1, 1)]
    assert shortest_path(MAZES["umaze"], (1, 1), (1, 1)) == [(1, 1)]


def test_balls_that_step_together_move_as_each_would_alone() -> None:
    """Bit for bit: in walls, at more than the largest speed, with forces out of bounds, in sparse and dense mazes."""
    rng, names = np.random.default_rng(0), ["maze2d-umaze", "maze2d-umaze-dense", "maze2d-large-dense"]
    alone, together = [make(name) for name in names], [make(name) for name in names]
    for several in (alone, together):
        for maze, speed in zip(several, (9.0, -9.0, 0.0), strict=True):
            maze.set_state(np.array(maze.maze.free_cells[0], np.float64), np.array([speed, -speed]))
        several[1].horizon, several[2].horizon = 60, 40
    for _ in range(60):
        forces = rng.uniform(-2, 2, (3, 2)).astype(np.float32)
        expected = [maze.step(force) for maze, force in zip(alone, forces, strict=True)]
        observations, rewards, ended = Maze2D.step_together(together, forces)
        np.testing.assert_array_equal(observations, [one[0] for one in expected])
        assert rewards == [one[1] for one in expected]
        assert ended == [one[3] for one in expected]
    assert ended == [False, True, True]
