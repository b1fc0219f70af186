"""Algorithms on the locomotion sets, alone and with plug-ins."""

import itertools
from dataclasses import replace

from c4rl.results.catalogue.methods import (
    A2PR,
    BC,
    BPPO_,
    CONTROLLED,
    CQL,
    IQL,
    NORMALISED,
    PAPER,
    PAPER_CONTROL,
    TD3BC,
    published,
    with_plugins,
)
from c4rl.results.catalogue.sets import EIGHT, SCREENING, THREE, TWENTY
from c4rl.results.tables import Method, ResultTable

BASELINES = (
    BC,
    TD3BC,
    IQL,
    replace(IQL, label="IQL, normalised observations", job=NORMALISED),
    published("DOGE", "doge"),
    A2PR,
    published("TSRL", "tsrl"),
    BPPO_,
    replace(BPPO_, label="BPPO, normalised observations", job=NORMALISED),
    published("SORL", "sorl"),
    published("ReBRAC", "rebrac", paper=None),
    CQL,
)
ON_GRADIENTS = replace(with_plugins(TD3BC)[-1], label="TD3+BC + C4 on gradients", options={}, paper=None)
WITH_CONTROLS = tuple((c4, replace(control, seeds=None)) for c4, control in CONTROLLED)
BOTH = replace(
    ON_GRADIENTS,
    label="TD3+BC + LN + C4 on gradients",
    plugins=("layer_norm", "c4"),
    against="TD3+BC + LN",
)
TD3BC_PLUGGED = (*with_plugins(TD3BC), ON_GRADIENTS, BOTH)

TRACE = ResultTable(
    "trace",
    "The trace of the cross-covariance of gradients, on a fixed sample of 1,024 rows",
    (*TD3BC_PLUGGED, CQL, *WITH_CONTROLS[0][::-1]),
    EIGHT,
    quantity="cross_covariance_trace_exact",
    paper="",
    shows="figure of the trace during training",
    headline=("TD3+BC", "TD3+BC + C4", ON_GRADIENTS.label, "CQL", PAPER_CONTROL.label, PAPER.label),
    note="C4 penalises this trace only where it is on gradients; elsewhere it penalises that of features.",
)

TABLES = (
    ResultTable(
        "main",
        "Locomotion sets of about 10,000 rows, algorithms with the settings of their own publications",
        (*BASELINES, *itertools.chain(*WITH_CONTROLS)),
        TWENTY,
        tasks_are_rows=True,
        shows="main table (10k rows)",
        headline=("TD3+BC", "CQL", PAPER.label, PAPER_CONTROL.label),
        note="paper, authors, authors-fixed: presets of C4; a control is all of the preset but C4. BPPO does not "
        "use the simulator to accept policies; its value and cloning stages have 100,000 and 25,000 updates.",
    ),
    ResultTable(
        "c4-plugin",
        "Algorithms with the settings of their own publications, alone and with C4 (K 5, λ 0.3), LayerNorm and DR3",
        (
            *TD3BC_PLUGGED,
            *(with_plugins(base)[i] for base in (BPPO_, A2PR) for i in (0, -1)),  # as the paper has them
            *WITH_CONTROLS[0][::-1],
        ),
        EIGHT,
        shows="figures and tables of C4 as a plug-in",
        headline=("TD3+BC", "TD3+BC + C4", ON_GRADIENTS.label, PAPER_CONTROL.label, PAPER.label),
        note="C4 is on features, as in the paper's experiments, except where it is on gradients. CQL's rows are those "
        "of the main table.",
    ),
    ResultTable(
        "cql-plugins",
        "CQL with its published settings, alone and with C4 (K 5, λ 0.3), LayerNorm and DR3",
        (replace(CQL, seeds=5), *(replace(plugged, seeds=5) for plugged in with_plugins(CQL)[1:])),
        THREE,
        note="C4 is on features.",
        **SCREENING,
    ),
    TRACE,
    replace(
        TRACE,
        name="trace-features",
        title="The trace of the cross-covariance of features, on a fixed sample of 1,024 rows",
        quantity="cross_covariance_trace_proxy",
        shows="",
        note="C4 on features penalises this trace; on gradients it penalises that of gradients.",
    ),
    ResultTable(
        "rebrac",
        "ReBRAC with its published settings, eight locomotion sets of about 10,000 rows",
        (Method("ReBRAC", "rebrac"),),
        EIGHT,
        updates=30_000,
        evaluations=6,
    ),
)
