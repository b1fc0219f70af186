"""TSRL: the policy learned in the latent space of its dynamics model."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from c4rl.algorithms.tsrl import TSRL, TSRLConfig
from c4rl.core.buffer import Batch, UniformSampler
from c4rl.core.errors import InputError
from c4rl.core.networks import Stack
from c4rl.core.options import may_differ
from c4rl.core.random import Streams
from c4rl.data.packing import pack_datasets
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.seams import CriticStep, Plugin, Plugins
from c4rl.training.launch import Launch
from c4rl.training.preparation import prepare
from tests.algorithms.tsrl_cases import STAGE_ONE, algorithm_of, one_run, with_terminals
from tests.cli.support import save_npz
from tests.helpers import CPU, advance, batch_at, c4_of, flat, make_launch, plain_scaling, small_config, small_dataset


def test_the_model_learns_in_stage_one_and_the_policy_in_stage_two() -> None:
    algorithm, launch = algorithm_of()
    learners = (algorithm.actor, algorithm.critic, algorithm.target_critic)
    model, policy = flat(algorithm.dynamics), [flat(n) for n in learners]
    advance(launch, STAGE_ONE)
    assert not torch.equal(flat(algorithm.dynamics), model)
    assert all(torch.equal(flat(n), before) for n, before in zip(learners, policy, strict=True))
    model, data = flat(algorithm.dynamics), [tensor.clone() for tensor in algorithm.data]
    assert all(tensor.abs().sum() > 0 for tensor in data)
    advance(launch, 7, start=STAGE_ONE)
    assert torch.equal(flat(algorithm.dynamics), model)
    assert all(torch.equal(now, then) for now, then in zip(algorithm.data, data, strict=True))
    assert not any(torch.equal(flat(n), before) for n, before in zip(learners, policy, strict=True))


@pytest.mark.parametrize("stop", [STAGE_ONE - 1, STAGE_ONE, STAGE_ONE + 1])
def test_resuming_across_the_stages_is_exact(stop: int) -> None:
    config = small_config("tsrl", ("c4",), seeds=(0, 1))
    straight = advance(make_launch(config), 12).run_states()
    second = make_launch(config)
    second.load(advance(make_launch(config), stop).run_states())
    resumed = advance(second, 12 - stop, start=stop).run_states()
    assert all(torch.equal(resumed[0][name], tensor) for name, tensor in straight[0].items())


def test_options_may_differ_between_the_runs_of_a_stack() -> None:
    """Each run of a stack whose options are tensors [R] equals the run of its own option alone."""
    data = with_terminals()
    buffer = pack_datasets([(data, plain_scaling(data))], CPU, torch.float64)
    plain = small_config("tsrl").options
    assert isinstance(plain, TSRLConfig)
    names = [field.name for field in fields(plain) if may_differ(field)]
    values = {name: getattr(plain, name) * torch.tensor([1.0, 0.6], dtype=torch.float64) for name in names}

    def trained(runs: int, **options: Any) -> dict[str, Tensor]:
        step = torch.zeros((), dtype=torch.int64)
        stack = Stack((7,) * runs, 5, 2, CPU, torch.float64)
        streams = Streams([7] * runs, step, torch.float64)
        algorithm = TSRL(replace(plain, **options), stack, streams, Plugins())
        algorithm.attach(buffer.for_runs([0] * runs))
        for number in range(1, 12):
            step.fill_(number)
            batch = algorithm.buffer.gather(UniformSampler(algorithm.buffer).rows(streams, 32))
            algorithm.update(batch, number, batch)
            algorithm.after_update(number)
        return algorithm.state()

    together = trained(2, **values)
    for run in range(2):
        for name, tensor in trained(1, **{name: float(value[run]) for name, value in values.items()}).items():
            if tensor.dim():
                torch.testing.assert_close(together[name][run], tensor[0], rtol=1e-9, atol=1e-12, msg=name)


def test_the_model_is_checked_on_each_runs_own_data() -> None:
    """True and shuffled transitions are those of the run's dataset, wherever its rows lie in the buffer."""
    one, other = with_terminals(), with_terminals(150)
    other = replace(other, observations=other.observations[::-1].copy())
    parts = [(data, plain_scaling(data)) for data in (one, other)]
    alone, both = (pack_datasets(some, CPU, torch.float64) for some in (parts[1:], parts))
    plain = small_config("tsrl").options
    reports = []
    for buffer, place in ((alone, 0), (both, 1)):
        streams = Streams([7], torch.full((), STAGE_ONE), torch.float64)
        algorithm = TSRL(plain, Stack((7,), 5, 2, CPU, torch.float64), streams, Plugins())
        algorithm.attach(buffer.for_runs([place]))
        reports.append(algorithm.after_update(STAGE_ONE))
    assert reports[0].keys() == reports[1].keys()
    assert all(torch.equal(value, reports[1][name]) for name, value in reports[0].items())


