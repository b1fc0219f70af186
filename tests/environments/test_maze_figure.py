"""The picture of a maze: values where the ball can be, walls where it cannot."""

from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.environments.maze2d import MAZES
from c4rl.environments.tasks import get_task
from c4rl.results.maze_figure import POINTS_PER_CELL, Panel, maze_figure, value_grid


def test_the_grid_covers_every_cell_of_the_map() -> None:
    grid = value_grid(get_task("maze2d-large-v1"))
    maze = MAZES["large"]
    assert grid.shape == (9 * POINTS_PER_CELL, 12 * POINTS_PER_CELL, 2)
    assert maze.cell_of(grid[0, 0]) == (0, 0)
    assert maze.cell_of(grid[-1, -1]) == (8, 11)
    assert maze.cell_of(grid[POINTS_PER_CELL, 2 * POINTS_PER_CELL]) == (1, 2)


def test_panels_are_drawn_side_by_side(tmp_path: Path) -> None:
    task = get_task("maze2d-umaze-v1")
    path = np.linspace([3.0, 1.0], [3.0, 3.0], 20)
    grid = value_grid(task)
    one = Panel("one", [path], grid.sum(axis=-1))
    maze_figure(task, [one], tmp_path / "one.png")
    maze_figure(task, [one, Panel("two", [], grid[..., 0])], tmp_path / "two.png", title="both")
    single, double = (matplotlib.image.imread(tmp_path / f"{name}.png") for name in ("one", "two"))
    assert double.shape[1] > 1.6 * single.shape[1]


def test_values_inside_walls_do_not_matter(tmp_path: Path) -> None:
    task, maze = get_task("maze2d-medium-v1"), MAZES["medium"]
    grid = value_grid(task)
    values = np.linalg.norm(grid, axis=-1)
    inside = np.kron(maze.walls, np.ones((POINTS_PER_CELL, POINTS_PER_CELL), bool))
    for name, wall_value in (("a", 0.0), ("b", 1e9)):
        panel = Panel("", [], np.where(inside, wall_value, values))
        maze_figure(task, [panel], tmp_path / f"{name}.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_only_mazes_are_drawn(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="hopper-medium-v2"):
        maze_figure(get_task("hopper-medium-v2"), [], tmp_path / "a.png")
