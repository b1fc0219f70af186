"""Swept options: every run is what it would have been alone, and has a name of its own."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from c4rl.algorithms.td3_bc import TD3BC, TD3BCConfig
from c4rl.core.buffer import TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.options import may_differ, option
from c4rl.data.packing import pack_datasets
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.config_file import from_json, read_config, to_json
from c4rl.jobs.registry import ALGORITHMS
from c4rl.jobs.runs import Run, launch_groups, run_config, runs_of
from c4rl.plugins.c4.plugin import C4Config
from c4rl.plugins.layer_norm import LayerNormConfig
from c4rl.training.launch import Launch
from tests.helpers import CPU, plain_scaling, small_config, small_dataset

GPU = torch.device("cuda")  # only asked for its name: there all runs that can go together do
ROWS = 200
C4 = C4Config(K=3, period=4, directions=4)
AUTHORS = replace(
    C4, sampler="hard", trajectory_tails=True, initial_clusters="state_action", drop_small=True, directions=None
)
GATED = replace(C4, divergence="mse", divergence_weight=0.5, divergence_gate=0.2, mode="exact")

# what is swept -> algorithm, options of c4 (None: without it), the words of --sweep
SWEEPS: dict[str, tuple[str, C4Config | None, tuple[str, ...]]] = {
    "lambda": ("td3_bc", C4, ("lambda=0.05,0.3,2",)),
    "K": ("td3_bc", C4, ("K=1,4,2",)),
    "K of the authors' clusters": ("cql", AUTHORS, ("K=1,3",)),
    "K beside a gated divergence": ("td3_bc", GATED, ("K=1,3",)),
    "K of pools": ("td3_bc", replace(C4, pool=64), ("K=2,3",)),
    "fraction of lambda auto": ("cql", replace(C4, lambda_="auto"), ("lambda-fraction=0.1,0.4", "beta=0.5,1")),
    "beta of the unbiased penalty": ("td3_bc", replace(C4, estimator="unbiased"), ("beta=0.5,1",)),
    "alpha": ("td3_bc", None, ("alpha=1,2.5",)),
    "critic_lr": ("td3_bc", None, ("critic_lr=1e-4,1e-3",)),
    "actor_lr of cql, its temperature's too": ("cql", None, ("actor-lr=1e-4,1e-3",)),
    "actor_lr of bc": ("bc", None, ("actor_lr=1e-4,1e-3",)),
    "discount": ("td3_bc", None, ("discount=0.9,0.99",)),
    "discount of cql": ("cql", None, ("discount=0.9,0.99",)),
    "tau": ("td3_bc", None, ("tau=0.005,0.1",)),
    "tau of cql": ("cql", None, ("tau=0.005,0.1",)),
    "cql_weight": ("cql", None, ("cql_weight=1,10",)),
    "the decay of the policy": ("td3_bc", None, ("actor_decay=0.1,3",)),
    "critic_cloning": ("td3_bc", None, ("critic_cloning=0.1,1",)),
    "several": ("td3_bc", C4, ("alpha=1,2.5", "lambda=0.1,0.3", "K=2,3")),
}


def config_of(name: str, seeds: tuple[int, ...] = (5,)) -> TrainConfig:
    algorithm, form, sweep = SWEEPS[name]
    plugins = ("c4",) if form is not None else ()
    return small_config(algorithm, plugins, seeds, plugin_options=(form,) if form is not None else (), sweep=sweep)


def buffer_of(dtype: torch.dtype = torch.float64) -> TransitionBuffer:
    data = small_dataset(ROWS)
    return pack_datasets([(data, plain_scaling(data))], CPU, dtype)


def stack_of(config: TrainConfig) -> Launch:
    """All runs of the job in one launch."""
    (together,) = launch_groups(config, runs_of(config), [ROWS], GPU)
    return Launch(config, together, buffer_of(), CPU, torch.float64)


def alone(config: TrainConfig, one: Run) -> Launch:
    """A job that knows of no sweep."""
    return Launch(run_config(config, one), [one.seed], buffer_of(), CPU, torch.float64)


def reports(launch: Launch, updates: int, start: int = 0) -> list[dict[Any, dict[str, float]]]:
    out = []
    for step in range(start + 1, start + updates + 1):
        launch.update(step)
        out.append(launch.refresh(step))
    return out


@pytest.mark.parametrize("name", SWEEPS)
def test_a_run_of_a_swept_stack_is_the_run_alone(name: str) -> None:
    config = config_of(name)
    stack = stack_of(config)
    said, states = reports(stack, 30), stack.run_states()
    found = [states[one.key]["actor/mlp.weights.0"] for one in stack.runs]
    assert not any(torch.equal(found[0], other) for other in found[1:]), "the values make no difference"
    metrics = stack.read_metrics()
    for one in stack.runs:
        launch = alone(config, one)
        own_said, own = reports(launch, 30), launch.run_states()[one.seed]
        assert states[one.key].keys() == own.keys()
        for key, tensor in own.items():
            torch.testing.assert_close(states[one.key][key], tensor, rtol=1e-9, atol=1e-12, msg=f"{one.key}: {key}")
        for ours, theirs in zip(said, own_said, strict=True):
            assert ours.get(one.key, {}) == pytest.approx(theirs.get(one.seed, {}), rel=1e-6, abs=1e-9)
        assert metrics[one.key] == pytest.approx(launch.read_metrics()[one.seed], rel=1e-6, abs=1e-9)


REFUSED = {("bppo", "actor_decay"), ("bppo", "actor_average"), ("tsrl", "critic_cloning")}  # other values than 0
STACKED = [
    (name, one.name)
    for name, kind in ALGORITHMS.items()
    for one in fields(kind.config_type)
    if may_differ(one) and (name, one.name) not in REFUSED
]


@pytest.mark.parametrize(("algorithm", "field"), STACKED)
def test_every_option_that_shares_a_launch_is_each_runs_own(algorithm: str, field: str) -> None:
    value = getattr(small_config(algorithm).options, field) or 0.5
    config = small_config(algorithm, seeds=(5,), sweep=(f"{field}={value},{0.7 * value}",))
    stack = stack_of(config)
    reports(stack, 12)
    states = stack.run_states()
    first, second = (states[one.key] for one in stack.runs)
    assert any(not torch.equal(first[key], second[key]) for key in first), "the values make no difference"
    for one in stack.runs:
        launch = alone(config, one)
        reports(launch, 12)
        for key, tensor in launch.run_states()[one.seed].items():
            torch.testing.assert_close(states[one.key][key], tensor, rtol=1e-9, atol=1e-12, msg=f"{one.key}: {key}")


@pytest.mark.parametrize("name", ["K", "K beside a gated divergence", "K of the authors' clusters"])
def test_runs_go_on_in_any_company(name: str) -> None:
    """A run whose company fails, or that is looked at alone, leaves tables made for more clusters than its own."""
    config = config_of(name)
    straight = stack_of(config)
    reports(straight, 9)
    states = straight.run_states()
    reports(straight, 9, start=9)
    again = stack_of(config)
    again.load(states)
    reports(again, 9, start=9)
    for one in straight.runs:
        expected = straight.run_states()[one.key]
        for key, tensor in expected.items():
            assert torch.equal(again.run_states()[one.key][key], tensor), key
        launch = Launch(config, [one], buffer_of(), CPU, torch.float64)
        launch.load(states)
        reports(launch, 9, start=9)
        for key, tensor in launch.run_states()[one.key].items():
            torch.testing.assert_close(tensor, expected[key], rtol=1e-9, atol=1e-12, msg=f"{one.key}: {key}")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine")
class TestOnAGPU:
    """Values per run live in tensors that a captured graph reads."""

    @staticmethod
    def launch(config: TrainConfig, runs: Sequence[Run | int], dtype: torch.dtype) -> Launch:
        data = small_dataset(ROWS)
        return Launch(config, runs, pack_datasets([(data, plain_scaling(data))], GPU, dtype), GPU, dtype)

    @pytest.mark.parametrize("name", SWEEPS)
    def test_a_run_of_a_graphed_stack_is_the_run_alone(self, name: str) -> None:
        config = config_of(name)
        stack = self.launch(config, runs_of(config), torch.float64)
        reports(stack, 30)
        for one in stack.runs:
            launch = self.launch(run_config(config, one), [one.seed], torch.float64)
            reports(launch, 30)
            for key, tensor in launch.run_states()[one.seed].items():
                found = stack.run_states()[one.key][key]
                torch.testing.assert_close(found, tensor, rtol=1e-9, atol=1e-9, msg=f"{one.key}: {key}")

    @pytest.mark.parametrize("name", SWEEPS)
    def test_graph_and_eager_updates_are_bit_equal(self, name: str) -> None:
        states = []
        for graph in (True, False):
            config = replace(config_of(name), cuda_graph=graph)
            launch = self.launch(config, runs_of(config), torch.float32)
            reports(launch, 60)
            assert not launch.failures()
            states.append(launch.run_states())
        for key, state in states[0].items():
            for tensor_name, tensor in state.items():
                assert torch.equal(tensor, states[1][key][tensor_name]), f"{key}: {tensor_name}"


def launches(algorithm: str, *sweep: str, c4: C4Config | None = None, seeds: tuple[int, ...] = (0,)) -> list[list[str]]:
    plugins = ("c4",) if c4 is not None else ()
    options = (c4,) if c4 is not None else ()
    config = small_config(algorithm, plugins, seeds, plugin_options=options, sweep=sweep)
    return [[one.group for one in some] for some in launch_groups(config, runs_of(config), [ROWS], GPU)]


def test_only_what_can_share_a_launch_does() -> None:
    assert launches("td3_bc", "alpha=1,2", "hidden_width=16,32") == [
        ["alpha=1.0,hidden_width=16", "alpha=2.0,hidden_width=16"],
        ["alpha=1.0,hidden_width=32", "alpha=2.0,hidden_width=32"],
    ]
    assert launches("td3_bc", "lambda=auto,0,0.1,0.2", c4=C4) == [
        ["lambda=auto"],
        ["lambda=0.0"],
        ["lambda=0.1", "lambda=0.2"],
    ]
    assert launches("td3_bc", "mode=proxy,exact", c4=C4) == [["mode=proxy"], ["mode=exact"]]
    assert launches("cql", "tau=0.1,0.2", seeds=(0, 1)) == [["tau=0.1"] * 2 + ["tau=0.2"] * 2]


def test_a_child_inherits_what_may_differ_and_may_take_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass(frozen=True)
    class ChildConfig(TD3BCConfig):
        tau: float = option(0.005, above=0, at_most=1)

    class Child(TD3BC):
        config_type = ChildConfig

    monkeypatch.setitem(ALGORITHMS, "child", Child)
    assert launches("child", "alpha=1,2") == [["alpha=1.0", "alpha=2.0"]]
    assert launches("child", "tau=0.1,0.2") == [["tau=0.1"], ["tau=0.2"]]


def test_a_sweep_survives_json() -> None:
    config = small_config(
        "td3_bc", ("c4", "layer_norm"), plugin_options=(C4, LayerNormConfig()), sweep=("K=1,5", "alpha=1,2")
    )
    assert from_json(json.loads(json.dumps(to_json(config))), "here") == config


def test_a_config_of_before_sweeps_is_read(tmp_path: Path) -> None:
    data = to_json(small_config("td3_bc", dataset=Path("d.npz"), task="hopper-medium-v2"))
    assert data["dataset"] == "d.npz" and data["task"] == "hopper-medium-v2"  # as it was before
    del data["sweep"]
    (tmp_path / "config.json").write_text(json.dumps(data))
    config = read_config(tmp_path)
    assert config.dataset == (Path("d.npz"),) and config.task == ("hopper-medium-v2",) and config.sweep == ()
    assert [one.key for one in runs_of(config)] == [0]


def test_runs_are_named_in_a_fixed_order() -> None:
    config = small_config("td3_bc", seeds=(2, 1), sweep=("critic-lr=1e-5,0.001", "policy_delay=2,1"))
    names = [f"critic_lr={lr},policy_delay={d},seed={s}" for lr in ("1e-05", "0.001") for d in (2, 1) for s in (2, 1)]
    assert [one.key for one in runs_of(config)] == names


def test_names_that_no_folder_can_have_are_refused() -> None:
    def with_letters(count: int) -> TrainConfig:
        datasets = Path("a" * count + ".npz"), Path("ü" * 115 + ".npz")
        return small_config("td3_bc", dataset=datasets, sweep=("alpha=1,2",))

    assert len(runs_of(with_letters(230))) == 4
    with pytest.raises(InputError, match=r"found a run whose name has 265 bytes, expected at most 255: a{248},"):
        runs_of(with_letters(248))


def test_stages_of_different_lengths_are_refused() -> None:
    forms: list[dict[str, Any]] = [
        {"sweep": ("value_updates=2,3",)},
        {"points": ("value_updates=2", "value_updates=3")},
    ]
    for form in forms:
        with pytest.raises(InputError, match=r"value_updates=3 changes the length of a stage"):
            small_config("bppo", **form)
