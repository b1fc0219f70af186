"""What a policy trained on Maze2D does: its trajectories over its value function."""

from collections.abc import Mapping
from pathlib import Path
from typing import IO

import numpy as np
import torch

from c4rl.environments.episodes import rollout
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import Task
from c4rl.jobs.runs import file_name, runs_of
from c4rl.results.maze_figure import Panel, maze_figure, value_grid
from c4rl.results.policies import load_policy
from c4rl.training.restore import restore
from c4rl.training.run_directory import job_config

TRAJECTORIES = 12


def draw_policies(task: Task, jobs: Mapping[str, Path], path: str | Path | IO[bytes], title: str = "") -> None:
    """The first run of each job, by its title, side by side."""
    maze_figure(task, [_panel(name, task, job) for name, job in jobs.items()], path, title)


def _panel(title: str, task: Task, job: Path) -> Panel:
    """Trajectories of the job's first run, over V(s) = min Q(s, π(s)) at rest if it has a critic."""
    run = file_name(runs_of(job_config(job))[0].key)
    launch, preparation, config = restore(job, run=run)
    policy = load_policy(job, run=run)
    environment = make_environment(task)
    seeds = range(config.eval_seed, config.eval_seed + TRAJECTORIES)
    trajectories = [rollout(environment, policy, seed)["observations"][:, :2] for seed in seeds]
    environment.close()
    if launch.algorithm.critics is None:
        return Panel(title, trajectories, None)
    positions = value_grid(task)  # [..., 2]
    states = np.concatenate([positions, np.zeros_like(positions)], axis=-1).reshape(-1, 4)
    scaling = preparation.scaling
    normalised = torch.tensor((states - scaling.observation_mean) / scaling.observation_std, dtype=torch.float32)
    observations = normalised.unsqueeze(0)
    pairs = torch.cat([observations, launch.algorithm.act(observations)], dim=2)
    with torch.no_grad():
        q = launch.algorithm.critics[0].at(launch.algorithm.critic_inputs(pairs)).q[0].amin(0)
    return Panel(title, trajectories, q.numpy().reshape(positions.shape[:-1]))
