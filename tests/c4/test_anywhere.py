"""C4 outside the trainer: the example runs, and its batches and penalty are the trainer's own."""

import copy
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from c4rl.core.errors import InputError
from c4rl.data.recording import record
from c4rl.plugins.c4.anywhere import C4Anywhere, C4AnywhereConfig
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.seams import CriticStep
from tests.c4.critics_of_a_loop import Apart, drawn, outside, some_rows
from tests.helpers import advance, make_launch, small_config
from tests.test_networks import as_torch

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plug_into_your_loop.py"


def test_the_example_is_short_and_adds_c4_in_three_lines() -> None:
    lines = EXAMPLE.read_text().splitlines()
    assert len(lines) < 120
    assert sum("# C4" in line for line in lines) == 3


def test_the_example_runs(tmp_path: Path) -> None:
    data = tmp_path / "maze.npz"
    record("maze2d-umaze-dense", 2000, 0, data)
    command = [sys.executable, str(EXAMPLE), str(data), "--updates", "210"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "update 210: critic loss" in done.stdout and "clusters" in done.stdout


@pytest.mark.parametrize("mode", ["proxy", "exact"])
@pytest.mark.parametrize("estimator", ["plugin", "unbiased"])
def test_batches_and_penalty_equal_the_trainers(mode, estimator) -> None:
    options = {"K": 3, "period": 2, "directions": 4, "mode": mode, "estimator": estimator}
    launch = make_launch(small_config("td3_bc", ("c4",), seeds=(7,), plugin_options=(C4Config(**options),)))
    advance(launch, 6)
    algorithm = launch.algorithm
    critic, target = algorithm.critics
    heads = [as_torch(critic.mlp, 0, member) for member in range(2)]
    target_heads = [as_torch(target.mlp, 0, member) for member in range(2)]
    everything = launch.buffer.unpack(launch.buffer.packed)
    outside = C4Anywhere(
        heads[0], target_heads[0], everything.state_actions, everything.next_state_actions, everything.next_valid,
        config=C4AnywhereConfig(**options), seed=7,
    )  # fmt: skip
    plugin = launch.plugins.all[0]
    launch.step.fill_(0)
    plugin.attach(algorithm, launch.buffer)
    plugin.start(algorithm)  # anew, from the same critic, as the outside one has it
    launch.step.fill_(1)
    rows = plugin.sampler().rows(launch.streams, 32)
    assert torch.equal(outside.rows(32), rows[0])
    batch = launch.buffer.gather(rows)
    output = critic.at(batch.state_actions)
    td = torch.ones(1, 2, dtype=torch.float64)
    ours = plugin.critic_penalty(CriticStep(batch, critic, target, output, batch.actions, td))[0]
    for member in range(2):
        torch.testing.assert_close(outside.penalty(heads[member], target_heads[member]), ours[member])


def test_automatic_weight_needs_the_td_loss() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    c4 = C4Anywhere(net, net, x, x.roll(-1, 0), torch.ones(300), config=C4AnywhereConfig(K=2, lambda_="auto"))
    c4.rows(64)
    with pytest.raises(InputError, match="auto"):
        c4.penalty(net, net)
    weighted = [c4.penalty(net, net, torch.tensor(2.0)).item() for _ in range(20)]
    assert weighted[-1] == pytest.approx(0.2, rel=1e-3)  # lambda R at a tenth of the TD loss


def from_parts(actions: torch.Tensor) -> C4Anywhere:
    states = some_rows()[:, :2]
    return C4Anywhere.from_transitions(Apart(), Apart(), states, actions, states.roll(-1, 0), torch.zeros(len(states)))


class ActionsFirst(Apart):
    def forward(self, action_batch: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        return super().forward(state, action_batch)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: outside(ActionsFirst()), r"takes \(action_batch, state\), expected states first"),
        (lambda: outside(Apart(), action_dim=None), "takes states and actions apart, expected action_dim"),
        (lambda: outside(lambda *all: all[0].sum(1), config={"mode": "exact"}), "needs 0 arguments, expected 1 or 2"),
        (lambda: outside(Apart(), head="tail"), "has no layer 'tail'"),
        (lambda: outside(Apart(), some_rows(3)), "3 rows have a next action, expected 2 for each of 2 clusters"),
        (lambda: outside(Apart(), some_rows() / 0), "not finite"),
        (lambda: outside(Apart()).penalty(Apart(), Apart()), "before any rows were drawn"),
        (lambda: C4Anywhere(Apart(), Apart(), some_rows(9), some_rows(8), torch.ones(9)), r"\[9, 3\], \[8, 3\], \[9\]"),
        (lambda: from_parts(some_rows()[:, 2]), r"are \[300, 2\], \[300\], \[300, 2\], \[300\], expected"),
        (lambda: from_parts(some_rows(9)), r"are \[300, 2\], \[9, 3\]"),
        (
            lambda: drawn(Apart()).penalty(Apart(), Apart(), torch.ones(8)),
            r"td_loss has shape \[8\], expected one",
        ),
    ],
)
def test_what_cannot_be_right_is_refused_in_a_sentence(build: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build()


def test_the_penalty_of_given_rows_is_that_of_the_batch_they_were() -> None:
    """Where batches are drawn ahead of their use."""
    torch.manual_seed(0)
    critic = Apart()
    c4 = outside(critic, config={"lambda_": 0.5, "period": 100})
    first = c4.rows(32)
    expected = c4.penalty(critic, critic)
    assert c4.report["c4_penalty"] == expected
    c4.rows(32)
    assert c4.penalty(critic, critic) != expected
    assert torch.equal(c4.penalty(critic, critic, rows=first), expected)
    assert c4.penalty(critic, critic, rows=first).requires_grad


def test_without_weight_there_is_no_penalty() -> None:
    c4 = outside(Apart(), config={"lambda_": 0.0})
    c4.rows(32)
    assert c4.penalty(c4.critic, c4.target) == 0


def test_a_loop_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    def updates(c4: C4Anywhere, critic: Apart, count: int) -> list[float]:
        out: list[float] = []
        for _ in range(count):
            out += c4.rows(16).tolist()
            out.append(c4.penalty(critic, critic, torch.tensor(2.0)).item())
            with torch.no_grad():
                critic.body.weight.mul_(1.05)
        return out

    torch.manual_seed(0)
    start, config = Apart(), {"period": 3, "lambda_": "auto"}
    critic = copy.deepcopy(start)
    c4 = outside(critic, config=config)
    updates(c4, critic, 4)
    torch.save({"c4": c4.state_dict(), "critic": critic.state_dict()}, tmp_path / "stopped.pt")
    expected = updates(c4, critic, 6)
    resumed = copy.deepcopy(start)
    other = outside(resumed, config=config)
    stored = torch.load(tmp_path / "stopped.pt", weights_only=True)
    resumed.load_state_dict(stored["critic"])
    other.load_state_dict(stored["c4"])
    assert updates(other, resumed, 6) == expected
    with pytest.raises(InputError, match=r"'clustering.*' of the state has the shape .* expected"):
        outside(resumed, some_rows(100), config=config).load_state_dict(stored["c4"])
    with pytest.raises(InputError, match="the state has no"):
        other.load_state_dict({"updates": 3})


@pytest.mark.parametrize("updates", [2, 3, 4])
def test_a_state_knows_when_it_clustered_though_batches_were_drawn_ahead(updates: int) -> None:
    c4 = outside(Apart(), config={"period": 3})
    c4.draw(16)
    for _ in range(updates):
        c4.draw(16)
        c4.refresh_when_due()
    other = outside(c4.critic, config={"period": 3})
    other.load_state_dict(c4.state_dict())
    kept, drawn = other.clustering.tables.state()["cumulative"].clone(), c4.draw(16)
    other.refresh_when_due()
    assert torch.equal(other.clustering.tables.state()["cumulative"], kept), "clustered anew at once"
    assert torch.equal(other.draw(16), drawn)


def test_next_actions_are_found_within_trajectories_only() -> None:
    """Four trajectories of 25 rows: two end in a terminal state, the others are cut; one is followed by a row that
    begins where it ended, as by chance, but was terminal."""
    random = torch.Generator().manual_seed(1)
    states, actions = torch.randn(100, 2, generator=random), torch.randn(100, 1, generator=random)
    next_states, terminals = states.roll(-1, 0), torch.zeros(100)
    for end in (49, 74, 99):
        next_states[end] = torch.randn(2, generator=random)
    terminals[[24, 49]] = 1
    critic = Apart()
    c4 = C4Anywhere.from_transitions(
        critic, critic, states, actions, next_states, terminals, config=C4AnywhereConfig(K=2)
    )
    expected = torch.ones(100, dtype=torch.bool)
    expected[[24, 49, 74, 99]] = False
    assert torch.equal(c4.valid, expected)
    assert torch.equal(c4.x_next[expected, 2], actions.roll(-1, 0)[expected, 0])
    assert torch.equal(c4.x_next[:, :2], next_states) and torch.equal(c4.x, torch.cat([states, actions], 1))
    c4.rows(32)
    assert c4.penalty(critic, critic).item() > 0
    shuffled = torch.randperm(100, generator=random)
    with pytest.raises(InputError, match="expected whole trajectories"):
        C4Anywhere.from_transitions(
            critic, critic, states[shuffled], actions[shuffled], next_states[shuffled], terminals[shuffled]
        )


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("actions", torch.zeros(49, 1), r"\[50, 2\], \[49, 1\], \[50, 2\], \[50\]"),
        ("actions", torch.zeros(50), r"\[50, 2\], \[50\], \[50, 2\], \[50\]"),
        ("next_states", torch.zeros(50, 3), r"\[50, 2\], \[50, 1\], \[50, 3\], \[50\]"),
        ("terminals", torch.zeros(49), r"\[50, 2\], \[50, 1\], \[50, 2\], \[49\]"),
        ("states", np.zeros((50, 2)), r"ndarray, \[50, 1\], \[50, 2\], \[50\]"),
    ],
)
def test_transitions_that_do_not_fit_together_are_refused(name: str, value: Any, found: str) -> None:
    states = torch.randn(50, 2)
    rows = {"states": states, "actions": torch.zeros(50, 1), "next_states": states.roll(-1, 0)}
    with pytest.raises(InputError, match=f"terminals are {found}, expected tensors"):
        C4Anywhere.from_transitions(Apart(), Apart(), **rows | {"terminals": torch.zeros(50)} | {name: value})


