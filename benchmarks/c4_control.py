"""Does C4 lower what it is meant to control? Cross-covariance traces and within-cluster shares, with and without it.

    python benchmarks/c4_control.py DATASET --task hopper-medium-expert-v2 --updates 10000 --seeds 0 1 2 --output DIR
    python benchmarks/c4_control.py --collect DIR [DIR ...]

The first command trains one job per mode into DIR/MODE and writes DIR/MODE.json; processes that share DIR and differ in
--modes may run side by side, and an interrupted job is resumed. The second command makes the table of all finished jobs
(and control.json in the first DIR); the first does so too if it ran several modes.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from c4rl.core.files import write_json
from c4rl.core.random import Streams
from c4rl.jobs.config import TrainConfig, empty_config
from c4rl.plugins.c4.cross_covariance import penalty
from c4rl.plugins.c4.feature_gradients import Mode, feature_gradients
from c4rl.plugins.c4.gaussian_mixture import fit, kmeans_start
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.c4.principal_directions import principal_directions
from c4rl.theory.total_covariance import total_covariance
from c4rl.training.launch import Launch
from c4rl.training.loop import resume, train
from c4rl.training.restore import restore
from c4rl.training.summary import versions

# mode -> what it changes in C4's options; None: no plug-in, the monitor alone
MODES: dict[str, dict[str, Any] | None] = {
    "none": None,
    "proxy": {"mode": "proxy"},
    "exact": {"mode": "exact"},
    "proxy-penalty": {"mode": "proxy", "sampler": "uniform"},  # the penalty without single-cluster batches
    "proxy-clusters": {"mode": "proxy", "lambda_": 0.0},  # single-cluster batches without the penalty
}
TRACES = [f"cross_covariance_trace_{mode}{form}" for mode in ("exact", "proxy") for form in ("", "_normalised")]
REFRESHES = 5  # the last ones are averaged
CLUSTERS = (1, 3, 5, 10)
FEATURES: tuple[Mode, ...] = ("proxy", "exact")
SHARES = ("soft", "hard", "unbiased")
Number = float | None  # None: could not be had
HELD_OUT = 0.2
DIRECTIONS = 16  # per side, as C4 clusters by default


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, nargs="?")
    parser.add_argument("--collect", type=Path, nargs="+", metavar="DIR")
    parser.add_argument("--output", type=Path, metavar="DIR")
    parser.add_argument("--task", default="none")
    parser.add_argument("--algorithm", default="td3_bc")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=["none", "proxy", "exact"])
    parser.add_argument("--updates", type=int, default=10_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lambda", dest="lambda_", default=C4Config.lambda_, type=_lambda)
    parser.add_argument("--estimator", default=C4Config.estimator)
    parser.add_argument("--scale", default=C4Config.scale)
    parser.add_argument("--beta", type=float, default=C4Config.beta)
    parser.add_argument("--K", type=int, default=C4Config.K)
    parser.add_argument("--eval-episodes", type=int, default=10)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    if arguments.collect:
        return collect(arguments.collect)
    if arguments.dataset is None or arguments.output is None:
        parser.error("a dataset and --output DIR are needed, or --collect DIR")
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for mode in arguments.modes:
        run_job(arguments, mode)
    if len(arguments.modes) > 1:
        collect([arguments.output])


def _lambda(text: str) -> float | str:
    return text if text == "auto" else float(text)


# -- one job


def run_job(arguments: argparse.Namespace, mode: str) -> None:
    """Train DIR/MODE (or resume it, or find it finished) and write DIR/MODE.json."""
    folder = arguments.output / mode
    if not folder.exists():
        train(job_config(arguments, mode, folder))
    elif not (folder / "summary.json").exists():
        resume(folder)
    write_json(folder.with_suffix(".json"), {"mode": mode, **results_of(folder)})


def job_config(arguments: argparse.Namespace, mode: str, folder: Path) -> TrainConfig:
    changes = MODES[mode]
    plugins: tuple[str, ...] = ("none",)
    plugin_options: tuple[C4Config, ...] = ()
    if changes is not None:
        shared = {name: getattr(arguments, name) for name in ("lambda_", "estimator", "scale", "beta", "K")}
        plugins, plugin_options = ("c4",), (C4Config(**(shared | changes)),)
    return empty_config(
        arguments.algorithm,
        plugins,
        plugin_options=plugin_options,
        dataset=arguments.dataset,
        task=arguments.task,
        output=folder,
        updates=arguments.updates,
        seeds=tuple(arguments.seeds),
        eval_every=arguments.updates,
        eval_episodes=arguments.eval_episodes,
        threads=arguments.threads,
        device=arguments.device,
        monitor=True,
    )


def results_of(folder: Path) -> dict[str, Any]:
    """Everything that the table needs of a finished job."""
    summary = json.loads((folder / "summary.json").read_text())
    config = json.loads((folder / "config.json").read_text())
    launch, _, _ = restore(folder)
    return {
        "algorithm": summary["algorithm"],
        "task": summary["task"],
        "dataset": summary["dataset"],
        "updates": summary["updates"],
        "seeds": summary["seeds"],
        "c4": config["plugin_options"],
        "stopped": summary["stopped"],  # seeds that failed: their networks are those of the last good checkpoint
        "last_scores": summary["last"].get("scores"),
        "timing": summary["timing"],
        "traces": last_traces(folder / "metrics.jsonl", summary["seeds"]),
        "within_share": {mode: within_shares(launch, mode) for mode in FEATURES},
        "machine": {"threads": torch.get_num_threads(), **versions()},
    }


def last_traces(metrics: Path, seeds: list[int]) -> dict[str, list[Number]]:
    """Per trace and seed, the mean over the last five refreshes (that a stopped run came to)."""
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    found = {}
    for name in TRACES:
        per_seed = [[float(line[name]) for line in lines if line["seed"] == seed and name in line] for seed in seeds]
        found[name] = [_mean(values[-REFRESHES:]) for values in per_seed]
    return found


# -- how much of C is left inside clusters, on rows that the mixture has not seen


def within_shares(launch: Launch, mode: Mode) -> dict[str, dict[str, list[Number]]]:
    """E_z ||C_z||_F / ||C||_F per number of clusters, kind of responsibilities and seed."""
    assert launch.algorithm.critics is not None
    rows = torch.nonzero(launch.buffer.packed[:, -1] > 0)[:, 0]  # with a valid next action
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))]
    unseen, seen = rows.split([int(HELD_OUT * len(rows)), len(rows) - int(HELD_OUT * len(rows))])
    shares: dict[str, dict[str, list[Number]]] = {str(K): {kind: [] for kind in SHARES} for K in CLUSTERS}
    fitted, held_out = gradients(launch, mode, seen), gradients(launch, mode, unseen)
    for run, seed in enumerate(launch.seeds):
        g_next, g = (side[run : run + 1] for side in fitted)
        test_next, test = (side[run : run + 1] for side in held_out)
        projections = [principal_directions(side, DIRECTIONS) for side in (g_next, g)]
        y = torch.cat([project(side) for project, side in zip(projections, (g_next, g), strict=True)], 2)
        y_test = torch.cat([project(side) for project, side in zip(projections, (test_next, test), strict=True)], 2)
        streams = Streams([seed], torch.zeros((), dtype=torch.int64), torch.float64)
        for K in CLUSTERS:
            found = fit(y, kmeans_start(y, streams, torch.tensor([K]), K), steps=50)
            responsibilities = found.mixture.responsibilities(y_test)[0]
            for kind, share in _shares(test_next[0], test[0], responsibilities):
                shares[str(K)][kind].append(None if bool(found.failed.any()) else share)
    return shares


def gradients(launch: Launch, mode: Mode, rows: Tensor) -> tuple[Tensor, Tensor]:
    """g' and g of the first critic at these rows, float64 [R, n, m]."""
    assert launch.algorithm.critics is not None
    critic, target = launch.algorithm.critics
    sides: tuple[list[Tensor], list[Tensor]] = ([], [])
    for chunk in rows.split(1024):
        batch = launch.buffer.gather(chunk.expand(len(launch.seeds), -1))
        sides[0].append(feature_gradients(mode, target, batch.next_state_actions, slice(1))[:, 0].double())
        sides[1].append(feature_gradients(mode, critic, batch.state_actions, slice(1))[:, 0].double())
    return torch.cat(sides[0], 1), torch.cat(sides[1], 1)


