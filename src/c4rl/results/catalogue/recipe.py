"""--preset best, and what it was chosen from."""

from dataclasses import replace
from typing import Any

from c4rl.jobs.presets.best import BEST, RECIPES
from c4rl.jobs.presets.settings import values_of
from c4rl.results.catalogue.methods import BC, PROXY, TD3BC, series_of
from c4rl.results.catalogue.sets import EIGHT, MAZES, THREE
from c4rl.results.tables import Method, ResultTable

ALIKE, APART = RECIPES["cloning"], RECIPES["values"]

# the recipe of --preset best, and what it was chosen from
RECIPE = Method(
    "best",
    "bc",
    ("returns",),
    "none",
    options=values_of(ALIKE.options) | values_of(ALIKE.plugins["returns"]),
    job={"updates": 10_000},
    seeds=60,
)
CONSTANT = RECIPE.options | {"actor_schedule": "constant"}
T_ALONE = RECIPE.options | {"return_temperature": 0.1, "return_top": 0.0, "return_rows": 0.0}
CLONING = replace(
    RECIPE,
    label="constant step size 3e-4, 20,000 updates",
    options=T_ALONE | {"actor_lr": 3e-4, "actor_schedule": "constant"},
    job={"updates": 20_000},
    seeds=25,
)
VALUES = Method(
    "TD3+BC, α 0.25, weighted and averaged as best",
    "td3_bc",
    ("layer_norm", "returns"),
    "none",
    options={
        "hidden_layers": 2,
        "actor_lr": 3e-4,
        "alpha": 0.25,
        "critic_cloning": 0.1,
        "actor_decay": 0.1,
        "actor_average": 0.001,
    },
    seeds=10,
)
C4_VALUES = VALUES.options | PROXY | {"actor_rows": "cluster"}
# the recipe for trajectories that start apart
FASTER = Method("step size 1e-3", "td3_bc", ("layer_norm",), "none", options=values_of(APART.options))
MAZE = replace(FASTER, label="step size 3e-4", options=FASTER.options | {"actor_lr": 3e-4, "critic_lr": 3e-4})
MAZE_5 = f"{MAZE.label}, α 5.0"
LONGER = replace(FASTER, label="step size 1e-3, 40,000 updates", job={"updates": 40_000})


