"""--select: of every run, keeps the checkpoint that held-out trajectories prefer; the simulator has no say in it."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.jobs.runs import RunKey, key_of
from c4rl.training.evaluation import HeldOutEvaluation
from c4rl.training.preparation import Preparation
from c4rl.training.summary import CRITERIA, Record


def selected_records(records: Iterable[Record], criterion: str) -> dict[RunKey, Record]:
    """Each run's evaluation with the least held-out error; the first of equals."""
    chosen: dict[RunKey, Record] = {}
    for record in records:
        if criterion in record and _is_better(record, chosen.get(key_of(record)), criterion):
            chosen[key_of(record)] = record
    return chosen


def _is_better(record: Record, chosen: Record | None, criterion: str) -> bool:
    return chosen is None or record[criterion] < chosen[criterion]


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
        self.held_out = HeldOutEvaluation(preparations, training, check)
        self.records: dict[RunKey, Record] = {}
        self.policies: dict[RunKey, NumpyPolicy] = {}

    def consider(self, records: Mapping[RunKey, Record], policies: Mapping[RunKey, NumpyPolicy]) -> bool:
        """Whether some run's choice changed."""
        better = [key for key, own in records.items() if _is_better(own, self.records.get(key), self.criterion)]
        for key in better:
            self.records[key], self.policies[key] = records[key], policies[key]
        return bool(better)

    @property
    def updates(self) -> dict[RunKey, int]:
        return {key: record["update"] for key, record in self.records.items()}