def _shares(g_next: Tensor, g: Tensor, responsibilities: Tensor) -> Iterator[tuple[str, float]]:
    """Soft and hard: as the data shows them. Unbiased: hard labels, without what few rows add to ||C_z||_F."""
    labels = responsibilities.argmax(1)
    present = labels.unique()
    hard = torch.nn.functional.one_hot(labels, responsibilities.shape[1]).double()
    for kind, r in (("soft", responsibilities[:, responsibilities.sum(0) > 1e-9]), ("hard", hard[:, present])):
        parts = total_covariance(g_next, g, r)
        inside = parts.p @ torch.linalg.matrix_norm(parts.C_z)
        yield kind, float(inside / torch.linalg.matrix_norm(parts.C))
    size = penalty(g_next.unsqueeze(0), g.unsqueeze(0), hard.T, beta=0.0, estimator="unbiased")  # ||C_z||_F^2, [K]
    whole = penalty(g_next, g, torch.ones_like(labels), beta=0.0, estimator="unbiased")
    yield "unbiased", float(hard.mean(0) @ (size.clamp_min(0) / whole).sqrt())


# -- the table


def collect(folders: list[Path]) -> None:
    jobs = {}
    for folder in folders:
        for mode in MODES:
            path = folder / f"{mode}.json"
            if path.exists():
                jobs[mode if len(folders) == 1 else f"{folder.name}/{mode}"] = json.loads(path.read_text())
    if not jobs:
        raise SystemExit(f"no finished job in {', '.join(map(str, folders))}")
    baseline = next((job for job in jobs.values() if job["mode"] == "none"), None)
    for name, job in jobs.items():
        if baseline is not None:
            means = {t: (_mean(baseline["traces"][t]), _mean(job["traces"][t])) for t in TRACES}
            job["ratio_to_none"] = {
                t: without / having if without and having else None for t, (without, having) in means.items()
            }
        _print(name, job)
    write_json(folders[0] / "control.json", jobs)
    print(f"wrote {folders[0] / 'control.json'}")


