"""Features taken from another library's critic loss are the critic's, and a penalty on them has the same gradient."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from c4rl import C4Anywhere, C4AnywhereConfig
from c4rl.integrations.loss_features import LossFeatures
from c4rl.integrations.loss_penalty import LossPenalty


def critic(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)).double()


@pytest.fixture
def critics() -> list[tuple[nn.Module, nn.Module]]:
    return [(critic(seed), critic(seed + 10)) for seed in (0, 1)]


@pytest.fixture
def c4(critics: Any) -> Iterator[C4Anywhere]:
    x = torch.randn(200, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    yield C4Anywhere(*critics[0], x, x.roll(-1, 0), torch.ones(200), config=C4AnywhereConfig(K=2))


def one_by_one(critics: Any, x: Tensor) -> Tensor:
    """As in d3rlpy; other actions are looked at first."""
    return sum((q(x + 1).square().mean() + (q(x) - 1).square().mean() for q, _ in critics), torch.zeros(()))


def stacked(critics: Any, x: Tensor) -> Tensor:
    """As in TorchRL: one network, whose weights are swapped in under vmap."""
    network = critics[0][0]
    weights = {
        name: torch.stack([dict(q.named_parameters())[name] for q, _ in critics])
        for name, _ in network.named_parameters()
    }
    q = torch.vmap(lambda own: torch.func.functional_call(network, own, (x,)))(weights)
    return (q - 1).square().mean((1, 2)).sum()


def elsewhere(critics: Any, x: Tensor) -> Tensor:
    """The critics are called at other rows alone."""
    return sum(((q(x + 1) - 1).square().mean() for q, _ in critics), torch.zeros(()))


def gradients(loss: Tensor, critics: Any) -> list[Tensor]:
    return list(torch.autograd.grad(loss, [weight for q, _ in critics for weight in q.parameters()]))


@pytest.mark.parametrize(("plain", "found"), [(one_by_one, True), (stacked, True), (elsewhere, False)])
def test_the_penalty_is_that_of_features_computed_anew(
    plain: Callable[..., Tensor], found: bool, critics: Any, c4: C4Anywhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    added, rows = LossPenalty(c4, critics, [critics[0][0]] if plain is stacked else None), c4.rows(32)
    anew: list[Tensor] = []
    features = c4._gradients

    def counted(one: Any, x: Tensor, create_graph: bool) -> Tensor:
        anew.extend([x] if create_graph else [])
        return features(one, x, create_graph)

    monkeypatch.setattr(c4, "_gradients", counted)
    for _ in range(2):
        with added.recording():
            loss = plain(critics, c4.x[rows])
        penalty = added.of(loss, rows)
    assert len(anew) == (0 if found else 4)
    expected = torch.stack([c4.penalty(*both, rows=rows) for both in critics]).sum()
    torch.testing.assert_close(penalty, expected)
    ours, theirs = gradients(loss + penalty, critics), gradients(plain(critics, c4.x[rows]) + expected, critics)
    torch.testing.assert_close(ours, theirs)
    assert not any(layer._forward_pre_hooks for q, _ in critics for layer in q.modules())


def test_a_loss_that_changes_its_order_is_noticed(
    critics: Any, c4: C4Anywhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("c4rl.integrations.loss_features.CHECKED_EVERY", 2)
    recorded, rows = LossFeatures([q for q, _ in critics]), c4.rows(32)
    found = []
    for plain in (one_by_one, one_by_one, elsewhere):
        with recorded.recording():
            plain(critics, c4.x[rows])
        found.append(recorded.of_critics(lambda: [c4.features(q, c4.x[rows]) for q, _ in critics]))
    assert found[0] is not None and found[1] is not None and found[2] is None


def test_a_loss_that_calls_the_critics_more_often_is_noticed_at_once(critics: Any, c4: C4Anywhere) -> None:
    """As one with a delayed policy step in it does."""
    added, rows = LossPenalty(c4, critics), c4.rows(32)
    x = c4.x[rows]
    expected = torch.stack([c4.penalty(*both) for both in critics]).sum()

    def with_policy_step() -> Tensor:
        return -critics[0][0](x.tanh()).mean() + one_by_one(critics, x)

    for loss in (lambda: one_by_one(critics, x), with_policy_step, lambda: one_by_one(critics, x)):
        torch.testing.assert_close(added.added_to(loss) - loss(), expected)


def test_critics_that_begin_equal_keep_their_own_features(c4: C4Anywhere) -> None:
    critics = [(critic(0), critic(10)), (critic(0), critic(11))]
    added, rows = LossPenalty(c4, critics), c4.rows(32)
    for _ in range(2):
        found = added.added_to(lambda: one_by_one(critics, c4.x[rows])) - one_by_one(critics, c4.x[rows])
        torch.testing.assert_close(found, torch.stack([c4.penalty(*both) for both in critics]).sum())
        with torch.no_grad():
            critics[1][0][0].weight.mul_(2)


def test_small_features_are_not_mistaken_for_those_of_other_rows(critics: Any, c4: C4Anywhere) -> None:
    rows, networks = c4.rows(32), [q for q, _ in critics]
    with torch.no_grad():
        for weight in (weight for q in networks for weight in q[2].parameters()):
            weight.mul_(1e-7)
    computed = [c4.features(q, c4.x[rows]) for q in networks]
    recorded = LossFeatures(networks)
    with recorded.recording():
        one_by_one(critics, c4.x[rows])
    found = recorded.of_critics(lambda: computed)
    assert found is not None
    torch.testing.assert_close(found, torch.stack(computed), rtol=1e-9, atol=0)


class ByName(nn.Module):
    """Calls its last layer with the argument's name."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.body, self.head = layers[:-1], layers[-1]

    def forward(self, x: Tensor) -> Tensor:
        return self.head(input=self.body(x))


