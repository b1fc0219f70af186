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
    """npz, which needs only NumPy; or onnx, for any ONNX runtime."""
    checkpoint: Literal["last", "best", "selected"] | None = None
    """The last policy, that of the seed's best evaluation, or the one that --select kept. Default: selected if the job
    was trained with --select, else last."""
    seed: int | None = option(None, at_least=0, at_most=2**63 - 1)
    """Seed of the run to export, if only one run has it. Default: the first run that did not fail."""
    run: str | None = None
    """Name of the run to export, as in summary.json."""
    ensemble: bool = False
    """Export all seeds as one policy that plays the mean of their actions; in a job of several settings, the seeds of
    --run's setting."""
    distil: int = option(0, at_least=0, at_most=10**9)
    """With --ensemble: train one network for this many updates to act as all seeds do together, and write only that; 0:
    write all of them. 10,000 were enough for two layers of 256 on seven of eight sets (docs/recipe.md). Needs the
    dataset."""
    distil_noise: float = option(0.1, at_least=0, at_most=100)
    """With --distil: standard deviation of the noise on normalised observations, at which the network learns the
    ensemble's actions."""
    output: Path | None = None
    """New file. Default: FOLDER/policy_CHECKPOINT_RUN.FORMAT. The model card has the same name with .md appended."""


def export(arguments: Arguments) -> int:
    """Write a run's policy to a file that needs only NumPy or an ONNX runtime, and its model card."""
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
        print(f"skipped {file_name(run)}, which failed: {failure}")
    for path in written:
        print(f"wrote {path}")
    return 0
