"""`c4rl ope`: judge policies by logged data, without a simulator."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from rich.text import Text

from c4rl.cli.parsing import Arguments, flags_of, parse
from c4rl.core.declarations import Options
from c4rl.core.files import check_new_file, write_json


@dataclass(frozen=True)
class Flags(Options):
    folders: tyro.conf.Positional[tuple[Path, ...]]
    """Folders made by c4rl train; every run that did not fail is a policy."""
    method: Literal["fqe"] = "fqe"
    """Fitted Q evaluation (docs/ope.md)."""
    checkpoint: Literal["last", "best", "selected"] | None = None
    """The last policies, those of each seed's best evaluation, or those that --select kept. Default: selected if the
    job was trained with --select, else last."""
    dataset: Path | None = None
    """Logged data. Default: the file that all the folders were trained on, with all its rows. If a job has several
    datasets, only its runs on this one are judged."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    json: Path | None = None
    """Also write the result to this new file."""
    allow_import: bool = False
    """Import the module that a job's task names (gym:MODULE:ID), which runs its code."""


def ope(arguments: Arguments) -> int:
    """Estimate the values of policies from logged data alone, with intervals and a ranking."""
    from c4rl.diagnostics.fitted_q import FittedQConfig

    own = flags_of(Flags)
    values = parse("ope", arguments, [*own, *flags_of(FittedQConfig, "fqe")], description=ope.__doc__)
    flags = Flags(**{flag.field.name: values.pop(flag.field.name) for flag in own})
    config = FittedQConfig(**values)
    check_new_file("json", flags.json)

    from c4rl.core.typed_json import jsonable
    from c4rl.results.off_policy import judge
    from c4rl.results.worth_of_estimates import sentence

    shown = iter(track(range(config.updates), "updates", console=Console(stderr=True), transient=True))
    result = judge(
        flags.folders,
        config,
        flags.checkpoint,
        flags.dataset,
        flags.device,
        lambda update: next(shown, None),
        flags.allow_import,
    )
    console = Console()
    table = Table(
        title=Text(f"Fitted Q evaluation on {result['dataset']['rows']:,} rows, discount {config.discount:g}")
    )
    for heading in ("rank", "policy", "value", "95% interval", "action distance", "score"):
        table.add_column(heading, justify="left" if heading == "policy" else "right", overflow="fold")
    for row in result["policies"]:
        interval = "-" if row["interval"] is None else "{:.4g} to {:.4g}".format(*row["interval"])
        score = "-" if row["score"] is None else f"{row['score']:.1f}"
        cells = f"{row['value']:.4g}", interval, _distance(row["action_distance"]), score
        table.add_row(str(row["rank"] or "-"), Text(row["policy"]), *cells)
    console.print(table)
    print(f"logged trajectories: {result['logged_value']:.4g} (mean discounted return, cut ones without extrapolation)")
    print(f"action distance of the mean logged action: {_distance(result['mean_action_distance'])}")
    if result["rank_correlation_of_all"] is not None:
        ranked = "-" if result["rank_correlation"] is None else f"{result['rank_correlation']:.2f}"
        every = f"{result['rank_correlation_of_all']:.2f}"
        print(f"rank correlation of values with simulator scores: {ranked} of the ranked policies, {every} of all")
    print(sentence(result["measured_elsewhere"]))
    for row in result["policies"]:
        for warning in row["warnings"]:
            print(f"warning: {row['policy']}: {warning}")
    if flags.json is not None:
        write_json(flags.json, jsonable(result))
    return 0


def _distance(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