def test_each_of_its_options_changes_what_it_does() -> None:
    """No option is accepted and then ignored."""
    net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).double()
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def five_updates(**changes: Any) -> list[float]:
        """Rows and penalties of five updates, with a critic that moves between them."""
        critic = copy.deepcopy(net)
        settings: dict[str, Any] = {"K": 2, "period": 2, "directions": 4, "lambda_": 0.1}
        c4 = C4Anywhere(
            critic, critic, x, x.roll(-1, 0), torch.arange(300) % 10 > 0, config=C4AnywhereConfig(**settings | changes)
        )
        out: list[float] = []
        for update in range(5):
            out += c4.rows(16).tolist()
            out.append(float(c4.penalty(critic, critic, torch.tensor(2.0 + update, dtype=torch.float64)).detach()))
            with torch.no_grad():
                critic[0].weight.mul_(1.1)
        return out

    changes: dict[str, Any] = {
        "K": 3,
        "period": 3,
        "mode": "exact",
        "sampler": "hard",
        "covariance": "diagonal",
        "mixture_start": "cold",
        "em_steps": 1,
        "directions": None,
        "pool": 150,
        "lambda_": 0.2,
        "lambda_fraction": 0.3,
        "beta": 0.0,
        "estimator": "unbiased",
        "scale": "per_feature",
    }
    assert set(changes) == {field.name for field in dataclasses.fields(C4AnywhereConfig)}
    plain, automatic = five_updates(), five_updates(lambda_="auto")
    for name, value in changes.items():
        found = (
            five_updates(lambda_="auto", lambda_fraction=value)
            if name == "lambda_fraction"
            else five_updates(**{name: value})
        )
        assert found != (automatic if name == "lambda_fraction" else plain), name


