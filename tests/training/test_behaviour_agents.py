"""Behaviour agents: SAC on rows that keep coming, the same for any number of workers and interruptions."""

import json
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from c4rl.algorithms.sac import SAC, SACConfig
from c4rl.core.buffer import TransitionBuffer
from c4rl.core.errors import InputError, WorkFailed
from c4rl.core.networks import Stack
from c4rl.core.random import Streams
from c4rl.data.collection import Collector
from c4rl.data.policy_files import read_policies
from c4rl.environments.ant_symmetry import goal_ant_symmetries
from c4rl.environments.tasks import get_task
from c4rl.jobs.behaviour_config import BehaviourConfig
from c4rl.plugins.seams import Plugins
from c4rl.training.behaviour import BehaviourTraining, open_training, train_together

HOPPER = get_task("hopper-expert")


class Follow(gymnasium.Env):
    """Reward -(2a - s)², a new s at each step; an s above 0.9 ends the episode, ten steps cut it."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-2, 2, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.state = self.np_random.uniform(-1, 0.9, 1).astype(np.float32)
        return self.state, {}

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = -float((2 * action[0] - self.state[0]) ** 2)
        self.state = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.state, reward, bool(self.state[0] > 0.9), False, {}


class Gap(Follow):
    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        found = super().step(action)
        return found[0], float("nan"), *found[2:]


class Leaver(Follow):
    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict]:
        raise SystemExit("no licence")


gymnasium.register("c4rl-Follow-v0", Follow, max_episode_steps=10)
gymnasium.register("c4rl-Gap-v0", Gap, max_episode_steps=10)
gymnasium.register("c4rl-Leaver-v0", Leaver, max_episode_steps=10)

SMALL: dict[str, Any] = {
    "task": "gym:c4rl-Follow-v0",
    "steps": 1024,
    "envs": 8,
    "random_steps": 256,
    "batch_size": 32,
    "hidden_width": 16,
    "snapshot_every": 256,
    "checkpoint_every": 512,
    "evaluation_episodes": 0,
    "device": "cpu",
}


def train(folder: Path, **changes: Any) -> Path:
    train_together([(BehaviourConfig(**SMALL | changes), folder, 0)], print_line=lambda line: None)
    return folder


def test_rows_depend_neither_on_the_number_of_workers_nor_on_other_runs() -> None:
    def rows(seeds: list[int], workers: int) -> np.ndarray:
        with Collector(HOPPER, seeds, 16, workers) as collector:
            found = []
            for block in range(2):
                collector.start(None, block, 20, block == 0)
                found.append(collector.finish())
            assert all(len(own) >= 5 for own in found[1].returns)  # a falling robot lasts for 20 steps or so
            return np.concatenate([block.rows for block in found], axis=1)

    here, there = rows([3, 5], 0), rows([3, 5], 2)
    assert np.array_equal(here, there) and not np.array_equal(here[0], here[1])
    assert np.array_equal(rows([5], 0)[0], here[1])


def test_a_worker_that_is_killed_while_it_sends_its_rows_has_died() -> None:
    """Its rows are more than a pipe holds: it waits, halfway through them, for a parent that is busy updating."""
    with Collector(HOPPER, [0], 8, 1) as collector:
        collector.start(None, 0, 200, True)
        while not collector.ready():
            time.sleep(0.05)
        collector._workers[0].kill()
        with pytest.raises(WorkFailed, match="a worker ended with exit code -9"):
            collector.finish()


def test_falls_are_terminal_and_time_outs_are_not() -> None:
    task = get_task(SMALL["task"])
    with Collector(task, [0], 8, 0) as collector:
        collector.start(None, 0, 40, True)
        block = collector.finish()
    rows = block.rows[0].reshape(40, 8, -1)  # s, a, s', a', reward, continues, next action valid
    observations, actions, following, rewards, continues = (rows[..., k] for k in (0, 1, 2, -3, -2))
    assert np.array_equal(continues == 0, following > 0.9) and (continues == 0).any()
    assert np.allclose(rewards, -((4 * actions - observations) ** 2), atol=1e-5)  # actions are scaled to [-1, 1]
    new = observations[1:] != following[:-1]  # an episode began: after a fall or after ten steps
    assert (new & (continues[:-1] == 1)).any() and new[continues[:-1] == 0].all()
    assert new.sum() <= len(block.returns[0]) <= new.sum() + 8  # the last step may end episodes too


def test_an_update_is_that_of_the_publication() -> None:
    """Losses by hand: smaller target less α log π at s', and a temperature that falls where entropy is above -|A|."""
    step = torch.ones((), dtype=torch.int64)
    streams = Streams([4], step, torch.float64)
    stack = Stack((4,), 3, 2, torch.device("cpu"), torch.float64)
    sac = SAC(SACConfig(hidden_width=8), stack, streams, Plugins())
    packed = torch.randn(16, 13, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    packed[:, 8:10] = 0
    packed[:, -2] = (packed[:, -2] > 0).double()
    batch = TransitionBuffer(packed, torch.zeros(16), (3, 2), [16]).gather(torch.arange(16)[None])
    assert sac.temperature.log.item() == 0  # α begins at 1
    sac.temperature.log.data.fill_(-0.7)
    with torch.no_grad():
        for p in sac.target_critic.parameters():  # as later in training: the target is another network
            p.mul_(1.5)
        there, log_there = sac.actor(batch.next_observations).sample(streams.normal("backup_action", 16, 2))
        here, log_here = sac.actor(batch.observations).sample(streams.normal("actor_action", 16, 2))
        alpha = np.exp(-0.7)
        value = sac.target_critic(batch.next_observations, there).q.amin(1) - alpha * log_there
        y = packed[None, :, -3] + 0.99 * packed[None, :, -2] * value
        critic_loss = (sac.critic(batch.observations, batch.actions).q - y[:, None]).square().mean(2).sum(1)
        actor_loss = (alpha * log_here - sac.critic(batch.observations, here).q.amin(1)).mean(1)
    metrics = sac.update(batch, 1, batch)
    torch.testing.assert_close(metrics["critic_loss"].detach(), critic_loss)
    torch.testing.assert_close(metrics["actor_loss"].detach(), actor_loss)
    excess = -log_here.mean(1) + 2  # over -|A|
    torch.testing.assert_close(sac.optimizers["temperature"].gradient, excess)
    assert excess > 0 and sac.temperature.log.item() < -0.7


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_an_agent_learns_and_its_snapshots_are_policy_files(device: str, tmp_path: Path) -> None:
    folder = train(tmp_path / "a", steps=3072, seeds=(0, 1), updates_per_step=0.3, lr=3e-3, device=device)
    log = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    first, last = np.array(log[0]["returns"]), np.array(log[-1]["returns"])
    assert (last > first / 4).all() and log[-1]["updates"] == int(0.3 * (3072 - 256))
    snapshots = sorted((folder / "snapshots").iterdir())
    assert len(snapshots) == 12
    for policy in read_policies(snapshots[-1], get_task(SMALL["task"])):  # one per seed
        actions = policy.act(np.linspace(-1, 1, 9, dtype=np.float32)[:, None])
        assert np.abs(actions[:, 0] - np.linspace(-0.5, 0.5, 9)).max() < 0.2
        assert policy.log_std_bounds == (-5, 2)


def test_a_killed_training_goes_on_as_if_never_interrupted(tmp_path: Path) -> None:
    whole, killed = train(tmp_path / "whole"), tmp_path / "killed"
    work = open_training(BehaviourConfig(**SMALL), killed, lambda line: None).work(0, None)
    while not (killed / "snapshots" / "0000000768.safetensors").exists():  # beyond the checkpoint at 512
        next(work)
    work.close()
    train(killed)
    assert (whole / "progress.jsonl").read_bytes() == (killed / "progress.jsonl").read_bytes()
    for snapshot in ("0000000768.safetensors", "0000001024.safetensors"):
        one, other = (load_file(folder / "snapshots" / snapshot) for folder in (whole, killed))
        assert one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)
    with pytest.raises(InputError, match=r"config\.json: found steps 1024, expected 2048: the folder holds another"):
        train(whole, steps=2048)
    (whole / "checkpoint.safetensors").write_bytes(b"no checkpoint")
    with pytest.raises(InputError, match=r"checkpoint\.safetensors: found no checkpoint of this training"):
        train(whole)


