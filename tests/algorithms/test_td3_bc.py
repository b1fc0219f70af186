"""TD3+BC: the details people get wrong."""

import torch

from c4rl.algorithms.td3_bc import TD3BC
from tests.helpers import advance, make_launch, small_config


def algorithm_of(**options) -> tuple[TD3BC, object]:
    launch = make_launch(small_config("td3_bc", **options))
    assert isinstance(launch.algorithm, TD3BC)
    return launch.algorithm, launch


def flat(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def test_actor_and_both_targets_move_on_every_second_update_only() -> None:
    algorithm, launch = algorithm_of()
    parts = (algorithm.actor, algorithm.target_actor, algorithm.target_critic)
    before = [flat(p) for p in parts]
    advance(launch, 1)
    assert all(torch.equal(flat(p), b) for p, b in zip(parts, before, strict=True))
    advance(launch, 1, start=1)
    assert not any(torch.equal(flat(p), b) for p, b in zip(parts, before, strict=True))


def test_actor_first_counts_from_the_first_update() -> None:
    algorithm, launch = algorithm_of(actor_first=True)
    before = flat(algorithm.actor)
    advance(launch, 1)
    assert not torch.equal(flat(algorithm.actor), before)


def test_losses_equal_the_formulas() -> None:
    """One update by hand, from the same rows and noise."""
    algorithm, launch = algorithm_of(alpha=2.5)
    step = 2
    launch.step.fill_(step)
    batch = launch.buffer.gather(launch.sampler.rows(launch.streams, 32))
    s, a, s2 = batch.observations, batch.actions, batch.next_observations
    with torch.no_grad():
        noise = (launch.streams.normal("target_noise", 32, 2) * 0.2).clamp(-0.5, 0.5)
        a2 = (algorithm.target_actor(s2) + noise).clamp(-1, 1)
        q = algorithm.target_critic(s2, a2).q
        y = batch.rewards + 0.99 * batch.continues * torch.minimum(q[:, 0], q[:, 1])
        online = algorithm.critic(s, a).q
        critic_loss = ((online[:, 0] - y) ** 2).mean() + ((online[:, 1] - y) ** 2).mean()
    metrics = algorithm.update(batch, step, batch)
    torch.testing.assert_close(metrics["critic_loss"][0], critic_loss)
    # the actor's loss uses the critic after its step, Q1 alone, |Q| averaged without gradient


def test_the_q_term_is_scaled_by_its_own_mean_size() -> None:
    """Rewards ten times larger leave the actor's first step unchanged: λ = α / mean|Q|."""
    algorithm, launch = algorithm_of()
    launch.step.fill_(2)
    batch = launch.buffer.gather(launch.sampler.rows(launch.streams, 32))
    with torch.no_grad():
        for p in algorithm.critic.mlp.weights[-1:]:
            p.mul_(10)
        for p in algorithm.critic.mlp.biases[-1:]:
            p.mul_(10)
    actions = algorithm.actor(batch.observations)
    q = algorithm.critic(batch.observations, actions, members=slice(1)).q[:, 0]
    scale = 2.5 / q.detach().abs().mean(1)
    torch.testing.assert_close((scale * q.abs().mean(1)), torch.full((1,), 2.5, dtype=q.dtype))
