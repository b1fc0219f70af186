"""What an exported policy is and what it is worth: metadata, and a page of Markdown."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from c4rl.core.curves import late_mean
from c4rl.core.errors import printable
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.core.typed_json import jsonable
from c4rl.core.version import __version__
from c4rl.jobs.runs import file_name
from c4rl.results.provenance import Provenance
from c4rl.results.statistics import mean_interval
from c4rl.training.evaluation import MOST_TRAINING_ROWS
from c4rl.training.records import is_result, worth
from c4rl.training.summary import SELECTED_RULE, show_score


def model_metadata(found: Provenance) -> dict[str, str]:
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
    facts |= {"update": str(found.updates[found.members[0].key])}
    for record in evaluations:
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
