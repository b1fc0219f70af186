"""The description of a behaviour agent's training: what the command line parses and its config.json stores."""

from dataclasses import dataclass

from c4rl.core.declarations import Options, option
from c4rl.core.errors import InputError
from c4rl.data.collection import GROUP

BLOCK = 32  # steps of each environment with one policy


@dataclass(frozen=True)
class BehaviourConfig(Options):
    """All that an agent depends on, but for `device`."""

    task: str
    """The task's simulator that it learns in."""
    steps: int = option(1_000_000, at_least=1, at_most=10**9)
    """Environment steps of each agent."""
    seeds: tuple[int, ...] = option((0,), at_least=0, at_most=2**31)
    """One agent each; they train together."""
    envs: int = option(16, at_least=GROUP, at_most=10_000)
    """Environments of each agent, a multiple of 8."""
    updates_per_step: float = option(0.5, above=0, at_most=100)
    """Updates per environment step."""
    random_steps: int = option(10_000, at_least=1, at_most=10**9)
    """First steps, with uniform actions and without updates."""
    replay: int = option(1_000_000, at_least=1, at_most=10**9)
    """The latest rows, from which batches are drawn."""
    batch_size: int = option(256, at_least=2, at_most=1_000_000)
    """Rows per update."""
    hidden_width: int = option(256, at_least=1, at_most=100_000)
    """Units of each of the two hidden layers."""
    lr: float = option(3e-4, above=0, at_most=1)
    """Adam's step size for policy, critics and temperature."""
    layer_norm: bool = False
    """LayerNorm in the critics."""
    symmetries: bool = True
    """Spread every batch over the robot's symmetries: the goal-ant has eight, the others none."""
    snapshot_every: int = option(50_000, at_least=1, at_most=10**9)
    """Steps between two snapshots of the policies."""
    evaluate_every: int = option(50_000, at_least=1, at_most=10**9)
    """Steps between two evaluations of the policies, without noise."""
    evaluation_episodes: int = option(5, at_least=0, at_most=1000)
    """Episodes of an evaluation; 0: none."""
    checkpoint_every: int = option(250_000, at_least=1, at_most=10**9)
    """Steps between two checkpoints, from which a killed training resumes; they hold all rows."""
    device: str = option("auto", incidental=True)
    """auto, cpu, cuda or cuda:N."""

    def check(self) -> None:
        if self.envs % GROUP:
            raise InputError(f"--envs: found {self.envs}, expected a multiple of {GROUP}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"--seeds: found {' '.join(map(str, self.seeds)) or 'none'}, expected some, each once")

    @property
    def block_rows(self) -> int:
        return BLOCK * self.envs
