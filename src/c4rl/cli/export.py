"""`c4rl export`: write a policy to a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.core.declarations import Options, option


@dataclass(frozen=True)
class Flags(Options):
    folder: tyro.conf.Positional[Path]
    """A folder made by c4rl train."""
    format: Literal["npz", "onnx"] = "npz"
    """npz, for NumPy alone; or onnx, for any ONNX runtime."""
    checkpoint: Literal["last", "best", "selected"] | None = None
    """The last policy, that of the seed's best evaluation, or the one that --select kept; default selected if the job
    was trained with --select, else last."""
    seed: int | None = option(None, at_least=0, at_most=2**63 - 1)
    """Which run, where only one has this seed; default the first that did not fail."""
    run: str | None = None
    """Which run, by its name in summary.json."""
    ensemble: bool = False
    """All seeds as one policy that plays the mean of their actions; in a job of several settings, those of --run's."""
    distil: int = option(0, at_least=0, at_most=10**9)
    """With --ensemble: train one network in so many updates to act as all seeds do together, and write that; 0: write
    them all. 10,000 were enough for two layers of 256 on seven of eight sets (docs/recipe.md). Needs the dataset."""
    distil_noise: float = option(0.1, at_least=0, at_most=100)
    """What is added to normalised observations, at which that network learns the ensemble's actions: its standard
    deviation."""
    output: Path | None = None
    """New file; default FOLDER/policy_CHECKPOINT_RUN.FORMAT. The model card's name has .md behind it."""


def export(arguments: Arguments) -> int:
    """Write a run's policy to a file that needs NumPy alone or an ONNX runtime, and a model card."""
    flags = parse_as(Flags, "export", arguments, export.__doc__)

    from c4rl.jobs.runs import file_name
    from c4rl.results.policies import export_policy

    written, passed_over = export_policy(
        flags.folder,
        flags.checkpoint,
        flags.seed,
        flags.output,
        flags.run,
        flags.ensemble,
        flags.format,
        flags.distil,
        flags.distil_noise,
    )
    for run, failure in passed_over.items():
        print(f"passed over {file_name(run)}, which failed: {failure}")
    for path in written:
        print(f"wrote {path}")
    return 0
