"""g is the gradient of Q with respect to its input, and can itself be differentiated."""

import pytest
import torch

from c4rl.core.networks import Critic, Stack
from c4rl.plugins.c4.feature_gradients import (
    autograd_gradient,
    explicit_gradient,
    feature_gradients,
    input_gradient,
    online_feature_gradients,
)

STACK = Stack((1, 2, 3), 4, 2, torch.device("cpu"), torch.float64)


def rows(count: int = 7) -> torch.Tensor:
    return torch.randn(3, count, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("layer_norm", [False, True])
def test_exact_gradients_agree_with_finite_differences(layer_norm: bool) -> None:
    critic, x = Critic(STACK, "critic", (8, 8), layer_norm=layer_norm), rows()
    g = feature_gradients("exact", critic, x)
    step = 1e-6
    for i in range(6):
        shift = torch.zeros(6, dtype=torch.float64)
        shift[i] = step
        numeric = (critic.at(x + shift).q - critic.at(x - shift).q) / (2 * step)
        torch.testing.assert_close(g[..., i], numeric, rtol=1e-5, atol=1e-7)


def test_the_explicit_formula_agrees_with_autograd_in_value_and_in_its_own_gradient() -> None:
    critic, x = Critic(STACK, "critic", (8, 8, 8)), rows()
    explicit, automatic = explicit_gradient(critic, critic.at(x)), autograd_gradient(critic, x)
    torch.testing.assert_close(explicit, automatic)
    direction = torch.randn_like(explicit)
    parameters = list(critic.mlp.weights)
    ours = torch.autograd.grad((explicit.square() * direction).sum(), parameters)
    theirs = torch.autograd.grad((automatic.square() * direction).sum(), parameters)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b)


def test_proxy_features_give_q_through_the_last_layer() -> None:
    critic, x = Critic(STACK, "critic", (8, 8)), rows()
    features = feature_gradients("proxy", critic, x)
    w, b = critic.mlp.weights[-1], critic.mlp.biases[-1]
    torch.testing.assert_close((features @ w + b.unsqueeze(2)).squeeze(3), critic.at(x).q)


@pytest.mark.parametrize("mode", ["proxy", "exact"])
@pytest.mark.parametrize("layer_norm", [False, True])
def test_online_gradients_carry_a_graph_and_the_others_none(mode, layer_norm: bool) -> None:
    critic, x = Critic(STACK, "critic", (8, 8), layer_norm=layer_norm), rows()
    online = online_feature_gradients(mode, critic, critic.at(x), x)
    fixed = feature_gradients(mode, critic, x)
    torch.testing.assert_close(online.detach(), fixed)
    assert online.requires_grad and not fixed.requires_grad


@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("mode", ["proxy", "exact"])
def test_one_member_alone_is_the_first_of_both(mode, layer_norm: bool) -> None:
    critic, x = Critic(STACK, "critic", (8, 8), layer_norm=layer_norm), rows()
    both, first = (feature_gradients(mode, critic, x, members) for members in (slice(None), slice(1)))
    torch.testing.assert_close(first, both[:, :1])


def test_any_module_gives_its_input_gradient() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    x = rows()[0]
    g = input_gradient(net, x, create_graph=True)
    numeric = torch.autograd.functional.jacobian(lambda v: net(v).sum(), x)
    torch.testing.assert_close(g, numeric)
    g.square().sum().backward()
    assert net[0].weight.grad is not None
