"""The recipe's table of distilled ensembles is that of the measurements (benchmarks/distilled.py)."""

import json

import numpy as np

from tests.documents import ROOT


def test_the_table_is_that_of_the_measurements() -> None:
    page, rows = (ROOT / "docs" / "recipe.md").read_text(), []
    for path in sorted((ROOT / "results" / "distilled").glob("*.json")):
        found = json.loads(path.read_text())
        means = {name: np.mean(found[name]) for name in ("members", "ensemble", "distilled")}
        gap = np.sqrt(sum(np.var(found[name], ddof=1) / len(found[name]) for name in ("ensemble", "distilled")))
        rows.append(
            f"| {found['set'].removesuffix('-v2')} | {means['members']:.1f} | {means['ensemble']:.1f} | "
            f"{means['distilled']:.1f} | {means['distilled'] - means['ensemble']:+.1f} ± {1.96 * gap:.1f} | "
            f"{found['distance']:.1%} |"
        )
    assert rows and "\n".join(rows) in page, "\n".join(rows)
