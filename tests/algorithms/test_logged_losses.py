"""What is logged as a loss is what was minimised, with its weight and sign."""

from typing import Any

import pytest
import torch
from torch import Tensor

from c4rl.core.buffer import Batch
from c4rl.jobs.registry import ALGORITHMS
from tests.helpers import advance, make_launch, small_config, sum_of_losses

# network -> what its loss is in terms of the metrics, where that is not NETWORK_loss
LOSSES: dict[tuple[str, str], Any] = {
    ("cql", "critic"): lambda m: m["critic_loss"] + 2 * 7.0 * m["cql_gap"],
    ("cql", "temperature"): lambda m: -m["entropy_weight"].log() * (-m["entropy"] - 2),
    ("bppo", "old_actor"): lambda m: m["actor_loss"],
    ("a2pr", "vae"): lambda m: m["reconstruction_loss"] + 0.3 * m["kl"],
}
OPTIONS: dict[str, dict[str, Any]] = {"cql": {"cql_weight": 7.0, "entropy_weight": 0.5}, "a2pr": {"kl_weight": 0.3}}
UPDATES = 9


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_is_logged_is_what_was_minimised(algorithm: str) -> None:
    launch = make_launch(small_config(algorithm, seeds=(0, 1), **OPTIONS.get(algorithm, {})))
    minimised: dict[str, Tensor] = {}
    logged: dict[str, Tensor] = {}
    for name, optimizer in launch.algorithm.optimizers.items():

        def noted(losses: Any, *rest: Any, name: str = name, step: Any = optimizer.step) -> None:
            total = sum_of_losses(losses).detach()
            minimised[name] = total.flatten(1).sum(1) if total.dim() > 1 else total
            step(losses, *rest)

        optimizer.step = noted  # type: ignore[method-assign]
    update = launch.algorithm.update

    def watched(batch: Batch, step: int, actor_batch: Batch) -> Any:
        logged.clear()
        logged.update({name: value.detach().clone() for name, value in update(batch, step, actor_batch).items()})
        return dict(logged)

    launch.algorithm.update = watched  # type: ignore[method-assign]
    seen = set()
    for step in range(1, UPDATES + 1):
        minimised.clear()
        launch.update(step)
        launch.refresh(step)
        for name, loss in minimised.items():
            short = "style" if name == "styles" else name
            of = LOSSES.get((algorithm, name), lambda m, short=short: m[f"{short}_loss"])
            torch.testing.assert_close(loss, of(logged), rtol=1e-9, atol=1e-12, msg=name)
            seen.add(name)
    assert seen == set(launch.algorithm.optimizers) - {"multiplier"}


def test_a_line_of_the_log_is_the_mean_since_the_last_one() -> None:
    launch = make_launch(small_config("cql", entropy="fixed", entropy_weight=0.5))
    for start in (0, 3, 6):
        assert advance(launch, 3, start).read_metrics()[0]["entropy_weight"] == pytest.approx(0.5)
