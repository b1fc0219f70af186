"""Speed on one GPU, with and without our kernels:

    python benchmarks/gpu_speed.py --json FILE [--speeds FOLDER] [--budget 190] [--seconds 0.25] [--processes 8]

Measures whole updates as CUDA graphs, three repeats of each: with our kernels ("ours"), in plain PyTorch ("plain"), the
plain update compiled by torch.compile into one graph ("compiled") or operation by operation ("compiled operations"),
and with one family of kernels at a time switched off ("without ...") or replaced by torch.compile ("compiled ...").

Several processes prepare the cases side by side (compiling and capturing takes most of the time). Then one case is
measured at a time, while the others wait: the GPU has nothing else to do. The most important cases come first, in
three rounds over each group; none is begun once --budget seconds have passed. A case that fails is noted and skipped.
FILE is rewritten as the measurements come in, and with --speeds also the files that `c4rl table runtime` and `overhead`
read. The tables of speed.md are printed at the end; --tables only prints them.
"""

import argparse
import itertools
import json
import multiprocessing
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from c4rl.core import ops
from c4rl.core.files import write_json
from c4rl.results.speed import (
    REPEATS,
    Measurement,
    TimedRuns,
    bench_config,
    machine_name,
    made_up_dataset,
    spread,
    summarize,
)
from c4rl.results.speed_tables import SHAPE, SPEED_TABLES, folder_of
from c4rl.training.launch import Launch
from c4rl.training.summary import versions

FAMILIES = ("mlp", "random", "adam", "subspace", "covariance", "losses metrics")  # of TD3+BC + C4
OPERATIONS = {  # what the compiler may replace; it cannot compile the eigensolvers of subspace
    "mlp": ("_plain_mlp",),
    "layer_norm": ("_plain_mlp",),
    "adam": ("adam_step",),
    "random": ("uniform", "normal", "integers", "cluster_rows"),
    "tanh_gaussian": ("sample_tanh_gaussian", "uniform_and_sampled"),
    "losses": ("clipped_target", "relative_mean", "mean_squared_error", "soft_actor_loss", "soft_maximum_gap"),
    "covariance": ("cross_covariance_size",),
    "metrics": ("add_metrics",),
}
ROWS = 10_000


@dataclass(frozen=True)
class Case:
    algorithm: str
    plugins: Any
    runs: int
    precision: str = "fp32"
    variant: str = "ours"
    rows: int = ROWS

    @property
    def families(self) -> list[str]:
        """The kernels that are not used, where the others are."""
        whole = ("ours", "plain", "compiled", "compiled operations")
        return [] if self.variant in whole else self.variant.split()[1:]

    def __str__(self) -> str:
        return f"{self.algorithm} {self.plugins} x{self.runs} {self.precision} {self.rows} rows: {self.variant}"


def plan(compiled: bool) -> list[list[Case]]:
    """Groups of cases, by their weight."""
    with_c4 = [Case(algorithm, "c4-proxy", runs) for algorithm in ("td3_bc", "cql") for runs in (1, 25)]
    first = [
        *with_c4,
        *(replace(case, precision="bf16x3") for case in with_c4),
        *(replace(case, variant="plain") for case in with_c4),
        *(replace(case, plugins="none", precision=p) for case in with_c4 for p in ops.OFFERED),
    ]
    tables = [
        Case(case.method.algorithm, case.method.plugins, case.runs, rows=case.rows)
        for table in SPEED_TABLES.values()
        for case in table.cases
    ]
    families = [
        *(replace(case, variant=f"without {family}") for case in with_c4[:3] for family in FAMILIES),
        *(replace(with_c4[2], variant="without tanh_gaussian", precision=p) for p in ops.OFFERED),
        replace(with_c4[2], plugins="none", variant="without losses metrics", precision="bf16x3"),
        *(replace(c, plugins="layer_norm", variant="without layer_norm") for c in with_c4[:3]),
    ]
    slow = [
        *(replace(with_c4[i], variant="compiled") for i in (1, 3, 0, 2)),
        *(replace(with_c4[i], variant="compiled operations") for i in (0, 2)),
        *(replace(with_c4[0], variant=f"compiled {family}") for family in FAMILIES if family != "subspace"),
        *(replace(with_c4[2], variant=f"compiled {family}") for family in ("mlp", "tanh_gaussian")),
        replace(with_c4[0], plugins="layer_norm", variant="compiled layer_norm"),
    ]
    groups, seen = [], set()
    for group in (first, slow if compiled else [], tables, families):
        new = [case for case in dict.fromkeys(group) if case not in seen]
        seen.update(new)
        groups.append(new)
    return groups


