"""What happens inside critics during training: Theorem 1's terms, traces, clusters and gradients."""

from c4rl.results.catalogue.c4 import PARTS, SHORT
from c4rl.results.catalogue.methods import small_methods
from c4rl.results.catalogue.sets import EIGHT, THREE
from c4rl.results.tables import ResultTable

TABLES = (
    ResultTable(
        "inside",
        "Inside the critics: networks of 2 x 64 units on 11,186 rows",
        tuple(small_methods(20_000, 4000)),
        ("hopper-medium-expert-v2",),
        updates=20_000,
        paper="",
        note="CQL has 4,000 updates.",
    ),
    ResultTable(
        "variance",
        "Whether updates follow the variance of the TD error rather than its mean: networks of 2 x 64 units",
        tuple(small_methods(20_000, 4000)),
        EIGHT,
        quantity="variance_lead",
        updates=20_000,
        paper="",
        shows="first figure: which part of the TD loss moves the critic",
        headline=("TD3+BC", "TD3+BC + C4", "CQL", "CQL + C4"),
        note="Above 0, the variance moves the critic more. CQL has 4,000 updates.",
    ),
    ResultTable(
        "c4-parts-trace",
        "The trace of the cross-covariance of gradients in the runs of `c4-parts`, on a fixed sample of 1,024 rows",
        PARTS,
        THREE,
        quantity="cross_covariance_trace_exact",
        paper="",
        **SHORT,
    ),
    ResultTable(
        "c4-parts-clusters",
        "Effective clusters in the runs of `c4-parts`",
        tuple(method for method in PARTS if "c4" in (method.plugins or ()) and method.options.get("K") != 1),
        THREE,
        quantity="c4_effective_K",
        paper="",
        **SHORT,
    ),
)
