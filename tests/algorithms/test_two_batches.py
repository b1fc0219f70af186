"""Critics and actors may learn from different rows: each from its own and from no other."""

from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch import Tensor

from c4rl.algorithms.bc import BC
from c4rl.core.buffer import Batch, TransitionBuffer, UniformSampler
from c4rl.core.options import Options
from c4rl.jobs.registry import ALGORITHMS, PLUGINS
from c4rl.plugins.seams import ActorStep, Host, Plugin, Plugins, Sampler
from c4rl.training.launch import Launch
from tests.helpers import SMALL, advance, make_launch, small_config

ROWS = 32
ACTOR_SIDE = {"actor", "temperature", "distance", "vae"}  # the actor, and what is there for it alone
FORMS: dict[str, dict[str, Any]] = {"cql": {"lagrange": "raw_gap"}}
WITH_BOTH = [name for name, kind in ALGORITHMS.items() if kind.has_critic and kind.has_actor_term]


def still_launch(algorithm: str, **options: Any) -> tuple[Launch, int]:
    """Steps too small to move a weight; the first update of the plugged stage that has an actor's step."""
    rates = {f.name: 1e-300 for f in fields(ALGORITHMS[algorithm].config_type) if f.name.endswith("_lr")}
    launch = make_launch(small_config(algorithm, **rates, **FORMS.get(algorithm, {}), **options))
    stages = launch.algorithm.stages
    plugged = next(i for i, stage in enumerate(stages) if stage.plugged)
    before = sum(stage.updates for stage in stages[:plugged])
    advance(launch, before)
    return launch, before + 2


def gradients(launch: Launch, step: int, batch: Batch, actor_batch: Batch) -> dict[str, Tensor]:
    """Of every network that the update trains."""
    launch.step.fill_(step)
    counts = {name: optimizer.count.clone() for name, optimizer in launch.algorithm.optimizers.items()}
    launch.algorithm.update(batch, step, actor_batch)
    optimizers = launch.algorithm.optimizers.items()
    return {name: optimizer.gradient.clone() for name, optimizer in optimizers if optimizer.count > counts[name]}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_network_learns_from_its_own_batch_alone(algorithm: str) -> None:
    launch, step = still_launch(algorithm)
    one, two, three = (launch.buffer.gather(torch.arange(i, i + ROWS).unsqueeze(0)) for i in (0, 50, 100))
    found = gradients(launch, step, one, two)
    with_other_critic_rows, with_other_actor_rows = (gradients(launch, step, *b) for b in ((three, two), (one, three)))
    if launch.algorithm.has_critic:
        assert "critic" in found
    if launch.algorithm.has_actor_term:
        assert "actor" in found
    for name, gradient in found.items():
        same, other = with_other_critic_rows[name], with_other_actor_rows[name]
        if name not in ACTOR_SIDE:
            same, other = other, same
        assert torch.equal(gradient, same), f"{name} looks at the other batch"
        assert not torch.allclose(gradient, other, rtol=1e-6, atol=0), f"{name} does not look at its batch"


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_both_steps_share_is_what_each_would_compute(algorithm: str) -> None:
    launch, step = still_launch(algorithm)
    rows = torch.arange(ROWS).unsqueeze(0)
    batch, again = launch.buffer.gather(rows), launch.buffer.gather(rows)
    shared, apart = gradients(launch, step, batch, batch), gradients(launch, step, batch, again)
    assert shared.keys() == apart.keys()
    for name, gradient in shared.items():
        torch.testing.assert_close(apart[name], gradient, rtol=1e-9, atol=1e-14, msg=name)


@dataclass(frozen=True)
class NoOptions(Options):
    pass


class OwnActorRows(Plugin):
    """Uniform rows of its own for the actor."""

    mixes_datasets = True

    def __init__(self, options: NoOptions | None = None) -> None:
        pass

    def attach(self, algorithm: Host, buffer: TransitionBuffer) -> None:
        self.own = UniformSampler(buffer, "actor_rows")

    def actor_sampler(self) -> Sampler:
        return self.own


def seen_batches(launch: Launch, updates: int) -> list[tuple[Batch, Batch]]:
    seen = []
    update = launch.algorithm.update

    def watched(batch: Batch, step: int, actor_batch: Batch) -> Any:
        seen.append((batch, actor_batch))
        return update(batch, step, actor_batch)

    launch.algorithm.update = watched  # type: ignore[method-assign]
    advance(launch, updates)
    return seen


@pytest.mark.parametrize("algorithm", WITH_BOTH)
def test_a_plugin_draws_the_actors_rows_in_the_stage_it_acts_on(
    algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLUGINS, "own_rows", (NoOptions, OwnActorRows))
    launch = make_launch(small_config(algorithm, ("own_rows",)))
    for step, (batch, actor_batch) in enumerate(seen_batches(launch, 9), 1):
        plugged = launch.algorithm.stages[launch.algorithm.stage_at(step)[0]].plugged
        assert (actor_batch is batch) != plugged
        launch.step.fill_(step)
        assert torch.equal(batch.rows, UniformSampler(launch.buffer).rows(launch.streams, batch.rows.shape[1]))
        if plugged:
            own = UniformSampler(launch.buffer, "actor_rows").rows(launch.streams, batch.rows.shape[1])
            assert torch.equal(actor_batch.rows, own) and not torch.equal(own, batch.rows)
    assert not launch.failures()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_without_such_a_plugin_rows_are_gathered_once(algorithm: str) -> None:
    updates = 9 if algorithm in SMALL else 2
    assert all(
        batch is actor_batch for batch, actor_batch in seen_batches(make_launch(small_config(algorithm)), updates)
    )


class PullsActions(OwnActorRows):
    """Adds to an actor's loss what it is shown there."""

    has_actor_term = True

    def actor_term(self, step: ActorStep) -> Tensor:
        self.step = step
        return 3 * step.actions.mean((1, 2))


@pytest.mark.parametrize("loss", ["mse", "likelihood"])
def test_bc_takes_rows_and_terms_of_plugins(loss: str) -> None:
    launch = make_launch(small_config("bc", loss=loss))
    plugin = PullsActions()
    algorithm = BC(launch.algorithm.config, launch.algorithm.stack, launch.streams, Plugins([plugin]))
    plugin.attach(algorithm, launch.buffer)
    launch.step.fill_(1)
    batch, own = (launch.buffer.gather(s.rows(launch.streams, ROWS)) for s in (launch.sampler, plugin.actor_sampler()))

    policy = algorithm.actor(own.observations)
    if loss == "mse":
        expected, actions = (policy - own.actions).square().mean(), policy
    else:
        actions, log_prob = policy.sample(launch.streams.normal("actor_action", ROWS, 2))
        expected = -policy.log_prob(own.actions).mean()
    parameters = list(algorithm.actor.parameters())
    gradient = torch.autograd.grad(expected + 3 * actions.mean(), parameters)

    metrics = algorithm.update(batch, 1, own)
    torch.testing.assert_close(metrics["actor_loss"][0], expected)
    torch.testing.assert_close(algorithm.optimizers["actor"].gradient, torch.cat([g.flatten() for g in gradient]))
    assert plugin.step.batch is own and plugin.step.critic is None
    assert BC.policy_has_density(algorithm.config) == (plugin.step.log_prob is not None) == (loss == "likelihood")
    if plugin.step.log_prob is not None:
        torch.testing.assert_close(plugin.step.log_prob, log_prob)
