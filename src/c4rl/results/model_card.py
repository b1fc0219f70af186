"""What an exported policy is, where it came from and what it is worth: metadata, and a page of Markdown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.curves import late_mean
from c4rl.core.errors import InputError, printable
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.core.typed_json import jsonable
from c4rl.core.version import __version__
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.runs import Run, RunKey, file_name, key_of, run_config, runs_of
from c4rl.results.statistics import mean_interval
from c4rl.training.checkpoint import load_progress
from c4rl.training.evaluation import MOST_TRAINING_ROWS
from c4rl.training.run_directory import RunDirectory, is_result, job_summary, read_metrics
from c4rl.training.summary import SELECTED_RULE, Record, datasets_of, show_score, worth


@dataclass(frozen=True)
class Provenance:
    """What a run folder holds about a policy."""

    config: TrainConfig  # of the policy's runs alone
    members: tuple[Run, ...]  # one, or those of an ensemble
    seeds: tuple[Run, ...]  # all runs of its setting
    failed: dict[RunKey, str]
    checkpoint: str
    updates: dict[RunKey, int]  # which each of `seeds` has its policy from
    records: dict[RunKey, list[Record]]  # the evaluations of each of `seeds`
    sha256: str
    summary: dict[str, Any]  # empty if the job has not finished
    distilled: tuple[int, float, float] | None = None  # into one network: updates, noise, distance to the ensemble

    @property
    def task(self) -> str:
        return self.config.task[0]

    def evaluation(self, run: Run) -> Record | None:
        """The one that the run's exported policy had; a distilled one has had none."""
        if self.distilled is not None and len(self.members) == 1:
            return None
        return evaluation_of(run, self.records, self.updates)

    def dataset_facts(self) -> dict[str, Any]:
        """The dataset's part of summary.json: rows and, without a simulator, baselines of its errors."""
        of_each, index = datasets_of(self.summary), self.members[0].data
        facts = of_each[index] if index < len(of_each) else None
        return facts if isinstance(facts, dict) else {}

    def together(self) -> dict[str, Any]:
        """The score of ensembles of so many seeds, if the job measured them; it does so with the policies that it would
        export."""
        if self.checkpoint != ("last" if self.config.select == "none" else "selected") or self.distilled is not None:
            return {}
        group = self.members[0].group
        groups = self.summary.get("groups", [self.summary | {"name": group}])
        for one in groups if isinstance(groups, list) else ():
            if isinstance(one, dict) and one.get("name") == group and isinstance(one.get("ensemble"), dict):
                return one["ensemble"] if one["ensemble"].get("members") == len(self.members) else {}
        return {}


Records = dict[RunKey, list[Record]]


def evaluations(folder: Path, config: TrainConfig) -> Records:
    """Those of every run in metrics.jsonl."""
    path, records = folder / "metrics.jsonl", Records({run.key: [] for run in runs_of(config)})
    for record in read_metrics(path, records) if path.exists() else ():
        if any(map(is_result, record)):
            _add(records[key_of(record)], record)
    if config.select != "none" and "none" not in config.task:  # one may still wait for its score
        records = {key: [record for record in own if "score" in record] for key, own in records.items()}
    kinds = {frozenset(filter(is_result, record)) for own in records.values() for record in own}
    if len(kinds) > 1:
        names = " or ".join(" ".join(sorted(kind)) for kind in kinds)
        raise InputError(f"{path}: found evaluations with {names}, expected the same of all")
    if any(("score" in kind) == ("none" in config.task) for kind in kinds):
        found = " ".join(sorted(next(iter(kinds))))
        raise InputError(f"{path}: found {found}, expected what a job of this task writes")
    return records


def evaluation_of(run: Run, records: Records, updates: Mapping[RunKey, int]) -> Record | None:
    """The one that the run's policy had. A killed job may hold a policy whose evaluation is not logged (again) yet."""
    return next((record for record in records[run.key] if record["update"] == updates[run.key]), None)


def provenance(
    folder: Path,
    config: TrainConfig,
    members: Sequence[Run],
    failed: dict[RunKey, str],
    checkpoint: str,
    updates: dict[RunKey, int],
) -> Provenance:
    directory, records = RunDirectory(folder), evaluations(folder, config)
    seeds = tuple(run for run in runs_of(config) if run.group == members[0].group)
    digests = load_progress(directory.checkpoint).dataset_sha256.split(",") if directory.checkpoint.exists() else []
    return Provenance(
        run_config(config, members[0]),
        tuple(members),
        seeds,
        failed,
        checkpoint,
        updates,
        {run.key: records[run.key] for run in seeds},
        digests[members[0].data] if members[0].data < len(digests) else "not known",
        job_summary(folder, config) or {},
    )


def _add(records: list[Record], record: Record) -> None:
    """Held-out errors are logged before the score of the same update: they become one record."""
    for known in records:
        if known["update"] == record["update"]:
            known |= record
            return
    records.append(record)


