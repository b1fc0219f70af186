"""LN (Yue et al., 2023): LayerNorm in every hidden layer of the critics, and nothing else."""

from dataclasses import dataclass
from typing import ClassVar

from c4rl.core.options import Options
from c4rl.plugins.seams import Plugin


@dataclass(frozen=True)
class LayerNormConfig(Options):
    """LayerNorm has no options."""


class LayerNorm(Plugin):
    critic_layer_norm = True
    needs_critic: ClassVar[bool] = True

    def __init__(self, config: LayerNormConfig) -> None:
        self.config = config
