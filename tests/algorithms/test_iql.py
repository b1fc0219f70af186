"""IQL: the losses by hand, the order of the steps, the policy's form, and what it learns."""

import copy
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from c4rl.algorithms.implicit_q import advantage_weight, expectile_loss
from c4rl.algorithms.iql import IQL
from c4rl.cli.train import config_of
from c4rl.core.errors import InputError
from c4rl.core.policies import dropout_masks
from c4rl.data.dataset import Dataset
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.seams import CriticStep, Plugin
from c4rl.training.launch import Launch
from tests.helpers import advance, batch_at, flat, make_launch, small_config, small_dataset


def launch_of(dataset: Dataset | None = None, seeds: tuple[int, ...] = (0,), **options: Any) -> tuple[IQL, Launch]:
    launch = make_launch(small_config("iql", seeds=seeds, **options), dataset)
    assert isinstance(launch.algorithm, IQL)
    return launch.algorithm, launch


class TestExpectileRegression:
    def test_values_above_v_count_by_the_expectile_and_values_below_by_the_rest(self) -> None:
        u = torch.tensor([2.0, -2.0, 0.0], dtype=torch.float64)
        torch.testing.assert_close(expectile_loss(u, 0.7), torch.tensor([2.8, 1.2, 0.0], dtype=torch.float64))
        torch.testing.assert_close(expectile_loss(u, 0.5), 0.5 * u**2)

    @pytest.mark.parametrize("expectile", [0.3, 0.5, 0.9])
    def test_its_minimum_is_the_expectile(self, expectile: float) -> None:
        """Of 0 and 1, equally often: τ(1 - v) = (1 - τ)v at v = τ."""
        v = torch.linspace(0, 1, 1001, dtype=torch.float64).unsqueeze(1)
        q = torch.tensor([0.0, 1.0], dtype=torch.float64)
        best = v[expectile_loss(q - v, expectile).mean(1).argmin()].item()
        assert best == pytest.approx(expectile, abs=1e-3)


def test_the_advantage_weight_is_clipped_after_the_exponential() -> None:
    advantage = torch.tensor([-2.0, 0.0, 1.0, 2.0, 1e6], dtype=torch.float64)
    weight = advantage_weight(advantage, 3.0, 100.0)
    expected = torch.tensor([math.exp(-6), 1.0, math.exp(3), 100.0, 100.0], dtype=torch.float64)
    torch.testing.assert_close(weight, expected)


def test_runs_may_have_expectiles_and_temperatures_of_their_own() -> None:
    u, own = torch.linspace(-1, 1, 6, dtype=torch.float64).view(2, 3), torch.tensor([0.3, 0.9], dtype=torch.float64)
    losses, weights = expectile_loss(u, own), advantage_weight(u, own, 100.0)
    for run, value in enumerate((0.3, 0.9)):
        torch.testing.assert_close(losses[run], expectile_loss(u[run], value))
        torch.testing.assert_close(weights[run], advantage_weight(u[run], value, 100.0))


