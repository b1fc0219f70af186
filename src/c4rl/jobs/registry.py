"""Names on the command line -> classes."""

from c4rl.algorithms.a2pr import A2PR
from c4rl.algorithms.algorithm import Algorithm
from c4rl.algorithms.bc import BC
from c4rl.algorithms.bppo import BPPO
from c4rl.algorithms.cql import CQL
from c4rl.algorithms.doge import DOGE
from c4rl.algorithms.iql import IQL
from c4rl.algorithms.sorl import SORL
from c4rl.algorithms.td3_bc import TD3BC
from c4rl.algorithms.tsrl import TSRL
from c4rl.core.errors import InputError
from c4rl.plugins.c4.monitor import CrossCovarianceMonitor
from c4rl.plugins.c4.plugin import C4, C4Config
from c4rl.plugins.dr3 import DR3, DR3Config
from c4rl.plugins.layer_norm import LayerNorm, LayerNormConfig
from c4rl.plugins.seams import Plugin
from c4rl.plugins.style_sampler import StyleSampler, StyleSamplerConfig

ALGORITHMS: dict[str, type[Algorithm]] = {
    "bc": BC,
    "td3_bc": TD3BC,
    "cql": CQL,
    "iql": IQL,
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
}


DEFAULT_ALGORITHM = "td3_bc"
PRESET_ALGORITHM = "cql"  # the default with --preset: the only one that the authors' release has
# logs what --monitor asks for
MONITOR: type[Plugin] = CrossCovarianceMonitor


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
    if len(set(chosen)) < len(chosen):
        raise InputError(f"--plugins: found {' '.join(chosen)}, expected each plug-in at most once")
    if algorithm in chosen:
        raise InputError(f"--plugins: found '{algorithm}' beside --algorithm {algorithm}, expected one of them")
    samplers = [name for name in chosen if getattr(PLUGINS[name][1], "chooses_rows", False)]
    if len(samplers) > 1:
        found = " and ".join(samplers)
        raise InputError(f"--plugins: found {found}, which both choose the rows of a batch, expected one of them")
    for name in chosen:
        if getattr(PLUGINS[name][1], "needs_critic", True) and not algorithm_class(algorithm).has_critic:
            raise InputError(f"--plugins: '{name}' acts on a critic, and '{algorithm}' has none")
    return chosen
