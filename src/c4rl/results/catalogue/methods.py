"""Methods that several tables share, and how one method becomes several."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from c4rl.results.tables import Method

# BPPO's published rule runs the simulator after every update; its first stages are as long as the critic's here
BPPO = {"acceptance": "never", "value_updates": 100_000, "cloning_updates": 25_000}
NORMALISED = {"normalize_observations": True}
CONTROL = {"K": 1, "lambda_": 0.0}
PROXY = {"mode": "proxy"}  # C4 on features, as the paper runs it


def published(label: str, algorithm: str, **values: Any) -> Method:
    return Method(label, algorithm, **({"paper": label} | values))


def cql_c4(preset: str, **options: Any) -> tuple[Method, Method]:
    """With C4, and the same with all but C4."""
    label = f"control: {preset}, K 1, λ 0"
    control = Method(label, "cql", None, preset, options=options | CONTROL, seeds=5)
    c4 = replace(control, label=f"CQL + C4, {preset}", options=options, paper="CQL + C4", against=label)
    return c4, control


def series_of(base: Method, swept: str, values: tuple[float, ...], word: str = "") -> tuple[Method, ...]:
    """A method for each value of an option."""
    return tuple(
        replace(
            base,
            label=f"{base.label}, {word or swept} {value}",
            options=base.options | {swept: value},
            paper=str(value),
            swept=swept,
            series=base.label,
            x=value,
        )
        for value in values
    )


def with_plugins(base: Method) -> tuple[Method, ...]:
    """Alone, with LayerNorm and DR3, and with C4 on features (K 5, λ 0.3, 16 directions)."""
    return (
        base,
        replace(base, label=f"{base.label} + LN", plugins=("layer_norm",), paper=None, against=base.label),
        replace(base, label=f"{base.label} + DR3", plugins=("dr3",), paper=None, against=base.label),
        replace(
            base,
            label=f"{base.label} + C4",
            plugins=("c4",),
            options=base.options | PROXY,
            paper=f"{base.label} + C4",
            seeds=5,
            against=base.label,
        ),
    )


def small_methods(td3_bc: int, cql: int) -> Iterator[Method]:
    """TD3+BC and CQL with so many updates, without C4 and with it: small networks, so that anyone can repeat them on a
    CPU in minutes."""
    shared = {"hidden_layers": 2, "hidden_width": 64, "actor_lr": 1e-3, "critic_lr": 1e-3}
    few: dict[str, Any] = {"cql_actions": 4}
    for label, algorithm, options, updates in (("TD3+BC", "td3_bc", {}, td3_bc), ("CQL", "cql", few, cql)):
        base = Method(label, algorithm, preset="none", options=shared | options, job={"updates": updates})
        yield base
        yield replace(base, label=f"{label} + C4", plugins=("c4",), options=base.options | PROXY)


def by_rows(base: Method, thousands: tuple[int, ...] = (1, 3, 5, 10)) -> tuple[Method, ...]:
    """On parts of the data; the largest is all of it, about 10,000 rows."""
    return tuple(
        replace(base, label=f"{base.label}, {rows}k rows", job=base.job | job, series=base.label, x=rows, paper=None)
        for rows in thousands
        for job in ({"size": 1000 * rows} if rows < 10 else {},)
    )


BC, TD3BC, IQL = published("BC", "bc"), published("TD3+BC", "td3_bc"), published("IQL", "iql")
BPPO_, A2PR = published("BPPO", "bppo", options=BPPO), published("A2PR", "a2pr")
CQL = published("CQL", "cql")
CONTROLLED = tuple(map(cql_c4, ("paper", "authors", "authors-fixed")))  # each with its control
PAPER, PAPER_CONTROL = CONTROLLED[0]
DIVERGENCE = cql_c4("paper-divergence")[0]
TD3BC_C4 = Method("TD3+BC + C4", "td3_bc", ("c4",), options=PROXY | {"lambda_": 0.3, "actor_rows": "cluster"})
