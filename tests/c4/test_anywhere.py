"""C4 outside the trainer: the example runs, and its batches and penalty are the trainer's own."""

import copy
import dataclasses
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from c4rl.core.errors import InputError
from c4rl.data.recording import record
from c4rl.plugins.c4.anywhere import C4Anywhere, C4AnywhereConfig, penultimate_features
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.seams import CriticStep
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
    plugin.attach(algorithm, launch.buffer)  # a fresh start, from the same critic, as the outside one has it
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


def test_features_are_what_enters_the_named_head() -> None:
    body = torch.nn.Linear(3, 8)
    net = torch.nn.ModuleDict({"body": body, "head": torch.nn.Linear(8, 1), "unused": torch.nn.Linear(2, 2)})
    net.forward = lambda x: net["head"](torch.relu(net["body"](x)))  # type: ignore[method-assign]
    x = torch.randn(5, 3)
    torch.testing.assert_close(penultimate_features(net, x, "head"), torch.relu(body(x)))


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
    ]
    code = f"""
import sys
sys.modules |= dict.fromkeys({blocked})  # importing one of them raises ImportError
import c4rl.plugins.c4.plugin, torch
from c4rl.plugins.c4.anywhere import C4Anywhere, C4AnywhereConfig
x = torch.randn(200, 3)
net = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
c4 = C4Anywhere(net, net, x, x.roll(-1, 0), torch.ones(200), config=C4AnywhereConfig(K=2))
c4.rows(64)
c4.penalty(net, net).backward()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
