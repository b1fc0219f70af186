"""Stacked networks equal separate ones; flat Adam and Polyak equal PyTorch's."""

import copy

import pytest
import torch
from torch import nn

from c4rl.core.networks import Critic, Stack, StackedMLP
from c4rl.core.optimizers import FlatAdam, Polyak
from c4rl.core.policies import GaussianPolicy, TanhGaussian

CPU = torch.device("cpu")


def stack(*seeds: int, dtype: torch.dtype = torch.float64) -> Stack:
    return Stack(seeds, 4, 2, CPU, dtype)


def as_torch(mlp: StackedMLP, run: int, member: int) -> nn.Sequential:
    """One member as ordinary torch layers."""
    layers: list[nn.Module] = []
    last = len(mlp.weights) - 1
    for i, (w, b) in enumerate(zip(mlp.weights, mlp.biases, strict=True)):
        linear = nn.Linear(w.shape[2], w.shape[3], dtype=w.dtype)
        linear.weight.data, linear.bias.data = w[run, member].detach().T.clone(), b[run, member].detach().clone()
        layers.append(linear)
        if i < last:
            if mlp.layer_norm:
                norm = nn.LayerNorm(w.shape[3], dtype=w.dtype)
                norm.weight.data = mlp.gains[i][run, member].detach().clone()
                norm.bias.data = mlp.shifts[i][run, member].detach().clone()
                layers.append(norm)
            layers.append(nn.ReLU())
    return nn.Sequential(*layers)


@pytest.mark.parametrize("layer_norm", [False, True])
def test_a_stacked_critic_is_separate_torch_networks(layer_norm: bool) -> None:
    critic = Critic(stack(1, 2, 3), "critic", (8, 8), layer_norm=layer_norm)
    s, a = torch.randn(3, 7, 4, dtype=torch.float64), torch.randn(3, 7, 2, dtype=torch.float64)
    output = critic(s, a)
    for run in range(3):
        for member in range(2):
            net = as_torch(critic.mlp, run, member)
            x = torch.cat([s[run], a[run]], 1)
            torch.testing.assert_close(output.q[run, member], net(x)[:, 0])
            torch.testing.assert_close(output.features[run, member], net[:-1](x))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_many_actions_per_state_equal_one_by_one(layer_norm: bool) -> None:
    critic = Critic(stack(1, 2), "critic", (8, 8), layer_norm=layer_norm)
    s, a = torch.randn(2, 7, 4, dtype=torch.float64), torch.randn(2, 7, 5, 2, dtype=torch.float64)
    together = critic(s, a)
    for k in range(5):
        alone = critic(s, a[:, :, k])
        torch.testing.assert_close(together.q[..., k], alone.q)
        torch.testing.assert_close(together.features[..., k, :], alone.features)
    torch.testing.assert_close(critic(s, a[:, :, 0], members=slice(1)).q, together.q[:, :1, :, 0])


def test_initial_weights_depend_on_the_seed_alone_and_are_spread_as_torch_does() -> None:
    alone, stacked = (StackedMLP(stack(*seeds), "actor", (256, 256, 1)) for seeds in ((5,), (4, 5)))
    torch.testing.assert_close(alone.weights[0][0], stacked.weights[0][1], rtol=0, atol=0)
    assert not torch.equal(stacked.weights[0][0], stacked.weights[0][1])
    reference = nn.Linear(256, 256)
    assert abs(alone.weights[0].std() / reference.weight.std() - 1) < 0.02
    assert abs(alone.weights[0]).max() <= 1 / 16


def test_orthogonal_initialisation_is_orthogonal() -> None:
    mlp = StackedMLP(stack(0), "critic", (4, 8, 1), initialization="orthogonal")
    w = mlp.weights[0][0, 0]
    torch.testing.assert_close(w @ w.T, 2 * torch.eye(4, dtype=torch.float64))
    assert mlp.weights[1].norm().item() == pytest.approx(0.01)  # values begin near 0


def test_flat_adam_is_torch_adam_and_polyak_is_its_definition() -> None:
    critic = Critic(stack(1, 2), "critic", (8, 8), layer_norm=True)
    reference, target = copy.deepcopy(critic), copy.deepcopy(critic)
    before = copy.deepcopy(critic)
    ours, theirs = FlatAdam(critic, 1e-2), torch.optim.Adam(reference.parameters(), 1e-2)
    polyak = Polyak(ours, target, 0.1)
    for _ in range(5):
        s, a = torch.randn(2, 7, 4, dtype=torch.float64), torch.randn(2, 7, 2, dtype=torch.float64)
        ours.step(critic(s, a).q.square().sum())
        theirs.zero_grad()
        reference(s, a).q.square().sum().backward()
        theirs.step()
    for p, q in zip(critic.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(p, q)
    polyak.step()
    for t, p, b in zip(target.parameters(), critic.parameters(), before.parameters(), strict=True):
        torch.testing.assert_close(t, 0.9 * b + 0.1 * p)


def test_tanh_gaussian_agrees_with_torch_distributions() -> None:
    mean, log_std = torch.randn(2, 5, 3, dtype=torch.float64), torch.randn(2, 5, 3, dtype=torch.float64) * 0.3
    noise = torch.randn(2, 5, 4, 3, dtype=torch.float64)
    policy = TanhGaussian(mean, log_std)
    actions, log_prob = policy.sample(noise)
    normal = torch.distributions.Normal(mean.unsqueeze(2), log_std.exp().unsqueeze(2))
    squash = torch.distributions.TransformedDistribution(normal, torch.distributions.TanhTransform())
    torch.testing.assert_close(log_prob, squash.log_prob(actions).sum(-1), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(policy.log_prob(actions[:, :, 0]), log_prob[:, :, 0], rtol=1e-6, atol=1e-6)


def test_log_prob_of_logged_actions_at_the_bounds_is_finite() -> None:
    policy = TanhGaussian(torch.zeros(1, 2, 1), torch.zeros(1, 2, 1))
    assert torch.isfinite(policy.log_prob(torch.tensor([[[1.0], [-1.0]]]))).all()


def test_scaled_log_std_starts_at_minus_one_around_the_output() -> None:
    policy = GaussianPolicy(stack(0), "actor", (8,), "scaled")
    x = torch.zeros(1, 1, 4, dtype=torch.float64)
    raw = policy.mlp(x)[..., 2:]
    torch.testing.assert_close(policy(x).log_std, (raw - 1).clamp(-20, 2))


@pytest.mark.parametrize(("form", "low"), [("linear", -5), ("scaled", -20)])
def test_a_standard_deviation_stays_within_its_bounds(form: str, low: float) -> None:
    policy = GaussianPolicy(stack(0), "actor", (8,), form)
    with torch.no_grad():
        policy.mlp.biases[-1][..., 2:] = torch.tensor([-100.0, 100.0], dtype=torch.float64)
        log_std = policy(torch.zeros(1, 1, 4, dtype=torch.float64)).log_std
    assert log_std.flatten().tolist() == [low, 2]