def policy_facts(found: Provenance) -> dict[str, str]:
    """Names and values of a model's metadata."""
    facts = {
        "c4rl_version": __version__,
        "task": found.task,
        "dataset": found.config.dataset[0].name,
        "dataset_sha256": found.sha256,
        "algorithm": found.config.algorithm,
        "plugins": " ".join(found.config.active_plugins),
        "run": " ".join(file_name(run.key) for run in found.members),
        "seeds": " ".join(str(run.seed) for run in found.members),
        "checkpoint": found.checkpoint,
        "trained_with": json.dumps(found.summary.get("versions", {})),
    }
    evaluations = [record for run in found.members if (record := found.evaluation(run)) is not None]
    if found.distilled is not None:
        names = ("distilled_updates", "distilled_noise", "distance_to_ensemble")
        facts |= {name: str(value) for name, value in zip(names, found.distilled, strict=True)}
    if len(found.members) > 1:
        facts |= {"score": str(found.together().get("mean", "not measured"))}
        return facts | {"score_of_members": json.dumps([record.get("score") for record in evaluations])}
    for record in evaluations:
        facts |= {"update": str(record["update"])}
        facts |= {name: str(record[name]) for name in filter(is_result, record)}
    return facts


def card(found: Provenance, policy: NumpyPolicy, file: str) -> str:
    """The model card, in Markdown."""
    name = found.task if found.task != "none" else found.config.dataset[0].name
    if len(found.members) > 1:
        which = f"The mean action of {len(found.members)} policies, seeds {_list(run.seed for run in found.members)}"
    else:
        which = f"The policy of run `{file_name(found.members[0].key)}`"
    parts = [
        f"# {found.config.method} on {name}",
        f"{which}, {found.checkpoint} checkpoint{_distilled(found)}. File: `{file}`. Written by c4rl {__version__}.",
        _interface(policy),
        _data(found),
        _method(found),
        _scores(found),
        _held_out(found),
        _limits(found),
    ]
    return "\n\n".join(parts) + "\n"


def _distilled(found: Provenance) -> str:
    if found.distilled is None:
        return ""
    updates, noise, distance = found.distilled
    return (
        f", distilled into one network in {updates:,} updates at observations with noise of {noise:g}. On "
        f"the logged rows its actions are {distance:.2%} of their range away from theirs (RMS); it was not scored"
    )


def _interface(policy: NumpyPolicy) -> str:
    s, a = policy.observation_mean.size, policy.action_low.size
    bounds = [
        f"| action {i} | {low:g} | {high:g} |"
        for i, (low, high) in enumerate(zip(policy.action_low, policy.action_high, strict=True))
    ]
    return "\n".join(
        [
            "## Interface",
            "",
            f"`observation` float32 [batch, {s}], as logged: the normaliser is inside.",
            f"`action` float32 [batch, {a}], in the units of the data:",
            "",
            "| | low | high |",
            "|---|---|---|",
            *bounds,
        ]
    )


def _data(found: Provenance) -> str:
    facts, config = found.dataset_facts(), found.config
    rows = {
        "file": f"`{config.dataset[0].name}`",
        **({"name": f"`{printable(str(facts['name']))}`"} if "name" in facts else {}),
        "sha256": f"`{found.sha256}`",
        "rows trained on": _count(facts.get("rows")),
        "rows in the file": _count(facts.get("file_rows")),
    }
    if config.size is not None:
        rows["subset"] = f"{config.subset}, seed {config.subset_seed}"
    return _section("Data", _table(rows))


def _method(found: Provenance) -> str:
    config = found.config
    options: dict[str, Any] = {config.algorithm: asdict(config.options)}
    options |= {name: asdict(own) for name, own in zip(config.active_plugins, config.plugin_options, strict=False)}
    versions = found.summary.get("versions", {})
    rows = {
        "method": config.method,
        "updates": _updates(found),
        "seeds trained": _list(run.seed for run in found.seeds),
        "trained with": ", ".join(f"{name} {v}" for name, v in versions.items()) if versions else "not known",
    }
    return _section("Method", _table(rows) + f"\n\n```json\n{json.dumps(jsonable(options))}\n```")


def _updates(found: Provenance) -> str:
    """The job's; where the policy has fewer, as in a job that was interrupted, also its own."""
    planned, every = found.config.updates, found.config.total_updates
    own = dict.fromkeys(found.updates[run.key] for run in found.members)
    if found.summary and set(own) <= {every}:
        return f"{planned:,}"
    ending = "" if found.summary else "; the job has not finished"
    return f"{_list(f'{update:,}' for update in own)} of {every:,}{ending}"


