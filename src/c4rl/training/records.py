"""Records of runs, the lines of metrics.jsonl: how they are read, and which evaluation of a run is best."""

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from c4rl.core.errors import InputError
from c4rl.core.files import parse_json, read_bytes
from c4rl.jobs.runs import RunKey, key_of

Record = dict[str, Any]  # an evaluation of one run, as metrics.jsonl has it
FAILED = "failed_at"  # in a record of a run that has failed: the update
# --select -> what is least at the checkpoint that it keeps
CRITERIA = {"held-out": "held_out_action_rmse", "held-out-td": "held_out_td_rmse"}
NOT_FINITE = ("nan", "inf", "-inf")  # as `jsonable` writes them


def read_metrics(path: Path, runs: Collection[RunKey]) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl, all of these runs. One that was being written when a process died is left out."""
    *lines, _ = read_bytes(path, "the metrics of a job", math.inf).split(b"\n")
    return [parse_record(line, f"{path}: line {number}", runs) for number, line in enumerate(lines, 1)]


def parse_record(line: bytes, origin: str, runs: Collection[RunKey]) -> dict[str, Any]:
    """A line of metrics.jsonl, of one of these runs."""
    record = parse_json(line, origin, "the metrics of a run")
    update = record.get("update") if isinstance(record, dict) else None
    if type(update) is not int or update < 0:
        raise InputError(f"{origin}: found no update, expected the metrics of a run")
    key = record.get("run", record.get("seed"))
    if not isinstance(key, int | str) or key not in runs:
        raise InputError(f"{origin}: found the run {key!r}, expected one of config.json")
    for name in filter(is_result, list(record)):
        record[name] = _number(record[name], f"{origin}: field '{name}'")
    if "score" in record:
        returns = record.get("returns")
        if not isinstance(returns, list) or not returns:
            raise InputError(f"{origin}: field 'returns' is {returns!r}, expected a list of numbers")
        record["returns"] = [_number(value, f"{origin}: field 'returns'") for value in returns]
    return record


def is_result(name: str) -> bool:
    """Whether this metric is a score or an error of an evaluation."""
    return name == "score" or name.endswith("_rmse")


def is_scored(record: Mapping[str, Any]) -> bool:
    """Whether this line of metrics.jsonl is of an evaluation."""
    return any(map(is_result, record))


def _number(value: Any, origin: str) -> float:
    with suppress(OverflowError):
        if type(value) in (int, float) or value in NOT_FINITE:
            return float(value)
    raise InputError(f"{origin} is {value!r}, expected a number")


# -- which evaluation of a run is best


Better = Callable[[Record, Record | None], bool]  # whether an evaluation is better than the best one before it


def scores_more(record: Record, best: Record | None) -> bool:
    return "score" in record and (best is None or worth(record["score"]) > worth(best["score"]))


def worth(score: float) -> float:
    """For comparing: an environment that gave no number is worth less than any."""
    return -math.inf if math.isnan(score) else score


def errs_less(criterion: str) -> Better:
    """criterion: a held-out error."""
    return lambda record, best: criterion in record and (best is None or record[criterion] < best[criterion])


def best_records(records: Iterable[Record]) -> dict[RunKey, Record]:
    """Each run's evaluation with the highest score."""
    return _chosen(records, scores_more)


def selected_records(records: Iterable[Record], criterion: str) -> dict[RunKey, Record]:
    """Each run's evaluation with the least held-out error."""
    return _chosen(records, errs_less(criterion))


def _chosen(records: Iterable[Record], better: Better) -> dict[RunKey, Record]:
    """The first of equals."""
    chosen: dict[RunKey, Record] = {}
    for record in records:
        if better(record, chosen.get(key_of(record))):
            chosen[key_of(record)] = record
    return chosen
