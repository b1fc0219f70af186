"""Are faster matrix products harmless? On a GPU:

    python benchmarks/precision.py --data DIR --output DIR [--modes fp32 bf16x3] [--updates 60000]

Trains CQL, with and without C4, on two 10k sets with each kind of product, several seeds each, and writes MODE.json
with the curves of Q and of the cross-covariance trace (means over --window updates); a mode whose file exists is not
run again. Then compares modes that have files with fp32. By a rule fixed before any mode was run, one is harmless if

- its runs lie within fp32's seed spread (between the lowest and the highest of three seeds, widened on both sides by as
  much) at 87% of all points or more, which is what three further seeds of fp32 would reach if seeds were Gaussian;
- and on none of the curves its mean over seeds, over the last sixth of the updates, is further from fp32's than chance
  explains (Student's t of three against three seeds below 4.6, which chance passes once in a hundred curves).

This tests curves, not scores: nothing is evaluated in the simulator.
"""

import argparse
import json
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from c4rl.core.ops import OFFERED
from c4rl.data.packing import pack_datasets
from c4rl.jobs.config import empty_config
from c4rl.jobs.registry import algorithm_class
from c4rl.plugins.c4.plugin import C4Config
from c4rl.training.launch import Launch
from c4rl.training.preparation import prepare

TASKS = ("hopper-medium-expert-v2", "walker2d-medium-v2")
CURVES = ("q", "cross_covariance_trace_proxy", "cross_covariance_trace_proxy_normalised")
EXPECTED, FAR = 0.87, 4.6  # see the rule above
TINY = {"hidden_layers": 2, "hidden_width": 32, "batch_size": 64}


class Study:
    """The seeds of one task with one choice of plug-ins: a launch of runs on a stream of its own."""

    def __init__(self, path: Path, task: str, plugin: str, seeds: int, updates: int, device: torch.device) -> None:
        options: dict[str, Any] = {}
        if device.type != "cuda":
            options["options"] = algorithm_class("cql").config_type(**TINY)
        if plugin == "c4":
            options["plugin_options"] = (C4Config(mode="proxy"),)  # whose trace is compared
        job = {"dataset": path, "task": task, "output": Path("unused"), "seeds": tuple(range(seeds))}
        config = replace(empty_config("cql", (plugin,), updates=updates, **job, **options), monitor=True)
        preparation = prepare(config)
        buffer = pack_datasets([(preparation.train, preparation.scaling)], device)
        self.name = f"{task} {plugin}"
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        with self.own_stream():
            self.launch = Launch(config, list(config.seeds), buffer, device)
        self.report: dict[Any, dict[str, float]] = {}
        self.curves: dict[str, list[list[float]]] = {name: [] for name in CURVES}

    def own_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    def update(self, step: int) -> None:
        with self.own_stream():
            self.launch.update(step)
            self.report = self.launch.refresh(step) or self.report

    def read(self) -> None:
        with self.own_stream():
            means = self.launch.read_metrics()
        for name, curve in self.curves.items():
            curve.append([(means[run] | self.report.get(run, {})).get(name, float("nan")) for run in means])


def run_mode(mode: str, given: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """All studies side by side, which a GPU does faster than one after the other."""
    arguments = (given.seeds, given.updates, device)
    studies = [
        Study(given.data / f"{task}.npz", task, plugin, *arguments) for task in TASKS for plugin in given.plugins
    ]
    for study in studies:
        study.launch.precision = mode
    if device.type == "cuda":
        torch.cuda.synchronize()
    began = time.perf_counter()
    for step in range(1, given.updates + 1):
        for study in studies:
            study.update(step)
        if step % given.window == 0:
            for study in studies:
                study.read()
    return {
        "updates": given.updates,
        "window": given.window,
        "run_updates_per_second": given.updates * given.seeds * len(studies) / (time.perf_counter() - began),
        "curves": {study.name: study.curves for study in studies},
        "failures": {
            f"{study.name} {run}": str(why) for study in studies for run, why in study.launch.failures().items()
        },
    }


def within(fp32: np.ndarray, other: np.ndarray) -> float:
    """The share of points [windows, runs] that lie within fp32's spread, widened by itself on both sides."""
    known = ~np.isnan(fp32).any(1)  # windows with a refresh, from which the trace is reported
    fp32, other = fp32[known], other[known]
    low, high = fp32.min(1, keepdims=True), fp32.max(1, keepdims=True)
    spread = high - low
    return float(((other >= low - spread) & (other <= high + spread)).mean())


def students_t(fp32: np.ndarray, other: np.ndarray) -> float:
    """Of the runs' means over the last sixth of the windows."""
    a, b = (curves[-max(1, len(curves) // 6) :].mean(0) for curves in (fp32, other))
    return float((b.mean() - a.mean()) / np.sqrt((a.var(ddof=1) + b.var(ddof=1)) / len(a) + 1e-30))


def compare(fp32: dict[str, Any], tried: dict[str, Any]) -> tuple[list[dict[str, Any]], bool]:
    """A row for each curve, and whether the mode is harmless by the rule above."""
    rows = []
    for study, curves in tried["curves"].items():
        for name in CURVES:
            a, b = np.array(fp32["curves"][study][name]), np.array(curves[name])
            ends = {"fp32": [round(float(v), 5) for v in a[-1]], "other": [round(float(v), 5) for v in b[-1]]}
            rows.append({"study": study, "curve": name, "within": within(a, b), "t": students_t(a, b), "last": ends})
    share = np.mean([row["within"] for row in rows])
    calm = all(abs(row["t"]) < FAR for row in rows)
    return rows, bool(share >= EXPECTED and calm and not tried["failures"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help=f"folder of {' and '.join(TASKS)} as npz")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--updates", type=int, default=60_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--modes", nargs="+", default=["fp32", "bf16x3"], choices=OFFERED)
    parser.add_argument("--plugins", nargs="+", default=["none", "c4"])
    parser.add_argument("--device", default="cuda", help="cpu: tiny networks, a check that this program runs")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    for mode in given.modes:
        if not (file := given.output / f"{mode}.json").exists():
            result = run_mode(mode, given, torch.device(given.device))
            file.write_text(json.dumps(result))
            shown = {name: result[name] for name in ("updates", "run_updates_per_second", "failures")}
            print(json.dumps({"mode": mode} | shown), flush=True)
    found = {file.stem: json.loads(file.read_text()) for file in sorted(given.output.glob("*.json"))}
    for mode in found:
        if mode != "fp32" and "fp32" in found:
            rows, harmless = compare(found["fp32"], found[mode])
            for row in rows:
                print(json.dumps({"mode": mode} | row))
            share = float(np.mean([row["within"] for row in rows]))
            print(json.dumps({"mode": mode, "within": share, "harmless": harmless}))


if __name__ == "__main__":
    main()
