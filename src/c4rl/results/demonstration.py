"""The demonstration: record data, train three methods, score, draw, report."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from c4rl.algorithms.algorithm import AlgorithmConfig
from c4rl.algorithms.bc import BCConfig
from c4rl.algorithms.td3_bc import TD3BCConfig
from c4rl.core.errors import InputError
from c4rl.data.recording import record
from c4rl.diagnostics.diagnose import diagnose, save
from c4rl.environments.tasks import Task, get_task, missing
from c4rl.jobs.config import TrainConfig, empty_config
from c4rl.jobs.preset_fields import best_fields
from c4rl.jobs.registry import algorithm_class
from c4rl.results.maze_panel import draw_policies
from c4rl.results.report import write_report
from c4rl.training.loop import train
from c4rl.training.run_directory import check_new_output
from c4rl.training.summary import failed_runs, show_score

# Narrower networks and fewer updates than --preset best has, for speed; its step size, which other mazes chose
# (docs/recipe.md).
WIDTH = 128
METHODS: dict[str, tuple[str, AlgorithmConfig]] = {
    "cloning": ("bc", BCConfig(hidden_layers=2, hidden_width=WIDTH, actor_lr=1e-3)),
    "TD3+BC": ("td3_bc", TD3BCConfig(hidden_layers=2, hidden_width=WIDTH, actor_lr=1e-3, critic_lr=1e-3)),
}
CLONING_UPDATES = 5  # times fewer than the others': it learns faster and overfits sooner


def demonstrate(folder: Path, task: str, size: int, updates: int, seeds: tuple[int, ...], episodes: int) -> int:
    """Write all to a new folder; the exit code. episodes: per run, for the evaluation."""
    console, began = Console(markup=False), time.monotonic()  # paths may have brackets
    check_new_output(folder)
    chosen = get_task(task)
    if chosen.domain != "maze2d":
        raise InputError(f"--task: found {task}, expected a maze2d task, whose picture shows the policies")
    if (reason := missing(chosen)) is not None:
        raise InputError(f"--task {task}: cannot be simulated here: {reason}")
    data, cloning_updates = folder / "dataset.npz", max(1, updates // CLONING_UPDATES)

    def job(title: str, algorithm: str, options: AlgorithmConfig) -> TrainConfig:
        own = cloning_updates if algorithm == "bc" else updates
        return empty_config(
            algorithm,
            ("none",),
            options=options,
            dataset=data,
            task=chosen.name,
            output=folder / title.lower().replace("+", "_"),
            seeds=seeds,
            updates=own,
            eval_every=own,
            eval_episodes=episodes,
            log_every=500,
            monitor=algorithm_class(algorithm).has_critic,
        )

    # all that can be wrong with the flags is found here, before anything is written
    jobs = {title: job(title, *method) for title, method in METHODS.items()}
    record(task, size, 0, data)
    console.print(f"recorded {size:,} transitions of {chosen.name}: {data}", highlight=False)
    best = best_fields(data, chosen.name)
    chosen_fields = {name: best[name] for name in ("algorithm", "plugins", "plugin_options")}
    chosen_fields["options"] = replace(best["options"], hidden_width=WIDTH)
    jobs["best"] = replace(jobs["TD3+BC"], **chosen_fields, output=folder / "best")
    results = {title: train(config, console) for title, config in jobs.items()}
    if failed := [f"{title}: {words}" for title, found in results.items() if (words := failed_runs(found)) is not None]:
        console.print("\n".join(failed), highlight=False, soft_wrap=True)
        return 1
    budget = f"{updates:,} updates (cloning {cloning_updates:,})"
    picture, title = folder / "maze.png", f"{chosen.name}: {size:,} logged transitions, {budget}"
    draw_policies(chosen, {name: config.output for name, config in jobs.items()}, picture, title)
    _print(console, chosen, results, episodes)
    for config in jobs.values():
        if algorithm_class(config.algorithm).has_critic:
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
        shown = (show_score(value, task.score_name) for value in (last["mean"], last["std"], *last["scores"]))
        table.add_row(title, *shown)
    console.print(table)
