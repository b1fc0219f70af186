"""C4 finds the features and gradients of critics of any kind, or says why not."""

import copy
from functools import partial
from typing import Any

import pytest
import torch

from c4rl.core.errors import InputError
from c4rl.plugins.c4.any_critic import penultimate_features
from c4rl.plugins.c4.anywhere import C4Anywhere, C4AnywhereConfig
from tests.c4.critics_of_a_loop import Apart, Joined, drawn, outside, some_rows


def test_features_are_what_enters_the_named_head() -> None:
    body = torch.nn.Linear(3, 8)
    net = torch.nn.ModuleDict({"body": body, "head": torch.nn.Linear(8, 1), "unused": torch.nn.Linear(2, 2)})
    net.forward = lambda x: net["head"](torch.relu(net["body"](x)))  # type: ignore[method-assign]
    x = torch.randn(5, 3)
    torch.testing.assert_close(penultimate_features(net, x, "head"), torch.relu(body(x)))


class Twins(torch.nn.Module):
    """Of which the first is the smaller one at every row."""

    def __init__(self, together: Any) -> None:
        super().__init__()
        self.first, self.second, self.together = Apart(-1000.0), Apart(), together

    def forward(self, state: torch.Tensor, action: torch.Tensor) -> Any:
        return self.together(self.first(state, action), self.second(state, action))


def test_a_head_registered_before_its_body_is_found() -> None:
    critic, x = Apart(), some_rows(5)
    torch.testing.assert_close(penultimate_features(critic, x, None, 1), critic.features(x))


@pytest.mark.parametrize("mode", ["proxy", "exact"])
def test_critics_of_states_and_actions_equal_joined_ones(mode: str) -> None:
    torch.manual_seed(0)
    critic = Apart()
    forms = [outside(form, config={"mode": mode}) for form in (critic, Joined(critic))]
    for _ in range(3):  # the third draws from a second clustering
        assert torch.equal(*(c4.rows(64) for c4 in forms))
        torch.testing.assert_close(*(c4.penalty(c4.critic, c4.target) for c4 in forms))
    assert forms[0].penalty(critic, critic).item() > 0


@pytest.mark.parametrize("together", [torch.minimum, lambda a, b: (a, b), lambda a, b: torch.stack([a, b])])
@pytest.mark.parametrize("mode", ["proxy", "exact"])
def test_twins_and_ensembles_are_never_taken_for_one_critic(mode: str, together: Any) -> None:
    critic = Twins(together)
    if mode == "exact" and together is torch.minimum:  # one Q a row: the gradient of the smaller one
        c4 = outside(critic, config={"mode": mode})
        rows = c4.rows(32)
        assert torch.equal(c4.penalty(critic, critic), c4.penalty(critic.first, critic.first, rows=rows))
        return
    with pytest.raises(InputError, match="one by one"):
        outside(critic, config={"mode": mode})


class Mixed(torch.nn.Module):
    """Of two critics, one value."""

    def __init__(self, mix: Any) -> None:
        super().__init__()
        self.first, self.second, self.mix = Joined(Apart()), Joined(Apart()), mix

    def forward(self, x: torch.Tensor) -> Any:
        return self.mix(self, x)


def one_member_of_a_vmap(critic: Mixed, x: torch.Tensor) -> torch.Tensor:
    weights, _ = torch.func.stack_module_state([critic.first, critic.second])
    return torch.vmap(lambda own: torch.func.functional_call(critic.first, own, (x,)))(weights)[0]


@pytest.mark.parametrize(
    "mix", [lambda critic, x: critic.first(x).add_(critic.second(x)).div_(2), one_member_of_a_vmap]
)
def test_features_of_one_of_several_heads_are_never_taken_for_all(mix: Any) -> None:
    """Though Q lies where that head wrote its own values."""
    with pytest.raises(InputError, match="Q is not the output of an"):
        outside(Mixed(mix))


def without_gradient(critic: Mixed, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        features = critic.first.critic.features(x)
    return critic.first.critic.head(features)


def test_a_penalty_that_trains_nothing_is_refused() -> None:
    c4 = outside(Mixed(without_gradient))
    c4.rows(32)
    with pytest.raises(InputError, match="no gradient reaches the critic through its features"):
        c4.penalty(c4.critic, c4.target)
    with torch.no_grad():  # to look at it
        assert c4.penalty(c4.critic, c4.target) > 0


@pytest.mark.parametrize("mode", ["proxy", "exact"])
def test_a_compiled_critic_is_the_one_within(mode: str) -> None:
    torch.manual_seed(0)
    critic = Joined(Apart())
    compiled = torch.compile(critic, backend="aot_eager")
    compiled(some_rows(8))
    forms = [outside(form, config={"mode": mode}) for form in (critic, compiled)]
    for _ in range(3):
        assert torch.equal(*(c4.rows(32) for c4 in forms))
        assert torch.equal(*(c4.penalty(c4.critic, c4.target) for c4 in forms))


@pytest.mark.skipif(not hasattr(torch.compiler, "set_stance"), reason="PyTorch before 2.6 compiles what it is told to")
@pytest.mark.parametrize("inner", [False, True])
def test_a_critic_compiled_in_place_or_with_a_compiled_part_is_not_compiled_for_c4(inner: bool) -> None:
    torch.manual_seed(0)
    critic = Apart()
    compiled = copy.deepcopy(critic)
    if inner:
        compiled = Joined(torch.compile(compiled, backend="aot_eager"))
    else:
        compiled.compile(backend="aot_eager")
    forms = [outside(form, config={"mode": "exact"}) for form in (critic, compiled)]
    assert torch.equal(*(c4.rows(32) for c4 in forms))
    assert torch.equal(*(c4.penalty(c4.critic, c4.target) for c4 in forms))
    forms[1].penalty(compiled, compiled).backward()  # compiled ones cannot be differentiated twice


@pytest.mark.parametrize("function", [False, True])
def test_looking_at_a_critic_leaves_it_and_random_numbers_alone(function: bool) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1))
    net[2].eval()
    before, random = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    critic = net.forward if function else net  # as a twin module's own method for the first of its critics
    c4 = outside(critic, config={"mode": "exact" if function else "proxy"})
    c4.features(critic, some_rows(8))
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert [module.training for module in net.modules()] == [True, True, True, False, True]


