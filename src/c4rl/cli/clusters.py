"""`c4rl clusters`: pictures of a critic's gradient clusters."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from c4rl.cli.parsing import Arguments, parse_as
from c4rl.core.declarations import Options, option
from c4rl.core.files import check_new_file


@dataclass(frozen=True)
class Flags(Options):
    folder: tyro.conf.Positional[Path]
    """A job's folder; its dataset must still be in its place."""
    output: Path = Path("clusters.html")
    """New HTML file, which opens from disk."""
    run: str | None = None
    """A run by its name in files. Default: the first."""
    K: int = option(5, at_least=1, at_most=1000)
    """Clusters."""
    mode: Literal["exact", "proxy"] = "exact"
    """Gradients of Q with respect to its input, or penultimate features."""
    size: int = option(1000, at_least=10, at_most=20_000)
    """Rows to draw; with more than 2,000, principal components replace t-SNE."""
    allow_import: bool = False
    """Import the module that the job's task names (gym:MODULE:ID), which runs its code."""


def clusters(arguments: Arguments) -> int:
    """Draw the gradient clusters of a job's critic by t-SNE, at its last checkpoint or at all that it kept."""
    flags = parse_as(Flags, "clusters", arguments, clusters.__doc__)
    check_new_file("output", flags.output)

    from c4rl.diagnostics.cluster_page import write_cluster_page

    found = write_cluster_page(
        flags.folder, flags.output, flags.run, flags.K, flags.mode, flags.size, flags.allow_import
    )
    print(f"wrote {flags.output}: {found['effective_clusters']} clusters hold 2% of the rows or more")
    return 0