def test_agents_trained_together_are_those_trained_alone(tmp_path: Path) -> None:
    both, alone = train(tmp_path / "both", seeds=(1, 2), steps=512), train(tmp_path / "alone", seeds=(2,), steps=512)
    name = "snapshots/0000000512.safetensors"
    (_, one), (other,) = (read_policies(folder / name, get_task(SMALL["task"])) for folder in (both, alone))
    np.testing.assert_allclose(one.mean[0], other.mean[0], rtol=1e-3, atol=1e-4)


def test_batches_of_the_goal_reaching_ant_are_spread_over_its_symmetries(tmp_path: Path) -> None:
    settings = SMALL | {"task": "goal-ant", "batch_size": 16}
    training = BehaviourTraining(BehaviourConfig(**settings), tmp_path, lambda line: None)
    row = np.random.default_rng(0).normal(size=77).astype(np.float32)
    training.replay.append(np.tile(row, (1, 256, 1)))
    drawn: list[Any] = []
    training.algorithm.update = lambda batch, *_: drawn.append(batch) or {}  # type: ignore[method-assign, func-returns-value]
    training._update(1)
    (batch,), (turns, moves) = drawn, goal_ant_symmetries()
    for k in range(8):
        own = slice(2 * k, 2 * k + 2)
        np.testing.assert_allclose(batch.observations[0, own], np.tile(row[:29] @ turns[k], (2, 1)), atol=1e-6)
        np.testing.assert_allclose(batch.actions[0, own], np.tile(row[29:37] @ moves[k], (2, 1)), atol=1e-6)
        np.testing.assert_allclose(batch.next_observations[0, own], np.tile(row[37:66] @ turns[k], (2, 1)), atol=1e-6)
    assert (batch.rewards == row[-3].item()).all() and (batch.continues == row[-2].item()).all()
    with pytest.raises(InputError, match="--batch-size: found 12, expected a multiple of 8 for goal-ant"):
        BehaviourTraining(BehaviourConfig(**settings | {"batch_size": 12}), tmp_path, lambda line: None)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"envs": 12}, "--envs: found 12, expected a multiple of 8"),
        ({"seeds": (1, 1)}, "--seeds: found 1 1, expected some, each once"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        BehaviourConfig(**SMALL | changes)


@pytest.mark.parametrize(
    ("name", "space", "sentence"),
    [
        ("Free-v0", gymnasium.spaces.Box(-np.inf, np.inf, (1,)), "found actions without bounds"),
        ("Fixed-v0", gymnasium.spaces.Box(1, 1, (1,)), "'action_low' is 1 where 'action_high' is 1"),
    ],
)
def test_actions_that_cannot_be_explored_are_refused(
    name: str, space: gymnasium.Space, sentence: str, tmp_path: Path
) -> None:
    gymnasium.register(name, type("Other", (Follow,), {"action_space": space}), max_episode_steps=10)
    good, bad = (BehaviourConfig(**SMALL | {"task": task}) for task in (SMALL["task"], f"gym:{name}"))
    with pytest.raises(InputError, match=f"task 'gym:{name}': {sentence}"):
        train_together([(good, tmp_path / "good", 0), (bad, tmp_path / "bad", 0)], print_line=lambda line: None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("Gap", r"simulated rows: 'rewards' holds nan first in row 0"),
        ("Leaver", r"SystemExit: no licence \(.*line \d+"),
    ],
)
def test_an_environment_that_fails_ends_the_training_in_a_sentence(
    name: str, sentence: str, workers: int, tmp_path: Path
) -> None:
    config = BehaviourConfig(**SMALL | {"task": f"gym:{__name__}:c4rl-{name}-v0"})
    with pytest.raises(WorkFailed, match=sentence):
        train_together([(config, tmp_path / "agent", workers)], print_line=lambda line: None)
    assert list(tmp_path.iterdir()) == []


