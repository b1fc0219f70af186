"""Recording with policies from files: whole episodes, equal bytes, and killed recordings that go on."""

import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from c4rl.core.action_bounds import ActionBounds
from c4rl.core.behaviour_policy import BehaviourPolicy
from c4rl.core.errors import InputError, WorkFailed
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.core.worker_process import WorkerProcess
from c4rl.data import block_recording, load_dataset, policy_recording
from c4rl.data.block_recording import record_block
from c4rl.data.loading import load_for_task
from c4rl.data.policy_files import read_exported, read_policies, trained_for, write_gaussian
from c4rl.data.recording import record
from c4rl.environments.making import make_environment
from c4rl.environments.tasks import get_task

HOPPER = get_task("hopper-medium-v2")


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_recording, "BLOCK", 60)


def gaussian(path: Path, seed: int = 0, snapshots: int | None = None, **changes: object) -> str:
    """A tanh-Gaussian policy of Hopper as a file; a field changed to None is left out."""
    rng, lead = np.random.default_rng(seed), () if snapshots is None else (snapshots,)

    def weights(*shape: int) -> np.ndarray:
        return (0.3 * rng.normal(size=(*lead, *shape))).astype(np.float32)

    fields = {
        "n_hidden": 1,
        "w0": weights(11, 8),
        "b0": weights(8),
        "w_mean": weights(8, 3),
        "b_mean": weights(3),
        "log_std": np.full((*lead, 3), -1, np.float32),
        "obs_mean": np.zeros((*lead, 11), np.float32),
        "obs_std": np.ones((*lead, 11), np.float32),
        "activation": "relu",
        "squash": "tanh",
        "action_low": -np.ones(3, np.float32),
        "action_high": np.ones(3, np.float32),
    }
    np.savez(path, **{name: value for name, value in (fields | changes).items() if value is not None})
    return str(path)


