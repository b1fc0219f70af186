"""The divergence in the actor's loss: what it compares the policy with, and that each name is the quantity it says."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from c4rl.core.errors import InputError
from c4rl.core.policies import Gaussian
from c4rl.plugins.c4.behaviour_model import BehaviourModel
from c4rl.plugins.c4.divergence_term import DivergenceTerm
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.seams import ActorStep
from c4rl.training.launch import Launch
from tests.c4.gaussian_divergences import gaussian_kl, gaussian_renyi
from tests.c4.test_single_cluster_minibatches import chi_square
from tests.helpers import c4_of, make_launch, small_config, small_dataset

STD = 0.3


def launch_of(**form: Any) -> Launch:
    options = (C4Config(**{"K": 3, "mode": "proxy", "divergence_weight": 1.0, "actor_rows": "cluster"} | form),)
    return make_launch(small_config("cql", ("c4",), plugin_options=options), small_dataset(400))


def term_of(launch: Launch) -> DivergenceTerm:
    term = c4_of(launch).divergence
    assert term is not None
    return term


def actor_step(launch: Launch, batch_size: int = 200, update: int = 1) -> ActorStep:
    """A Gaussian policy whose mean is 0.2 from the origin: against Gaussian behaviour there are closed forms."""
    assert launch.algorithm.critics is not None
    launch.step.fill_(update)
    batch = launch.buffer.gather(launch.sampler.rows(launch.streams, batch_size))
    mean = torch.full_like(batch.actions, 0.2).requires_grad_()
    policy = Gaussian(mean, torch.full_like(mean, math.log(STD)))
    actions, log_prob = policy.sample(launch.streams.normal("test", *mean.shape[1:]))
    return ActorStep(batch, launch.algorithm.critics[0], actions, log_prob, policy)


def closed_form(launch: Launch, step: ActorStep, cluster: int, alpha: float | None) -> Tensor:
    model = term_of(launch).behaviour
    mean, std = model.mean(step.batch.observations)[:, cluster], model.log_std[:, cluster].exp().unsqueeze(1)
    assert step.distribution is not None
    own = step.distribution.mean, torch.full_like(mean, STD), mean, std.expand_as(mean)
    return gaussian_kl(*own) if alpha is None else gaussian_renyi(*own, alpha)


@pytest.mark.parametrize("alpha", [0.3, 0.7, 1.5])
def test_renyi_is_the_divergence_of_its_order(alpha: float) -> None:
    launch = launch_of(divergence="renyi", divergence_alpha=alpha, divergence_samples=1000)
    step = actor_step(launch)
    found = term_of(launch)(step, launch.streams).detach()
    cluster = int(c4_of(launch).clustering.cluster[0])
    expected = closed_form(launch, step, cluster, alpha).mean(1).detach()
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0)
    other_orders = [closed_form(launch, step, cluster, order).mean(1).detach() for order in (0.3, 0.7, None, 1.5)]
    apart = sorted(float(((found - other) / found).abs()) for other in other_orders)
    assert apart[0] < 0.02 < 0.1 < apart[1]


def test_the_order_matters_at_the_default_number_of_samples() -> None:
    found = []
    for alpha in (0.5, 0.9, 2.0):
        launch = launch_of(divergence="renyi", divergence_alpha=alpha)
        found.append(term_of(launch)(actor_step(launch), launch.streams).item())
    assert found[0] < 0.95 * found[1] < 0.95 * found[2]


def test_its_gradient_points_to_the_behaviour() -> None:
    launch = launch_of(divergence="renyi", divergence_samples=200)
    step = actor_step(launch)
    term_of(launch)(step, launch.streams).sum().backward()
    assert step.distribution is not None
    behaviour = term_of(launch).behaviour.mean(step.batch.observations)[:, int(c4_of(launch).clustering.cluster[0])]
    away = step.distribution.mean.detach() - behaviour
    gradient = step.distribution.mean.grad
    assert gradient is not None and torch.nn.functional.cosine_similarity(gradient, away, dim=2).mean() > 0.95


def test_orders_and_sample_counts_without_meaning_are_refused() -> None:
    with pytest.raises(InputError, match="alpha is 1"):
        C4Config(divergence="renyi", divergence_alpha=1.0)
    with pytest.raises(InputError, match="--divergence-samples: found 1"):
        C4Config(divergence="mmd", divergence_samples=1)


@pytest.mark.parametrize("against", ["cluster", "mixture"])
@pytest.mark.parametrize("rows", [{}, {"sampler": "uniform"}, {"actor_rows": "uniform"}])
def test_batches_are_compared_with_their_own_cluster_or_with_the_mixture(against: Any, rows: dict[str, Any]) -> None:
    launch = launch_of(divergence="kl", divergence_against=against, **rows)
    model, clusters = term_of(launch).behaviour, set()
    for update in range(1, 20):
        step = actor_step(launch, update=update)
        assert step.log_prob is not None
        found = term_of(launch)(step, launch.streams)
        log_p = (step.log_prob.unsqueeze(1) - model.log_prob(step.batch.observations, step.actions)).mean(2)[0]
        mixture = (step.log_prob - model.log_prob_mixture(step.batch.observations, step.actions)).mean(1)
        if rows or against == "mixture":
            torch.testing.assert_close(found, mixture)
        else:
            cluster = int(c4_of(launch).clustering.cluster[0])
            clusters.add(cluster)
            torch.testing.assert_close(found[0], log_p[cluster])
        assert (log_p - mixture).abs().min() > 1e-3  # no cluster is the mixture
    assert len(clusters) == (0 if rows or against == "mixture" else 3)


@pytest.mark.parametrize("sampler", ["soft", "hard"])
def test_the_behaviour_is_that_of_the_rows_a_cluster_is_drawn_with(sampler: Any) -> None:
    launch = launch_of(divergence="kl", sampler=sampler)
    term, soft = term_of(launch), c4_of(launch).clustering.memberships
    assert soft is not None
    hard = torch.nn.functional.one_hot(soft.argmax(2), 3).to(soft.dtype)
    batch = launch.buffer.gather(torch.arange(400).unsqueeze(0))
    fitted = []
    for weights in (soft, hard):
        fitted.append(BehaviourModel(1, 3, *launch.buffer.widths, dtype=soft.dtype))
        fitted[-1].fit(batch.observations, batch.actions, weights)
    same, other = fitted if sampler == "soft" else fitted[::-1]
    for name in ("weight", "bias", "log_std", "log_p"):
        found = getattr(term.behaviour, name)
        torch.testing.assert_close(found, getattr(same, name))
        assert (found - getattr(other, name)).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["mse", "kl_data", "kl"])
def test_its_weight_multiplies_it(name: Any) -> None:
    terms = []
    for weight in (1.0, 2.5):
        launch = launch_of(divergence=name, divergence_weight=weight)
        terms.append(term_of(launch)(actor_step(launch), launch.streams))
    torch.testing.assert_close(terms[1], 2.5 * terms[0])


def test_the_actor_may_have_rows_from_all_clusters() -> None:
    assert c4_of(launch_of()).actor_sampler() is None
    launch = launch_of(actor_rows="uniform")
    sampler, counts = c4_of(launch).actor_sampler(), np.zeros(400)
    assert sampler is not None
    for update in range(1, 200):
        launch.step.fill_(update)
        counts += np.bincount(sampler.rows(launch.streams, 100)[0].numpy(), minlength=400)
    assert abs(chi_square(counts, np.full(400, counts.sum() / 400))) < 4
