"""The sets that the tables are about."""

from typing import Any

ROBOTS = ("halfcheetah", "hopper", "walker2d", "ant")
QUALITIES = ("medium-expert", "medium", "medium-replay", "expert", "full-replay")
TWENTY = tuple(f"{robot}-{quality}-v2" for robot in ROBOTS for quality in QUALITIES)  # of the paper's main table
NINE = tuple(f"{robot}-{quality}-v2" for quality in (*QUALITIES[1:3], QUALITIES[0]) for robot in ROBOTS[:3])
EIGHT = tuple(
    f"{name}-v2"
    for name in (
        "halfcheetah-expert", "halfcheetah-medium-replay", "halfcheetah-medium", "hopper-expert",
        "hopper-medium-expert", "hopper-medium-replay", "walker2d-medium-expert", "walker2d-medium",
    )
)  # fmt: skip
THREE = ("halfcheetah-medium-replay-v2", "hopper-medium-expert-v2", "walker2d-medium-v2")  # for screening
MAZES = tuple(
    f"c4rl/seed-1/maze2d-{name}" for name in ("open-dense-v0", "medium-v1", "medium-dense-v1", "large-dense-v1")
)
SCREENING: dict[str, Any] = {"trained": THREE, "seeds": 5, "updates": 30_000, "evaluations": 6}
