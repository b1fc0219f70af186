"""Names on the command line -> classes."""

from c4rl.algorithms.a2pr import A2PR
from c4rl.algorithms.algorithm import Algorithm
from c4rl.algorithms.bc import BC
from c4rl.algorithms.bppo import BPPO
from c4rl.algorithms.cql import CQL
from c4rl.algorithms.doge import DOGE
from c4rl.algorithms.iql import IQL
from c4rl.algorithms.rebrac import ReBRAC
from c4rl.algorithms.sorl import SORL
from c4rl.algorithms.td3_bc import TD3BC
from c4rl.algorithms.tsrl import TSRL
from c4rl.core.errors import InputError
from c4rl.plugins.c4.monitor import CrossCovarianceMonitor
from c4rl.plugins.c4.plugin import C4, C4Config
from c4rl.plugins.corrective_labels import CorrectiveLabels, CorrectiveLabelsConfig
from c4rl.plugins.dr3 import DR3, DR3Config
from c4rl.plugins.layer_norm import LayerNorm, LayerNormConfig
from c4rl.plugins.returns import Returns, ReturnsConfig
from c4rl.plugins.seams import Plugin
from c4rl.plugins.smoothing import Smoothing, SmoothingConfig
from c4rl.plugins.style_sampler import StyleSampler, StyleSamplerConfig

ALGORITHMS: dict[str, type[Algorithm]] = {
    "bc": BC,
    "td3_bc": TD3BC,
    "cql": CQL,
    "iql": IQL,
    "rebrac": ReBRAC,
    "doge": DOGE,
    "tsrl": TSRL,
    "bppo": BPPO,
    "a2pr": A2PR,
    "sorl": SORL,
}

# name -> (options, plug-in)
PLUGINS: dict[str, tuple[type, type[Plugin]]] = {
    "c4": (C4Config, C4),
    "layer_norm": (LayerNormConfig, LayerNorm),
    "dr3": (DR3Config, DR3),
    "sorl": (StyleSamplerConfig, StyleSampler),
    "returns": (ReturnsConfig, Returns),
    "smoothing": (SmoothingConfig, Smoothing),
    "corrective_labels": (CorrectiveLabelsConfig, CorrectiveLabels),
}


DEFAULT_ALGORITHM = "td3_bc"
PRESET_ALGORITHM = "cql"  # the default with --preset: the only one that the authors' release has
# the plug-in that --monitor adds
MONITOR = CrossCovarianceMonitor


def algorithm_class(name: str) -> type[Algorithm]:
    if name not in ALGORITHMS:
        raise InputError(f"--algorithm: found '{name}', expected one of {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]


def plugin_names(names: tuple[str, ...], algorithm: str) -> tuple[str, ...]:
    """The chosen plug-ins without the word "none", checked against the algorithm and each other."""
    chosen = tuple(name for name in names if name != "none")
    for name in chosen:
        if name not in PLUGINS:
            raise InputError(f"--plugins: found '{name}', expected none or some of {', '.join(PLUGINS)}")
    if chosen and len(chosen) < len(names):
        raise InputError(f"--plugins: found {' '.join(names)}, expected plug-ins, or none alone")
    if len(set(chosen)) < len(chosen):
        raise InputError(f"--plugins: found {' '.join(chosen)}, expected each plug-in at most once")
    host = algorithm_class(algorithm)
    for name in chosen:
        plugin = PLUGINS[name][1]
        if plugin.needs_critic and not host.has_critic:
            raise InputError(f"--plugins: '{name}' acts on a critic, and '{algorithm}' has none")
        if plugin.needs_policy and not (host.has_one_policy and host.has_actor_term):
            raise InputError(f"--plugins: '{name}' adds to the loss of a single policy, and '{algorithm}' has none")
        others: dict[str, type[Algorithm] | type[Plugin]] = {n: PLUGINS[n][1] for n in chosen if n != name}
        for other, kind in ({f"--algorithm {algorithm}": host} | others).items():
            if both := plugin.clash(kind):
                raise InputError(f"--plugins: found {name} and {other}, which both {both}, expected one of them")
    return chosen