@pytest.mark.parametrize("given", [lambda g: g[:, :4], lambda g: g[:8], lambda g: g[:, 0]])
def test_features_of_another_layer_or_batch_are_refused(given: Any) -> None:
    critic = Apart()
    c4 = outside(critic)
    features = critic.features(c4.x[c4.rows(32)])
    assert c4.penalty(critic, critic, features=features) == c4.penalty(critic, critic)
    with pytest.raises(InputError, match=r"features have the shape .*, expected \[1, 32, 8\] as those of"):
        c4.penalty(critic, critic, features=given(features))


@pytest.mark.parametrize("mode", ["proxy", "exact"])
def test_under_autocast_the_penalty_is_that_of_the_critics_features_in_full_precision(mode: str) -> None:
    torch.manual_seed(0)
    critic, target = Apart(), Apart()
    c4 = drawn(critic, config={"mode": mode})
    with torch.autocast("cpu", torch.bfloat16):
        x, x_next = c4.x[c4.last_rows], c4.x_next[c4.last_rows]
        g = c4._gradients(critic, x, create_graph=True)
        g_next = c4.features(target, x_next)
        found = c4.penalty(critic, target, features=g)
        found.backward()
    assert mode == "exact" or g.dtype == torch.bfloat16
    assert critic.body.weight.grad is not None and critic.body.weight.grad.abs().sum() > 0
    given = {"g": g.detach().float()[None], "g_next": g_next.float()[None]}
    with torch.no_grad():
        assert torch.equal(found, c4.joint_penalty([(critic, target)], **given))


@pytest.mark.parametrize("mode", [partial(torch.autocast, "cpu", torch.bfloat16), torch.inference_mode])
def test_rows_may_be_drawn_in_any_mode(mode: Any) -> None:
    """By a critic that any mode leaves as it is: the clusters are then the same."""

    def critic(x: torch.Tensor) -> torch.Tensor:
        return (x.pow(3) * torch.tensor([1.0, 2.0, -3.0])).sum(1)

    table = torch.nn.Parameter(some_rows())
    plain, other = (outside(critic, config={"mode": "exact", "K": 3, "period": 2}) for _ in range(2))
    for _ in range(5):
        expected = plain.rows(32)
        with mode():
            rows = other.rows(32)
        assert torch.equal(rows, expected) and other.report == plain.report
        table[rows].sum().backward()  # rows of inference mode could not be differentiated


@pytest.mark.parametrize("mode", ["proxy", "exact"])
def test_an_object_made_in_inference_mode_works_outside_of_it(mode: str) -> None:
    critic = Apart()
    with torch.inference_mode():
        c4 = outside(critic, config={"mode": mode, "period": 2, "lambda_": "auto"})
    for _ in range(5):
        c4.rows(32)
        c4.penalty(critic, critic, torch.ones((), dtype=torch.float64)).backward()


@pytest.mark.parametrize("mode", ["proxy", "exact"])
def test_rows_in_half_precision_have_a_penalty_in_single(mode: str) -> None:
    """Sums of squares of small gradients vanish in float16."""
    torch.manual_seed(0)
    critic = Apart()
    with torch.no_grad():
        critic.body.weight.mul_(1e-2)
        critic.body.bias.mul_(1e-2)
    halves = some_rows().half()
    with torch.autocast("cpu", torch.float16):
        c4 = drawn(critic, x=halves, config={"mode": mode})
        found = c4.penalty(critic, critic)
    expected = outside(critic, halves.float(), config={"mode": mode}).penalty(critic, critic, rows=c4.last_rows)
    assert found.dtype == torch.float32 and 0 < expected < 1e-4
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0)


class Directed(torch.nn.Module):
    """A critic of directions: undefined at the action 0, which stands for a missing next action."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = torch.nn.Linear(4, 8), torch.nn.Linear(8, 1)

    def forward(self, state: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        direction = action / action.norm(dim=1, keepdim=True)
        return self.head(torch.relu(self.body(torch.cat([state, direction], 1))))


@pytest.mark.parametrize("mode", ["proxy", "exact"])
def test_a_critic_need_not_be_defined_at_a_missing_next_action(mode: str) -> None:
    torch.manual_seed(0)
    s, a, ends = torch.randn(301, 2), torch.randn(300, 2), torch.arange(300) % 10 == 9
    critic = Directed()
    config = C4AnywhereConfig(K=2, mode=mode)
    c4 = C4Anywhere.from_transitions(critic, critic, s[:-1], a, s[1:], ends, config=config)
    assert not c4.valid[c4.rows(64)].all()
    penalty = c4.penalty(critic, critic)
    penalty.backward()
    assert penalty.isfinite() and critic.body.weight.grad.isfinite().all()
    assert all(value.isfinite().all() for value in c4.report.values())
