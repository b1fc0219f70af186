"""Maze2D as a picture: walls, a value function over the free space, and where the agent went."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Rectangle

from c4rl.core.array import Array
from c4rl.core.errors import InputError
from c4rl.environments.maze2d import BALL_RADIUS, CELL_SHIFT, GOAL_RADIUS, MAZES, Maze
from c4rl.environments.tasks import Task

POINTS_PER_CELL = 24
WALL, EMPTY, PATH, GOAL, INK = "#dde1e8", "#7c8599", "#ffffff", "#f4512c", "#1b1f2a"
BORDER = 0.65  # of the outer walls' thickness is cut off


@dataclass(frozen=True)
class Panel:
    """One maze of the figure."""

    title: str
    trajectories: Sequence[Array]  # each [T, >= 2]: x, y first
    values: Array | None  # on value_grid, [H, W]


def value_grid(task: Task) -> Array:
    """Positions at which a panel's values are drawn, [H, W, 2]: H along x (the map's rows), W along y (its columns)."""
    rows, columns = _maze(task).walls.shape
    x, y = ((np.arange(size * POINTS_PER_CELL) + 0.5) / POINTS_PER_CELL - 0.5 + CELL_SHIFT for size in (rows, columns))
    return np.stack(np.meshgrid(x, y, indexing="ij"), axis=-1)


def maze_figure(task: Task, panels: Sequence[Panel], path: str | Path | IO[bytes], title: str = "") -> None:
    """Draw the panels side by side on one colour scale and write them to `path`, a file or a stream."""
    maze = _maze(task)
    free = ~np.kron(maze.walls, np.ones((POINTS_PER_CELL, POINTS_PER_CELL), bool))
    values = [None if p.values is None else np.ma.masked_where(~free, p.values) for p in panels]
    drawn = [v for v in values if v is not None]
    scale = Normalize(min(float(v.min()) for v in drawn), max(float(v.max()) for v in drawn)) if drawn else None

    rows, columns = maze.walls.shape
    height = 3.4
    figure = Figure(figsize=(len(panels) * height * columns / rows + 1.1, height + (0.75 if title else 0.4)), dpi=160)
    FigureCanvasAgg(figure)
    figure.set_layout_engine("constrained")
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for axis, panel, value in zip(axes, panels, values, strict=True):
        _draw(axis, maze, panel, value, scale)
    if scale is not None:
        bar = figure.colorbar(ScalarMappable(scale, "viridis"), ax=list(axes), label="value", fraction=0.05, pad=0.02)
        bar.outline.set_visible(False)
    if title:
        figure.suptitle(title, fontsize=12)
    figure.savefig(path)


def _draw(axis: Axes, maze: Maze, panel: Panel, value: Array | None, scale: Normalize | None) -> None:
    """The map as it is printed: columns to the right, rows downwards."""
    rows, columns = maze.walls.shape
    left, top = -0.5 + CELL_SHIFT, -0.5 + CELL_SHIFT
    extent = (left, left + columns, top + rows, top)
    axis.set_facecolor(WALL)
    axis.set_aspect("equal")
    if value is None:
        axis.add_patch(Rectangle((left, top), columns, rows, facecolor=EMPTY, zorder=1))
    else:
        axis.imshow(value, extent=extent, cmap="viridis", norm=scale, interpolation="nearest", zorder=1)
    for i, j in zip(*np.nonzero(maze.walls), strict=True):
        axis.add_patch(Rectangle((left + j, top + i), 1, 1, facecolor=WALL, edgecolor=WALL, linewidth=0.4, zorder=2))
    for trajectory in panel.trajectories:
        x, y = np.asarray(trajectory)[:, :2].T
        axis.plot(y, x, color=INK, linewidth=2.4, alpha=0.45, zorder=3, solid_capstyle="round")
        axis.plot(y, x, color=PATH, linewidth=1.1, zorder=4, solid_capstyle="round")
        axis.add_patch(Circle((y[0], x[0]), BALL_RADIUS, facecolor=PATH, edgecolor=INK, linewidth=1.0, zorder=5))
    goal = (maze.goal[1], maze.goal[0])
    axis.add_patch(
        Circle(goal, GOAL_RADIUS, fill=False, edgecolor=GOAL, linewidth=1.4, linestyle=(0, (3, 2)), zorder=5)
    )
    axis.plot(*goal, marker="*", markersize=13, color=GOAL, markeredgecolor=INK, markeredgewidth=0.8, zorder=6)
    axis.set(
        title=panel.title,
        xticks=[],
        yticks=[],
        xlim=(extent[0] + BORDER, extent[1] - BORDER),
        ylim=(extent[2] - BORDER, extent[3] + BORDER),
    )
    for spine in axis.spines.values():
        spine.set_visible(False)


def _maze(task: Task) -> Maze:
    if task.domain != "maze2d" or task.environment is None:
        raise InputError(f"task '{task.name}': only Maze2D tasks can be drawn as a maze")
    return MAZES[task.environment]
