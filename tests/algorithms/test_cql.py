"""CQL: whole updates against a plain reference, and the details people get wrong one by one."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from c4rl.algorithms.cql import CQL
from c4rl.core.errors import InputError
from c4rl.data.dataset import Dataset
from c4rl.training.launch import Launch
from tests.algorithms.plain_cql import ACTIONS, MEMBERS, PlainCQL, layers_of
from tests.helpers import batch_at, make_launch, small_config, small_dataset, sum_of_losses

ROWS = 6


def data_with_terminals(share: float = 0.3) -> Dataset:
    data = small_dataset()
    return replace(data, terminals=np.random.default_rng(1).random(len(data)) < share)


def launch_of(dataset: Dataset | None = None, **options: Any) -> tuple[CQL, Launch]:
    settings = {"batch_size": ROWS, "actor_lr": 1e-3, "critic_lr": 1e-3, "tau": 0.1}
    launch = make_launch(small_config("cql", **(settings | options)), dataset or data_with_terminals())
    assert isinstance(launch.algorithm, CQL)
    return launch.algorithm, launch


def one_update(launch: Launch, step: int = 1) -> dict[str, float]:
    batch = batch_at(launch, step, ROWS)
    found = launch.algorithm.update(batch, step, batch)
    return {name: float(values[0].detach()) for name, values in found.items()}


FORMS: dict[str, dict[str, Any]] = {
    "the paper's": {},
    "triples": {"lse_group": 3},
    "no importance sampling": {"importance_sampling": False},
    "triples without importance sampling": {"importance_sampling": False, "lse_group": 3},
    "temperature and clipping": {"cql_temperature": 0.7, "gap_minimum": 3.1, "gap_maximum": 3.2},
    "threshold on the weighted gap": {"lagrange": "weighted_gap", "lagrange_initial_log": 0.5},
    "threshold on the raw gap": {"lagrange": "raw_gap", "lagrange_threshold": 2.0},
    "max of min backup": {"max_q_backup": "max_min", "backup_entropy": True},
    "min of max backup": {"max_q_backup": "min_max"},
    "entropy in the backup": {"backup_entropy": True, "entropy": "fixed", "entropy_weight": 0.2},
    "cloning at first": {"cloning_updates": 1},
}


@pytest.mark.parametrize("form", FORMS)
def test_updates_equal_the_equations_written_as_loops(form: str) -> None:
    algorithm, launch = launch_of(cql_actions=4, critic_lr=2e-3, **FORMS[form])
    plain = PlainCQL(algorithm, algorithm.config)
    count = 4 if algorithm.config.max_q_backup != "none" else 1
    for step in (1, 2):
        batch = batch_at(launch, step, ROWS)
        assert 0 < batch.continues.sum() < ROWS, "needs terminal rows and others"
        noise = {
            "actor_action": launch.streams.normal("actor_action", ROWS, ACTIONS)[0],
            "backup_action": launch.streams.normal("backup_action", ROWS, count, ACTIONS)[0],
            "cql_uniform": launch.streams.uniform("cql_uniform", ROWS, 4, ACTIONS)[0],
            "cql_action": launch.streams.normal("cql_action", ROWS, 4, ACTIONS)[0],
            "cql_next_action": launch.streams.normal("cql_next_action", ROWS, 4, ACTIONS)[0],
        }
        metrics = algorithm.update(batch, step, batch)
        expected = plain.update(batch, noise, step)
        torch.testing.assert_close(metrics["actor_loss"][0], expected["actor"].detach(), rtol=1e-8, atol=1e-9)
        torch.testing.assert_close(metrics["cql_gap"][0], expected["gap"].detach(), rtol=1e-8, atol=1e-9)
        pairs = [(algorithm.actor.mlp, 0, plain.actor)]
        pairs += [(algorithm.critic.mlp, i, plain.critics[i]) for i in range(MEMBERS)]
        pairs += [(algorithm.target_critic.mlp, i, plain.targets[i]) for i in range(MEMBERS)]
        for mlp, member, layers in pairs:
            found = layers_of(mlp, member)
            for ours, theirs in zip(found, layers, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(algorithm.temperature.log[0], plain.log_alpha, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(algorithm.multiplier.log[0], plain.log_multiplier, rtol=1e-9, atol=1e-12)


# -- one by one, on critics whose values are known


def make_blind_to_actions(algorithm: CQL) -> None:
    """Q(s, a) = Q(s): every log-sum-exp without densities is Q(s) plus the log of its number of terms."""
    with torch.no_grad():
        for critic in (algorithm.critic, algorithm.target_critic):
            critic.mlp.weights[0][:, :, critic.observation_dim :] = 0


@pytest.mark.parametrize(("group", "terms"), [(30, 31), (3, 4)])
def test_the_logged_action_is_among_the_terms_and_no_log_count_is_subtracted(group: int, terms: int) -> None:
    """It also shows that actions of π(s') are evaluated at s: at s' the gap would not be a constant."""
    algorithm, launch = launch_of(lse_group=group, importance_sampling=False)
    make_blind_to_actions(algorithm)
    assert one_update(launch)["cql_gap"] == pytest.approx(math.log(terms), rel=1e-12)


def test_importance_weights_measure_the_volume_of_the_action_box() -> None:
    """For constant Q each weight 1/density has mean 2^|A|, for all three kinds: 3N terms give log 3N + |A| log 2."""
    count = 20_000
    algorithm, launch = launch_of(cql_actions=count)
    make_blind_to_actions(algorithm)
    expected = math.log(3 * count) + ACTIONS * math.log(2)
    assert one_update(launch)["cql_gap"] == pytest.approx(expected, abs=0.03)


def test_groups_of_three_lie_below_one_group_of_thirty() -> None:
    """By Jensen below LSE_30 - log 10; a threshold tuned for one form is wrong for the other."""
    gaps = [one_update(launch_of(lse_group=group)[1])["cql_gap"] for group in (30, 3)]
    assert gaps[1] < gaps[0] - math.log(10) + 1e-12
    assert gaps[1] > gaps[0] - 4


@pytest.mark.parametrize(
    ("form", "threshold", "grows"),
    # a gap of log 31 = 3.43, weighted by 5: 17.2
    [("weighted_gap", 10.0, True), ("raw_gap", 10.0, False), ("weighted_gap", 18.0, False), ("raw_gap", 3.0, True)],
)
def test_the_multiplier_grows_while_its_own_gap_exceeds_the_threshold(form: str, threshold: float, grows: bool) -> None:
    options: dict[str, Any] = {
        "lagrange": form,
        "lagrange_threshold": threshold,
        "cql_weight": 5.0,
        "importance_sampling": False,
    }
    algorithm, launch = launch_of(**options)
    make_blind_to_actions(algorithm)
    one_update(launch)
    moved = algorithm.multiplier.log.item()
    assert moved == pytest.approx(1e-3 if grows else -1e-3, rel=1e-4)  # Adam's first step is its step size


def critic_gradient(**options: Any) -> Tensor:
    algorithm, launch = launch_of(**options)
    one_update(launch)
    return algorithm.optimizers["critic"].gradient.clone()


def test_the_critic_sees_the_multiplier_of_before_the_dual_step() -> None:
    """With exp(log 2) = 2 and no threshold, the Lagrange form's gradient is that of twice the weight."""
    lagrange: dict[str, Any] = {"lagrange_threshold": 0.0, "lagrange_initial_log": math.log(2), "cql_weight": 3.0}
    twice = critic_gradient(cql_weight=6.0)
    for form in ("weighted_gap", "raw_gap"):
        torch.testing.assert_close(critic_gradient(lagrange=form, **lagrange), twice, rtol=1e-9, atol=1e-12)


def test_without_the_lagrange_form_the_multiplier_rests() -> None:
    algorithm, launch = launch_of(lagrange_initial_log=0.3)
    one_update(launch)
    assert algorithm.multiplier.log.item() == 0.3


def test_the_largest_initial_multiplier_still_adapts() -> None:
    algorithm, launch = launch_of(lagrange="raw_gap", lagrange_threshold=1e6, lagrange_initial_log=13.8)
    one_update(launch)
    assert algorithm.multiplier.log.item() < 13.8
    with pytest.raises(InputError, match=r"--lagrange-initial-log: found 13.9, expected"):
        launch_of(lagrange="raw_gap", lagrange_initial_log=13.9)


def test_a_gap_beyond_its_clip_counts_as_the_clip_and_pulls_no_more() -> None:
    algorithm, launch = launch_of(gap_maximum=1.0, importance_sampling=False)
    assert one_update(launch)["cql_gap"] == 1.0
    without = critic_gradient(cql_weight=0.0)
    torch.testing.assert_close(algorithm.optimizers["critic"].gradient, without, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("log_std", "rises"), [(-4.0, True), (0.0, False)])
def test_the_temperature_steers_the_entropy_to_minus_the_number_of_actions(log_std: float, rises: bool) -> None:
    algorithm, launch = launch_of()
    with torch.no_grad():
        algorithm.actor.mlp.weights[-1][..., ACTIONS:] = 0
        algorithm.actor.mlp.biases[-1][..., ACTIONS:] = log_std
    entropy = one_update(launch)["entropy"]
    assert (entropy < -ACTIONS) == rises
    assert (algorithm.temperature.log.item() > 0) == rises


def test_a_fixed_entropy_weight_stays() -> None:
    algorithm, launch = launch_of(entropy="fixed", entropy_weight=0.2)
    for step in (1, 2, 3):
        assert one_update(launch, step)["entropy_weight"] == pytest.approx(0.2, rel=1e-12)
    assert algorithm.temperature.log.exp().item() == pytest.approx(0.2, rel=1e-12)


def test_the_backup_pays_for_entropy_only_on_request() -> None:
    """With a target critic of zero the target is r - γ(1-d) α log π(ã'|s')."""
    for backup_entropy in (False, True):
        algorithm, launch = launch_of(backup_entropy=backup_entropy, entropy_weight=0.5)
        with torch.no_grad():
            for p in algorithm.target_critic.parameters():
                p.zero_()
            batch = batch_at(launch, 1, ROWS)
            noise = launch.streams.normal("backup_action", ROWS, ACTIONS)
            _, log_prob = algorithm.actor(batch.next_observations).sample(noise)
            y = batch.rewards - (0.99 * batch.continues * 0.5 * log_prob if backup_entropy else 0)
            expected = (algorithm.critic.at(batch.state_actions).q - y.unsqueeze(1)).square().mean(2).sum(1)
        torch.testing.assert_close(algorithm.update(batch, 1, batch)["critic_loss"], expected)


def test_the_two_orders_of_the_max_q_backup_differ() -> None:
    """Q_1 = |a| likes large actions, Q_2 = 1 - |a| small ones: no action pleases both, each has one it likes."""
    targets = {}
    for order in ("max_min", "min_max"):
        algorithm, launch = launch_of(max_q_backup=order, discount=1.0)
        batch = batch_at(launch, 1, ROWS)
        mlp = algorithm.target_critic.mlp
        with torch.no_grad():
            for p in mlp.parameters():
                p.zero_()
            mlp.weights[0][..., -1, :2] = torch.tensor([1.0, -1.0]).double()  # relu(a), relu(-a) of the last action
            mlp.weights[1][..., :2, 0] = 1.0  # their sum
            mlp.weights[2][0, :, 0, 0] = torch.tensor([1.0, -1.0]).double()
            mlp.biases[2][0, :, 0] = torch.tensor([0.0, 1.0]).double()
            noise = launch.streams.normal("backup_action", ROWS, 10, ACTIONS)
            sizes = algorithm.actor(batch.next_observations).sample(noise)[0][0, ..., -1].abs().tolist()  # [B][N]
            if order == "max_min":
                next_q = [max(min(x, 1 - x) for x in row) for row in sizes]
            else:
                next_q = [min(max(row), 1 - min(row)) for row in sizes]
            targets[order] = next_q
            y = batch.rewards + batch.continues * torch.tensor(next_q).double()
            expected = (algorithm.critic.at(batch.state_actions).q - y.unsqueeze(1)).square().mean(2).sum(1)
        torch.testing.assert_close(algorithm.update(batch, 1, batch)["critic_loss"], expected)
    assert all(a < b for a, b in zip(targets["max_min"], targets["min_max"], strict=True))


def test_nothing_is_backed_up_past_a_terminal() -> None:
    algorithm, launch = launch_of(data_with_terminals(share=1.0))
    batch = batch_at(launch, 1, ROWS)
    with torch.no_grad():
        algorithm.target_critic.mlp.biases[-1].fill_(1e6)
        expected = (algorithm.critic.at(batch.state_actions).q - batch.rewards.unsqueeze(1)).square().mean(2).sum(1)
    torch.testing.assert_close(algorithm.update(batch, 1, batch)["critic_loss"], expected)


def test_the_actor_clones_at_first_and_then_climbs_the_critic() -> None:
    """While it clones, the critic's values do not matter to it and the logged actions do; after that, the reverse."""

    def actor_gradients(change_critic: bool, change_actions: bool) -> list[Tensor]:
        algorithm, launch = launch_of(cloning_updates=1, actor_lr=1e-300, critic_lr=1e-300)
        if change_critic:
            with torch.no_grad():
                algorithm.critic.mlp.weights[-1].mul_(-1)
        found = []
        for step in (1, 2):
            batch = batch_at(launch, step, ROWS)
            if change_actions:
                batch = batch._replace(actions=-batch.actions)
            algorithm.update(batch, step, batch)
            found.append(algorithm.optimizers["actor"].gradient.clone())
        return found

    first, second = actor_gradients(False, False)
    first_other_critic, second_other_critic = actor_gradients(True, False)
    first_other_actions, second_other_actions = actor_gradients(False, True)
    assert torch.equal(first, first_other_critic) and not torch.allclose(second, second_other_critic)
    assert torch.equal(second, second_other_actions) and not torch.allclose(first, first_other_actions)


def test_dropout_does_not_reach_what_the_critics_learn_from() -> None:
    whole, thinned = (one_update(launch_of(actor_dropout=share)[1]) for share in (0.0, 0.5))
    assert [thinned[name] for name in ("cql_gap", "critic_loss")] == [whole["cql_gap"], whole["critic_loss"]]
    assert thinned["actor_loss"] != whole["actor_loss"]


@pytest.mark.parametrize("form", ["the paper's", "threshold on the raw gap", "max of min backup"])
def test_the_critic_loss_reaches_the_critic_alone(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    algorithm, launch = launch_of(**FORMS[form])
    others = [p for name, network in algorithm.networks.items() if name != "critic" for p in network.parameters()]
    seen = []

    def step(losses: Sequence[Tensor | float]) -> None:
        trained = [p for p in others if p.requires_grad]
        seen.append(torch.autograd.grad(sum_of_losses(losses).sum(), trained, allow_unused=True, retain_graph=True))
        assert len(trained) > len(list(algorithm.actor.parameters()))

    monkeypatch.setattr(algorithm.optimizers["critic"], "step", step)
    one_update(launch)
    assert len(seen) == 1 and all(gradient is None for gradient in seen[0])
    assert not any(p.requires_grad for p in algorithm.target_critic.parameters())


@pytest.mark.parametrize("form", ["weighted_gap", "raw_gap"])
def test_the_multiplier_sees_half_the_excess_of_both_critics(form: str) -> None:
    """Adam would hide the factor: the loss itself."""
    options = {"lagrange": form, "lagrange_initial_log": 0.7, "lagrange_threshold": 2.0, "cql_weight": 3.0}
    algorithm, launch = launch_of(**options)
    seen: list[Tensor] = []
    algorithm.optimizers["multiplier"].step = seen.append  # type: ignore[assignment]
    gap = one_update(launch)["cql_gap"]  # the mean of both
    excess = 3.0 * gap - 2.0 if form == "weighted_gap" else 3.0 * (gap - 2.0)
    assert seen[0].item() == pytest.approx(-math.exp(0.7) * excess)


@pytest.mark.parametrize("form", ["max_min", "min_max"])
def test_the_best_of_many_next_actions_is_each_runs_own(form: str) -> None:
    stacked, launch = launch_of(max_q_backup=form, seeds=(0, 1))
    batch = batch_at(launch, 1, ROWS)
    together = stacked._target(batch, stacked.actor(batch.next_observations), torch.ones(2, dtype=torch.float64))
    for seed in (0, 1):
        alone, own = launch_of(max_q_backup=form, seeds=(seed,))
        batch = batch_at(own, 1, ROWS)
        found = alone._target(batch, alone.actor(batch.next_observations), torch.ones(1, dtype=torch.float64))
        for ours, theirs in zip(together, found, strict=True):
            torch.testing.assert_close(ours[seed], theirs[0])
