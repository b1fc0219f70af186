"""BPPO: four stages, their targets, losses and schedules."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal

from c4rl.algorithms.bppo import BPPO, BPPOConfig, weighted_advantage
from c4rl.core.buffer import Batch
from c4rl.core.errors import InputError
from c4rl.core.networks import Stack, StackedMLP
from c4rl.core.policies import TanhHeadGaussianPolicy
from c4rl.core.returns import returns_to_go
from c4rl.data.dataset import Dataset
from c4rl.data.packing import Scaling, pack_datasets
from c4rl.jobs.preset_fields import published_fields
from c4rl.training.launch import Launch
from tests.helpers import CPU, SMALL, advance, make_launch, plain_scaling, small_config, small_dataset

# the first update of each stage of a small job
CRITIC, VALUE, CLONING, IMPROVEMENT, END = np.cumsum(
    [1] + [SMALL["bppo"][name] for name in ("updates", "value_updates", "cloning_updates", "improvement_updates")]
).tolist()


def cut_dataset(ends: dict[int, str], rows: int) -> Dataset:
    """Trajectories that end after these rows, by a "terminal" or a "timeout"; the last row ends one in any case."""
    data = small_dataset(rows)
    terminals, timeouts = (np.array([ends.get(i) == kind for i in range(rows)]) for kind in ("terminal", "timeout"))
    timeouts[-1] |= not terminals[-1]
    last = terminals | timeouts
    return replace(
        data,
        terminals=terminals,
        timeouts=timeouts,
        trajectory_ids=np.concatenate([[0], np.cumsum(last[:-1])]).astype(np.int32),
        next_actions=data.next_actions * ~last[:, None],
        next_action_valid=~last,
    )


def launch_of(data: Dataset | None = None, seeds: tuple[int, ...] = (0,), **values: Any) -> tuple[Launch, BPPO]:
    """online_best needs a task; nothing here runs it."""
    task = {"task": "maze2d-umaze-v1"} if values.get("acceptance") == "online_best" else {}
    launch = make_launch(small_config("bppo", seeds=seeds, **task, **values), data)
    assert isinstance(launch.algorithm, BPPO)
    return launch, launch.algorithm


def batch_at(launch: Launch, step: int, rows: int = 32) -> Batch:
    """Uniform rows of update `step`, for which the device's counter is made ready."""
    launch.step.fill_(step)
    return launch.buffer.gather(launch.uniform_sampler.rows(launch.streams, rows))


def flat(module: nn.Module) -> Tensor:
    """[R, all parameters]."""
    return torch.cat([p.detach().flatten(1) for p in module.parameters()], dim=1)


# -- returns to go


def slow_returns(data: Dataset, scaling: Scaling, discount: float) -> np.ndarray:
    out, following = np.zeros(len(data)), 0.0
    for i in reversed(range(len(data))):
        if data.terminals[i] or data.timeouts[i]:
            following = 0.0
        following = out[i] = float(data.rewards[i]) * scaling.reward_scale + scaling.reward_shift + discount * following
    return out


