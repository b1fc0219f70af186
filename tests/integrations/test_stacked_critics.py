"""Critics in one pass have the features and gradients that each has alone; those that are no chains are left alone."""

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor, nn

from c4rl.integrations.stacked_critics import StackedCritics
from c4rl.plugins.c4.any_critic import penultimate_features
from c4rl.plugins.c4.feature_gradients import input_gradient


class BetweenLayers(nn.Module):
    """Activations that are no modules."""

    def __init__(self, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.head, self.activation = nn.Linear(3, 8), nn.Linear(8, 1), activation

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.activation(self.body(x)))


class TwoEntrances(nn.Module):
    """No chain: its layers' widths do not follow one another."""

    def __init__(self) -> None:
        super().__init__()
        self.state, self.action, self.head = nn.Linear(2, 4), nn.Linear(1, 4), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.cat([self.state(x[:, :2]), self.action(x[:, 2:])], 1))


def chain(activation: nn.Module, bias: bool = True) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8, bias=bias), activation, nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))


def normed(critic: nn.Sequential) -> nn.Sequential:
    """Whose weights are made at each call."""
    nn.utils.weight_norm(critic[0])
    return critic


class Lent(nn.Module):
    """Whose weights are kept outside, as ensembles under torch.vmap have them."""

    def __init__(self, base: nn.Module, device: str) -> None:
        super().__init__()
        self.weights = {name: weight.detach().clone() for name, weight in base.named_parameters()}
        self.base = base.to(device)

    def forward(self, x: Tensor) -> Tensor:
        return torch.func.functional_call(self.base, self.weights, (x,))


def features_of(targets: Sequence[nn.Module], x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        return [penultimate_features(target, x) for target in targets]


@pytest.mark.parametrize(
    "target", [lambda: chain(nn.Tanh()), lambda: chain(nn.ELU(), bias=False), lambda: BetweenLayers(torch.relu)]
)
def test_features_are_those_of_each_target(target: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    targets, x = [target() for _ in range(3)], torch.randn(16, 3)
    stacked = StackedCritics(targets)
    for _ in range(3):
        found = stacked.features(x, lambda: features_of(targets, x))
        assert found is not None and not found.requires_grad
        torch.testing.assert_close(found, torch.stack(features_of(targets, x)))
        with torch.no_grad():
            for weight in (weight for one in targets for weight in one.parameters()):
                weight.mul_(1.5)
    assert not any(module._forward_pre_hooks for target in targets for module in target.modules())


@pytest.mark.parametrize(
    "targets",
    [
        lambda: [BetweenLayers(torch.tanh), BetweenLayers(torch.tanh)],
        lambda: [TwoEntrances(), TwoEntrances()],
        lambda: [chain(nn.ReLU()), chain(nn.ReLU(), bias=False)],
        lambda: [chain(nn.LayerNorm(8)), chain(nn.LayerNorm(8))],
        lambda: [chain(nn.ReLU()), chain(nn.Tanh())],
        lambda: [chain(nn.LeakyReLU(0.1)), chain(nn.LeakyReLU(0.5))],
        lambda: [normed(chain(nn.ReLU())), normed(chain(nn.ReLU()))],
        lambda: [Lent(chain(nn.ReLU()), "cpu")],
        lambda: [Lent(chain(nn.ReLU()), "meta")],
    ],
)
def test_other_targets_are_left_alone(targets: Callable[[], list[nn.Module]]) -> None:
    torch.manual_seed(0)
    own, x = targets(), torch.randn(16, 3)
    assert StackedCritics(own).features(x, lambda: features_of(own, x)) is None


@pytest.mark.parametrize("critic", [lambda: chain(nn.ReLU(), bias=False), lambda: BetweenLayers(torch.relu)])
def test_gradients_are_those_of_each_critic_and_can_be_differentiated(critic: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    critics, x = [critic().double() for _ in range(2)], torch.randn(16, 3, dtype=torch.float64)
    weights = [weight for one in critics for weight in one.parameters() if weight.dim() == 2]  # not the biases

    def gradients_of() -> list[Tensor]:
        return [input_gradient(one, x, create_graph=True) for one in critics]

    stacked = StackedCritics(critics)
    for _ in range(2):
        found, expected = stacked.gradients(x, gradients_of, graph=True), torch.stack(gradients_of())
        assert found is not None
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(*(torch.autograd.grad(one.pow(3).sum(), weights) for one in (found, expected)))
    alone = StackedCritics(critics).gradients(x, gradients_of)
    assert alone is not None and not alone.requires_grad


@pytest.mark.parametrize("activation", [nn.Tanh, lambda: nn.LeakyReLU(0.1)])
def test_gradients_of_other_activations_are_left_alone(activation: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    critics, x = [chain(activation()) for _ in range(2)], torch.randn(16, 3)
    stacked = StackedCritics(critics)
    assert stacked.gradients(x, lambda: [input_gradient(one, x, create_graph=False) for one in critics]) is None


def test_a_target_that_changes_its_way_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("c4rl.integrations.stacked_critics.CHECKED_EVERY", 2)
    torch.manual_seed(0)
    targets, x = [chain(nn.ReLU()) for _ in range(2)], torch.randn(16, 3)
    stacked, found = StackedCritics(targets), []
    for update in range(3):
        if update == 2:
            targets[1].register_forward_pre_hook(lambda _, inputs: (inputs[0] + 1,))
        found.append(stacked.features(x, lambda: features_of(targets, x)))
    assert [one is not None for one in found] == [True, True, False]


class Scaled(nn.Module):
    """Q times a learned number that starts as 1, as a chain has it."""

    def __init__(self) -> None:
        super().__init__()
        self.chain, self.scale = chain(nn.ReLU()), nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.chain(x)


def test_a_critic_that_is_a_chain_only_at_the_start_is_left_alone_soon() -> None:
    torch.manual_seed(0)
    critic, x = Scaled(), torch.randn(16, 3)
    stacked, found = StackedCritics([critic]), []
    for _ in range(4):
        found.append(stacked.gradients(x, lambda: [input_gradient(critic, x, create_graph=False)]) is not None)
        with torch.no_grad():
            critic.scale.add_(0.01)
    assert found == [True, False, False, False]
