"""What the policies do: trajectories over values in a maze, frames of an episode on a robot."""

import io
from base64 import b64encode
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from c4rl.core.errors import InputError
from c4rl.core.extras import installed
from c4rl.diagnostics.page import Page
from c4rl.environments.rendering import render_episode
from c4rl.environments.tasks import Task, get_task, missing
from c4rl.results.policies import load_policy
from c4rl.results.report.jobs import Job

MAZES = 4  # side by side
STRIPS = 4  # of frames, one above the other
FRAMES = 8  # of a strip
RENDERED = ("locomotion", "antmaze", "adroit", "kitchen")


def add_pictures(page: Page, jobs: Sequence[Job], pictures: Sequence[tuple[Path, str]]) -> None:
    if pictures:
        found = [(path.read_bytes(), caption) for path, caption in pictures]
    else:
        found = [
            (picture, f"{task.name}: trajectories of each job's first run over its value function")
            for task in _mazes(jobs)
            if (picture := _maze(task, jobs)) is not None
        ]
    strips, sentences = ([], []) if pictures else _strips(jobs)
    if found or strips or sentences:
        page.section("Policies")
    page.text(*sentences, kind="faint")
    for some, wide in ((found, False), (strips, True)):
        for png, caption in some:
            page.picture(f"data:image/png;base64,{b64encode(png).decode()}", caption, caption, wide)


def _strips(jobs: Sequence[Job]) -> tuple[list[tuple[bytes, str]], list[str]]:
    """Frames of each job's first run, as PNGs with captions; and why there are none, where MuJoCo cannot render."""
    shown = [job for job in jobs if get_task(job.config.tasks[0]).domain in RENDERED][:STRIPS]
    found: list[tuple[bytes, str]] = []
    for job in shown if installed("matplotlib") else ():
        task = get_task(job.config.tasks[0])
        if missing(task) is not None:
            return found, [f"Frames of {task.name}: not drawn, because {missing(task)}."]
        try:
            policy = load_policy(job.folder)
        except InputError:  # no evaluation yet
            continue
        try:
            frames = render_episode(task, policy, job.config.eval_seed, FRAMES)
        except InputError as reason:
            return found, [f"No {reason}."]
        caption = f"{task.name}, {job.label}: {FRAMES} moments, evenly spread over one episode of the first run"
        found.append((_png(np.concatenate(list(frames), axis=1)), caption))
    return found, []


def _png(pixels: np.ndarray) -> bytes:
    from matplotlib.image import imsave

    picture = io.BytesIO()
    imsave(picture, pixels, format="png")
    return picture.getvalue()


def _mazes(jobs: Sequence[Job]) -> list[Task]:
    names = dict.fromkeys(job.config.tasks[0] for job in jobs)
    return [task for name in names if (task := get_task(name)).domain == "maze2d"]


def _maze(task: Task, jobs: Sequence[Job]) -> bytes | None:
    """A PNG of up to four jobs on this maze; None where one of them cannot be drawn."""
    if missing(task) is not None or not installed("matplotlib"):
        return None
    from c4rl.results.maze_panel import draw_policies

    shown = [job for job in jobs if get_task(job.config.tasks[0]) == task][:MAZES]
    picture = io.BytesIO()
    try:
        draw_policies(task, {job.label: job.folder for job in shown}, picture)
    except (InputError, OSError):  # no checkpoint yet, no critic, or data that are gone
        return None
    return picture.getvalue()