def _scores(found: Provenance) -> str:
    if found.task == "none":
        return _section("Scores", "None: the job was trained without a simulator. See the held-out numbers.")
    if not any(found.records.values()):
        return _section("Scores", "None: the run folder holds no evaluation.")
    last, late, best = [], [], []
    for run in found.seeds:
        scores = [record["score"] for record in found.records[run.key] if "score" in record]
        if scores:
            last.append(scores[-1])
            late.append(late_mean(np.array(scores)))
            best.append(max(scores, key=worth))
    kind, rows = found.summary.get("score", "score"), []
    for run in found.members:
        if (record := found.evaluation(run)) is not None and "score" in record:
            title = f"{file_name(run.key)}, update {record['update']:,}"
            rows.append(f"| {title} | {show_score(record['score'], kind)} | - | its own |")
    if together := found.together():
        rows.append(_score_row(f"ensembles of {len(found.members)}", together.get("scores", []), kind))
    rows += [
        _score_row("last evaluation of every seed", last, kind),
        _score_row("mean of the second half of every seed's evaluations", late, kind),
        _score_row("best evaluation of every seed (chosen with the simulator)", best, kind),
    ]
    environment = found.summary.get("environment") or "not known"
    text = [
        f"{kind}; {found.config.eval_episodes} episodes an evaluation; simulator: {environment}.",
        "Intervals: 95%, Student's, over seeds.",
        "",
        "| | mean | interval | seeds |",
        "|---|---|---|---|",
        *rows,
    ]
    if len(found.members) > 1 and not together:
        text += ["", "The members were scored one by one; `c4rl evaluate DIR --ensemble` scores them together."]
    return _section("Scores", "\n".join(text))


def _score_row(title: str, scores: Sequence[float], kind: str) -> str:
    low, high = (show_score(end, kind) for end in mean_interval(np.array(scores)))
    shown = f"{low} to {high}" if len(scores) > 1 else "-"
    return f"| {title} | {show_score(float(np.mean(scores)), kind)} | {shown} | {len(scores)} |"


def _held_out(found: Provenance) -> str:
    names = sorted(
        {name for run in found.seeds for r in found.records[run.key] for name in r if name.endswith("_rmse")}
    )
    if not names:
        return _section("Held-out numbers", "None: no rows were held out.")
    facts = found.dataset_facts()
    known = {
        "action_rmse": ("mean_action_rmse", "the mean action"),
        "td_rmse": ("zero_critic_td_rmse", "a critic of 0"),
    }
    whose = "this policy" if len(found.members) == 1 else "its members"
    lines = [f"| | {whose} | every seed: mean | interval | for comparison |", "|---|---|---|---|---|"]
    for name in names:
        own = [r[name] for run in found.members if (r := found.evaluation(run)) is not None and name in r]
        every = [found.records[run.key][-1][name] for run in found.seeds if found.records[run.key]]
        interval = mean_interval(np.array(every))
        shown = f"{interval.low:.4g} to {interval.high:.4g}" if len(every) > 1 else "-"
        key, what = next((pair for end, pair in known.items() if name.endswith(end)), ("", ""))
        baseline = f"{facts[key]:.4g} for {what}" if isinstance(facts.get(key), float) else "-"
        mine = ", ".join(f"{value:.4g}" for value in own) or "-"
        lines.append(f"| {name.replace('_', ' ')} | {mine} | {np.mean(every):.4g} | {shown} | {baseline} |")
    if not any(name.startswith("held_out") for name in names):
        sample = "a fixed sample of " if (facts.get("rows") or 0) > MOST_TRAINING_ROWS else ""
        lines += ["", f"No rows were held out: these are errors on {sample}the training rows."]
    return _section("Held-out numbers", "\n".join(lines))


def _limits(found: Provenance) -> str:
    rows = found.dataset_facts().get("rows")
    logged = f"{_count(rows)} logged rows" if rows else "logged rows"
    limits = [
        f"Trained only on {logged}. Away from their states the actions are extrapolated.",
        "Deterministic; reads one observation and has no memory.",
    ]
    if found.task == "none":
        limits.append("Never run in a simulator or the real system. Held-out errors do not measure returns.")
    else:
        limits.append(f"Scored in the simulator of {found.task} only, which says nothing about any other system.")
    if found.checkpoint == "selected":
        limits.append(f"Chosen {SELECTED_RULE}.")
    if found.checkpoint == "best":
        limits.append("Chosen by its score in the simulator, so the score is biased upwards.")
    if len(found.seeds) < 5:
        limits.append(
            f"Seeds differ widely on small data, and {len(found.seeds)} of them give a wide interval or none."
        )
    if failed := [file_name(run.key) for run in found.seeds if run.key in found.failed]:
        limits.append(f"Runs of the same setting that failed: {', '.join(failed)}.")
    limits.append("Not tested for safety. Check actions before they reach hardware.")
    return _section("Limits of use", "\n".join(f"- {limit}" for limit in limits))


def _section(title: str, text: str) -> str:
    return f"## {title}\n\n{text}"


def _table(rows: dict[str, str]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def _list(values: Any) -> str:
    return ", ".join(map(str, values))


def _count(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "not known"
