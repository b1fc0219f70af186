"""`c4rl doctor`: examines a dataset, and shows what was found in a terminal or on a page."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from c4rl.data.dataset import Dataset
from c4rl.data.info import describe_with_findings
from c4rl.diagnostics.advice import Setting, advise, advise_preset
from c4rl.diagnostics.cloning_probe import CloningCurve, probe_cloning
from c4rl.diagnostics.coverage import describe_coverage
from c4rl.diagnostics.critic_probe import probe_critic
from c4rl.diagnostics.page import Page, Plot, Series, number
from c4rl.diagnostics.returns import describe_returns
from c4rl.diagnostics.soundness import Finding, check_soundness
from c4rl.environments.tasks import Task
from c4rl.training.preparation import pytorch_given_back

LEAST_PROBED = 20  # rows: with fewer there is nothing to hold out and to learn
CRITIC_SHARE = 0.25  # of the probe's seconds


@dataclass(frozen=True)
class Examination:
    description: dict[str, Any]  # of `c4rl data info`
    findings: list[Finding]
    coverage: dict[str, Any]
    returns: dict[str, Any]
    cloning: CloningCurve | None  # None: not probed
    critic: dict[str, Any] | None
    settings: list[Setting]
    seconds: float

    @property
    def faults(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == "fault"]


def examine(dataset: Dataset, task: Task, probe: bool, seconds: float) -> Examination:
    """seconds: the most that the probe takes."""
    began = time.monotonic()
    description, warnings = describe_with_findings(dataset, task)
    findings = check_soundness(dataset, description, warnings, task)
    coverage, returns = describe_coverage(dataset), describe_returns(dataset, task)
    cloning, critic = None, None
    if probe and len(dataset) >= LEAST_PROBED:
        with pytorch_given_back():
            torch.set_num_threads(1)  # more are slower on networks this small, by far where others use the machine
            cloning = probe_cloning(dataset, seconds=(1 - CRITIC_SHARE) * seconds)
            if dataset.next_action_valid.sum() >= LEAST_PROBED:
                critic = probe_critic(dataset, seconds=CRITIC_SHARE * seconds)
    settings = [advise_preset(dataset), *advise(returns, coverage, cloning)]
    return Examination(description, findings, coverage, returns, cloning, critic, settings, time.monotonic() - began)


def as_json(found: Examination) -> dict[str, Any]:
    cloning = None
    if found.cloning is not None:
        cloning = asdict(found.cloning) | {"best": found.cloning.best, "stop": found.cloning.stop}
    return {
        "dataset": found.description,
        "findings": [finding._asdict() for finding in found.findings],
        "coverage": found.coverage,
        "returns": found.returns,
        "cloning": cloning,
        "critic": found.critic,
        "settings": [setting._asdict() for setting in found.settings],
        "seconds": found.seconds,
    }


# -- sentences and numbers, for both the terminal and the page


def verdict(found: Examination) -> str:
    count = len(found.faults)
    return "no fault found" if count == 0 else f"{count} fault{'' if count == 1 else 's'} found"


def coverage_sentences(found: Examination) -> list[str]:
    c = found.coverage
    out = [
        f"{c['observation_dim']} observations vary like {c['state_effective_dimension']:.1f} independent ones; "
        f"{c['state_directions_99']} directions hold 99% of their variance.",
    ]
    if c["action_dim"] > 1:
        out[0] += f" {c['action_dim']} actions vary like {c['action_effective_dimension']:.1f}."
    if c["novelty"] is not None:
        near = "overlap" if c["novelty"] < 1.5 else "lie apart"
        out.append(
            f"Trajectories {near}: a state is {c['novelty']:.2f} times as far from other trajectories as from the rest "
            "of its own."
        )
    if c["neighbour_action_rmse"] is not None:
        out.append(
            f"Actions at neighbouring states of different trajectories differ by {c['neighbour_action_rmse']:.3f} "
            "(RMSE per action, scaled to [-1, 1]): noise, or several ways to act."
        )
    return out


def cloning_sentences(curve: CloningCurve) -> list[str]:
    least = min(curve.held_out)
    out = [
        f"A clone ({curve.settings['networks']} units) reaches a held-out action error of {least:.3f} at update "
        f"{curve.best:,}; a constant action has {curve.mean_action:.3f}.",
    ]
    if curve.overfits:
        out.append(
            f"It overfits: at update {curve.updates[-1]:,} the held-out error is {curve.held_out[-1]:.3f} and the "
            f"training error {curve.training[-1]:.3f}."
        )
    else:
        out.append(f"It does not overfit within {curve.updates[-1]:,} updates.")
    if curve.held_out_trajectories == 0:
        out.append("All rows are one trajectory: its end is held out, which may differ from the rest.")
    elif curve.held_out_trajectories < 3:
        held = "trajectory is" if curve.held_out_trajectories == 1 else "trajectories are"
        out.append(f"Only {curve.held_out_trajectories} {held} held out: the curve depends on which.")
    return out


def critic_sentences(critic: dict[str, Any]) -> list[str]:
    spectrum, clusters = critic["spectrum"], critic["clusters"]
    split = clusters["split"]
    return [
        f"After {critic['updates']:,} updates of a small TD3+BC, successive gradients correlate by "
        f"{spectrum['normalised_trace']:.2f} (tr C over the root of both variances); C has an effective rank of "
        f"{spectrum['effective_rank']:.1f} of {spectrum['features']}.",
        f"{clusters['effective_clusters']} clusters explain {clusters['explains_return']:.0%} of the variance of "
        f"returns and {clusters['explains_time']:.0%} of that of time. Of tr C, {split['within_trace']:.3g} lies "
        f"within clusters and {split['between_trace']:.3g} between them.",
    ]


WEIGHTED_HEADINGS = ("rows", "mean", "effective rows", "effective trajectories")


def weighted_rows(returns: dict[str, Any]) -> list[list[Any]]:
    first = ["all alike", returns["uniform_mean"], float(returns["rows"]), float(returns["trajectories"])]
    return [first] + [
        [k["name"], k["mean"], k["effective_rows"], k["effective_trajectories"]] for k in returns["weighted"]
    ]


# -- the terminal


def render(found: Examination) -> RenderableType:
    d = found.description
    style = "bold red" if found.faults else "bold green"
    parts: list[RenderableType] = [
        Text(f"{d['source']}: {d['rows']:,} rows in {d['trajectories']:,} trajectories", overflow="fold"),
        Text(verdict(found), style=style),
    ]
    if found.findings:
        listed = Table.grid(padding=(0, 1))
        for finding in found.findings:
            fault = finding.level == "fault"
            listed.add_row(Text(finding.level, style="bold red" if fault else "cyan"), Text(finding.sentence))
        parts += _titled("soundness", listed)
    parts += _titled("coverage", *map(Text, coverage_sentences(found)))
    parts += _titled(f"returns ({found.returns['kind']})", _rich_table(WEIGHTED_HEADINGS, weighted_rows(found.returns)))
    if found.cloning is not None:
        curve = found.cloning
        points = list(zip(curve.updates, curve.held_out, curve.training, strict=True))
        rows = [list(point) for point in points[:: max(1, len(points) // 10)]]
        parts += _titled(
            "cloning",
            *map(Text, cloning_sentences(curve)),
            _rich_table(("update", "held-out error", "training error"), rows),
        )
    if found.critic is not None:
        parts += _titled("critic", *map(Text, critic_sentences(found.critic)))
    settings = Table.grid(padding=(0, 2))
    for setting in found.settings:
        settings.add_row(Text(setting.name, style="bold"), Text(setting.value), Text(setting.reason, style="dim"))
    parts += _titled("settings", settings)
    parts += ["", Text(f"{found.seconds:.0f} s", style="dim")]
    return Group(*parts)


def _titled(title: str, *parts: RenderableType) -> list[RenderableType]:
    return ["", Text(title, style="bold"), *(Padding(part, (0, 0, 0, 2)) for part in parts)]


def _rich_table(headings: tuple[str, ...], rows: list[list[Any]]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for j, heading in enumerate(headings):
        table.add_column(heading, justify="left" if rows and isinstance(rows[0][j], str) else "right")
    for row in rows:
        table.add_row(*(number(value) for value in row))
    return table


# -- the page


def write_page(found: Examination, path: Path) -> None:
    d = found.description
    page = Page(f"c4rl doctor: {Path(d['source']).name}", f"{d['rows']:,} rows in {d['trajectories']:,} trajectories")
    page.section("Soundness")
    page.text(verdict(found).capitalize() + ".", kind="fault" if found.faults else "fine")
    page.listing([("fault" if f.level == "fault" else "faint", f"{f.level}:", f.sentence) for f in found.findings])
    ranges = [[name.replace("_", " "), r["min"], r["mean"], r["max"]] for name, r in d["ranges"].items()]
    page.table(("", "min", "mean", "max"), ranges, "Ranges", folded="ranges of the numbers")
    page.section("Settings")
    page.table(("setting", "value", "reason"), found.settings)
    page.section("Coverage", *coverage_sentences(found))
    shares = found.coverage["state_spectrum"]
    page.plots(
        Plot("Share of the observations' variance", "direction", [_bars("share", shares)], kind="bars"),
        Plot("Spread of each action", "action", [_bars("deviation", found.coverage["action_spread"])], kind="bars"),
    )
    page.section(f"Returns ({found.returns['kind']})")
    page.table(WEIGHTED_HEADINGS, weighted_rows(found.returns), "What weighting rows by returns would keep")
    page.plots(Plot("Returns, best first", "trajectory", [_bars("return", found.returns["values"])], kind="bars"))
    if found.cloning is not None:
        curve = found.cloning
        page.section("Cloning", *cloning_sentences(curve))
        lines = [Series("held out", curve.updates, curve.held_out), Series("training", curve.updates, curve.training)]
        marks = [(curve.stop, "stop here")] if curve.overfits and min(curve.held_out) < curve.mean_action else []
        page.plots(Plot("Action error (RMSE)", "update", lines, log_x=True, marks=marks))
    if found.critic is not None:
        clusters = found.critic["clusters"]["clusters"]
        page.section("Critic", *critic_sentences(found.critic))
        values = found.critic["spectrum"]["singular_values"]
        page.plots(Plot("Singular values of C", "direction", [_bars("value", values)], kind="bars"))
        rows = [[c["cluster"], c["share"], c["mean_return"], c["mean_time"], len(c["trajectories"])] for c in clusters]
        page.table(
            ("cluster", "share of rows", "mean return", "mean time", "trajectories"), rows, "Clusters of [g', g]"
        )
    page.write(path)


def _bars(name: str, values: list[float]) -> Series:
    return Series(name, list(range(1, len(values) + 1)), values)
