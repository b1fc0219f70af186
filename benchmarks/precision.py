"""Are faster products harmless? `python benchmarks/precision.py DATASET --task TASK [--updates 60000] [--json FILE]`.

On a GPU: CQL, with and without C4, in fp32 and with each faster kind of matrix product, several seeds each. A mode is
harmless where its curves of Q and of the cross-covariance trace stay within the spread of fp32's seeds: at every point
of a curve (means over --window updates), each of its runs lies between fp32's lowest and highest run, widened on both
sides by the spread itself. It is a test of curves, not of scores: nothing is evaluated in the simulator.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from c4rl.config import empty_config
from c4rl.kernels import products
from c4rl.training.buffer import TransitionBuffer
from c4rl.training.lane import Lane
from c4rl.training.preparation import prepare

CURVES = ("q", "cross_covariance_trace_proxy", "cross_covariance_trace_proxy_normalised")


def curves(
    dataset: Path, task: str, plugins: tuple[str, ...], mode: str, seeds: int, updates: int, window: int
) -> dict[str, Any]:
    """Per curve [windows, seeds], and the speed."""
    nowhere = Path("unused")
    config = empty_config(
        "cql", plugins, dataset=(dataset,), task=(task,), output=nowhere, seeds=tuple(range(seeds)), updates=updates
    )
    config = replace(config, monitor=True)
    device, preparation = torch.device("cuda"), prepare(config)
    buffer = TransitionBuffer([(preparation.train, preparation.scaling)], device)
    found: dict[str, list[list[float]]] = {name: [] for name in CURVES}
    with products(mode):
        lane = Lane(config, list(config.seeds), buffer, device)
        torch.cuda.synchronize()
        began, report = time.perf_counter(), {}
        for step in range(1, updates + 1):
            lane.update(step)
            report = lane.refresh(step) or report
            if step % window == 0:
                means = lane.read_metrics()
                for name in CURVES:
                    found[name].append([(means[seed] | report[seed]).get(name, float("nan")) for seed in config.seeds])
        torch.cuda.synchronize()
    rate = updates * seeds / (time.perf_counter() - began)
    return {
        "curves": found,
        "run_updates_per_second": rate,
        "failures": {str(k): v for k, v in lane.failures().items()},
    }


def harmless(reference: dict[str, Any], tried: dict[str, Any]) -> dict[str, float]:
    """Per curve, the share of its points that lie within fp32's seed spread, widened by itself on both sides."""
    shares = {}
    for name in CURVES:
        fp32, other = np.array(reference["curves"][name]), np.array(tried["curves"][name])
        low, high = fp32.min(1, keepdims=True), fp32.max(1, keepdims=True)
        spread = high - low
        shares[name] = float(((other >= low - spread) & (other <= high + spread)).mean())
    return shares


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--task", required=True)
    parser.add_argument("--updates", type=int, default=60_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--window", type=int, default=1000)
    parser.add_argument("--modes", nargs="+", default=["tf32", "tf32x3"])
    parser.add_argument("--plugins", nargs="+", default=["none", "c4"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    out: dict[str, Any] = {"updates": given.updates, "seeds": given.seeds, "window": given.window, "task": given.task}
    for plugin in given.plugins:
        arguments = (given.dataset, given.task, (plugin,))
        length = (given.seeds, given.updates, given.window)
        results = {mode: curves(*arguments, mode, *length) for mode in ("fp32", *given.modes)}
        for mode in given.modes:
            results[mode]["within_fp32"] = harmless(results["fp32"], results[mode])
        for mode, result in results.items():
            last = {name: [round(v, 4) for v in values[-1]] for name, values in result["curves"].items()}
            shown = {"plugin": plugin, "mode": mode, "speed": round(result["run_updates_per_second"]), "last": last}
            print(
                json.dumps(shown | {"within_fp32": result.get("within_fp32"), "failures": result["failures"]}),
                flush=True,
            )
        out[plugin] = results
        if given.json is not None:
            given.json.write_text(json.dumps(out))


if __name__ == "__main__":
    main()