# -- one case


class Prepared:
    """A case's stages, ready to be measured."""

    def __init__(self, case: Case, device: torch.device) -> None:
        self.case = case
        whole = "compiled", "compiled operations"
        compiled = case.families if case.variant.startswith("compiled ") else []
        compile_operations(*(OPERATIONS if case.variant == "compiled operations" else compiled))
        with self.variant():
            ours = case.variant not in ("plain", *whole)
            graph = device.type == "cuda"
            config = bench_config(case.algorithm, case.plugins, case.runs, cuda_graph=graph, fused_kernels=ours)
            networks = {name: SHAPE[name] for name in ("hidden_layers", "hidden_width")}
            config = replace(config, options=replace(config.options, **networks))
            data = made_up_dataset(case.rows, SHAPE["observation_dim"], SHAPE["action_dim"])
            self.stages = {
                stage.name: TimedRuns(config, data, device, index, case.precision)
                for index, stage in enumerate(config.stages)
            }
            for timed in self.stages.values():
                for launch in timed.launches if case.variant in whole or "adam" in compiled else ():
                    for optimizer in launch.algorithm.optimizers.values():  # PyTorch's fused Adam is not for compilers
                        optimizer.lr = optimizer._flat_lr = torch.tensor(optimizer.lr, device=device)
                    if case.variant == "compiled":
                        compile_update(launch)
                timed.warm_up()

    def variant(self) -> AbstractContextManager[None]:
        return ops.without(*self.case.families) if self.case.families else nullcontext()

    def measure(self, seconds: float) -> dict[str, Measurement]:
        with self.variant():
            return {name: timed.measure(seconds) for name, timed in self.stages.items()}


def compile_update(launch: Launch) -> None:
    """All of an update, with its gradients and Adam, as one graph of the compiler's for each phase."""
    for step in range(1, 5):  # what is computed once in Python, such as the keys of random streams, is not compiled
        launch.step.fill_(step - 1)
        launch._update(step)
    torch._dynamo.reset()
    torch._dynamo.config.trace_autograd_ops = True  # PyTorch 2.11 and later
    torch._inductor.config.loop_ordering_after_fusion = len(launch.runs) > 1  # PyTorch 2.11 fails on one run with it
    compiled = torch.compile(launch._update, dynamic=False, fullgraph=True)
    steps: dict[Any, int] = {}  # one for each phase: another number would be compiled anew

    def update(step: int) -> None:
        compiled(steps.setdefault(launch.algorithm.phase(step), step))

    if launch._graphed is not None:
        launch._graphed.function = update
    else:
        launch._update = update  # type: ignore[method-assign]


def compile_operations(*families: str) -> None:
    """Compile each of their plain operations by itself, its gradient too, for the rest of this process."""
    torch._dynamo.config.recompile_limit = 64  # networks of many shapes, with gradients and without
    compiled: dict[Any, Any] = {}  # by the plain operation, which several modules import
    modules = [module for name, module in sorted(sys.modules.items()) if name.startswith("c4rl.")]
    for module, name in itertools.product(modules, [name for family in families for name in OPERATIONS[family]]):
        if (plain := vars(module).get(name)) is not None and plain.__module__.startswith("c4rl."):
            setattr(module, name, compiled.setdefault(plain, torch.compile(plain, dynamic=False)))


# -- processes that prepare, and measure when it is their turn


def work(pipe: Connection, device_name: str) -> None:
    """Answer each request (case, seconds): prepare the case, or measure it for so many seconds. A string: an error."""
    device = torch.device(device_name)
    prepared: dict[Case, Prepared] = {}
    torch.set_num_threads(1)
    while True:
        case, seconds = pipe.recv()
        try:
            if seconds is None:
                prepared[case] = Prepared(case, device)
                if device.type == "cuda":
                    torch.cuda.synchronize()
                    torch.cuda.empty_cache()
            pipe.send(None if seconds is None else prepared[case].measure(seconds))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}"[:500] + "\n" + traceback.format_exc()[-1500:])


