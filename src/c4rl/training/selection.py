"""--select: of every run, keeps the checkpoint that held-out trajectories prefer; the simulator has no say in it."""

from collections.abc import Callable, Mapping, Sequence

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.jobs.runs import RunKey
from c4rl.training.evaluation import HeldOutEvaluation
from c4rl.training.preparation import Preparation
from c4rl.training.records import CRITERIA, Record, errs_less


class Selection:
    """The selected evaluation of every run, and its policy."""

    def __init__(
        self,
        select: str,
        preparations: Sequence[Preparation],
        training: TransitionBuffer,
        check: Callable[[], None],
    ) -> None:
        self.criterion = CRITERIA[select]
        self.better = errs_less(self.criterion)
        self.held_out = HeldOutEvaluation(preparations, training, check)
        self.records: dict[RunKey, Record] = {}
        self.policies: dict[RunKey, NumpyPolicy] = {}

    def consider(self, records: Mapping[RunKey, Record], policies: Mapping[RunKey, NumpyPolicy]) -> bool:
        """Whether some run's choice changed."""
        better = [key for key, own in records.items() if self.better(own, self.records.get(key))]
        for key in better:
            self.records[key], self.policies[key] = records[key], policies[key]
        return bool(better)

    @property
    def updates(self) -> dict[RunKey, int]:
        return {key: record["update"] for key, record in self.records.items()}