def test_the_bytes_depend_neither_on_workers_nor_on_interruptions(tmp_path: Path) -> None:
    policy = gaussian(tmp_path / "policy.npz")

    def stop(done: int, expected: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    record(HOPPER.name, 300, 3, tmp_path / "plain.npz", [policy], workers=0)
    record(HOPPER.name, 300, 3, tmp_path / "two.npz", [policy], workers=2)
    with pytest.raises(KeyboardInterrupt):
        record(HOPPER.name, 300, 3, tmp_path / "killed.npz", [policy], workers=0, progress=stop)
    left = tmp_path / ".killed.npz.recording"
    assert len(list(left.glob("*.npz"))) == 2 and not (tmp_path / "killed.npz").exists()
    with pytest.raises(InputError, match=r"killed\.npz\.recording: holds the blocks of another recording"):
        record(HOPPER.name, 300, 4, tmp_path / "killed.npz", [policy], workers=0)
    counted: list[tuple[int, int]] = []
    record(
        HOPPER.name, 300, 3, tmp_path / "killed.npz", [policy], workers=0, progress=lambda *done: counted.append(done)
    )
    assert counted[-1] == (3, 3) and not left.exists()  # five blocks, of which two were there
    record(HOPPER.name, 300, 4, tmp_path / "other.npz", [policy], workers=0)
    plain, two, killed, other = ((tmp_path / f"{n}.npz").read_bytes() for n in ("plain", "two", "killed", "other"))
    assert plain == two == killed != other


def test_two_processes_do_not_record_the_same_file(tmp_path: Path) -> None:
    """The first to end would delete the blocks of the other."""

    def second(done: int, expected: int) -> None:
        with pytest.raises(InputError, match="in use by another c4rl process"):
            record(HOPPER.name, 100, 0, tmp_path / "a.npz", ["random"], workers=0)

    record(HOPPER.name, 100, 0, tmp_path / "a.npz", ["random"], workers=0, progress=second)
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


def test_episodes_are_whole_and_their_ends_true(tmp_path: Path) -> None:
    record("hopper-medium", 400, 0, tmp_path / "a.npz", [gaussian(tmp_path / "policy.npz")], workers=0)
    data = load_dataset(tmp_path / "a.npz", task=HOPPER)
    assert len(data) == 400 and data.metadata["name"] == "c4rl/hopper-medium"
    ends = data.terminals | data.timeouts
    inside = ~ends[:-1]
    np.testing.assert_array_equal(data.next_observations[:-1][inside], data.observations[1:][inside])
    np.testing.assert_array_equal(data.next_action_valid, ~ends)
    # Hopper falls: every episode ends by a terminal in a fallen state, but the last, which was cut to 400 rows
    assert data.terminals[ends].tolist() == [True] * int(ends.sum() - 1) + [False]
    fallen = (data.next_observations[:, 0] <= 0.7) | (np.abs(data.next_observations[:, 1]) >= 0.2)
    np.testing.assert_array_equal(fallen[:-1], data.terminals[:-1])
    starts = data.observations[np.append(True, ends[:-1])]
    assert np.abs(starts[:, 1:]).max() <= 0.005 and len(np.unique(starts, axis=0)) == len(starts)


def test_time_limits_are_time_outs(tmp_path: Path) -> None:
    record("gym:Pendulum-v1", 500, 0, tmp_path / "a.npz", ["random"], workers=0)
    data = load_dataset(tmp_path / "a.npz", action_low=-2, action_high=2)
    assert np.flatnonzero(data.timeouts).tolist() == [199, 399, 499] and not data.terminals.any()
    assert np.abs(data.actions).max() > 1.9
    np.testing.assert_array_equal(load_dataset(tmp_path / "a.npz").action_high, [2])
    assert data.metadata["name"] == "c4rl/Pendulum-random"


class Unbounded(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (11,))
    action_space = gymnasium.spaces.Box(np.array([-1, -np.inf, -3.4e38], np.float32), np.inf, (3,))

    def reset(self, *, seed: int | None = None, options: dict[str, object] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self.np_random.normal(size=11), {}

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.np_random.normal(size=11), 1.0, False, False, {}


gymnasium.register("Free-varnish", Unbounded, max_episode_steps=10)


def test_actions_without_bounds_have_those_of_the_policies(tmp_path: Path) -> None:
    half, two, nine = (np.full(3, value, np.float32) for value in (0.5, 2, 9))
    files = [
        gaussian(tmp_path / "high.npz", action_low=half, action_high=nine),
        gaussian(tmp_path / "low.npz", action_low=-half, action_high=two),
    ]
    record("gym:Free-varnish", 40, 0, tmp_path / "a.npz", files, workers=0)
    data = load_for_task(tmp_path / "a.npz", get_task("gym:Free-varnish"), ActionBounds())
    assert data.action_low.tolist() == [-1, -0.5, -0.5] and data.action_high.tolist() == [9, 9, 9]
    assert data.metadata["name"] == "c4rl/Free-varnish"
    with pytest.raises(InputError, match="found random, expected a file: the actions of task 'gym:Free-varnish' have"):
        record("gym:Free-varnish", 40, 0, tmp_path / "b.npz", ["random"], workers=0)


CARELESS = """
import gymnasium

class Careless(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Box(-1, 1, (1,))

    def __init__(self, missing=0.5):
        self.missing = missing

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [0.0, 0.0], {}

    def step(self, action):
        reward = float(action[0])
        action *= 0.5
        if self.missing is None:
            raise SystemExit(0)
        return [reward, self.missing], reward, False, False, {}

gymnasium.register("Careless-v0", Careless, max_episode_steps=10)
gymnasium.register("Gaps-v0", Careless, kwargs={"missing": float("nan")}, max_episode_steps=10)
gymnasium.register("Leaves-v0", Careless, kwargs={"missing": None}, max_episode_steps=10)
"""


def test_careless_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One may change its actions in place and observe lists; numbers that no dataset may hold are not recorded."""
    (tmp_path / "careless_environments.py").write_text(CARELESS)
    monkeypatch.syspath_prepend(tmp_path)
    task = "gym:careless_environments:"
    record(f"{task}Careless-v0", 30, 0, tmp_path / "a.npz", ["random"], workers=0)
    data = load_dataset(tmp_path / "a.npz")
    np.testing.assert_array_equal(data.actions[:, 0], data.rewards)
    found = r"recording .*Gaps-v0: simulated rows \(block 0-0\): 'observations' holds nan first in row 1, .* float32$"
    with pytest.raises(WorkFailed, match=found):
        record(f"{task}Gaps-v0", 30, 0, tmp_path / "b.npz", ["random"], workers=1)
    with pytest.raises(WorkFailed, match=r"Leaves-v0: SystemExit: 0 \(.*careless_environments\.py, line 19\)$"):
        record(f"{task}Leaves-v0", 30, 0, tmp_path / "c.npz", ["random"], workers=1)
    assert not list(tmp_path.glob("b.npz")) and not list(tmp_path.glob(".b.npz.recording/*.npz"))


def test_a_mixture_has_equal_shares_in_order(tmp_path: Path) -> None:
    policies = [gaussian(tmp_path / "bad.npz"), gaussian(tmp_path / "good.npz", log_std=np.full(3, -20, np.float32))]
    told = record("hopper-medium-expert", 300, 0, tmp_path / "a.npz", policies, workers=0)
    first, second = told["behaviour"]
    assert [first["policy"], second["policy"]] == ["bad.npz", "good.npz"]
    assert first["rows"] + second["rows"] == 300 and 150 <= first["rows"] < 150 + 100
    data = load_dataset(tmp_path / "a.npz")
    (policy,) = read_policies(Path(policies[1]), HOPPER)
    deterministic = [
        np.abs(policy.act(s) - a).max() < 1e-3 for s, a in zip(data.observations, data.actions, strict=True)
    ]
    assert np.mean(deterministic[first["rows"] :]) == 1 and np.mean(deterministic[: first["rows"]]) < 0.1


def test_long_episodes_leave_no_policy_without_rows(tmp_path: Path) -> None:
    """Episodes of HalfCheetah have 1,000 steps, more than all shares together."""
    meta = record("halfcheetah-full-replay", 550, 0, tmp_path / "set.npz", workers=0)
    data = load_dataset(tmp_path / "set.npz", task=get_task("halfcheetah-full-replay"))
    assert [told["rows"] for told in meta["behaviour"]] == [50] * 11
    assert not data.terminals.any() and np.array_equal(np.flatnonzero(data.timeouts), np.arange(49, 550, 50))
    inside = ~data.timeouts[:-1]
    assert np.array_equal(data.next_observations[:-1][inside], data.observations[1:][inside])


def test_snapshots_are_chosen_by_number(tmp_path: Path) -> None:
    file = gaussian(tmp_path / "run.npz", snapshots=4)
    told = record("hopper-medium-replay", 200, 0, tmp_path / "all.npz", [file], workers=0)
    assert [one["snapshot"] for one in told["behaviour"]] == [0, 1, 2, 3]
    told = record("hopper-medium-replay", 100, 0, tmp_path / "some.npz", [f"{file}@1-2"], workers=0)
    assert [one["snapshot"] for one in told["behaviour"]] == [1, 2]
    with pytest.raises(InputError, match=r"run\.npz@3-4, expected snapshots from 0 to 3"):
        record("hopper-medium-replay", 100, 0, tmp_path / "new.npz", [f"{file}@3-4"])


def test_an_exported_policy_acts_as_it_was_exported(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=shape).astype(np.float32) for shape in ((11, 8), (8, 3), (8,), (3,), (11,))]
    bounds = (-np.ones(3, np.float32), np.ones(3, np.float32))
    exported = NumpyPolicy((arrays[0], arrays[1]), (arrays[2], arrays[3]), arrays[4], np.abs(arrays[4]) + 1, *bounds)
    np.savez(tmp_path / "policy.npz", **exported.arrays())
    (policy,) = read_policies(tmp_path / "policy.npz", HOPPER)
    observation = rng.normal(size=11)
    np.testing.assert_array_equal(policy.act(observation, rng), exported.act(observation))
    normed = replace(exported, gains=(np.ones(8, np.float32),), shifts=(np.zeros(8, np.float32),))
    for other in (normed, NumpyPolicy.ensemble([normed, replace(normed, biases=(arrays[2] + 1, arrays[3]))])):
        np.savez(tmp_path / "other.npz", **other.arrays())
        (policy,) = read_policies(tmp_path / "other.npz", HOPPER)
        np.testing.assert_array_equal(policy.act(observation, rng), other.act(observation))
    for wrong in (observation[:1], observation[:, None]):  # one number would do for any width
        with pytest.raises(ValueError, match=r"observations: found shape .*, expected 11 numbers each"):
            policy.act(wrong)


@pytest.mark.parametrize(("name", "members"), [("w1", 3), ("b0", 1), ("observation_std", 0)])
def test_layers_of_different_numbers_of_members_are_refused(name: str, members: int, tmp_path: Path) -> None:
    """Or none at all, which would play NaN."""
    zeros, ones, ends = np.zeros(11, np.float32), np.ones(11, np.float32), np.ones(3, np.float32)
    weights, biases = (np.zeros((11, 8), np.float32), np.zeros((8, 3), np.float32)), (zeros[:8], zeros[:3])
    arrays = NumpyPolicy.ensemble([NumpyPolicy(weights, biases, zeros, ones, -ends, ends)] * 2).arrays()
    if members:
        arrays[name] = np.concatenate([arrays[name], arrays[name]])[:members]
    else:
        arrays |= {layer: arrays[layer][:0] for layer in ("w0", "b0", "w1", "b1")}
    np.savez(tmp_path / "policy.npz", **arrays)
    with pytest.raises(InputError, match=r"policy\.npz: (found|not readable as a policy)"):
        read_exported(tmp_path / "policy.npz")


def test_observations_are_normalised_and_then_clipped(tmp_path: Path) -> None:
    scaling = {"obs_mean": np.full(11, 1, np.float32), "obs_std": np.full(11, 2, np.float32)}
    (policy,) = read_policies(Path(gaussian(tmp_path / "policy.npz", obs_clip=np.float32(0.5), **scaling)), HOPPER)
    beyond, bound, within = (policy.act(np.full(11, x, np.float32)) for x in (9, 2, 1.5))
    assert np.array_equal(beyond, bound) and not np.allclose(bound, within)


def test_rounding_leads_no_action_beyond_its_bound() -> None:
    """In float32, low + (high - low) is above high for these bounds."""
    low, high = np.array([-3, -3], np.float32), np.array([-0.8, 1.3], np.float32)
    assert (low + (high - low) > high).all()
    zeros, ones = np.zeros(1, np.float32), np.ones(1, np.float32)
    layer = np.zeros((1, low.size), np.float32), np.full(low.size, 100, np.float32)
    exported = NumpyPolicy(layer[:1], layer[1:], zeros, ones, low, high)
    behaviour = BehaviourPolicy((), layer, None, zeros, ones, action_low=low, action_high=high)
    assert np.array_equal(exported.act(zeros), high) and np.array_equal(behaviour.act(zeros), high)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"w_mean": None}, "'w_mean' is missing; expected a policy"),
        ({"w0": np.full((11, 8), np.nan, np.float32)}, "not finite"),
        ({"w0": np.zeros((11, 9), np.float32)}, r"a layer of shape \(11, 9\) after 11 numbers"),
        ({"log_std": np.zeros(2, np.float32)}, r"'log_std' has shape \(2,\)"),
        ({"activation": "gelu"}, "'activation' is 'gelu'"),
        ({"squash": "cut"}, "'squash' is 'cut'; expected tanh or none"),
        ({"obs_mean": np.float32(0)}, "takes 1 observations and gives 3 actions"),
        ({"obs_std": np.ones(5, np.float32)}, r"'obs_std' has shape \(5,\); expected \(11,\)"),
        ({"action_low": np.zeros(2, np.float32)}, r"'action_low' has shape \(2,\); expected \(3,\)"),
        ({"action_high": np.full(3, np.inf, np.float32)}, "not finite"),
        ({"action_low": np.ones(3, np.float32)}, "'action_low' is not below 'action_high'"),
        ({"log_std": np.full(3, np.nan, np.float32)}, "not finite"),
        ({"obs_clip": np.float32(np.nan)}, "not finite"),
        ({"obs_mean": np.full(11, "0")}, "no real numbers"),
        ({"b_mean": np.zeros((3, 1), np.float32)}, r"a layer of shape \(8, 3\) after 8 numbers"),
        ({"obs_mean": np.zeros(5, np.float32)}, "takes 5 observations and gives 3 actions; expected 11 and 3"),
        ({"b0": np.array([{}])}, "not readable as an npz file"),
    ],
)
def test_bad_policies_are_refused_before_anything_is_written(
    changes: dict[str, object], message: str, tmp_path: Path
) -> None:
    policy = gaussian(tmp_path / "policy.npz", **changes)
    with pytest.raises(InputError, match=message):
        record(HOPPER.name, 10, 0, tmp_path / "new.npz", [policy])
    assert [path.name for path in tmp_path.iterdir()] == ["policy.npz"]


def test_a_safetensors_policy_acts_like_its_npz_twin(tmp_path: Path) -> None:
    with np.load(gaussian(tmp_path / "policy.npz", snapshots=2), allow_pickle=False) as file:
        write_gaussian(tmp_path / "policy.safetensors", dict(file), {"task": "hopper-medium-v2"})
    observation = np.linspace(-1, 1, 11, dtype=np.float32)
    one, other = (read_policies(tmp_path / f"policy.{kind}", HOPPER)[1] for kind in ("npz", "safetensors"))
    drawn = [policy.act(observation, np.random.default_rng(0)) for policy in (one, other)]
    np.testing.assert_array_equal(*drawn)
    assert trained_for(tmp_path / "policy.safetensors") == "hopper-medium-v2"
    assert trained_for(tmp_path / "policy.npz") is None
    whole = (tmp_path / "policy.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:-7])
    with pytest.raises(InputError, match=r"cut\.safetensors: not readable as a safetensors file"):
        read_policies(tmp_path / "cut.safetensors", HOPPER)


@pytest.mark.parametrize(
    ("task", "policies", "message"),
    [
        ("gym:Pendulum-v1", [], "policy: found none, expected at least one file for 'gym:Pendulum-v1'"),
        ("hopper-medium-expert", ["p.npz"], "policy: found 1 for 'hopper-medium-expert-v2', expected several"),
        ("hopper-medium", ["p.npz", "p.npz"], "policy: found 2 for 'hopper-medium-v2', expected 1"),
        ("hopper-medium", ["absent.npz"], "absent.npz: there is no such file"),
        ("maze2d-open", ["p.npz"], "policy: found .*p.npz, expected none"),
    ],
)
def test_policies_that_do_not_fit_the_sets_name_are_refused(
    task: str, policies: list[str], message: str, tmp_path: Path
) -> None:
    gaussian(tmp_path / "p.npz")
    with pytest.raises(InputError, match=message):
        record(task, 10, 0, tmp_path / "new.npz", [str(tmp_path / policy) for policy in policies])
    assert [path.name for path in tmp_path.iterdir()] == ["p.npz"]


def test_a_worker_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        WorkFailed, match=r"recording hopper-medium-v2: a worker ended with exit code 1.*run the same command again"
    ):
        record(HOPPER.name, 10, 0, tmp_path / "new.npz", ["random"], workers=1)


def test_the_goal_reaching_ant_is_recorded_where_it_learned(tmp_path: Path) -> None:
    record("goal-ant", 40, 0, tmp_path / "a.npz", workers=0)
    data = load_dataset(tmp_path / "a.npz", task=get_task("goal-ant"))
    assert len(data) == 40 and data.observations.shape == (40, 29)


def test_a_worker_ends_with_its_parent_although_its_environment_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hanging_environment.py").write_text(
        CARELESS.replace("reward = float(action[0])", "open('hangs', 'w').close(); __import__('time').sleep(1000)")
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    task = get_task("gym:hanging_environment:Careless-v0")
    worker = WorkerProcess(block_recording.__name__, asdict(task))
    try:
        job = {"file": "random", "snapshot": None, "rows": 10, "seed": 0, "folder": str(tmp_path), "k": 0, "b": 0}
        worker.request(job)
        while not (tmp_path / "hangs").exists():
            assert worker.process.poll() is None
            time.sleep(0.05)
        worker._requests.close()  # as the system does where the parent is killed
        assert worker.process.wait(10) == 0
    finally:
        worker.stop()


def test_d4rls_policy_records_what_its_environment_does(shared: Callable[[str], Path]) -> None:
    (policy,) = read_policies(shared("policies/hopper-medium-v2-d4rl-sac.npz"), HOPPER)
    block = record_block(make_environment(HOPPER), policy, [0, 0, 0], 2000)
    returns = np.add.reduceat(block["rewards"], np.append(0, np.cumsum(block["lengths"])[:-1]))
    assert 1000 < returns.mean() < 2000  # D4RL's file: 1422
