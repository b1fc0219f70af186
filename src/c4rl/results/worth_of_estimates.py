"""How well the values of `c4rl ope` ordered policies whose simulator scores are known, as measured once.

ope_worth.json follows from results/ope/policies.json (`measure`).
"""

import json
from pathlib import Path
from typing import Any

from c4rl.results.statistics import rank_correlation

CLONED = ("BC", "best")  # methods that never looked for actions that a critic prefers


def worth() -> dict[str, Any]:
    """Rank correlations with simulator scores per dataset, and what they were measured with."""
    return json.loads(Path(__file__).with_name("ope_worth.json").read_text("utf-8"))


def measure(policies: dict[str, Any]) -> dict[str, Any]:
    """The content of ope_worth.json, from that of policies.json."""
    found = {}
    for task, own in policies["sets"].items():
        rows = [dict(zip(policies["columns"], row, strict=True)) for row in own["policies"]]
        cloned = [row for row in rows if row["method"] in CLONED]
        found[task] = {
            "policies": len(rows),
            "value": round(_with_scores(rows, "value"), 6),
            "value_of_clones": round(_with_scores(cloned, "value"), 6),
            "nearness": round(-_with_scores(rows, "action_distance"), 6),
        }
    facts = {name: policies[name] for name in ("settings", "versions", "environment")}
    return {"method": "fqe", **facts, "sets": found}


def _with_scores(rows: list[dict[str, Any]], name: str) -> float:
    return rank_correlation([row[name] for row in rows], [row["score"] for row in rows])


def sentence(measured: dict[str, Any]) -> str:
    """For people who are about to trust a ranking."""
    sets = measured["sets"].values()
    mean = {name: sum(own[name] for own in sets) / len(sets) for name in ("value", "value_of_clones", "nearness")}
    low, high = (pick(own["value"] for own in sets) for pick in (min, max))
    policies = max(own["policies"] for own in sets)
    return (
        f"what such a ranking was worth on {len(sets)} D4RL sets of 10,000 rows, {policies} policies each: rank "
        f"correlation of values with simulator scores {mean['value']:.2f} ({low:.2f} to {high:.2f}), "
        f"{mean['value_of_clones']:.2f} among clones; of nearness to the logged actions {mean['nearness']:.2f} "
        "(docs/ope.md)"
    )
