"""Presets: C4 as the paper describes it, with and without its divergence, as the authors' release runs it, and that
recipe without its bugs.

Every value carries its source (c4.json). "run/C4.py" and the like are files of the authors' release (NanMuZ/C4 at
32d30f0). The release has code for CQL alone; the paper also plugs C4 into TD3+BC, BPPO and A2PR, at settings it does
not give: CQL's by domain are CORL's (corl-team/CORL at eeeeef2) and Cal-QL's, step sizes and networks are the paper's.
"""

import json
from pathlib import Path
from typing import NamedTuple

from c4rl.core.errors import InputError
from c4rl.environments.tasks import get_task
from c4rl.jobs.presets.published import published_for
from c4rl.jobs.presets.settings import Setting, Settings, settings_from

NO_PRESET = "none"


class Preset(NamedTuple):
    """A preset for one algorithm and one task; names are those of the flags."""

    plugins: tuple[str, ...]
    training: Settings  # fields of TrainConfig
    options: Settings  # of the algorithm
    c4: Settings  # of C4Config


def preset(name: str, algorithm: str, task: str) -> Preset:
    if name not in PRESETS:
        raise InputError(f"--preset: found '{name}', expected one of best, published, {', '.join(PRESETS)}")
    if name == "paper":
        return _paper(algorithm, task)
    if name == "paper-divergence":
        paper = _paper(algorithm, task)
        return paper._replace(c4=paper.c4 | _SETTINGS["divergence"])
    if algorithm != "cql":
        raise InputError(f"--preset {name}: found --algorithm {algorithm}, expected cql (the release has no other)")
    return _authors(task) if name == "authors" else _authors_fixed(task)


PRESETS: dict[str, str] = {
    "paper": "Algorithm 1 with the values of the paper's appendix; what the paper leaves open is CORL's, or ours.",
    "paper-divergence": "The same with a divergence in the actor's loss, as in the release: -4 log π(a|s).",
    "authors": "What the authors' release runs, its quirks included; CQL alone.",
    "authors-fixed": "The authors' recipe without what is clearly a bug; CQL alone.",
}

_SETTINGS: dict[str, Settings] = {
    table: settings_from(stored)
    for table, stored in json.loads(Path(__file__).with_suffix(".json").read_text("utf-8")).items()
}


def paper_lambda(task: str) -> Setting:
    """λ by the data's quality: high-quality data form dense clusters, 0.05 to 0.1 suffices; replay-style data and those
    with a pronounced shift are scattered and need 0.3 to 0.5. The first name that the task's contains decides."""
    return next(setting for part, setting in _SETTINGS["paper lambda"].items() if part in task)


def _domain(task: str) -> str:
    return "none" if task.startswith("gym:") else get_task(task).domain


def _paper(algorithm: str, task: str) -> Preset:
    """For any algorithm with a critic. All but CQL and TD3+BC take their own publication's settings, because the
    paper gives none. Domains that nobody tuned take locomotion's."""
    domain = _domain(task)
    training = _SETTINGS["paper training"] | _SETTINGS.get(f"paper {algorithm} training {domain}", {})
    options: Settings = {}
    if algorithm == "cql":
        own = _SETTINGS.get(f"paper cql {domain}", _SETTINGS["paper cql locomotion"])
        options = _SETTINGS["paper networks"] | own
    elif algorithm == "td3_bc":
        options = _SETTINGS["paper networks"] | _SETTINGS["paper td3_bc"]
    else:
        name = task if domain == "none" else get_task(task).name
        for published in published_for(algorithm, name):
            source = f"not given; {published.source}"
            options |= {n: Setting(v, source) for n, v in published.options.items() if n not in _USES_THE_ENVIRONMENT}
            training |= {n: Setting(v, source) for n, v in published.training.items() if n not in _BUDGET}
    return Preset(("c4",), training, options, _SETTINGS["paper"] | {"lambda_": paper_lambda(task)})


_USES_THE_ENVIRONMENT = ("acceptance",)  # BPPO's option, not taken over
_BUDGET = ("updates", "eval_every", "eval_episodes")
_DETERMINISTIC_BACKUP = ("halfcheetah", "hopper", "walker2d", "ant")  # "ant" is in "antmaze" too


def _authors(task: str) -> Preset:
    # their 1000 evaluations of 13 episodes do not change what is learnt: --eval-every is left as it is
    deterministic = any(part in task.lower() for part in _DETERMINISTIC_BACKUP)
    backup = Setting(not deterministic, f"run/C4.py: the task's name contains none of {_DETERMINISTIC_BACKUP}")
    options = _SETTINGS["authors cql"] | {"backup_entropy": backup}
    c4 = _SETTINGS["authors"] | _SETTINGS["divergence"]
    return Preset(("c4", "layer_norm"), _SETTINGS["authors training"], options, c4)


def _authors_fixed(task: str) -> Preset:
    """Corrects what contradicts the code's own intent or discards its data. Keeps, as deliberate choices, K,
    hard labels, tails, small clusters left out, cold fits on all features, first clusters of [s, a], the dot product
    and its weight, LayerNorm, three layers, fixed entropy, the backup rule, the cloning term."""
    plugins, training, options, c4 = _authors(task)
    # without replacement there may be fewer than 10,000 rows: how many to use is left to --size
    training = {name: setting for name, setting in training.items() if name != "size"}
    right = (_SETTINGS[f"authors-fixed{part}"] for part in (" training", " cql", ""))
    return Preset(plugins, *(before | after for before, after in zip((training, options, c4), right, strict=True)))
