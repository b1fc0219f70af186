"""The demonstration: record data, train with and without C4, score, draw."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from c4rl.algorithms.td3_bc import TD3BCConfig
from c4rl.core.errors import InputError
from c4rl.data.recording import record
from c4rl.diagnostics.diagnose import diagnose, save
from c4rl.environments.tasks import Task, get_task, missing
from c4rl.jobs.config import empty_config
from c4rl.plugins.c4.plugin import C4Config
from c4rl.results.maze_panel import draw_policies
from c4rl.results.report import write_report
from c4rl.training.loop import train
from c4rl.training.run_directory import check_new_output
from c4rl.training.summary import failed_runs, show_std

# Smaller networks and larger steps than the paper's, so that two minutes are enough to learn something. Chosen from
# eight settings by TD3+BC's scores on this very maze and these seeds: a demonstration, not a comparison of methods.
OPTIONS = TD3BCConfig(hidden_layers=2, hidden_width=128, actor_lr=1e-3, critic_lr=1e-3, tau=0.01, alpha=5.0)

# Rewards of at most 1 make small TD losses: a weight in proportion to them; λ = 0.3, tried first, scored less.
C4 = C4Config(lambda_="auto")


def demonstrate(folder: Path, task: str, size: int, updates: int, seeds: tuple[int, ...], episodes: int) -> int:
    """Write all to a new folder; the exit code. episodes: per run, for the evaluation."""
    console, began = Console(), time.monotonic()
    check_new_output(folder)
    chosen = get_task(task)
    if (reason := missing(chosen)) is not None:
        raise InputError(f"--task {task}: cannot be simulated here: {reason}")
    data = folder / "dataset.npz"
    methods: dict[str, tuple[C4Config, ...]] = {"TD3+BC": (), "TD3+BC + C4": (C4,)}
    jobs = {  # all that can be wrong with the flags is found here, before anything is written
        title: empty_config(
            "td3_bc",
            ("c4",) if plugin_options else ("none",),
            options=OPTIONS,
            plugin_options=plugin_options,
            dataset=data,
            task=chosen.name,
            output=folder / title.lower().replace("+", "_").replace(" ", "").replace("__", "_"),
            seeds=seeds,
            updates=updates,
            eval_every=updates,
            eval_episodes=episodes,
            log_every=500,
            monitor=True,
        )
        for title, plugin_options in methods.items()
    }
    record(task, size, 0, data)
    console.print(f"recorded {size:,} transitions of {chosen.name}: {data}", highlight=False)
    results = {title: train(config, console) for title, config in jobs.items()}
    if failed := [f"{title}: {words}" for title, found in results.items() if (words := failed_runs(found)) is not None]:
        console.print("\n".join(failed), highlight=False, soft_wrap=True)
        return 1
    picture, title = folder / "maze.png", f"{chosen.name}: {size:,} logged transitions, {updates:,} updates"
    draw_policies(chosen, {name: config.output for name, config in jobs.items()}, picture, title)
    _print(console, chosen, results, episodes)
    for config in jobs.values():
        save(diagnose(config.output), config.output)
    page = folder / "report.html"
    write_report([config.output for config in jobs.values()], page, [(picture, "Trajectories over the value function")])
    console.print(f"picture: {picture}", highlight=False)
    console.print(f"report: {page} (open it in a browser)", highlight=False)
    console.print(f"{time.monotonic() - began:.0f} s in all", highlight=False)
    return 0


def _print(console: Console, task: Task, results: dict[str, dict[str, Any]], episodes: int) -> None:
    seeds = next(iter(results.values()))["seeds"]
    table = Table(title=f"normalised score on {task.name}, last checkpoint, {episodes} episodes per seed")
    for heading in ("method", "mean", "std over seeds", *(f"seed {seed}" for seed in seeds)):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for title, summary in results.items():
        last = summary["last"]
        table.add_row(
            title, f"{last['mean']:.1f}", show_std(last["std"]), *(f"{score:.1f}" for score in last["scores"])
        )
    console.print(table)