def test_features_given_by_name_are_found(c4: C4Anywhere) -> None:
    named, rows = ByName(critic(0)), c4.rows(32)
    recorded = LossFeatures([named])
    with recorded.recording():
        named(c4.x[rows])
    found = recorded.of_critics(lambda: [c4.features(named, c4.x[rows])])
    assert found is not None
    torch.testing.assert_close(found[0], named.body(c4.x[rows]))


class Residual(nn.Module):
    """Its branch begins with the weight 0, as in ReZero: both last layers see the same features."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.body, self.branch, self.head = layers[:2], layers[2], layers[4]
        self.weight = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        body = self.body(x)
        return self.head(body + self.weight * self.branch(body))


def test_layers_that_are_equal_only_at_the_start_are_told_apart_at_the_next_batch(c4: C4Anywhere) -> None:
    residual, rows = Residual(critic(0)), c4.rows(32)
    recorded = LossFeatures([residual])
    for _ in range(2):
        with recorded.recording():
            residual(c4.x[rows])
        expected = c4.features(residual, c4.x[rows])
        found = recorded.of_critics(lambda: [c4.features(residual, c4.x[rows])])
        assert found is not None
        torch.testing.assert_close(found[0], expected)
        with torch.no_grad():
            residual.weight.add_(0.1)


def test_features_of_another_precision_are_not_the_critics(critics: Any, c4: C4Anywhere) -> None:
    """As a loss under autocast has them."""
    rows, networks = c4.rows(32), [q for q, _ in critics]
    computed = [c4.features(q, c4.x[rows]) for q in networks]
    recorded = LossFeatures(networks)
    with recorded.recording():
        for q in networks:
            q.float()(c4.x[rows].float())
    assert recorded.of_critics(lambda: computed) is None


@pytest.mark.parametrize("options", [{"mode": "exact"}, {"lambda_": 0.0}])
def test_exact_mode_and_no_weight_differentiate_no_critic_twice(
    options: dict[str, Any], critics: Any, c4: C4Anywhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = C4Anywhere(*critics[0], c4.x, c4.x_next, c4.valid, config=C4AnywhereConfig(K=2, **options))
    drawn = other.rows(32)
    plain = one_by_one(critics, c4.x[drawn])
    expected = plain + torch.stack([other.penalty(*both) for both in critics]).sum()
    features = other._gradients

    def without_graph(critic: Any, x: Tensor, create_graph: bool) -> Tensor:
        assert not create_graph
        return features(critic, x, create_graph)

    monkeypatch.setattr(other, "_gradients", without_graph)
    found = LossPenalty(other, critics).added_to(lambda: one_by_one(critics, c4.x[drawn]))
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(gradients(found, critics), gradients(expected, critics))
