"""What do the fused kernels gain? On a GPU, all in one run:

    python benchmarks/kernels.py --json FILE [--seconds 0.3] [--budget 240] [--precision fp32]

Measures whole updates as CUDA graphs: with the fused kernels ("ours"), in plain PyTorch ("plain"), the plain update
compiled by torch.compile into one graph ("compiled") or operation by operation ("compiled operations"), and with one
family of kernels switched off at a time. Cases come
in the order of their weight; none is begun once --budget seconds have passed. A variant that fails is noted and left.
FILE is written after each measurement. The last table is each family's gain: how much longer an update takes without
it, re-clustering every 200 updates included.
"""

import argparse
import gc
import itertools
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from c4rl.algorithms import cql, iql, td3, td3_bc
from c4rl.core import ops, optimizers, policies
from c4rl.core.ops import losses
from c4rl.core.ops import mlp as networks_op
from c4rl.core.ops import random as draws
from c4rl.data.dataset import Dataset
from c4rl.data.packing import Scaling, pack_datasets
from c4rl.plugins.c4 import cluster_sampler, cross_covariance
from c4rl.results.speed import bench_config, made_up_dataset, measure
from c4rl.training import launch as launch_module
from c4rl.training.launch import Launch, launches_of
from c4rl.training.summary import versions

Case = tuple[str, Any, int]  # algorithm, plug-ins, runs
ROWS, OBSERVATION, ACTION = 10_000, 17, 6
OPERATIONS: tuple[tuple[Any, str], ...] = (  # where they are called
    (networks_op, "_plain_mlp"),
    (optimizers, "adam_step"),
    (draws, "uniform"),
    (draws, "normal"),
    (draws, "integers"),
    (cluster_sampler, "cluster_rows"),
    (policies, "sample_tanh_gaussian"),
    (losses, "clipped_target"),
    (td3, "relative_mean"),
    *((module, "mean_squared_error") for module in (td3, td3_bc, cql, iql)),
    (cross_covariance, "cross_covariance_size"),
    (launch_module, "add_metrics"),
    (cql.CQL, "_gap"),
)
ENOUGH = 0.1  # of an update: the gain for which a family of kernels is kept


def plan(given: argparse.Namespace) -> list[tuple[Case, bool]]:
    """The cases by their weight, each twice where there is something to compile, which takes the longest."""

    def cases(plugins: str, *names: str) -> list[Case]:
        chosen = [name for name in given.algorithms if name in names and plugins in given.plugins]
        return [(algorithm, plugins, runs) for algorithm, runs in itertools.product(chosen, given.runs)]

    first, normed = cases("c4-proxy", "td3_bc", "cql"), cases("layer_norm", "td3_bc", "cql")
    rest = [*cases("none", "td3_bc", "cql"), *cases("c4-proxy", "iql"), *cases("none", "iql")]
    return [
        *((case, False) for case in (*first, *normed)),
        *((case, True) for case in first),
        *((case, compiles) for case in rest for compiles in (False, True)),
    ]


def made_up_launch(case: Case, kernels: bool, precision: str, data: Dataset, device: torch.device) -> Launch:
    s, a = data.observation_dim, data.action_dim
    ones = np.ones(a, np.float32)
    scaling = Scaling(np.zeros(s, np.float32), np.ones(s, np.float32), -ones, ones)
    config = bench_config(*case, cuda_graph=device.type == "cuda", fused_kernels=kernels)
    launch = launches_of(config, pack_datasets([(data, scaling)], device), device)[0]
    launch.precision = precision
    return launch


def compile_update(launch: Launch) -> None:
    """All of an update, with its gradients and Adam, as one graph of the compiler's for each phase."""
    for step in range(1, 5):  # what is computed once in Python, such as the keys of random streams, is not compiled
        launch.step.fill_(step - 1)
        launch._update(step)
    torch._dynamo.reset()
    torch._dynamo.config.trace_autograd_ops = True  # PyTorch 2.11 and later
    compiled = torch.compile(launch._update, dynamic=False, fullgraph=True)
    steps: dict[Any, int] = {}  # one for each phase: another number would be compiled anew

    def update(step: int) -> None:
        compiled(steps.setdefault(launch.algorithm.phase(step), step))

    if launch._graphed is not None:
        launch._graphed.function = update
    else:
        launch._update = update  # type: ignore[method-assign]


@contextmanager
def compiled_operations() -> Iterator[None]:
    """Within it each plain operation is compiled by itself, its gradient too."""
    torch._dynamo.reset()
    torch._dynamo.config.recompile_limit = 64  # networks of many shapes, with gradients and without
    before = [(owner, name, getattr(owner, name)) for owner, name in OPERATIONS]
    for owner, name, function in before:
        setattr(owner, name, torch.compile(function, dynamic=False))
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


@contextmanager
def noted_families() -> Iterator[set[str]]:
    """The families whose kernels are used within it."""
    used: set[str] = set()
    chosen = ops.kernels_on

    def noted(device: torch.device, family: str) -> Any:
        found = chosen(device, family)
        used.update([family] if found is not None else [])
        return found

    ops.kernels_on = noted
    try:
        yield used
    finally:
        ops.kernels_on = chosen


