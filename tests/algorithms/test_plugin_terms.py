"""What plug-ins add to a loss is added as it is: neither weighted, nor taken off, nor left out."""

from typing import Any

import pytest
import torch
from torch import Tensor

from c4rl.core.optimizers import FlatAdam
from c4rl.jobs.registry import ALGORITHMS
from c4rl.plugins.seams import ActorStep, CriticStep, Plugin, Plugins
from tests.algorithms.test_two_batches import still_launch

WITH_CRITIC = [name for name, kind in ALGORITHMS.items() if kind.has_critic]
WITH_ACTOR_TERM = [name for name, kind in ALGORITHMS.items() if kind.has_actor_term]


class Adds(Plugin):
    """Terms of every kind, whose own gradients it notes; a weight of 0 leaves the algorithm's own."""

    has_actor_term = True

    def __init__(self, optimizers: dict[str, FlatAdam], weight: float) -> None:
        self.optimizers, self.weight = optimizers, weight
        self.gradients: dict[str, Tensor] = {}

    def note(self, name: str, term: Tensor) -> Tensor:
        parts = torch.autograd.grad(term.sum(), self.optimizers[name].parameters, retain_graph=True, allow_unused=True)
        own = zip(parts, self.optimizers[name].parameters, strict=True)
        self.gradients[name] = torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in own])
        return term

    def critic_penalty(self, step: CriticStep) -> Tensor:
        return self.note("critic", self.weight * step.output.features.square().mean((2, 3)))

    def actor_term(self, step: ActorStep) -> Tensor:
        self.actions = step.actions.detach().clone()
        return self.note("actor", self.weight * step.actions.mean((1, 2)))


@pytest.mark.parametrize(
    ("algorithm", "network"),
    [*((name, "critic") for name in WITH_CRITIC), *((name, "actor") for name in WITH_ACTOR_TERM)],
)
def test_terms_are_added_as_they_are(algorithm: str, network: str) -> None:
    launch, step = still_launch(algorithm)
    batch = launch.buffer.gather(torch.arange(32).unsqueeze(0))
    own = launch.algorithm
    found = []
    for weight in (0.0, 3.0):
        plugin = Adds(own.optimizers, weight)
        own.plugins = Plugins([plugin])
        launch.step.fill_(step)
        own.update(batch, step, batch)
        found.append(own.optimizers[network].gradient.clone())
    expected = plugin.gradients[network]
    assert expected.abs().max() > 1e-4
    torch.testing.assert_close(found[1] - found[0], expected, rtol=1e-7, atol=1e-10)


class Notes(Plugin):
    """The TD loss of an update."""

    def critic_penalty(self, step: CriticStep) -> None:
        self.td_loss = step.td_loss.detach().clone()


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        *((name, {}) for name in WITH_CRITIC),
        ("td3_bc", {"critic_cloning": 0.5}),
        ("cql", {"max_q_backup": "max_min", "backup_entropy": True}),
        ("bppo", {"output_relu": True}),
    ],
)
def test_td_errors_are_those_of_the_updates_own_loss(algorithm: str, options: dict[str, Any]) -> None:
    launch, step = still_launch(algorithm, **options)
    own, plugin = launch.algorithm, Notes()
    own.plugins = Plugins([plugin])
    with torch.no_grad():
        for name, network in own.networks.items():
            if name.startswith("target_"):  # else they equal what they are the targets of
                network.mlp.biases[-1].add_(0.3)
    batch = launch.buffer.gather(torch.arange(32).unsqueeze(0))
    batch.continues[:, ::5], batch.next_valid[:, ::3] = 0, False  # some rows end an episode, some are cut
    launch.step.fill_(step)
    errors = own.td_errors(batch)
    assert errors.requires_grad
    own.update(batch, step, batch)
    torch.testing.assert_close(errors.detach().square().mean(2), plugin.td_loss)
    played = own.temporal_difference(batch)  # of the evaluated policy: not the same
    assert played is not None and not torch.allclose(played.square().mean(2), plugin.td_loss)