# -- the policy


def slow_policy_losses(algorithm: TSRL, launch: Launch, batch: Batch) -> dict[str, Tensor]:
    """The sheet's formulas of run 0 without dropout, from the same noise."""
    config, model = algorithm.config, algorithm.dynamics
    phi, f, g = (one_run(m) for m in (model.encoder, model.forward_field, model.reverse_field))
    pi, target_pi = one_run(algorithm.actor.mlp), one_run(algorithm.target_actor.mlp)
    s, a, s2 = batch.observations[0], batch.actions[0], batch.next_observations[0]
    goes_on = batch.continues[0]

    def encode(state: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        z = phi(torch.cat([state, action], 1))
        return z[:, : s.shape[1]], z[:, s.shape[1] :]

    noise = (launch.streams.normal("target_noise", *a.shape)[0] * 0.2).clamp(-0.5, 0.5)
    zeta = encode(s2, (torch.tanh(target_pi(s2)) + noise).clamp(-1, 1))
    y = batch.rewards[0] + 0.99 * goes_on * algorithm.target_critic(*(x[None] for x in zeta)).q[0].amin(0)
    zs_data, za_data = encode(s, a)
    critic_loss = (algorithm.critic(zs_data[None], za_data[None]).q[0] - y).square().mean(1).sum()

    zs, za = encode(s, torch.tanh(pi(s)))
    zs2, _ = encode(s2, torch.tanh(pi(s2)))
    drift = f(torch.cat([zs, za], 1))
    gap = zs - (zs2 + g(torch.cat([zs + drift, za], 1)))
    asymmetry = gap[goes_on > 0].square().mean()
    cloning = (za - za_data).square().mean()
    eps = launch.streams.normal("latent_noise", *zs.shape)[0] * config.noise_scale * algorithm.data.latent_std[0]
    zs_aug, zs2_aug = zs + eps, encode(s2, a)[0] + eps
    pushed = zs2_aug + f(torch.cat([zs_aug, za], 1)) - drift
    residual = (zs_aug - (zs2_aug + g(torch.cat([pushed, za], 1)))).square().sum(1)
    chosen = (residual <= algorithm.data.residuals[0, 0]) & (goes_on > 0)
    asked = torch.cat([zs, zs_aug[chosen]]), torch.cat([za, za[chosen]])
    q = algorithm.critic(*(x[None] for x in asked)).q[0].amin(0)
    actor_loss = (
        -config.alpha / q.abs().mean().detach() * q.mean()
        + config.latent_cloning * cloning
        + config.policy_symmetry * asymmetry
    )
    found = {"critic_loss": critic_loss, "actor_loss": actor_loss, "latent_cloning": cloning}
    found |= {"policy_asymmetry": asymmetry, "trusted_noise": chosen.double().mean()}
    return found | {"residual": residual.mean() / s.shape[1]}


@pytest.mark.parametrize("noise_scale", [0.01, 1.0])
def test_policy_losses_equal_the_formulas(noise_scale: float) -> None:
    # a critic that stands still: the actor's loss is that of the critic after its step
    algorithm, launch = algorithm_of(dropout=0.0, critic_lr=1e-30, quantile=0.5, noise_scale=noise_scale)
    advance(launch, STAGE_ONE)
    step = STAGE_ONE + 2
    batch = batch_at(launch, step)
    with torch.no_grad():  # as later in training: targets are other networks
        for p in [*algorithm.target_critic.parameters(), *algorithm.target_actor.parameters()]:
            p.mul_(1.5)
        if noise_scale == 1:  # noise that decides where the model is trusted
            residual = slow_policy_losses(algorithm, launch, batch)["residual"] * 5
            algorithm.data.residuals[0, 0] = residual
    with torch.no_grad():  # the same mean for both heads, so that either is the smaller one somewhere
        for critic in (algorithm.critic, algorithm.target_critic):
            q = critic.at(algorithm.critic_inputs(batch.state_actions)).q
            critic.mlp.biases[-1][0, 1] += (q[0, 0] - q[0, 1]).mean()
    expected = slow_policy_losses(algorithm, launch, batch)
    # where all Q have one sign, λ makes the Q term ±α: only its gradient tells which rows were asked
    gradient = torch.autograd.grad(expected["actor_loss"], list(algorithm.actor.parameters()))
    found = algorithm.update(batch, step, batch)
    assert 0 < expected["trusted_noise"] < 1
    for name in ("critic_loss", "actor_loss", "latent_cloning", "policy_asymmetry", "trusted_noise"):
        torch.testing.assert_close(found[name][0], expected[name].detach(), msg=name)
    flat_gradient = torch.cat([g.reshape(-1) for g in gradient])
    torch.testing.assert_close(algorithm.optimizers["actor"].gradient, flat_gradient)


def test_noise_is_each_rows_own_and_small() -> None:
    algorithm, launch = algorithm_of()
    advance(launch, STAGE_ONE)
    noise, _ = trusted_noise(algorithm, launch)
    torch.testing.assert_close(noise.std((0, 1)), 0.01 * algorithm.data.latent_std[0], rtol=0.15, atol=0)
    assert (noise.mean(1).abs() < 0.2 * noise.std(1)).all()


def test_the_releases_noise_is_one_shift_for_all_rows() -> None:
    algorithm, launch = algorithm_of(noise="shifted")
    advance(launch, STAGE_ONE)
    noise, _ = trusted_noise(algorithm, launch)
    assert torch.equal(noise, noise[:, :1].expand_as(noise))
    draw = launch.streams.normal("latent_noise", 1, 5)[:, 0]
    torch.testing.assert_close(noise[:, 0], algorithm.data.latent_mean + 0.01 * draw * algorithm.data.latent_std)


def trusted_noise(algorithm: TSRL, launch: Launch, rows: int = 256) -> tuple[Tensor, Tensor]:
    batch = batch_at(launch, STAGE_ONE + 2, rows)
    with torch.no_grad():
        z_s, z_a = algorithm.dynamics.encode(batch.observations, algorithm.actor(batch.observations))
        return algorithm._trusted_noise(batch, z_s, z_a, algorithm.dynamics.forward_step(z_s, z_a))


@pytest.mark.parametrize(("factor", "share"), [(1.01, 1.0), (0.99, 0.0)])
def test_the_releases_acceptance_is_all_or_none(factor: float, share: float) -> None:
    """By the residual's mean over rows and dimensions, against a threshold between the least and largest one's sums."""
    algorithm, launch = algorithm_of(small_dataset(), acceptance="batch", noise_scale=0.0)
    advance(launch, STAGE_ONE)
    batch = batch_at(launch, STAGE_ONE + 2, 256)
    with torch.no_grad():
        residual = float(slow_policy_losses(algorithm, launch, batch)["residual"])
    least, largest = 3.0, 5.0
    threshold = least + factor * residual * (largest - least)
    algorithm.data.residuals.copy_(torch.tensor([[threshold, least, largest]], dtype=torch.float64))
    assert trusted_noise(algorithm, launch)[1].mean() == share


def test_the_releases_acceptance_does_not_look_beyond_ends() -> None:
    algorithm, launch = algorithm_of(acceptance="batch", noise_scale=0.0)
    advance(launch, STAGE_ONE)
    batch = batch_at(launch, STAGE_ONE + 2, 256)
    goes_on = batch.continues[0] > 0
    assert 0 < goes_on.sum() < 256
    with torch.no_grad():
        z_s, z_a = algorithm.dynamics.encode(batch.observations, algorithm.actor(batch.observations))
        f = algorithm.dynamics.forward_step(z_s, z_a)
        next_z_s, _ = algorithm.dynamics.encode(batch.next_observations, batch.actions)
        back = next_z_s + algorithm.dynamics.reverse_step(next_z_s, z_a) - z_s  # without noise
        residual = float(back.square()[:, goes_on].mean())
        elsewhere = batch._replace(next_observations=batch.next_observations + 50 * ~goes_on.view(1, -1, 1))
        for factor, trusted in ((1.01, goes_on), (0.99, goes_on & False)):
            algorithm.data.residuals.copy_(torch.tensor([[factor * residual, 0.0, 1.0]]))
            for one in (batch, elsewhere):
                assert torch.equal(algorithm._trusted_noise(one, z_s, z_a, f)[1][0] > 0, trusted)


def test_trust_falls_with_the_quantile() -> None:
    shares = []
    for quantile in (0.0, 0.5, 1.0):
        algorithm, launch = algorithm_of(quantile=quantile)
        advance(launch, STAGE_ONE)
        shares.append(trusted_noise(algorithm, launch)[1].mean().item())
    assert shares[0] < shares[1] < shares[2]


def test_dropout_acts_in_training_and_never_when_acting() -> None:
    algorithm, launch = algorithm_of(dropout=0.4, hidden_width=64)
    masks = algorithm._dropout("dropout", 500)
    assert masks is not None and len(masks) == 2
    assert set(masks[0].unique().tolist()) == {0.0, 1 / 0.6}
    assert float(masks[1].mean()) == pytest.approx(1.0, abs=0.02)
    batch = batch_at(launch, 3)
    dropped = torch.tanh(algorithm.actor.mlp(batch.observations, [m[:, :32] for m in masks]))
    plain = torch.tanh(one_run(algorithm.actor.mlp)(batch.observations[0]))
    assert not torch.allclose(dropped[0], plain)
    torch.testing.assert_close(algorithm.act(batch.observations)[0], plain)


def test_dropping_terminals_hides_every_end() -> None:
    algorithm, launch = algorithm_of(drop_terminals=True, dropout=0.0)
    advance(launch, STAGE_ONE)
    batch = batch_at(launch, STAGE_ONE + 1)
    kept = batch.continues[0] > 0
    assert 0 < kept.sum() < 32
    changed = batch._replace(rewards=torch.where(batch.continues > 0, batch.rewards, 1e6))
    with torch.no_grad():
        expected = slow_policy_losses(algorithm, launch, batch)["critic_loss"]
    found = algorithm.update(changed, STAGE_ONE + 1, changed)["critic_loss"][0]
    assert found < 1e3 and not torch.isclose(found, expected)


def test_a_batch_of_terminals_alone_leaves_the_policy_finite() -> None:
    algorithm, launch = algorithm_of(drop_terminals=True)
    advance(launch, STAGE_ONE)
    batch = batch_at(launch, STAGE_ONE + 1)
    batch = batch._replace(continues=torch.zeros_like(batch.continues))
    algorithm.update(batch, STAGE_ONE + 2, batch)
    assert all(torch.isfinite(parameter).all() for parameter in algorithm.actor.parameters())


# -- plug-ins


class Looking(Plugin):
    """Notes what it is shown."""

    def __init__(self) -> None:
        self.period, self.seen, self.refreshed = 1000, list[CriticStep](), list[int]()

    def critic_penalty(self, step: CriticStep) -> None:
        self.seen.append(step)

    def refresh(self, algorithm: Any, step: int) -> dict[str, Tensor]:
        self.refreshed.append(step)
        return {}


def test_plugins_see_what_the_critic_sees() -> None:
    algorithm, launch = algorithm_of(dropout=0.0)
    looking = Looking()
    algorithm.plugins = Plugins([looking])
    advance(launch, STAGE_ONE)
    assert not looking.seen and looking.refreshed == [0]  # at once and anew, in the latent space that stays
    batch = batch_at(launch, STAGE_ONE + 1)
    algorithm.update(batch, STAGE_ONE + 1, batch)
    (step,) = looking.seen
    phi = one_run(algorithm.dynamics.encoder)
    for found, pairs in (
        (step.batch.state_actions, batch.state_actions),
        (step.batch.next_state_actions, batch.next_state_actions),
    ):
        torch.testing.assert_close(found[0], phi(pairs[0]))
        torch.testing.assert_close(algorithm.critic_inputs(pairs), found)
    assert torch.equal(torch.cat([step.batch.observations, step.batch.actions], 2), step.batch.state_actions)
    noise = (launch.streams.normal("target_noise", 32, 2) * 0.2).clamp(-0.5, 0.5)
    backup = (algorithm.act(batch.next_observations) + noise).clamp(-1, 1)  # the target actor has not moved yet
    point = phi(torch.cat([batch.next_observations, backup], 2)[0])
    torch.testing.assert_close(torch.cat([step.batch.next_observations, step.backup_actions], 2)[0], point)


def test_the_first_clusters_are_those_of_the_final_latent_space() -> None:
    """Nothing is taken over from clusters of the untrained model, and what later clusterings bring has not begun."""
    form = C4Config(K=3, period=2, mode="exact", average_critics=True, zero_next_actions=True)
    launch = advance(make_launch(small_config("tsrl", ("c4",), plugin_options=(form,))), STAGE_ONE)
    c4 = c4_of(launch)
    found = {name: tensor.clone() for name, tensor in c4.clustering.state().items()}
    assert bool(c4.authors.next_actions_kept.all()) and not torch.equal(*launch.algorithm.critics[0].mlp.weights[0][0])
    c4.start(launch.algorithm)
    assert all(torch.equal(tensor, found[name]) for name, tensor in c4.clustering.state().items())
    form = replace(form, initial_clusters="state_action")
    launch = advance(make_launch(small_config("tsrl", ("c4",), plugin_options=(form,))), STAGE_ONE)
    c4 = c4_of(launch)
    torch.testing.assert_close(c4.clustering.tables.weights, torch.full((1, 3), 1 / 3, dtype=torch.float64))


def test_td_errors_are_taken_in_latent_space() -> None:
    algorithm, launch = algorithm_of()
    batch = batch_at(launch, 1)
    phi = one_run(algorithm.dynamics.encoder)
    with torch.no_grad():
        next_pairs = torch.cat([batch.next_observations, algorithm.act(batch.next_observations)], 2)
        next_q = algorithm.target_critic.at(phi(next_pairs)).q.amin(1)
        y = batch.rewards + 0.99 * batch.continues * next_q
        expected = y[:, None] - algorithm.critic.at(phi(batch.state_actions)).q
    found = algorithm.temporal_difference(batch)
    assert found is not None
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize(
    ("option", "value"),
    [("dynamics_updates", 0), ("dropout", 1.0), ("quantile", 1.5), ("encoder_widths", ()), ("policy_delay", 0)],
)
def test_options_without_sense_are_refused(option: str, value: Any) -> None:
    with pytest.raises(InputError, match=f"--{option.replace('_', '-')}: found"):
        small_config("tsrl", **{option: value})


def test_data_without_a_transition_to_model_are_refused(tmp_path: Path) -> None:
    terminals = np.ones(240, bool)
    data = save_npz(tmp_path / "one_step.npz", terminals=terminals, timeouts=~terminals)
    message = r"one_step\.npz: found 0 rows to train on that end no episode, expected 2 or more"
    with pytest.raises(InputError, match=message):
        prepare(small_config("tsrl", dataset=data))
    terminals[::20] = False
    save_npz(data, terminals=terminals, timeouts=~terminals)
    prepare(small_config("tsrl", dataset=data))
