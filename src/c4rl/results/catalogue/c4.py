"""C4: its presets and their controls, and each of its settings."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from c4rl.results.catalogue.methods import (
    CONTROL,
    CONTROLLED,
    CQL,
    DIVERGENCE,
    PAPER,
    PAPER_CONTROL,
    PROXY,
    TD3BC,
    TD3BC_C4,
    by_rows,
    series_of,
)
from c4rl.results.catalogue.sets import EIGHT, NINE, ROBOTS, SCREENING, THREE
from c4rl.results.tables import Method, ResultTable

EXACT = {"mode": "exact"}  # C4 on gradients of Q, the quantity of the paper's theory


def _ingredients() -> Iterator[Method]:
    """Sixteen rows for six factors, a 2^(6-2) design of resolution IV, the last two set by the others (Lagrange by the
    product of C4, LayerNorm and cloning; twins by that of LayerNorm, cloning and entropy)."""
    for c4, norm, cloning, entropy in itertools.product((True, False), repeat=4):
        lagrange, twins = bool((c4 + norm + cloning) % 2), bool((norm + cloning + entropy) % 2)
        factors = {"C4": c4, "LayerNorm": norm, "cloning term": cloning, "fixed entropy": entropy}
        factors |= {"Lagrange": lagrange, "twin averaging": twins}
        off: dict[str, Any] = {"divergence_weight": 0.0} if not cloning else {}
        off |= {"entropy": "automatic"} if not entropy else {}
        off |= {"lagrange": "none"} if not lagrange else {}
        options = off | ({} if c4 else CONTROL) | {"average_critics": twins}
        label = " + ".join(name for name, on in factors.items() if on) or "none of them"
        plugins = ("c4", "layer_norm") if norm else ("c4",)
        yield Method(label, "cql", plugins, "authors-fixed", options=options, factors=factors)


def _where() -> Iterator[Method]:
    """α by rows, without and with C4."""
    for base in by_rows(replace(TD3BC, label="TD3+BC"), (1, 3, 10)):
        plain = series_of(base, "alpha", (0.5, 2.5, 10.0), "α")
        yield from (replace(method, paper=None, factors={"C4": False}) for method in plain)
        c4 = replace(base, label=f"{base.label}, C4", plugins=("c4",), options=base.options | PROXY)
        with_c4 = series_of(c4, "alpha", (0.5, 2.5, 10.0), "α")
        for method, without in zip(with_c4, plain, strict=True):
            yield replace(method, paper=None, against=without.label, factors={"C4": True})


def _on_td3_bc() -> Iterator[Method]:
    for alpha in (0.5, 2.5):
        plain = Method(f"TD3+BC, α {alpha}", "td3_bc", options={"alpha": alpha})
        yield plain
        c4 = replace(plain, plugins=("c4",), against=plain.label)
        for weight, rows in ((0.3, "cluster"), (0.3, "uniform"), (0.0, "uniform")):
            options = plain.options | PROXY | {"lambda_": weight, "actor_rows": rows}
            yield replace(c4, label=f"{plain.label} + C4, λ {weight}, actor rows {rows}", options=options)


def _parts() -> Iterator[Method]:
    """C4 where it raises scores (`c4-where`), with one of its settings changed at a time."""
    plain = replace(TD3BC, label="TD3+BC, α 10", options={"alpha": 10.0}, paper=None)
    default = replace(plain, label="C4", plugins=("c4",), options=plain.options | PROXY, against=plain.label)
    yield plain
    yield default
    changes: dict[str, dict[str, Any]] = {
        "K 1": {"K": 1},
        "K 20": {"K": 20},
        "λ 0": {"lambda_": 0.0},
        "λ 3": {"lambda_": 3.0},
        "λ auto": {"lambda_": "auto"},
        "unbiased estimator": {"estimator": "unbiased"},
        "exact gradients": {"mode": "exact"},
        "every 20 updates": {"period": 20},
        "every 50 updates": {"period": 50},
        "every 1,000 updates": {"period": 1000},
        "the actor on the cluster's rows": {"actor_rows": "cluster"},
    }
    for label, options in changes.items():
        options = default.options | options
        yield replace(default, label=f"C4, {label}", options=options, against=default.label)


def _exact() -> Iterator[Method]:
    """C4 on gradients, by λ and by α, with and without its parts."""
    base = replace(TD3BC, label="TD3+BC", paper=None)
    plain = {method.x: method for method in series_of(base, "alpha", (0.5, 2.5, 5.0, 10.0), "α")}
    yield from (replace(method, paper=None) for method in plain.values())
    some = (2.5, 5.0, 10.0)
    rows: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
        "C4, proxy": (PROXY, (0.5, *some)),
        "C4, λ 0.3": (EXACT, (0.5, *some)),
        "C4, λ 1": (EXACT | {"lambda_": 1.0}, some),
        "C4, λ 3": (EXACT | {"lambda_": 3.0}, (0.5, *some)),
        "C4, λ 10": (EXACT | {"lambda_": 10.0}, some),
        "C4, λ 1, unbiased": (EXACT | {"lambda_": 1.0, "estimator": "unbiased"}, some),
        "C4, λ 1, K 1": (EXACT | {"lambda_": 1.0, "K": 1}, some),
        "C4, λ 0": (EXACT | {"lambda_": 0.0}, some),
    }
    for label, (options, alphas) in rows.items():
        for method in series_of(replace(base, label=label, plugins=("c4",), options=options), "alpha", alphas, "α"):
            yield replace(method, paper=None, against=plain[method.x].label)


def _few_rows() -> Iterator[Method]:
    """C4 on gradients with fewer rows, at TD3+BC's published α."""
    for base in by_rows(replace(TD3BC, label="TD3+BC", options={"alpha": 2.5}), (1, 3)):
        yield base
        options = base.options | EXACT
        yield replace(base, label=f"{base.label}, C4", plugins=("c4",), options=options, against=base.label)


