"""`c4rl data train-behaviour`: train agents that record data."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from c4rl.cli.parsing import Arguments, flags_of, parse
from c4rl.core.declarations import Options, option
from c4rl.core.errors import InputError, Interrupted


@dataclass(frozen=True)
class Flags(Options):
    robots: tyro.conf.Positional[tuple[str, ...]]
    """hopper, halfcheetah, walker2d, ant, goal-ant (AntMaze's ant, which learns to walk in any direction), or tasks of
    `c4rl tasks` in whose simulators agents learn."""
    output: Path
    """Folder of the training, or of one folder per robot. A training with the same settings that is there already is
    resumed."""
    seconds: float | None = option(None, above=0, at_most=1e9)
    """Stop after this many seconds, with a snapshot. The same command resumes from the last checkpoint."""
    workers: int | None = option(None, at_least=0, at_most=1000)
    """Processes that simulate each robot; they change only the speed. Default: the robots share all cores but one."""

    def check(self) -> None:
        if not self.robots or len(set(self.robots)) < len(self.robots):
            raise InputError(f"ROBOTS: found {' '.join(self.robots) or 'none'}, expected some, each once")


def train_behaviour(arguments: Arguments) -> int:
    """Train agents with SAC from scratch and keep snapshots that record data; run it again to resume."""
    from c4rl.environments.evaluation import available_cores
    from c4rl.environments.tasks import ROBOTS
    from c4rl.jobs.behaviour_config import BehaviourConfig
    from c4rl.training.behaviour import train_together

    settings = [flag for flag in flags_of(BehaviourConfig) if flag.field.name != "task"]
    flags = [*flags_of(Flags), *settings]
    values = parse("data train-behaviour", arguments, flags, description=train_behaviour.__doc__)
    own = Flags(**{flag.field.name: values.pop(flag.field.name) for flag in flags_of(Flags)})
    count = len(own.robots)
    workers = max(1, (available_cores() - 1) // count) if own.workers is None else own.workers
    configs = [BehaviourConfig(f"{robot}-expert" if robot in ROBOTS else robot, **values) for robot in own.robots]
    folders = [own.output / robot if count > 1 else own.output for robot in own.robots]
    jobs = [(config, folder, workers) for config, folder in zip(configs, folders, strict=True)]
    try:
        trainings = train_together(jobs, own.seconds, lambda line: print(line, flush=True))
    except BrokenPipeError:
        left = "left as of the last checkpoint; the same command resumes from there"
        raise Interrupted(f"nobody reads the output any more: {left}") from None
    for training in trainings:
        agents = f"{len(training.config.seeds)} agent{'s' * (len(training.config.seeds) > 1)}"
        print(f"{training.folder}: {training.steps:,} steps and {training.updates:,} updates of {agents}")
    return 0