def together(base: Method) -> Method:
    """Every five of its seeds as one policy."""
    return replace(base, label=f"{base.label}, ensembles of 5", members=5, seeds=(base.seeds or 5) // 5)


def alone_and_together(base: Method) -> tuple[Method, Method]:
    return base, together(base)


def against_the_first(*bases: Method) -> tuple[Method, ...]:
    """Each alone and together, the others compared with the first."""
    first, *others = map(alone_and_together, bases)
    return *first, *(replace(m, against=f.label) for pair in others for m, f in zip(pair, first, strict=True))


def but(base: Method, label: str, seeds: int = 5, first: int = 0, **values: Any) -> Method:
    """The same but for this."""
    return replace(base, label=f"{base.label}, {label}", seeds=seeds, first=first, **values)


def part(label: str, **options: Any) -> Method:
    """best with one part other than it is."""
    return but(RECIPE, label, 10, options=RECIPE.options | options, against=RECIPE.label)


def parts_of_values(base: Method, changes: dict[str, dict[str, Any]]) -> tuple[Method, ...]:
    """A setting that learns values, and the same with one part other than it is."""
    same: dict[str, Any] = {"seeds": base.seeds, "first": base.first, "against": base.label}
    return base, *(but(base, label, options=base.options | own, **same) for label, own in changes.items())


def unweighted(base: Method) -> dict[str, Any]:
    return {name: value for name, value in base.options.items() if not name.startswith("return_")}


TABLES = (
    ResultTable(
        "best-parts",
        "--preset best with one part at a time left out or added",
        (
            RECIPE,
            replace(part("without weighting by returns"), plugins=("none",), options=unweighted(RECIPE)),
            part("without the flat top", return_top=0.0),
            part("without the floor of effective rows", return_rows=0.0),
            part("without flat top and floor", return_top=0.0, return_rows=0.0),
            replace(part("constant step size"), options=CONSTANT),
            part("without weight decay", actor_decay=0.0),
            part("without averaged weights", actor_average=0.0),
            part("without decay and averaging", actor_decay=0.0, actor_average=0.0),
            replace(part("raw observations"), job=RECIPE.job | {"normalize_observations": False}),
            part("with LayerNorm in the policy", actor_layer_norm=True),
            part("with dropout 0.1", actor_dropout=0.1),
            part("with a tenth of the batch drawn from all rows", return_floor=0.1),
        ),
        EIGHT,
        updates=10_000,
        evaluations=1,
        note="Constant step size: 1e-3. The parts were chosen on these sets with other seeds.",
    ),
    ResultTable(
        "best-cut",
        "--preset best without fairness to cut trajectories",
        (RECIPE, part("cut trajectories by their own returns", return_cut=1.0)),
        ("hopper-medium-replay-v2",),
        updates=10_000,
        evaluations=1,
        note="On the other seven sets the weights are the same.",
    ),
    ResultTable(
        "mazes",
        "The setting of --preset best for trajectories that start apart, by α, step size and updates",
        tuple(
            replace(method, paper=None, against="" if method.label == MAZE_5 else MAZE_5)
            for base in (MAZE, FASTER, LONGER)
            for method in series_of(base, "alpha", (5.0, 10.0, 20.0), "α")
        ),
        MAZES,
        seeds=3,
        updates=20_000,
        evaluations=4,
        paper="",
        note="10,000 rows each, recorded by this package (`c4rl data record TASK --seed 1`).",
    ),
    ResultTable(
        "mazes-again",
        "Candidates of table `mazes`, repeated with other seeds",
        tuple(
            replace(method, paper=None, first=3, seeds=5, against="" if method.x == 5.0 else f"{FASTER.label}, α 5.0")
            for base, values in ((FASTER, (5.0,)), (LONGER, (10.0, 20.0)))
            for method in series_of(base, "alpha", values, "α")
        ),
        MAZES,
        updates=20_000,
        evaluations=4,
        paper="",
        note="Seeds 3 to 7. 10,000 rows each, recorded by this package (`c4rl data record TASK --seed 1`).",
    ),
    ResultTable(
        "values-parts",
        "TD3+BC with best's weighting, with one of its parts changed at a time",
        parts_of_values(
            replace(VALUES, label="TD3+BC, α 0.25", seeds=5),
            {
                "without critic cloning": {"critic_cloning": 0.0},
                "the critics' rows weighted too": {"weighted_rows": "all"},
                "batches of 1,024": {"batch_size": 1024},
            },
        ),
        THREE,
        updates=40_000,
        evaluations=4,
        note="Step size 3e-4, LayerNorm in the critics, weighted by returns with T 0.1.",
    ),
    ResultTable(
        "mazes-parts",
        "--preset best for trajectories that start apart, with one of its parts changed at a time",
        parts_of_values(
            replace(LONGER, label="best", first=3, seeds=5),
            {"without critic cloning": {"critic_cloning": 0.0}, "batches of 1,024": {"batch_size": 1024}},
        ),
        MAZES,
        updates=40_000,
        evaluations=8,
        paper="",
        note="Seeds 3 to 7. 10,000 rows each, recorded by this package (`c4rl data record TASK --seed 1`).",
    ),
    ResultTable(
        "best-simpler",
        "What might replace --preset best: constant step sizes",
        against_the_first(
            but(RECIPE, "seeds 25 to 49", 25, 25),
            but(RECIPE, "constant step size", 25, 25, options=CONSTANT),
            but(RECIPE, "constant, no decay", 25, 25, options=CONSTANT | {"actor_decay": 0.0}),
        ),
        EIGHT,
        updates=10_000,
        evaluations=1,
        note="Seeds 25 to 49 in all rows: a constant step size was chosen with seeds 0 to 9.",
    ),
    ResultTable(
        "best-more",
        "--preset best with what it leaves out: smoothed policies and corrective labels",
        against_the_first(
            but(RECIPE, "seeds 50 to 59", 10, 50),
            *(
                but(
                    RECIPE,
                    label,
                    10,
                    50,
                    plugins=("returns", plugin),
                    options=RECIPE.options | dict(zip(names, values, strict=True)),
                )
                for plugin, names, settings in (
                    (
                        "smoothing",
                        ("smoothing_weight", "smoothing_radius"),
                        {"smoothed, w 0.1, ε 0.01": (0.1, 0.01), "smoothed, w 1, ε 0.1": (1.0, 0.1)},
                    ),
                    (
                        "corrective_labels",
                        ("corrective_weight", "corrective_bound"),
                        {"corrected, w 1, within 0.5": (1.0, 0.5), "corrected, w 0.3, within 2": (0.3, 2.0)},
                    ),
                )
                for label, values in settings.items()
            ),
        ),
        EIGHT,
        updates=10_000,
        evaluations=1,
        note="Seeds 50 to 59, not used to choose anything; every five make an ensemble.",
    ),
    ResultTable(
        "best-larger",
        "--preset best: ensembles of ten",
        (replace(RECIPE, label="best, ensembles of 10", members=10, seeds=2, first=60),),
        EIGHT,
        updates=10_000,
        evaluations=1,
        note="Seeds 60 to 79.",
    ),
    ResultTable(
        "best-rows",
        "--preset best on parts of the sets, by updates",
        tuple(
            Method(
                f"best, {rows}k rows, {updates:,} updates",
                "cloning",
                preset=BEST,
                job={"size": 1000 * rows, "updates": updates, "eval_every": updates},
                against="" if updates == 10_000 else f"best, {rows}k rows, 10,000 updates",
            )
            for rows in (1, 3)
            for updates in (10_000, 2500)
        ),
        EIGHT,
        seeds=5,
        updates=10_000,
        evaluations=1,
        note="Whole trajectories.",
    ),
    ResultTable(
        "recipe",
        "--preset best and what it was chosen from, eight locomotion sets of about 10,000 rows",
        (
            RECIPE,
            together(RECIPE),
            *alone_and_together(but(RECIPE, "T 0.1 alone", 25, options=T_ALONE)),
            *alone_and_together(but(RECIPE, "batches of 1,024", 10, options=RECIPE.options | {"batch_size": 1024})),
            *alone_and_together(but(RECIPE, "by likelihood", 10, options=RECIPE.options | {"loss": "likelihood"})),
            CLONING,
            together(CLONING),
            but(CLONING, "without weighting by returns", 10, plugins=("none",), options=unweighted(CLONING)),
            but(RECIPE, "T 0.05 alone", 10, options=T_ALONE | {"return_temperature": 0.05}, job=CLONING.job),
            VALUES,
            together(VALUES),
            but(VALUES, "T 0.05", first=5, options=VALUES.options | {"return_temperature": 0.05}),
            but(VALUES, "α 1", options=VALUES.options | {"alpha": 1.0}),
            but(VALUES, "without weighting by returns", plugins=("layer_norm",)),
            but(
                VALUES,
                "with C4 (K 5, λ 0.3)",
                10,
                plugins=("layer_norm", "returns", "c4"),
                options=C4_VALUES,
                against=VALUES.label,
            ),
        ),
        EIGHT,
        updates=40_000,
        evaluations=4,
        note="One setting for all sets. best has 10,000 updates, cloning at a constant step size and with T 0.05 "
        "20,000, the others 40,000.",
    ),
    ResultTable(
        "selection",
        "Runs that hold out a tenth of the trajectories to select a checkpoint",
        tuple(
            but(base, "--select held-out", 3, job={"select": "held-out", **job}, paper=None)
            for base, job in ((BC, {}), (TD3BC, {"updates": 40_000}))
        ),
        EIGHT,
        evaluations=20,
        note="TD3+BC has 40,000 updates and 16 evaluations.",
    ),
)