def measure_variant(
    case: Case, variant: str, given: argparse.Namespace, data: Dataset, device: torch.device
) -> dict[str, Any]:
    gc.collect()
    began = time.perf_counter()
    fused = variant not in ("plain", "compiled", "compiled operations")
    with ExitStack() as stack:
        if variant.startswith("without "):
            stack.enter_context(ops.without(variant.removeprefix("without ")))
        if variant == "compiled operations":
            stack.enter_context(compiled_operations())
        used = stack.enter_context(noted_families())
        launch = made_up_launch(case, fused, given.precision if fused else "fp32", data, device)
        if not fused and variant != "plain":
            for optimizer in launch.algorithm.optimizers.values():  # PyTorch's fused Adam is not for compilers
                optimizer.lr = optimizer._flat_lr = torch.tensor(optimizer.lr, device=launch.device)
        if variant == "compiled":
            compile_update(launch)
        steps = itertools.count(1)
        rate = measure(lambda: launch.update(next(steps)), given.seconds, device, warm_up=12)
        per_update, refresh = 1 / rate, None
        if (period := next((p.period for p in launch.plugins.all if p.period is not None), None)) is not None:
            refresh = 1 / measure(lambda: launch.refresh(period), min(given.seconds, 0.3), device, warm_up=5)
            per_update += refresh / period
    return {
        "update_us": 1e6 / rate,
        "refresh_ms": None if refresh is None else 1e3 * refresh,
        "seconds_per_update": per_update,
        "run_updates_per_second": case[2] / per_update,
        "families": sorted(used),
        "took_s": time.perf_counter() - began,
    }


def variants_of(case: Case, families: list[str]) -> list[str]:
    """families: those that the case uses."""
    if case[1] == "layer_norm":  # for its own kernels alone
        return ["plain", *(f"without {family}" for family in families if family in ("layer_norm", "mlp"))]
    return ["plain", *(f"without {family}" for family in families), "ours again"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.3, help="how long each measurement lasts")
    parser.add_argument("--budget", type=float, default=240.0, help="seconds after which nothing is begun")
    parser.add_argument("--precision", default="fp32", choices=ops.OFFERED, help="of our kernels")
    parser.add_argument("--algorithms", nargs="+", default=["td3_bc", "cql", "iql"])
    parser.add_argument("--plugins", nargs="+", default=["c4-proxy", "layer_norm", "none"])
    parser.add_argument("--runs", nargs="+", type=int, default=[1, 25])
    parser.add_argument("--device", default="cuda", help="cpu: a check that this program runs")
    given = parser.parse_args()
    device, data = torch.device(given.device), made_up_dataset(ROWS, OBSERVATION, ACTION)
    machine = {"name": torch.cuda.get_device_name() if device.type == "cuda" else "cpu"} | versions()
    results: list[dict[str, Any]] = []
    began = time.perf_counter()

    def run(case: Case, variant: str) -> dict[str, Any]:
        result: dict[str, Any] = dict(zip(("algorithm", "plugins", "runs"), case, strict=True)) | {"variant": variant}
        if time.perf_counter() - began > given.budget:
            result["error"] = "no time left"
        else:
            try:
                result |= measure_variant(case, variant, given, data, device)
            except Exception as error:
                result["error"] = f"{type(error).__name__}: {error}"[:2000]
        results.append(result)
        named = f"{case[0]:8}{case[1]:11}{case[2]:3}  {variant:22}"
        if "error" in result:
            print(named, result["error"].splitlines()[0][:120], flush=True)
        else:
            refresh = "" if result["refresh_ms"] is None else f"  refresh {result['refresh_ms']:7.2f} ms"
            print(
                f"{named}{result['run_updates_per_second']:10,.0f} run-updates/s  update {result['update_us']:9.1f} us"
                f"{refresh}  ({result['took_s']:.1f} s)",
                flush=True,
            )
        given.json.write_text(json.dumps({"machine": machine, "precision": given.precision, "results": results}))
        return result

    for case, compiles in plan(given):
        if compiles:
            for variant in ("compiled", "compiled operations"):
                run(case, variant)
            continue
        ours = run(case, "ours")
        for variant in variants_of(case, ours.get("families", [])):
            run(case, variant)
    print_gains(results)


def print_gains(results: list[dict[str, Any]]) -> None:
    measured = {(r["algorithm"], r["plugins"], r["runs"], r["variant"]): r for r in results if "error" not in r}
    cases = list(dict.fromkeys(key[:3] for key in measured if (*key[:3], "ours") in measured))
    print("\nhow much longer an update takes than with our kernels:")
    print(f"{'':24}" + "".join(f"{'/'.join(map(str, case)):>22}" for case in cases))
    for variant in dict.fromkeys(key[3] for key in measured if key[3] != "ours"):
        gains: list[float | None] = []
        for case in cases:
            other, ours = measured.get((*case, variant)), measured[(*case, "ours")]
            gains.append(None if other is None else other["seconds_per_update"] / ours["seconds_per_update"] - 1)
        kept = variant.startswith("without ") and max(g for g in gains if g is not None) >= ENOUGH
        cells = "".join(f"{'-' if gain is None else f'{gain:+.1%}':>22}" for gain in gains)
        print(f"{variant:24}{cells}{'  keep' if kept else ''}")


if __name__ == "__main__":
    main()
