"""Plug-ins that ask what the policy does at states that are not in the data: smoothing, corrective labels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Tensor

from c4rl.core.errors import InputError
from c4rl.data.packing import pack_datasets
from c4rl.jobs.registry import PLUGINS
from c4rl.jobs.runs import run_config, runs_of
from c4rl.plugins import corrective_labels
from c4rl.plugins.corrective_labels import CorrectiveLabels, predecessors
from c4rl.plugins.seams import ActorStep
from c4rl.plugins.smoothing import Smoothing
from c4rl.training.launch import Launch
from tests.helpers import CPU, advance, make_launch, plain_scaling, small_config, small_dataset


def launch_of(plugin: str, algorithm: str = "bc", data: Any = None, **options: Any) -> Launch:
    own = {name: options.pop(name) for name in list(options) if name in PLUGINS[plugin][0].__dataclass_fields__}
    config = small_config(algorithm, (plugin,), plugin_options=(PLUGINS[plugin][0](**own),), **options)
    return make_launch(config, data)


def step_of(launch: Launch, rows: int = 40) -> ActorStep:
    batch = launch.buffer.gather(torch.arange(rows).unsqueeze(0))
    return ActorStep(batch, None, launch.algorithm.plain_actions(batch.observations), None, None)


def steepness(launch: Launch) -> float:
    """How far the policy's actions move over a small distance, on average."""
    states = step_of(launch).batch.observations
    step = 1e-4 * torch.randn(states.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    moved = launch.algorithm.act(states + step) - launch.algorithm.act(states)
    return float(moved.norm() / step.norm())


@pytest.mark.parametrize("algorithm", ["bc", "td3_bc"])
def test_smoothing_makes_a_policy_flatter(algorithm) -> None:
    found = []
    for weight in (0.0, 30.0):
        options = {"smoothing_weight": weight, "smoothing_radius": 0.2}
        found.append(steepness(advance(launch_of("smoothing", algorithm, **options, actor_lr=1e-2), 150)))
    assert found[1] < 0.6 * found[0]


def test_smoothing_is_the_squared_distance_with_the_gradient_of_both_sides() -> None:
    launch = launch_of("smoothing", smoothing_weight=2.0, smoothing_radius=0.05)
    plugin, own, step = launch.plugins.all[0], launch.algorithm, step_of(launch)
    assert isinstance(plugin, Smoothing)
    states = step.batch.observations
    delta = 0.05 * (2 * own.streams.uniform("smoothing", *states.shape[1:]) - 1)
    assert delta.min() < -0.045 and delta.max() > 0.045
    expected = 2 * (own.trained_policy(states) - own.trained_policy(states + delta)).square().mean()
    term = plugin.actor_term(step)
    torch.testing.assert_close(term, expected.view(1))
    parameters = own.optimizers["actor"].parameters

    def gradient(loss: Tensor) -> Tensor:
        return torch.cat([part.flatten() for part in torch.autograd.grad(loss.sum(), parameters)])

    torch.testing.assert_close(gradient(term), gradient(expected))


def test_predecessors_are_the_states_that_the_actions_lead_to_the_data_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """A plant s' = s + B a: the action leads to s from s - B a."""
    data, matrix = small_dataset(), np.array([[0.3, -0.2, 0.1, 0, 0.2], [0, 0.1, 0.2, -0.3, 0.1]], np.float32)
    reached = data.observations + data.actions @ matrix
    ends = np.arange(len(data)) % 50 == 49
    reached[ends] = 100.0  # unspecified at terminals, and no part of the fit
    data = replace(data, next_observations=reached, terminals=ends)
    launch = launch_of("corrective_labels", data=data)
    monkeypatch.setattr(corrective_labels, "CHUNK", 60)  # rows at a time, of 200
    found = predecessors(launch.buffer, launch.buffer.packed, launch.buffer.packed)
    expected = torch.tensor(data.observations - data.actions @ matrix, dtype=torch.float64)
    assert (found - expected).abs().max() < 0.02 < (found - torch.tensor(data.observations)).abs().max()


def test_predecessors_are_a_ridge_regression_on_linear_and_cosine_features() -> None:
    data = small_dataset()
    buffer = launch_of("corrective_labels", data=replace(data, terminals=np.zeros(len(data), bool))).buffer
    rows = buffer.unpack(buffer.packed)
    s, a, reached = (tensor.numpy() for tensor in (rows.observations, rows.actions, rows.next_observations))
    draw = torch.Generator().manual_seed(0)
    frequencies = 0.3 / np.sqrt(7) * torch.randn(7, 512, generator=draw, dtype=torch.float64).numpy()
    phases = 2 * np.pi * torch.rand(512, generator=draw, dtype=torch.float64).numpy()

    def features(states: np.ndarray) -> np.ndarray:
        x = np.concatenate([states, a], axis=1)
        return np.concatenate([np.cos(x @ frequencies + phases), x, np.ones((len(x), 1))], axis=1)

    model = Ridge(alpha=0.1, fit_intercept=False, solver="cholesky").fit(features(reached), s - reached)
    found = predecessors(buffer, buffer.packed, buffer.packed)
    np.testing.assert_allclose(found.numpy(), s + model.predict(features(s)), atol=1e-8)


def test_corrective_labels_clone_at_near_predecessors_alone() -> None:
    launch = launch_of("corrective_labels", corrective_weight=3.0)
    plugin, own, step = launch.plugins.all[0], launch.algorithm, step_of(launch)
    assert isinstance(plugin, CorrectiveLabels)
    states = predecessors(launch.buffer, launch.buffer.packed, launch.buffer.packed)[:40]
    distance = (states - step.batch.observations[0]).square().mean(1).sqrt()
    error = (own.trained_policy(states.unsqueeze(0))[0] - step.batch.actions[0]).square().mean(1)
    for bound in (0.0, float(distance.median()), 1e6):
        plugin.config = replace(plugin.config, corrective_bound=bound)
        expected = 3 * error[distance <= bound].sum() / 40
        torch.testing.assert_close(plugin.actor_term(step), expected.view(1))
    assert error[distance <= distance.median()].sum() < error.sum()


@pytest.mark.parametrize(
    ("plugin", "sweep"),
    [
        ("smoothing", ("smoothing_weight=1,20", "smoothing_radius=0.1,0.5")),
        ("corrective_labels", ("corrective_weight=0.5,2", "corrective_bound=0.5,5")),
    ],
)
def test_a_run_of_a_swept_stack_is_the_run_alone(plugin: str, sweep: tuple[str, str]) -> None:
    config = small_config("bc", (plugin,), plugin_options=(PLUGINS[plugin][0](),), sweep=sweep)
    runs, data = runs_of(config), small_dataset()
    buffer = pack_datasets([(data, plain_scaling(data))], CPU, torch.float64)
    states = advance(Launch(config, runs, buffer, CPU, torch.float64), 8).run_states()
    for one in runs:
        (own,) = advance(make_launch(run_config(config, one), data), 8).run_states().values()
        torch.testing.assert_close(states[one.key]["actor/mlp.weights.0"], own["actor/mlp.weights.0"])
    assert len({float(state["actor/mlp.weights.0"].sum()) for state in states.values()}) == 4


@pytest.mark.parametrize("plugin", ["smoothing", "corrective_labels"])
@pytest.mark.parametrize("algorithm", ["bppo", "sorl"])
def test_algorithms_without_a_single_trained_policy_are_refused(plugin: str, algorithm: str) -> None:
    with pytest.raises(InputError, match=f"'{plugin}' adds to the loss of a single policy, and '{algorithm}' has none"):
        small_config(algorithm, (plugin,), plugin_options=(PLUGINS[plugin][0](),))


def test_a_launch_fits_only_the_datasets_that_its_runs_read() -> None:
    """Jobs with many datasets have many launches: each fitting all of them would take the square of the time."""
    one, other = small_dataset(), small_dataset(150)
    buffer = pack_datasets([(data, plain_scaling(data)) for data in (one, other)], CPU, torch.float64)
    config = small_config("bc", ("corrective_labels",), dataset=(Path("one"), Path("other")))
    plugin = Launch(config, runs_of(config)[1:], buffer, CPU, torch.float64).plugins.all[0]
    assert isinstance(plugin, CorrectiveLabels)
    alone = launch_of("corrective_labels", data=other).plugins.all[0]
    assert isinstance(alone, CorrectiveLabels)
    assert (plugin._distance[:200] == 0).all()
    assert torch.equal(plugin._states[200:], alone._states) and (plugin._distance[200:] > 0).all()