def test_options_that_need_the_trainer_are_refused() -> None:
    net, x = torch.nn.Linear(3, 1), torch.randn(20, 3)
    with pytest.raises(InputError, match="config is a C4Config, expected a C4AnywhereConfig"):
        C4Anywhere(net, net, x, x, torch.ones(20), config=C4Config(divergence_weight=1.0))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lambda_": "sometimes"}, "--lambda: found 'sometimes', expected a number at least 0"),
        ({"lambda_": -0.1}, "--lambda: found -0.1"),
        ({"lambda_": float("nan")}, "--lambda: found nan"),
        ({"K": 0}, "--K: found 0"),
        ({"K": 10**12}, "--K: found 1000000000000, expected a whole number at least 1"),
        ({"directions": 0}, "--directions: found 0"),
        ({"pool": 1}, "--pool: found 1"),
    ],
)
def test_options_without_meaning_are_refused(options: dict[str, Any], message: str) -> None:
    for kind in (C4AnywhereConfig, C4Config):
        with pytest.raises(InputError, match=message):
            kind(**options)


def test_importing_c4_needs_torch_and_numpy_alone() -> None:
    blocked = [
        "tyro",
        "rich",
        "h5py",
        "safetensors",
        "gymnasium",
        "mujoco",
        "matplotlib",
        "tensorboard",
        "triton",
        "minari",
        "onnx",
        "gymnasium_robotics",
        "typeguard",
        "docstring_parser",
    ]
    code = f"""
import sys
sys.modules |= dict.fromkeys({blocked})  # importing one of them raises ImportError
import c4rl.plugins.c4.plugin, torch
from c4rl import C4Anywhere, C4AnywhereConfig
x = torch.randn(200, 3)
net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
c4 = C4Anywhere(net, net, x, x.roll(-1, 0), torch.ones(200), config=C4AnywhereConfig(K=2))
c4.rows(64)
c4.penalty(net, net).backward()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_batches_drawn_ahead_are_those_of_their_own_update() -> None:
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    critic, target = Apart(), Apart()  # a linear critic would have a single cluster
    options = {"config": C4AnywhereConfig(K=3, period=4, mode="exact"), "seed": 2, "action_dim": 1}
    c4, again = (C4Anywhere(critic, target, x, x.roll(-1, 0), torch.ones(300), **options) for _ in range(2))
    assert (c4.clustering.tables.weights > 0.05).all()
    for _ in range(5):
        again.rows(16)  # what it has drawn ahead is not to outlive the state that it is given
    for update in range(1, 13):
        size = 16 if update < 8 else 5
        rows = c4.rows(size)
        expected, cluster = c4.clustering.tables.rows(c4.streams, size)  # of this step alone
        assert torch.equal(rows, expected[0]) and torch.equal(c4.clustering.cluster, cluster)
        if update == 6:
            again.load_state_dict(c4.state_dict())
        if update > 6:
            assert torch.equal(again.rows(size), rows)
        with torch.no_grad():
            critic.body.weight.mul_(-1.5)  # the next clusters are others


def test_the_report_is_that_of_the_clusters_read_back() -> None:
    x = torch.randn(300, 3, generator=torch.Generator().manual_seed(0))
    old, new = (
        C4Anywhere(critic, critic, x, x.roll(-1, 0), torch.ones(300), config=C4AnywhereConfig(K=2), action_dim=1)
        for critic in (Apart(), Apart())
    )
    assert old.report != new.report
    new.load_state_dict(old.state_dict())
    assert new.report == old.report
    new.load_state_dict({name: part for name, part in old.state_dict().items() if not name.startswith("report.")})
    assert new.report == old.report  # an earlier version kept none with its state


def test_clusters_are_renewed_after_each_period_of_batches() -> None:
    c4, renewed = outside(Apart(), config={"period": 3}), []
    for _ in range(8):
        before = c4.report
        c4.rows(16)
        renewed.append(c4.report is not before)
    assert renewed == [False, False, False, True, False, False, True, False]