def _layer_norm() -> Iterator[Method]:
    """LayerNorm in the critics and C4 on gradients, each alone and both."""
    for alpha in (2.5, 10.0):
        plain = replace(TD3BC, label=f"TD3+BC, α {alpha}", options={"alpha": alpha}, paper=None)
        norm = replace(plain, label=f"{plain.label}, LN", plugins=("layer_norm",), against=plain.label)
        for base, plugins in ((plain, ("c4",)), (norm, ("layer_norm", "c4"))):
            yield base
            options = base.options | EXACT
            yield replace(base, label=f"{base.label} + C4", plugins=plugins, options=options, against=base.label)


def _weighted() -> Iterator[Method]:
    """C4 on gradients where rows of better trajectories come up more often: the actor's alone, or the critics' too,
    whose clusters are then drawn as z ~ Σ_i w_i r_iz."""
    for whose, label in (("actor", "the actor's rows weighted"), ("all", "all rows weighted")):
        options: dict[str, Any] = {"alpha": 2.5, "weighted_rows": whose}
        plain = replace(TD3BC, label=f"TD3+BC, {label}", plugins=("returns",), options=options, paper=None)
        yield plain
        c4 = replace(plain, label=f"{plain.label}, C4", plugins=("returns", "c4"), options=options | EXACT)
        yield replace(c4, against=plain.label)


def _confirmed() -> Iterator[Method]:
    """What `c4-exact` likes best: both λ at the α that suits TD3+BC best and at its published one."""
    base = replace(TD3BC, label="TD3+BC", paper=None, first=5)
    plain = {method.x: method for method in series_of(base, "alpha", (0.5, 2.5), "α")}
    yield from (replace(method, paper=None) for method in plain.values())
    for weight in (0.3, 3.0):
        c4 = replace(base, label=f"C4, λ {weight:g}", plugins=("c4",), options=EXACT | {"lambda_": weight})
        for method in series_of(c4, "alpha", (0.5, 2.5), "α"):
            yield replace(method, paper=None, against=plain[method.x].label)


