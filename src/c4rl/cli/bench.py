"""`c4rl bench`: measure speed."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.cli.table import STORE
from c4rl.core.declarations import Options, option


def speed(arguments: Arguments) -> int:
    """Measure updates per second of each algorithm on made-up data, evaluation and logging left out."""
    from c4rl.results.speed import Mode, Variant
    from c4rl.results.speed import speed as measure_speed

    @dataclass(frozen=True)
    class Flags(Options):
        algorithms: tuple[str, ...] = ("bc", "td3_bc", "cql")
        """Algorithms to measure, each stage separately."""
        plugins: tuple[Variant, ...] = ("none", "c4-proxy", "c4-exact")
        """Measure with each of these, where the algorithm has a critic."""
        runs: tuple[int, ...] | None = option(None, at_least=1, at_most=10_000)
        """Stack sizes; default 1 and 5, on a GPU also 25."""
        modes: tuple[Mode, ...] | None = None
        """On a GPU, updates as one CUDA graph or eager, with fused kernels or PyTorch's own (plain). Default: graph,
        and for TD3+BC and CQL with 1 and 25 runs the others too."""
        rows: int = option(10_000, at_least=2, at_most=10**9)
        """Rows of data."""
        observation_dim: int = option(17, at_least=1, at_most=100_000)
        """Width of an observation."""
        action_dim: int = option(6, at_least=1, at_most=100_000)
        """Width of an action."""
        hidden_layers: int | None = option(None, at_least=1, at_most=100)
        """Hidden layers of networks, instead of each algorithm's own number."""
        hidden_width: int | None = option(None, at_least=1, at_most=100_000)
        """Units per hidden layer, likewise."""
        precision: Literal["fp32", "bf16x3"] = "fp32"
        """Precision of matrix products on a GPU."""
        seconds: float = option(5.0, above=0, at_most=1e6)
        """How long each measurement lasts."""
        device: str = "auto"
        """auto, cpu, cuda or cuda:N."""
        threads: int | None = option(None, at_least=1, at_most=4096)
        """CPU threads; default all cores."""
        json: Path | None = None
        """Also write the result to this new file."""

    return measure_speed(**vars(parse_as(Flags, "bench speed", arguments, speed.__doc__)))


@dataclass(frozen=True)
class TableFlags(Options):
    name: tyro.conf.Positional[str]
    """Which table; a wrong name lists them."""
    data: Path
    """Folder of the datasets, TASK.npz."""
    output: Path = Path("runs/bench")
    """Folder of the job folders: what a stopped job goes on from."""
    store: Path = STORE
    """Folder of the results store."""
    dry: bool = False
    """Only list what is missing, in launches and estimated minutes."""
    minutes: float = option(1e6, above=0, at_most=1e6)
    """Stop after this long; the same command goes on from there."""
    methods: tuple[str, ...] | None = None
    """Only these rows of the table."""
    device: str = "auto"
    """auto, cpu, cuda or cuda:N."""
    precision: Literal["fp32", "bf16x3"] = "fp32"
    """Of matrix products on a GPU."""


def table(arguments: Arguments) -> int:
    """Train what a table of the results store lacks, and add it; stop and continue at any point."""
    flags = parse_as(TableFlags, "bench table", arguments, table.__doc__)

    from c4rl.results.bench_tables import check_data, list_jobs, missing_jobs, run_jobs
    from c4rl.results.store import Store
    from c4rl.results.tables import get_table

    store, chosen = Store(flags.store), get_table(flags.name, flags.methods)
    how = {"device": flags.device, "precision": flags.precision}
    jobs = missing_jobs(chosen, store, flags.data, flags.output / chosen.name, **how)
    if flags.dry:
        print(list_jobs(jobs, store))
        return 0
    check_data(jobs)
    return run_jobs(jobs, store, flags.minutes)