@pytest.mark.parametrize("policy", ["gaussian", "deterministic"])
def test_an_update_is_v_then_actor_then_q_each_on_the_new_v(policy: str) -> None:
    algorithm, launch = launch_of(policy=policy, inverse_temperature=2.0, expectile=0.8, initialization="torch")
    batch = batch_at(launch, 1)
    with torch.no_grad():  # as later in training: the target is another network
        for p in algorithm.target_critic.parameters():
            p.mul_(1.5)
    s, a, s2 = batch.observations, batch.actions, batch.next_observations
    q = algorithm.target_critic(s, a).q.detach()
    target_q = torch.minimum(q[:, 0], q[:, 1])
    online = algorithm.critic(s, a).q.detach()
    mean = torch.tanh(algorithm.actor.mlp(s)).detach()

    def losses(value: torch.nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
        """The actor's and the critics', given V."""
        with torch.no_grad():
            weight = torch.exp(2.0 * (target_q - value(s))).clamp(max=100)
            if policy == "gaussian":  # log σ = 0 at first
                distance = -torch.distributions.Normal(mean, 1.0).log_prob(a).sum(-1)
            else:
                distance = ((mean - a) ** 2).sum(-1)
            y = batch.rewards + 0.99 * batch.continues * value(s2)
            return (weight * distance).mean(), sum(((online[:, i] - y) ** 2).mean() for i in (0, 1))

    old, new = copy.deepcopy(algorithm.value), copy.deepcopy(algorithm.value)
    u = target_q - new(s)
    value_loss = (torch.where(u < 0, torch.full_like(u, 0.2), torch.full_like(u, 0.8)) * u**2).mean()
    optimizer = torch.optim.Adam(new.parameters(), lr=3e-4)
    value_loss.backward()
    optimizer.step()

    metrics = algorithm.update(batch, 1, batch)
    torch.testing.assert_close(flat(algorithm.value), flat(new))
    torch.testing.assert_close(metrics["value_loss"][0], value_loss.detach())
    actor_loss, critic_loss = losses(new)
    torch.testing.assert_close(metrics["actor_loss"][0], actor_loss)
    torch.testing.assert_close(metrics["critic_loss"][0], critic_loss)
    assert not torch.isclose(metrics["actor_loss"][0], losses(old)[0])
    assert not torch.isclose(metrics["critic_loss"][0], losses(old)[1])


def test_targets_and_values_know_no_policy() -> None:
    """Q and V are learned from logged actions alone: another actor leaves them as they are."""
    (one, launch), (other, other_lane) = launch_of(), launch_of()
    with torch.no_grad():
        for p in other.actor.parameters():
            p.add_(0.5)
    advance(launch, 5), advance(other_lane, 5)
    assert not torch.equal(flat(one.actor), flat(other.actor))
    assert torch.equal(flat(one.critic), flat(other.critic))
    assert torch.equal(flat(one.value), flat(other.value))


class TestThePolicy:
    def test_its_mean_is_squashed_and_its_density_is_not(self) -> None:
        algorithm, launch = launch_of(seeds=(0, 1))
        batch = batch_at(launch, 1)
        assert not algorithm.actor.log_std.any()
        with torch.no_grad():
            algorithm.actor.log_std.copy_(torch.tensor([[[-0.5, 0.3]], [[-9.0, 7.0]]]))  # the second beyond [-5, 2]
        distribution = algorithm.actor(batch.observations)
        mean = torch.tanh(algorithm.actor.mlp(batch.observations))
        log_std = torch.tensor([[[-0.5, 0.3]], [[-5.0, 2.0]]], dtype=torch.float64)
        normal = torch.distributions.Normal(mean, log_std.exp())
        extreme = torch.ones_like(batch.actions)  # has no finite pre-image under tanh
        for actions in (batch.actions, extreme):
            torch.testing.assert_close(distribution.log_prob(actions), normal.log_prob(actions).sum(-1))
        noise = torch.randn(2, 32, 5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        actions, log_prob = distribution.sample(noise)
        torch.testing.assert_close(actions, mean.unsqueeze(2) + log_std.exp().unsqueeze(2) * noise)
        each = torch.stack([distribution.log_prob(actions[:, :, k]) for k in range(5)], 2)
        torch.testing.assert_close(log_prob, each)
        torch.testing.assert_close(algorithm.act(batch.observations), mean)

    def test_dropout_thins_the_actor_while_it_learns_and_not_when_it_acts(self) -> None:
        algorithm, launch = launch_of(actor_dropout=0.25, hidden_width=64)
        batch = batch_at(launch, 1)
        masks = dropout_masks(launch.streams, "dropout", algorithm.config.actor_dropout, algorithm.config.hidden, 1000)
        assert masks is not None and len(masks) == 2
        assert sorted(masks[0].unique().tolist()) == pytest.approx([0, 4 / 3])
        assert masks[0].mean().item() == pytest.approx(1, abs=0.02)
        assert not torch.equal(masks[0], masks[1])
        before = algorithm.act(batch.observations)
        torch.testing.assert_close(before, torch.tanh(algorithm.actor.mlp(batch.observations)))
        launch.step.fill_(2)
        again = dropout_masks(launch.streams, "dropout", algorithm.config.actor_dropout, algorithm.config.hidden, 1000)
        assert again is not None and not torch.equal(masks[0], again[0])
        assert torch.equal(algorithm.act(batch.observations), before)
        assert not torch.allclose(algorithm._policy_at(batch)[0], before)

    def test_its_step_size_follows_a_cosine_to_zero(self) -> None:
        algorithm, launch = launch_of(updates=10)
        factors = []
        for step in (1, 6, 10, 11, 99):
            launch.step.fill_(step)
            factors.append(float(algorithm.actor_lr_factor))
        assert factors == pytest.approx([1, 0.5, 0.5 * (1 + math.cos(0.9 * math.pi)), 0, 0], abs=1e-7)

        advance(launch, 10)
        actor, critic = flat(algorithm.actor), flat(algorithm.critic)
        advance(launch, 1, start=10)  # one update beyond the end
        assert torch.equal(flat(algorithm.actor), actor)
        assert not torch.equal(flat(algorithm.critic), critic)

    def test_a_constant_step_size_stays(self) -> None:
        algorithm, launch = launch_of(updates=10, actor_schedule="constant")
        before = flat(advance(launch, 10).algorithm.actor)
        advance(launch, 1, start=10)
        assert (flat(algorithm.actor) - before).abs().max() > 1e-4


@pytest.mark.parametrize(
    "options",
    [{"policy": "deterministic"}, {"actor_dropout": 0.3}, {"initialization": "torch", "actor_schedule": "constant"}],
)
def test_options_keep_stacked_runs_apart(options: dict[str, Any]) -> None:
    stacked = advance(launch_of(seeds=(3, 1), **options)[1], 20).run_states()
    for seed in (3, 1):
        alone = advance(launch_of(seeds=(seed,), **options)[1], 20).run_states()[seed]
        for name, tensor in alone.items():
            torch.testing.assert_close(stacked[seed][name], tensor, rtol=1e-9, atol=1e-12, msg=name)


def test_every_layer_starts_orthogonal_with_gain_sqrt_2() -> None:
    algorithm, _ = launch_of()
    for mlp in (algorithm.actor.mlp, algorithm.value.mlp, algorithm.critic.mlp):
        for w, b in zip(mlp.weights, mlp.biases, strict=True):
            matrix = w[0, 0].detach()
            gram = matrix @ matrix.T if matrix.shape[0] < matrix.shape[1] else matrix.T @ matrix
            torch.testing.assert_close(gram, 2 * torch.eye(len(gram), dtype=gram.dtype))
            assert not b.any()


class Spy(Plugin):
    def critic_penalty(self, step: CriticStep) -> None:
        self.step = step


def test_penalties_see_the_logged_next_action_and_only_where_there_is_one() -> None:
    data = small_dataset()
    cut = np.arange(len(data)) % 3 == 0
    data = replace(data, terminals=np.zeros_like(data.terminals), next_action_valid=~cut)
    algorithm, launch = launch_of(data)
    spy = Spy()
    algorithm.plugins.all = (spy,)
    batch = batch_at(launch, 1)
    metrics = algorithm.update(batch, 1, batch)
    torch.testing.assert_close(spy.step.backup_actions, batch.next_state_actions[..., 5:])
    assert 0 < batch.next_valid.sum() < 32
    assert torch.equal(spy.step.batch.continues, batch.next_valid)
    # the TD target itself bootstraps from V(s') there: no next action is needed
    y = batch.rewards + 0.99 * algorithm.value(batch.next_observations)
    td_loss = (spy.step.output.q - y.unsqueeze(1)).square().mean(2).sum(1)
    torch.testing.assert_close(metrics["critic_loss"], td_loss.detach())


def two_armed_bandit() -> Dataset:
    """Episodes of one step, four states: logged actions uniform on [-1, 1], reward 1 where the first is positive."""
    data = small_dataset(2000)
    actions = np.random.default_rng(0).uniform(-1, 1, data.actions.shape).astype(np.float32)
    return replace(
        data,
        observations=np.eye(4, 5, dtype=np.float32)[np.arange(2000) % 4],
        actions=actions,
        rewards=(actions[:, 0] > 0).astype(np.float32),
        terminals=np.ones_like(data.terminals),
        timeouts=np.zeros_like(data.timeouts),
    )


@pytest.mark.parametrize(
    ("policy", "inverse_temperature"), [("gaussian", 0.0), ("gaussian", 3.0), ("deterministic", 3.0)]
)
def test_it_learns_the_better_arm_as_far_as_the_weights_say(policy: str, inverse_temperature: float) -> None:
    data = two_armed_bandit()
    rates = {"actor_lr": 3e-3, "critic_lr": 3e-3, "value_lr": 3e-3, "tau": 0.05}
    algorithm, launch = launch_of(data, policy=policy, inverse_temperature=inverse_temperature, updates=500, **rates)
    advance(launch, 500)
    observations = torch.tensor(data.observations[None, :4], dtype=torch.float64)
    # V is the 0.7-expectile of 0 and 1; clones of arms whose means are ±1/2, weighted by exp(β (Q - V))
    good, bad = math.exp(inverse_temperature * 0.3), math.exp(-inverse_temperature * 0.7)
    assert algorithm.value(observations).detach().numpy() == pytest.approx(0.7, abs=0.1)
    mean = algorithm.act(observations).mean((0, 1))
    assert mean[0].item() == pytest.approx(0.5 * (good - bad) / (good + bad), abs=0.1)
    assert mean[1].item() == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("expectile", 1.0),
        ("expectile", 0.0),
        ("inverse_temperature", -1.0),
        ("actor_dropout", 1.0),
        ("value_lr", 0.0),
        ("weight_maximum", 0.0),
    ],
)
def test_impossible_options_are_refused_by_name(option: str, value: float) -> None:
    with pytest.raises(InputError, match=f"--{option.replace('_', '-')}: found {value:g}, expected"):
        small_config("iql", **{option: value})


def test_a_deterministic_policy_refuses_divergences_that_need_a_density() -> None:
    options = (C4Config(K=2, divergence="kl", divergence_weight=0.1),)
    make_launch(small_config("iql", ("c4",), plugin_options=options))
    with pytest.raises(InputError, match="kl"):
        make_launch(small_config("iql", ("c4",), plugin_options=options, policy="deterministic"))


def test_flags_go_with_those_of_all_plugins() -> None:
    flags = "--algorithm iql --dataset x --task none --output y --inverse-temperature 10 --beta 2 --dr3-weight 0.1"
    config = config_of([*flags.split(), "--plugins", "c4", "layer_norm", "dr3"])
    assert config.options.inverse_temperature == 10
    assert (config.plugin_options[0].beta, config.plugin_options[2].dr3_weight) == (2, 0.1)