def _print(name: str, job: dict[str, Any]) -> None:
    options = {key: job["c4"][0][key] for key in ("lambda_", "beta", "estimator", "scale", "K")} if job["c4"] else {}
    print(f"\n{name}: {job['algorithm']} on {job['task']}, {job['updates']:,} updates, seeds {job['seeds']}, {options}")
    if job["stopped"]:
        print(f"  stopped: {job['stopped']}")
    if job["last_scores"] is not None:
        print(f"  last scores {_row(job['last_scores'], '.1f')}")
    for trace in TRACES:
        ratio = f", none / this {_text(job['ratio_to_none'][trace], '.3g')}" if "ratio_to_none" in job else ""
        print(f"  {trace:40s} {_row(job['traces'][trace], '.4g')}{ratio}")
    for mode, shares in job["within_share"].items():
        for K, kinds in shares.items():
            cells = ", ".join(f"{kind} {_row(values, '.3f')}" for kind, values in kinds.items())
            print(f"  E||C_z||/||C|| {mode}, K = {K:>2s}: {cells}")


def _mean(values: Sequence[Number]) -> Number:
    known = [value for value in values if value is not None and np.isfinite(value)]
    return float(np.mean(known)) if known else None


def _text(value: Number, form: str) -> str:
    return "-" if value is None else f"{value:{form}}"


def _row(values: Sequence[Number], form: str) -> str:
    return f"{_text(_mean(values), form)} ({' '.join(_text(value, form) for value in values)})"


if __name__ == "__main__":
    main()