PARTS = tuple(_parts())
SHORT: dict[str, Any] = {"seeds": 5, "updates": 15_000, "evaluations": 3}
TABLES = (
    ResultTable(
        "c4-screen",
        "CQL with C4's presets and with all of them but C4, screened before the main table",
        (CQL, *itertools.chain(*CONTROLLED), DIVERGENCE),
        THREE,
        headline=(CQL.label, PAPER.label, PAPER_CONTROL.label, DIVERGENCE.label),
        **SCREENING,
    ),
    ResultTable(
        "clusters",
        "CQL + C4, preset paper, by the number of clusters K",
        (replace(PAPER_CONTROL, paper="CQL"), *series_of(PAPER, "K", (1, 5, 20))),
        tuple(dict.fromkeys((*THREE, *(f"{robot}-medium-expert-v2" for robot in ROBOTS[:3])))),
        paper="clusters",
        x="clusters K",
        shows="table of the sensitivity to K",
        headline=("CQL + C4, paper, K 1", "CQL + C4, paper, K 5"),
        **SCREENING,
    ),
    ResultTable(
        "effective-k",
        "Effective clusters of CQL + C4, preset paper, started with 20",
        (replace(PAPER, label="CQL + C4, K 20", options={"K": 20}, paper="10k"),),
        THREE,
        paper="effective-k",
        quantity="c4_effective_K",
        shows="table of effective clusters",
        headline=("CQL + C4, K 20",),
        note="The paper does not state which set of a robot its number is from.",
        **SCREENING,
    ),
    ResultTable(
        "lambda",
        "CQL + C4, preset paper, by the penalty's weight λ",
        series_of(PAPER, "lambda_", (0.0, 0.3, 1.0), "λ"),
        NINE,
        paper="lambda",
        x="penalty weight λ",
        shows="table of the sensitivity to λ",
        headline=("CQL + C4, paper, λ 0.0", "CQL + C4, paper, λ 0.3"),
        **SCREENING,
    ),
    ResultTable(
        "alpha",
        "The base algorithm's coefficient: α of TD3+BC (the weight of Q), of CQL (the weight of its term)",
        (
            *series_of(replace(TD3BC, label="TD3+BC"), "alpha", (0.25, 0.5, 1.0, 2.5, 5.0), "α"),
            *series_of(TD3BC_C4, "alpha", (0.25, 0.5, 1.0, 2.5, 5.0), "α"),
            *series_of(PAPER, "cql_weight", (1.0, 10.0), "α"),
        ),
        THREE,
        x="coefficient α",
        shows="figure of the sensitivity to α",
        headline=("TD3+BC, α 0.5", "TD3+BC + C4, α 0.5"),
        **SCREENING,
    ),
    ResultTable(
        "frequency",
        "CQL + C4, preset paper, by the number of updates between two fits of the mixture",
        series_of(PAPER, "period", (20, 200, 1000), "every"),
        NINE,
        paper="frequency",
        x="updates between fits",
        shows="table of the clustering frequency",
        headline=("CQL + C4, paper, every 20", "CQL + C4, paper, every 200"),
        **SCREENING,
    ),
    ResultTable(
        "rows",
        "Scores by the number of rows: whole trajectories of the sets, the same for every method",
        (*by_rows(replace(TD3BC, label="TD3+BC")), *by_rows(PAPER_CONTROL), *by_rows(PAPER)),
        THREE,
        x="thousand rows",
        shows="figure of scores by data size",
        headline=tuple(f"{label}, {rows}k rows" for label in (PAPER_CONTROL.label, PAPER.label) for rows in (1, 10)),
        note="10k: all rows of the set.",
        **SCREENING,
    ),
    ResultTable(
        "ingredients",
        "CQL, preset authors-fixed, with some of its parts: a 2^(6-2) design of resolution IV",
        tuple(_ingredients()),
        THREE,
        updates=30_000,
        evaluations=6,
        note="Without C4: K 1, λ 0. An effect is the mean of the eight rows with a part minus that of the eight "
        "without; interactions of three parts are mixed into it.",
    ),
    ResultTable(
        "c4-on-td3_bc",
        "C4 (K 5, proxy) on TD3+BC, eight locomotion sets of about 10,000 rows",
        tuple(_on_td3_bc()),
        EIGHT,
        seeds=5,
        updates=30_000,
        evaluations=6,
        note="Clusters alone: λ 0.",
    ),
    ResultTable(
        "c4-where",
        "TD3+BC without and with C4 (K 5, λ 0.3, proxy), by rows and by α, the weight of Q",
        tuple(_where()),
        THREE,
        seeds=5,
        updates=15_000,
        evaluations=3,
        note="10k: all rows of the set; fewer are whole trajectories.",
    ),
    ResultTable(
        "c4-parts",
        "C4 on TD3+BC with α 10, where it raises scores, with one of its settings changed at a time",
        PARTS,
        THREE,
        note="C4: K 5, λ 0.3, proxy, every 200 updates, the actor's own rows.",
        **SHORT,
    ),
    ResultTable(
        "c4-exact",
        "C4 on gradients of Q (--mode exact, K 5) on TD3+BC, by λ and by α, the weight of Q",
        tuple(_exact()),
        THREE,
        x="coefficient α",
        note="λ 1, K 1: the penalty without clusters. λ 0: clusters without the penalty. Proxy: λ 0.3.",
        **SHORT,
    ),
    ResultTable(
        "c4-few-rows",
        "C4 on gradients of Q (--mode exact, K 5, λ 0.3) on TD3+BC with α 2.5 and fewer rows",
        tuple(_few_rows()),
        THREE,
        note="Whole trajectories of the sets, the same with and without C4.",
        **SHORT,
    ),
    ResultTable(
        "c4-layer-norm",
        "C4 on gradients of Q (--mode exact, K 5, λ 0.3) on TD3+BC with and without LayerNorm in the critics",
        tuple(_layer_norm()),
        THREE,
        note="α 2.5 is TD3+BC's published weight of Q.",
        **SHORT,
    ),
    ResultTable(
        "c4-weighted",
        "C4 on gradients of Q (--mode exact, K 5, λ 0.3) on TD3+BC with rows weighted by return (T 0.1)",
        tuple(_weighted()),
        THREE,
        note="α 2.5.",
        **SHORT,
    ),
    ResultTable(
        "c4-confirm",
        "C4 on gradients of Q (--mode exact, K 5) on TD3+BC, confirmed on eight sets with other seeds",
        tuple(_confirmed()),
        EIGHT,
        note="Seeds 5 to 9; settings were chosen on three of these sets with seeds 0 to 4 (`c4-exact`).",
        **SHORT,
    ),
    ResultTable(
        "c4-exact-cql",
        "CQL + C4, preset paper, on gradients of Q instead of features",
        (
            PAPER,
            PAPER_CONTROL,
            *(
                replace(PAPER, label=f"on gradients{word}", options=EXACT | own, paper=None, seeds=3)
                for word, own in (("", {}), (", λ 3", {"lambda_": 3.0}))
            ),
        ),
        THREE,
        **SCREENING,
    ),
)
