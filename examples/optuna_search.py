"""Search for settings with Optuna: each batch of trials is one job, whose runs train together in a stack.

pip install 'c4rl[search]'
python examples/optuna_search.py maze.npz --task maze2d-umaze-dense --objective simulator --output runs/search
python examples/optuna_search.py my_data.npz --objective held_out_action_rmse --output runs/search

Run the same command again to continue: an interrupted batch resumes from its checkpoint, and no setting is trained
twice. The objectives mean different things, and you have to choose one:
- simulator: the mean score over late evaluations. It needs the simulator, so what it finds is not a result of
  offline data alone: label it "chosen in the simulator", and score it with other seeds.
- held_out_action_rmse, held_out_td_rmse: errors on held-out trajectories. The first favours cloning; the second
  changes its meaning with the discount, the reward scale and C4's lambda. Neither measures how well a policy acts.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend

import c4rl
from c4rl.core.errors import Interrupted
from c4rl.jobs.config import empty_config

LABELS = {
    "simulator": "score chosen in the simulator",
    "held_out_action_rmse": "action error on held-out rows",
    "held_out_td_rmse": "TD error on held-out rows",
}


def suggest(trial: optuna.Trial) -> dict[str, float]:
    """The space to search: options of the algorithm and its plug-ins. Three digits are enough, and keep names short."""
    chosen = {
        "alpha": trial.suggest_float("alpha", 0.3, 30, log=True),
        "lambda": trial.suggest_float("lambda", 0.01, 1, log=True),
        "critic_lr": trial.suggest_float("critic_lr", 1e-4, 1e-3, log=True),
    }
    return {name: float(f"{value:.3g}") for name, value in chosen.items()}


def value_of(group: dict[str, Any], objective: str) -> float | None:
    """The objective of the runs of one setting; None where one of them failed."""
    if group["failed"]:
        return None
    if objective == "simulator":
        return group["late"]["mean"]
    return sum(group["last"][objective]) / len(group["last"][objective])


def train(points: list[dict[str, float]], folder: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One job of all points, or what is left of it: the results of each."""
    if (folder / "config.json").exists():
        summary = c4rl.resume(folder)
    else:
        config = empty_config(
            "td3_bc",
            ("c4",),
            dataset=arguments.dataset,
            task=arguments.task,
            output=folder,
            seeds=tuple(arguments.seeds),
            updates=arguments.updates,
            eval_every=max(1, arguments.updates // 10),
            points=tuple(",".join(f"{name}={value}" for name, value in point.items()) for point in points),
        )
        summary = c4rl.train(config)
    return summary.get("groups", [summary])


def open_study(arguments: argparse.Namespace) -> optuna.Study:
    """The study in the output folder; refuses to mix objectives or jobs that do not compare."""
    arguments.output.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="c4rl",
        storage=JournalStorage(JournalFileBackend(str(arguments.output / "study.log"))),
        direction="maximize" if arguments.objective == "simulator" else "minimize",
        load_if_exists=True,
    )
    # a sampler with the same seed would propose its first points again
    study.sampler = optuna.samplers.TPESampler(constant_liar=True, seed=arguments.sampler_seed + len(study.trials))
    wanted = {name: getattr(arguments, name) for name in ("objective", "task", "seeds", "updates")}
    wanted |= {"dataset": str(arguments.dataset.absolute()), "label": LABELS[arguments.objective]}
    for name, value in wanted.items():
        if study.user_attrs.get(name, value) != value:
            raise SystemExit(f"--{name}: found {value}, expected {study.user_attrs[name]} as the search began")
        study.set_user_attr(name, value)
    return study


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--task", default="none", help="a task with a simulator; needed by --objective simulator")
    parser.add_argument("--objective", required=True, choices=LABELS)
    parser.add_argument("--output", type=Path, default=Path("runs/search"))
    parser.add_argument("--batches", type=int, default=5, help="asks in all, those of earlier calls among them")
    parser.add_argument("--batch", type=int, default=8, help="trials per ask")
    parser.add_argument("--updates", type=int, default=20_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--sampler-seed", type=int, default=0)
    arguments = parser.parse_args()
    if (arguments.objective == "simulator") != (arguments.task != "none"):
        parser.error("a task goes with --objective simulator, and none with the others")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = open_study(arguments)
    for number in range(arguments.batches):
        own = [trial for trial in study.trials if trial.user_attrs.get("batch") == number]
        if own and all(trial.state.is_finished() for trial in own):
            continue
        for _ in range(len(own), arguments.batch):  # a killed process may have asked for some
            trial = study.ask()
            trial.set_user_attr("point", suggest(trial))
            trial.set_user_attr("batch", number)
        own = [trial for trial in study.trials if trial.user_attrs.get("batch") == number]
        others = [trial for trial in study.trials if trial.user_attrs.get("batch", number) != number]
        known = {json.dumps(trial.user_attrs["point"]): trial.value for trial in others if trial.state.is_finished()}
        points = {json.dumps(trial.user_attrs["point"]): trial.user_attrs["point"] for trial in own}
        new = [point for text, point in points.items() if text not in known]
        results = train(new, arguments.output / f"batch_{number}", arguments) if new else []
        known |= {json.dumps(p): value_of(r, arguments.objective) for p, r in zip(new, results, strict=True)}
        for trial in (trial for trial in own if not trial.state.is_finished()):
            value = known[json.dumps(trial.user_attrs["point"])]
            study.tell(trial.number, value, state=None if value is not None else optuna.trial.TrialState.FAIL)
        finished = [t for t in study.trials if t.value is not None]
        best = f"{study.best_value:.4g} with {study.best_trial.user_attrs['point']}" if finished else "none"
        print(f"batch {number}: {len(new)} settings trained; best {LABELS[arguments.objective]}: {best}", flush=True)
    for trial in study.trials:  # asked for by a process that died before it said for which batch
        if not trial.state.is_finished():
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)


if __name__ == "__main__":
    try:
        main()
    except Interrupted as stop:
        raise SystemExit(f"{stop.args[0].partition(';')[0]}; run it again to continue") from None
