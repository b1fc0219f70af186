"""The other domains, on sets of 10,000 rows that this package recorded (docs/domains.md), and splits that leave much
of a task out of the data."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from c4rl.jobs.presets.best import BEST
from c4rl.results.catalogue.methods import BC, CQL, IQL, TD3BC, small_methods, with_plugins
from c4rl.results.catalogue.sets import QUALITIES
from c4rl.results.tables import Method, ResultTable

OTHER_DATA = (
    "The paper's numbers are from D4RL's rows, ours from rows that we recorded (c4rl/...): **other data**, same task. "
)
BUDGET = "BC and IQL have 10,000 updates, CQL 5,000, best 10,000 where it clones and 40,000 where it learns values."
CQL_JOB = {"updates": 5000}  # an update costs as much as seven of TD3+BC
SHORT = {"updates": 10_000}


def with_c4(base: Method) -> Method:
    """On features, with as many seeds as the others; the paper has these tables of CQL + C4 alone."""
    plugged = with_plugins(base)[-1]
    return replace(plugged, seeds=None, paper=plugged.paper if base.algorithm == "cql" else None)


SHORT_CQL = replace(CQL, job=CQL_JOB)
METHODS = (
    replace(BC, job=SHORT),
    TD3BC,
    replace(IQL, job=SHORT),
    SHORT_CQL,
    with_c4(TD3BC),
    with_c4(SHORT_CQL),
    Method("best", "", preset=BEST, against="BC"),
)
# best's two recipes, whatever its rule says: what the rule is worth
BRANCHES = (
    Method("best's cloning everywhere", "cloning", preset=BEST),
    Method("best's values everywhere", "values", preset=BEST),
)


def domain(name: str, title: str, sets: tuple[str, ...], updates: int, note: str = "", **values: Any) -> ResultTable:
    return ResultTable(
        name,
        title,
        values.pop("methods", METHODS),
        sets,
        updates=updates,
        evaluations=2,
        tasks_are_rows=True,
        note=OTHER_DATA + BUDGET + (f" {note}" if note else ""),
        **values,
    )


MAZES = ("umaze-v2", "umaze-diverse-v2", "medium-play-v2", "medium-diverse-v2", "large-play-v2", "large-diverse-v2")
ANTMAZE = ("antmaze-umaze-v0", *(f"c4rl/antmaze-{maze}" for maze in (*MAZES, "ultra-play-v0", "ultra-diverse-v0")))
MAZE2D = tuple(
    f"c4rl/maze2d-{maze}{dense}-{version}"
    for maze, version in (("open", "v0"), ("umaze", "v1"), ("medium", "v1"), ("large", "v1"))
    for dense in ("", "-dense")
)
ADROIT = (
    "door-human-v1",
    "c4rl/pen-cloned-v1",
    *(f"c4rl/{tool}-expert-v1" for tool in ("pen", "door", "hammer", "relocate")),
)
KITCHEN = tuple(f"c4rl/kitchen-{kind}-v0" for kind in ("complete", "partial", "mixed"))
ANT = tuple(f"c4rl/ant-{quality}-v2" for quality in QUALITIES)
# one of each domain, for CQL
FOUR = ("c4rl/antmaze-umaze-v2", "c4rl/maze2d-umaze-v1", "c4rl/pen-cloned-v1", "c4rl/ant-medium-v2")

# whole trajectories at random, and three kinds that leave much of the task out (docs/recording.md)
SPLITS = {"trajectories": "random", "thinned": "thinned", "low_return": "low return", "narrow": "narrow"}


def _splits() -> Iterator[Method]:
    """Of each kind, without C4 and with it; small networks, so that anyone can repeat them on a CPU in minutes."""
    for kind, word in SPLITS.items():
        for base in small_methods(5000, 2000):
            yield replace(base, label=f"{base.label}, {word}", job=base.job | {"size": 3000, "subset": kind})


TABLES = (
    domain(
        "antmaze",
        "AntMaze: sets of 10,000 rows that the package's goal-reaching ant recorded, and D4RL's umaze-v0",
        ANTMAZE,
        20_000,
        "antmaze-umaze has D4RL's own rows (5,383 of its -v0 file).",
        paper="antmaze-10k",
        shows="table of AntMaze",
        headline=("TD3+BC", "TD3+BC + C4", "best"),
        methods=METHODS + BRANCHES,
    ),
    domain(
        "maze2d",
        "Maze2D: sets of 10,000 rows that D4RL's waypoint controller recorded",
        MAZE2D,
        20_000,
        paper="maze2d-10k",
        shows="table of Maze2D",
        headline=("TD3+BC", "TD3+BC + C4", "best"),
        methods=METHODS + BRANCHES,
    ),
    domain(
        "adroit",
        "Adroit: sets of 10,000 rows recorded with D4RL's own policies, and the human demonstrations of door",
        ADROIT,
        10_000,
        "door-human has D4RL's own 6,729 rows.",
        paper="adroit-10k",
        shows="table of Adroit",
        headline=("TD3+BC", "TD3+BC + C4", "best"),
    ),
    domain(
        "kitchen",
        "Kitchen: sets of 10,000 rows that the package's scripted arm recorded",
        KITCHEN,
        10_000,
        paper="kitchen-10k",
        shows="Kitchen, of the table of sets with at most 10k rows",
        headline=("TD3+BC", "TD3+BC + C4", "best"),
    ),
    domain(
        "ant",
        "Ant: sets of 10,000 rows that the package's agents recorded",
        ANT,
        10_000,
        paper="locomotion-10k",
        shows="main table, Ant",
        headline=("TD3+BC", "TD3+BC + C4", "best"),
    ),
    domain(
        "domains-cql",
        "CQL with and without C4 on one set of each domain",
        FOUR,
        5000,
        paper="",
        methods=(SHORT_CQL, with_c4(SHORT_CQL)),
    ),
    ResultTable(
        "splits",
        "3,000 rows that leave much of the task out, with and without C4 (K 5, λ 0.3): networks of 2 x 64 units",
        tuple(_splits()),
        ("halfcheetah-medium-replay-v2", "walker2d-medium-expert-v2"),
        updates=5000,
        evaluations=2,
        paper="",
        note="D4RL's rows. random: whole trajectories at random. CQL has 2,000 updates.",
    ),
)