def test_a_training_that_cannot_begin_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise MemoryError

    monkeypatch.setattr("c4rl.training.behaviour.Collector", full)
    with pytest.raises(MemoryError):
        train(tmp_path / "agent")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_another_process_trains_in_is_refused(tmp_path: Path) -> None:
    training = open_training(BehaviourConfig(**SMALL), tmp_path / "agent", lambda line: None)
    with pytest.raises(InputError, match="agent: in use by another c4rl process"):
        train(tmp_path / "agent")
    training.lock.close()
    train(tmp_path / "agent")


def test_no_evaluation_is_lost_by_a_kill(tmp_path: Path) -> None:
    """Those that were under way at a checkpoint would not be made again."""
    changes = {"evaluation_episodes": 1, "evaluate_every": 256, "task": f"gym:{__name__}:c4rl-Follow-v0"}
    work = open_training(BehaviourConfig(**SMALL | changes), tmp_path / "agent", lambda line: None).work(0, None)
    while not (tmp_path / "agent" / "checkpoint.safetensors").exists():
        next(work)
    work.close()
    train(tmp_path / "agent", **changes)
    lines = map(json.loads, (tmp_path / "agent" / "progress.jsonl").read_text().splitlines())
    assert [line["steps"] for line in lines if "evaluation" in line] == [256, 512, 768, 1024]


def test_snapshots_stay_where_a_training_cannot_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = train(tmp_path / "agent", steps=512)
    (folder / "checkpoint.safetensors").unlink()  # as if it had been killed before the first one
    monkeypatch.setattr("c4rl.training.behaviour.Collector", None)
    with pytest.raises(TypeError):
        train(folder, steps=512)
    assert len(list((folder / "snapshots").iterdir())) == 2
