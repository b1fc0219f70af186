"""`c4rl demo`: the demonstration."""

from dataclasses import dataclass
from pathlib import Path

from c4rl.cli.parsing import Arguments, free_folder, parse_as
from c4rl.core.declarations import Options, option


@dataclass(frozen=True)
class Flags(Options):
    output: Path | None = None
    """New folder. Default: runs/demo, runs/demo-2, ..."""
    task: str = "maze2d-umaze-dense-v1"
    """A maze2d task of `c4rl tasks`."""
    size: int = option(10_000, at_least=1, at_most=10**7)
    """Transitions to record."""
    updates: int = option(15_000, at_least=1, at_most=10**9)
    """Gradient updates per run; cloning takes a fifth."""
    seeds: tuple[int, ...] = option((0, 1), at_least=0, at_most=2**63 - 1)
    """One run per seed and method."""
    episodes: int = option(20, at_least=1, at_most=10**6)
    """Evaluation episodes per run."""


def demo(arguments: Arguments) -> int:
    """Record a small Maze2D dataset, train cloning, TD3+BC and best on it, score them, and draw what they learned."""
    flags = parse_as(Flags, "demo", arguments, demo.__doc__)

    from c4rl.results.demonstration import demonstrate

    folder = flags.output or free_folder("demo")
    return demonstrate(folder, flags.task, flags.size, flags.updates, flags.seeds, flags.episodes)