@pytest.mark.parametrize("discount", [0.99, 1.0, 0.5])
def test_returns_to_go_stop_where_trajectories_do_and_are_of_scaled_rewards(discount: float) -> None:
    cuts = {0: "terminal", 7: "timeout", 8: "timeout", 40: "terminal", 41: "terminal", 107: "timeout"}
    long = cut_dataset(cuts, 300)
    short = [cut_dataset({}, rows) for rows in (37, 1, 64)]  # one trajectory each: equal ids on both sides of the seam
    scalings = [replace(plain_scaling(long), reward_scale=3.0, reward_shift=-0.5), *map(plain_scaling, short)]
    datasets = list(zip([long, *short], scalings, strict=True))
    buffer = pack_datasets(datasets, CPU, torch.float64, dataset_of_run=(0, 1, 2, 3))
    expected = np.concatenate([slow_returns(data, scaling, discount) for data, scaling in datasets])
    np.testing.assert_allclose(returns_to_go(buffer, discount).numpy(), expected, rtol=1e-6, atol=1e-6)
    # neighbours that no run reads stay apart too
    part = returns_to_go(buffer.for_runs([1, 1, 3]), discount).numpy()
    np.testing.assert_allclose(part[300:337], expected[300:337], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(part[338:], expected[338:], rtol=1e-6, atol=1e-6)


def test_v_is_fitted_to_the_returns_of_the_batch_s_own_rows() -> None:
    data = cut_dataset({30: "terminal", 90: "timeout"}, 200)
    launch, algorithm = launch_of(data)
    batch = batch_at(launch, VALUE)
    returns = torch.tensor(slow_returns(data, plain_scaling(data), 0.99))
    places = torch.cdist(batch.state_actions[0], launch.buffer.unpack(launch.buffer.packed).state_actions).argmin(1)
    expected = (algorithm.value(batch.observations)[0] - returns[places]).square().mean()
    torch.testing.assert_close(algorithm.update(batch, VALUE, batch)["value_loss"][0], expected, rtol=1e-6, atol=1e-6)


# -- the critic


def test_the_critic_s_target_is_sarsa_s_and_a_cut_counts_as_the_end() -> None:
    data = cut_dataset({i: ("terminal", "timeout")[i // 4 % 2] for i in range(3, 200, 4)}, 200)
    launch, algorithm = launch_of(data)
    with torch.no_grad():  # a target that differs from the critic
        for p in algorithm.target_critic.parameters():
            p.mul_(1.3)
    batch = batch_at(launch, CRITIC, 100)
    cut = (batch.continues == 1) & (batch.next_valid == 0)
    assert cut.any() and (batch.continues == 0).any()
    with torch.no_grad():
        follows = (batch.continues == 1) & (batch.next_valid == 1)
        y = batch.rewards + torch.where(follows, 0.99 * algorithm.target_critic.at(batch.next_state_actions).q[:, 0], 0)
        expected = (algorithm.critic.at(batch.state_actions).q[:, 0] - y).square().mean(1)
    torch.testing.assert_close(algorithm.update(batch, CRITIC, batch)["critic_loss"], expected)


def test_the_target_moves_every_second_critic_update_and_never_later() -> None:
    launch, algorithm = launch_of(updates=6)
    moved = []
    for step in range(1, 13):
        before = flat(algorithm.target_critic)
        advance(launch, 1, start=step - 1)
        moved.append(not torch.equal(flat(algorithm.target_critic), before))
    assert moved == [False, True] * 3 + [False] * 6
    assert algorithm.phase(1) != algorithm.phase(2) and algorithm.phase(8) == algorithm.phase(7)


def test_each_stage_trains_its_own_network_alone() -> None:
    launch, algorithm = launch_of()
    trained = {CRITIC: "critic", VALUE: "value", CLONING: "old_actor", IMPROVEMENT: "actor"}
    for step in range(1, END):
        before = {name: optimizer.count.clone() for name, optimizer in algorithm.optimizers.items()}
        advance(launch, 1, start=step - 1)
        stepped = [name for name, optimizer in algorithm.optimizers.items() if optimizer.count > before[name]]
        assert stepped == [trained[max(first for first in trained if first <= step)]]
    plugged = [stage.name for stage in algorithm.stages if stage.plugged]
    evaluated = [stage.name for stage in algorithm.stages if stage.evaluated]
    assert plugged == ["critic"] and evaluated == ["cloning", "improvement"]


# -- the policy


def test_the_policy_is_an_unsquashed_gaussian_whose_log_std_lies_between_minus_five_and_zero() -> None:
    stack = Stack((0, 1), 5, 2, CPU, torch.float64)
    policy = TanhHeadGaussianPolicy(stack, "actor", (16, 16), initialization="orthogonal_weights")
    observations = torch.randn(2, 4000, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 50
    distribution = policy(observations)
    assert -5 <= distribution.log_std.min() < -4.9 and -0.1 < distribution.log_std.max() <= 0
    assert -1 <= distribution.mean.min() < -0.9 and 0.9 < distribution.mean.max() <= 1
    f = policy.mlp(observations)
    torch.testing.assert_close(distribution.mean, torch.tanh(f[..., :2]))
    torch.testing.assert_close(distribution.log_std, -5 + 2.5 * (torch.tanh(f[..., 2:]) + 1))
    normal = Normal(distribution.mean, distribution.log_std.exp())
    noise = torch.randn(2, 4000, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    actions, log_prob = distribution.sample(noise)
    torch.testing.assert_close(actions, normal.loc + normal.scale * noise)
    assert actions.abs().max() > 1, "nothing is squashed or clipped"
    torch.testing.assert_close(log_prob, normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(distribution.log_prob(actions), normal.log_prob(actions).sum(-1))
    torch.testing.assert_close(distribution.entropy(), normal.entropy().sum(-1))


def test_its_weights_begin_orthogonal_with_gain_one() -> None:
    mlp = StackedMLP(Stack((3,), 5, 2, CPU, torch.float64), "actor", (5, 16, 4), initialization="orthogonal_weights")
    for weight in mlp.weights:
        w = weight.detach()[0, 0]
        gram = w @ w.T if w.shape[0] < w.shape[1] else w.T @ w
        torch.testing.assert_close(gram, torch.eye(len(gram), dtype=torch.float64))
    assert all(bias.abs().max() > 0 for bias in mlp.biases)


# -- one improvement update


def test_advantages_are_normalised_in_each_run_and_weighted_afterwards() -> None:
    advantage = torch.tensor([[1.0, 2.0, 3.0, 6.0], [-30.0, -10.0, -20.0, -60.0]], dtype=torch.float64)
    weighted = weighted_advantage(advantage, 0.9)
    std = np.std([1, 2, 3, 6], ddof=1)
    # all raw ones are positive in the first run and negative in the second: signs are those after the mean is taken off
    by_hand = [0.1 * (1 - 3) / std, 0.1 * (2 - 3) / std, 0.0, 0.9 * (6 - 3) / std]
    # in the type of the advantages: the weights are not rounded to that of PyTorch's default
    torch.testing.assert_close(weighted[0], torch.tensor(by_hand, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    assert (weighted[1] > 0).tolist() == [False, True, True, False]
    half = weighted_advantage(advantage, 0.5)  # not halved
    torch.testing.assert_close(half.std(1), torch.ones(2, dtype=torch.float64))
    torch.testing.assert_close(weighted_advantage(advantage * 7 + 5, 0.9), weighted)


@pytest.mark.parametrize(
    ("k", "clip", "factor"),
    [
        (0, 0.25 * 0.96, 1.0),  # decayed before its first use
        (1, 0.25 * 0.96**2, 1.0),
        (2, 0.25 * 0.96**3, 0.98),
        (5, 0.25 * 0.96**6, 0.98**2),
        (200, 0.25 * 0.96**201, 0.98**100),
        (201, 0.25 * 0.96**201, 0.98**100),  # held
        (999, 0.25 * 0.96**201, 0.98**100),
    ],
)
def test_clip_and_step_size_decay_from_the_stage_s_beginning(k: int, clip: float, factor: float) -> None:
    launch, algorithm = launch_of()
    batch = batch_at(launch, IMPROVEMENT + k)
    found_clip, found_factor = algorithm.schedules()
    assert float(found_clip) == pytest.approx(clip, rel=1e-12)
    assert float(found_factor) == pytest.approx(factor, rel=1e-6)
    # Adam's first step is as long as its step size in every direction
    before = flat(algorithm.actor)
    algorithm.update(batch, IMPROVEMENT + k, batch)
    assert float((flat(algorithm.actor) - before).abs().max()) == pytest.approx(1e-4 * factor, rel=1e-3)


@pytest.mark.parametrize(("omega", "entropy_weight"), [(0.9, 0.0), (0.5, 0.3)])
def test_the_improvement_loss_is_the_clipped_surrogate_at_actions_of_the_old_policy(
    omega: float, entropy_weight: float
) -> None:
    launch, algorithm = launch_of(omega=omega, entropy_weight=entropy_weight, seeds=(0, 5))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # away from π_old, or every ratio would be 1; and a target that is not the critic
        for p in algorithm.actor.parameters():
            p.add_(torch.randn(p.shape, generator=generator, dtype=p.dtype) * 0.02)
        for p in algorithm.target_critic.parameters():
            p.mul_(1.5)
    batch = batch_at(launch, IMPROVEMENT)
    noise = launch.streams.normal("old_action", 32, 2)
    losses, clipped = [], []
    for run in range(2):
        old, new = algorithm.old_actor(batch.observations), algorithm.actor(batch.observations)
        old_normal, new_normal = (Normal(d.mean[run], d.log_std[run].exp()) for d in (old, new))
        a = old_normal.loc + old_normal.scale * noise[run]
        ratio = (new_normal.log_prob(a).sum(1) - old_normal.log_prob(a).sum(1)).exp()
        every = torch.stack([a, a])
        A = (algorithm.critic(batch.observations, every).q[run, 0] - algorithm.value(batch.observations)[run]).detach()
        A = (A - A.mean()) / A.std()
        if omega != 0.5:
            A = torch.where(A > 0, omega * A, (1 - omega) * A)
        terms = torch.minimum(ratio * A, ratio.clip(1 - 0.24, 1 + 0.24) * A)
        losses.append(-(terms + entropy_weight * new_normal.entropy().sum(1)).mean())
        clipped.append(((ratio < 0.76) | (ratio > 1.24)).double().mean())
    assert min(clipped) > 0 and max(clipped) < 1
    metrics = algorithm.update(batch, IMPROVEMENT, batch)
    torch.testing.assert_close(metrics["actor_loss"], torch.stack(losses).detach())
    torch.testing.assert_close(metrics["clipped_share"], torch.stack(clipped))


def test_cloning_maximises_the_mean_likelihood_of_logged_actions() -> None:
    launch, algorithm = launch_of(seeds=(0, 5))
    batch = batch_at(launch, CLONING)
    old = algorithm.old_actor(batch.observations)
    expected = -Normal(old.mean, old.log_std.exp()).log_prob(batch.actions).sum(2).mean(1).detach()
    torch.testing.assert_close(algorithm.update(batch, CLONING, batch)["actor_loss"], expected)


def test_policies_are_judged_by_the_critics_mean_over_states_of_the_runs_own_data() -> None:
    first, second = small_dataset(120), small_dataset(200)
    second = replace(second, observations=second.observations + 3)
    parts = [(data, plain_scaling(data)) for data in (first, second)]
    both = pack_datasets(parts, CPU, torch.float64)
    _, algorithm = launch_of(second)
    assert len(algorithm.judged_states[0]) == 1024
    alone = algorithm.judged_states.clone()
    algorithm.attach(both.for_runs([1]))
    assert torch.equal(algorithm.judged_states, alone)
    with torch.no_grad():  # as later in training: the target is another network
        for p in algorithm.target_critic.parameters():
            p.mul_(1.5)
    q = algorithm.critic(alone, algorithm.actor(alone).mean).q
    torch.testing.assert_close(algorithm.expected_q(algorithm.actor)[0], q.sum() / 1024)


def test_each_run_s_gradient_is_shortened_to_one_half() -> None:
    launch, algorithm = launch_of(seeds=(0, 1, 2))
    optimizer = algorithm.optimizers["actor"]
    batch = batch_at(launch, IMPROVEMENT)
    algorithm.update(batch, IMPROVEMENT, batch)
    gradients = [g.flatten(1) for g in optimizer._gradient_views]
    norms = torch.cat(gradients, dim=1).norm(dim=1)
    torch.testing.assert_close(norms, torch.full_like(norms, 0.5), rtol=1e-3, atol=0)
    optimizer.step(0.01 * sum(p.flatten(1).mean(1) for p in optimizer.parameters))
    assert torch.cat(gradients, dim=1).norm(dim=1).max() < 0.4, "a short one was made longer"


# -- values that cannot be negative


def test_with_the_output_relu_negative_returns_teach_nothing_and_without_it_they_are_learnt() -> None:
    data = small_dataset()
    data = replace(data, rewards=np.full(len(data), -1, np.float32))
    for relu in (True, False):
        launch, algorithm = launch_of(data, output_relu=relu, updates=200, critic_lr=3e-3, discount=0.5)
        advance(launch, 200)
        everything = launch.buffer.unpack(launch.buffer.packed.unsqueeze(0))
        q = algorithm.critic.at(everything.state_actions).q
        if relu:
            q = q.relu()
            assert q.max() < 0.05
        else:
            assert q.mean() < -0.5
        # the held-out error is of the values as they are used
        next_q = algorithm.target_critic(everything.next_observations, algorithm.act(everything.next_observations)).q
        y = everything.rewards + 0.5 * everything.continues * (next_q.relu() if relu else next_q)[:, 0]
        torch.testing.assert_close(algorithm.temporal_difference(everything), (y.unsqueeze(1) - q).detach())


def test_the_output_relu_is_off_by_default_and_on_in_the_published_settings() -> None:
    assert not BPPOConfig().output_relu
    assert published_fields("bppo", ("none",), "hopper-medium-v2")["options"].output_relu


# -- settings


def test_published_settings_follow_the_release() -> None:
    def settings(task: str) -> tuple[int, int, int, bool, str]:
        fields = published_fields("bppo", ("none",), task)
        o = fields["options"]
        return fields["updates"], o.value_updates, o.cloning_updates, o.output_relu, o.acceptance

    long = (2_000_000, 2_000_000, 500_000)
    short = (200_000, 200_000, 50_000)
    for name in ("hopper-medium-v2", "hopper-medium", "walker2d-medium-replay-v2"):
        assert settings(name) == (*short, True, "online_best")
    for name in ("hopper-medium-expert-v2", "hopper-medium-replay-v2", "walker2d-medium-v2", "antmaze-umaze-v2"):
        assert settings(name) == (*long, True, "online_best")
    assert settings("pen-human-v1")[3] and not settings("door-human-v1")[3]  # its returns are negative
    assert settings("ant-medium-v2") == settings("maze2d-umaze-v1") == (*long, False, "never")
    assert not published_fields("bppo", ("none",), "kitchen-complete-v0")["normalize_observations"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"acceptance": "online_best"}, "--acceptance: found online_best with --task none"),
        ({"improvement_updates": 0}, "--improvement-updates: found 0, expected a whole number at least 1"),
        ({"cloning_updates": -1}, "--cloning-updates: found -1"),
        ({"omega": 0.0}, "--omega: found 0, expected a number above 0"),
        ({"clip_decay": 1.5}, "--clip-decay: found 1.5"),
        ({"clip_ratio": float("nan")}, "--clip-ratio: found nan"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        small_config("bppo", **options)
