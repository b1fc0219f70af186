"""Options of every command that reads a dataset: the bounds of its actions."""

from dataclasses import dataclass

from c4rl.core.declarations import Options, option


@dataclass(frozen=True, kw_only=True)
class ActionBounds(Options):
    action_low: tuple[float, ...] | None = option(None, at_least=-1e9, at_most=1e9)
    """Lower action bounds: one number, or one per action. Default: the task's, the file's, or -1."""
    action_high: tuple[float, ...] | None = option(None, at_least=-1e9, at_most=1e9)
    """Upper action bounds."""
    clip_actions: bool = False
    """Clip logged actions to the bounds instead of refusing them."""
