"""Settings for a dataset, each with its reason."""

from typing import Any, NamedTuple

from c4rl.data.dataset import Dataset
from c4rl.diagnostics.cloning_probe import TOLERATED, CloningCurve
from c4rl.diagnostics.page import number
from c4rl.diagnostics.returns import BEST
from c4rl.jobs.presets.best import best_for

GAIN = 0.15  # of the best return: what weighting by returns must add to the mean to be worth its lost rows
SCALES = 3.0  # between observations' standard deviations: networks learn less from small ones


class Setting(NamedTuple):
    name: str
    value: str
    reason: str


def advise_preset(dataset: Dataset) -> Setting:
    """What --preset best would train, and why."""
    recipe, reason = best_for(dataset)
    return Setting("--preset best", recipe.method, reason)


def advise(returns: dict[str, Any], coverage: dict[str, Any], cloning: CloningCurve | None) -> list[Setting]:
    """What this dataset suggests. A preset that sets itself by the data may take its values from here."""
    settings = [_weighting(returns)]
    if cloning is not None:
        settings.append(_stop(cloning))
    ratio = coverage["scale_ratio"]
    reason = f"The largest standard deviation of an observation is {number(ratio)} times the smallest."
    return [*settings, Setting("normalise observations", "yes" if ratio > SCALES else "no need", reason)]


def _weighting(returns: dict[str, Any]) -> Setting:
    name = "weight rows by returns"
    chosen = next(kept for kept in returns["weighted"] if kept["name"] == BEST)
    gain = chosen["mean"] - returns["uniform_mean"]
    facts = (
        f"Weighted {BEST} does, the rows' mean return goes from {number(returns['uniform_mean'])} to "
        f"{number(chosen['mean'])}, with {chosen['effective_rows']:,.0f} effective rows of {returns['rows']:,} left"
    )
    if returns["spread"] == 0:
        return Setting(name, "no", "All trajectories have the same return.")
    if not returns["comparable"]:
        reason = "Returns do not compare: trajectories start apart, or only one is long enough."
        return Setting(name, "no", f"{reason} The plug-in returns would draw all rows alike.")
    if gain < GAIN * abs(returns["best"]):
        return Setting(name, "no", f"{facts}: too little gain.")
    return Setting(name, "yes", f"{facts}.")


def _stop(cloning: CloningCurve) -> Setting:
    how = ", ".join(f"{key} {number(value)}" for key, value in cloning.settings.items())
    last = cloning.updates[-1]
    if min(cloning.held_out) >= cloning.mean_action:
        reason = f"Within {last:,} updates no clone came nearer to the held-out actions than a constant action ({how})."
        return Setting("stop cloning at", "not known", reason)
    if not cloning.overfits:
        reason = f"The held-out action error had not risen by update {last:,}, where the probe ended ({how})."
        return Setting("stop cloning at", f"{_rounded(last)} updates or later", reason)
    reason = (
        f"The held-out action error is lowest at update {cloning.best:,}, and after the one advised it is more than "
        f"{TOLERATED:.1%} above that; scores fall later than it rises ({how})."
    )
    return Setting("stop cloning at", f"about {_rounded(cloning.stop)} updates", reason)


def _rounded(updates: int) -> str:
    """To two digits: the probe knows no more."""
    return f"{float(f'{updates:.2g}'):,.0f}"