class Workers:
    """Processes by the pipes to them."""

    def __init__(self, device: str) -> None:
        self.device, self.context = device, multiprocessing.get_context("spawn")
        self.processes: dict[Connection, Any] = {}

    def start(self) -> Connection:
        ours, theirs = self.context.Pipe()
        self.processes[ours] = self.context.Process(target=work, args=(theirs, self.device), daemon=True)
        self.processes[ours].start()
        theirs.close()
        return ours

    def prepare(self, queues: list[list[Case]], until: float) -> Iterator[tuple[Case, Connection, str | None, float]]:
        """One process for each queue; several may share one. Gives each case as it is ready: whose it is, or what went
        wrong. Nothing is begun after `until`, and those that still compile are ended then."""
        busy: dict[Connection, tuple[list[Case], Case, float]] = {}

        def give(pipe: Connection, cases: list[Case]) -> None:
            if cases and time.perf_counter() < until:
                busy[pipe] = cases, cases.pop(0), time.perf_counter()
                pipe.send((busy[pipe][1], None))

        for cases in queues:
            if cases:
                give(self.start(), cases)
        while busy:
            left = until - time.perf_counter()
            for pipe, (_, case, _) in busy.items():
                if left <= 0 and case.variant.startswith("compiled"):
                    self.processes[pipe].kill()  # its pipe is at its end
            for pipe in wait(list(busy), timeout=max(left, 0.5)):
                assert isinstance(pipe, Connection)
                cases, case, began = busy.pop(pipe)
                try:
                    error = pipe.recv()
                except (EOFError, ConnectionResetError):
                    error = "not ready in time, or the process died"
                else:
                    give(pipe, cases)
                yield case, pipe, error, time.perf_counter() - began

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()


# -- the whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tables", action="store_true", help="measure nothing: print the tables of FILE")
    parser.add_argument("--speeds", type=Path, help="folder for `c4rl table runtime` and `overhead`")
    parser.add_argument("--seconds", type=float, default=0.25, help="how long each repeat lasts")
    parser.add_argument("--budget", type=float, default=190.0, help="seconds after which nothing is begun")
    parser.add_argument("--prepare", type=float, default=80.0, help="seconds after which nothing is prepared any more")
    parser.add_argument("--processes", type=int, default=8, help="that prepare cases")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--only", nargs="+", help="cases whose names have one of these words")
    parser.add_argument("--device", default="cuda", help="cpu: a check that this program runs")
    given = parser.parse_args()
    if given.tables:
        if given.speeds is not None:
            write_speeds(given.json, given.speeds)
        print(tables(given.json))
        return
    began = time.perf_counter()
    groups = [[c for c in group if any(o in str(c) for o in given.only or [""])] for group in plan(given.compile)]
    cases = [case for group in groups for case in group]
    # the compiler takes longest: each of its cases has a process of its own
    slow = [case for case in cases if case.variant.startswith("compiled")]
    shared = [case for case in cases if case not in slow]
    workers = Workers(given.device)
    holders: dict[Case, Connection] = {}
    errors: dict[Case, str] = {}
    measured: dict[Case, list[dict[str, Measurement]]] = {}

    def say(*words: Any) -> None:
        print(f"{time.perf_counter() - began:5.0f}s", *words, flush=True)

    def save() -> None:
        results = []
        for case in cases:
            if found := measured.get(case):
                stages = {name: summarize([each[name] for each in found]) for name in found[0]}
                results.append(asdict(case) | {"stages": stages})
            else:
                results.append(asdict(case) | {"error": errors.get(case, "no time left")})
        name = machine_name(torch.device(given.device))
        given.json.write_text(json.dumps({"machine": {"name": name} | versions(), "results": results}, indent=1))
        if given.speeds is not None:
            write_speeds(given.json, given.speeds)

    queues = [*([case] for case in slow), *([shared] * given.processes)]
    for case, pipe, error, took in workers.prepare(queues, began + given.prepare):
        if error is None:
            holders[case] = pipe
        else:
            errors[case] = error
        say(f"{case}: {'ready' if error is None else error.splitlines()[0][:160]} ({took:.1f} s)")
    save()
    for group, _ in itertools.product(groups, range(REPEATS)):
        for case in group:
            if case not in holders or case in errors or time.perf_counter() - began > given.budget:
                continue
            try:
                holders[case].send((case, given.seconds))
                found = holders[case].recv()
            except (EOFError, OSError):
                found = "the process died"
            if isinstance(found, str):
                errors[case] = found
                say(f"{case}: {found.splitlines()[0][:160]}")
            else:
                measured.setdefault(case, []).append(found)
                say(f"{case}: {list(found.values())[-1].run_updates_per_second:,.0f}")
        save()
    workers.stop()
    print(tables(given.json))
    say("done")


