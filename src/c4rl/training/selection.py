"""Of every run, one policy is kept: the best in the simulator and, with --select, the one that held-out trajectories
prefer, where the simulator has no say."""

from collections.abc import Callable, Mapping, Sequence

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.jobs.runs import RunKey
from c4rl.training.evaluation import HeldOutEvaluation
from c4rl.training.preparation import Preparation
from c4rl.training.records import CRITERIA, Better, Record, errs_less


class Choice:
    """Of every run, the evaluation that is better than all before it, and its policy."""

    def __init__(self, better: Better) -> None:
        self._better = better
        self.records: dict[RunKey, Record] = {}
        self.policies: dict[RunKey, NumpyPolicy] = {}

    def consider(self, records: Mapping[RunKey, Record], policies: Mapping[RunKey, NumpyPolicy]) -> bool:
        """Whether some run's choice changed."""
        better = [key for key, own in records.items() if self._better(own, self.records.get(key))]
        for key in better:
            self.records[key], self.policies[key] = records[key], policies[key]
        return bool(better)

    @property
    def updates(self) -> dict[RunKey, int]:
        return {key: record["update"] for key, record in self.records.items()}


class Selection(Choice):
    """That of --select."""

    def __init__(
        self,
        select: str,
        preparations: Sequence[Preparation],
        training: TransitionBuffer,
        check: Callable[[], None],
    ) -> None:
        self.criterion = CRITERIA[select]
        super().__init__(errs_less(self.criterion))
        self.held_out = HeldOutEvaluation(preparations, training, check)