def write_speeds(file: Path, speeds: Path) -> None:
    """A file for each measured cell of the tables of speed, as `c4rl bench table` writes them."""
    tabled = [cell for table in SPEED_TABLES.values() for cell in table.cases]
    cells = {(c.method.algorithm, c.method.plugins, c.rows, c.runs): c.name for c in tabled}
    found = json.loads(file.read_text())
    machine = {"device": "cuda"} | found["machine"] | {"precision": "fp32"}
    folder = folder_of(speeds, machine["name"], "fp32")
    folder.mkdir(parents=True, exist_ok=True)
    for result in found["results"]:
        cell = cells.get(tuple(result[name] for name in ("algorithm", "plugins", "rows", "runs")))
        if cell is None or "stages" not in result or (result["variant"], result["precision"]) != ("ours", "fp32"):
            continue
        what = {name: result[name] for name in ("algorithm", "plugins", "runs")}
        stages = [what | {"stage": name} | measured for name, measured in result["stages"].items()]
        shape = {"rows": result["rows"]} | SHAPE
        write_json(folder / f"{cell}.json", {"shape": shape, "machine": machine, "results": stages})


# -- the tables of speed.md, from FILE

LABELS = {"td3_bc": "TD3+BC", "cql": "CQL", "none": "", "c4-proxy": " + C4", "layer_norm": " + LayerNorm"}
COLUMNS = {
    "our kernels, fp32": ("ours", "fp32"),
    "our kernels, bf16x3": ("ours", "bf16x3"),
    "plain PyTorch": ("plain", "fp32"),
    "torch.compile": ("compiled", "fp32"),
    "torch.compile, each operation": ("compiled operations", "fp32"),
}
WITHOUT = {
    "plain": "all of them",
    "without mlp": "mlp: networks with bias, ReLU and their gradients",
    "without random": "random: draws, single-cluster batches",
    "without adam": "adam",
    "without subspace": "subspace: eigenvectors for clustering",
    "without covariance": "covariance: the penalty",
    "without losses metrics": "losses and metrics",
    "without tanh_gaussian": "tanh_gaussian: samples of CQL's policy",
    "without layer_norm": "layer_norm (with LayerNorm instead of C4)",
}


def tables(file: Path) -> str:
    """Run-updates per second, and how much longer an update takes without each family, as Markdown."""
    cells: dict[tuple[Any, ...], dict[str, Any]] = {}
    for result in json.loads(file.read_text())["results"]:
        if result["rows"] == ROWS:
            cells[tuple(result[name] for name in ("algorithm", "plugins", "runs", "variant", "precision"))] = result

    def trained(*key: Any) -> dict[str, Any] | None:
        """The last stage, which is the whole algorithm where it has one."""
        found = cells.get(key, {}).get("stages")
        return None if not found else list(found.values())[-1]

    def rate(*key: Any) -> str:
        if (found := trained(*key)) is None:
            failed = cells.get(key, {}).get("error", "no time left")
            return "" if "time" in failed else "fails in Inductor"
        apart = f" ({100 * spread(found):.1f}%)" if len(found["repeats"]) > 1 else ""
        return f"{found['run_updates_per_second']:,.0f}{apart}"

    def longer(variant: str, *key: Any, precision: str = "fp32") -> str:
        other, ours = trained(*key, variant, precision), trained(*key, "ours", precision)
        if other is None or ours is None:
            return ""
        return f"{100 * (ours['run_updates_per_second'] / other['run_updates_per_second'] - 1):+.0f}%"

    methods = [(a, p) for p in ("c4-proxy", "none", "layer_norm") for a in ("td3_bc", "cql")]
    lines = [f"| | runs | {' | '.join(COLUMNS)} |", "|---" * (2 + len(COLUMNS)) + "|"]
    for (algorithm, plugins), runs in itertools.product(methods, (1, 25)):
        found = [rate(algorithm, plugins, runs, *column) for column in COLUMNS.values()]
        if any(found):
            lines.append(f"| {LABELS[algorithm]}{LABELS[plugins]} | {runs} | {' | '.join(found)} |")
    lines += ["", "| without | TD3+BC + C4, 1 run | 25 runs | CQL + C4, 1 run | 25 runs |", "|---|---|---|---|---|"]
    for variant, label in WITHOUT.items():
        plugins = "layer_norm" if variant == "without layer_norm" else "c4-proxy"
        found = [longer(variant, a, plugins, runs) for a in ("td3_bc", "cql") for runs in (1, 25)]
        replaced = variant.replace("without", "compiled").replace("plain", "compiled")
        for place, (algorithm, runs) in enumerate(itertools.product(("td3_bc", "cql"), (1, 25))):
            if compiled := longer(replaced, algorithm, plugins, runs):
                found[place] += f" ({compiled})"
        for name, own in {"in bf16x3": plugins, "CQL alone in bf16x3": "none"}.items():
            if more := longer(variant, "cql", own, 1, precision="bf16x3"):
                found[2] += f"; {name} {more}"
        if any(found):
            lines.append(f"| {label} | {' | '.join(found)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
