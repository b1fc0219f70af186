"""BPPO: who decides which policy is the better one, which one is shown, and how that survives a restart."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from c4rl.algorithms.accepted_policies import CLONE_JUDGED_EVERY
from c4rl.algorithms.bppo import BPPO
from c4rl.training.launch import Launch
from tests.algorithms.test_bppo import CLONING, END, IMPROVEMENT, batch_at, flat, launch_of
from tests.cli.support import metric_lines, run, summary
from tests.helpers import advance


def test_the_improvement_begins_at_the_cloned_policy() -> None:
    launch, algorithm = launch_of()
    advance(launch, IMPROVEMENT - 1)
    assert torch.equal(flat(algorithm.actor), flat(algorithm.old_actor))
    assert algorithm.optimizers["actor"].count == 0  # with an optimiser of its own
    assert algorithm.shown is algorithm.old_actor


def test_never_keeps_the_clone_as_the_old_policy_and_shows_the_new_one() -> None:
    launch, algorithm = launch_of(acceptance="never")
    advance(launch, IMPROVEMENT - 1)
    assert algorithm.shown is algorithm.old_actor  # the clone, while cloning
    clone = flat(algorithm.old_actor)
    advance(launch, 20, start=IMPROVEMENT - 1)
    assert torch.equal(flat(algorithm.old_actor), clone)
    assert algorithm.shown is algorithm.actor and not torch.equal(flat(algorithm.actor), clone)
    assert not any(algorithm.asks_environment(step) for step in range(1, END))


def mean_q(algorithm: BPPO, policy: nn.Module) -> Tensor:
    s = algorithm.judged_states
    return algorithm.critic(s, policy(s).mean).q[:, 0].mean(1).detach()


def test_offline_q_accepts_exactly_what_the_critic_finds_better_run_by_run() -> None:
    launch, algorithm = launch_of(acceptance="offline_q", seeds=(0, 1), actor_lr=3e-3, improvement_updates=40)
    advance(launch, IMPROVEMENT - 1)
    best, accepted = mean_q(algorithm, algorithm.old_actor), []
    for step in range(IMPROVEMENT, IMPROVEMENT + 40):
        before = flat(algorithm.old_actor)
        launch.update(step)
        score = mean_q(algorithm, algorithm.actor)
        better = score > best
        best = torch.maximum(score, best)
        torch.testing.assert_close(mean_q(algorithm, algorithm.old_actor), best)
        expected = torch.where(better.unsqueeze(1), flat(algorithm.actor), before)
        assert torch.equal(flat(algorithm.old_actor), expected)
        accepted.append(better)
        report = launch.refresh(step)
    counts = torch.stack(accepted).sum(0)
    assert 0 < counts.sum() < 80, "both verdicts must occur"
    assert [report[seed]["acceptances_offline_q"] for seed in (0, 1)] == counts.tolist()
    assert algorithm.shown is algorithm.old_actor


def test_the_judged_states_are_the_same_for_every_run_alone_or_stacked() -> None:
    stacked = launch_of(seeds=(4, 9))[1].judged_states
    alone = launch_of(seeds=(9,))[1].judged_states
    assert torch.equal(stacked[0], stacked[1]) and torch.equal(stacked[1], alone[0])


def test_online_best_tries_the_new_policy_and_keeps_the_best_by_score() -> None:
    launch, algorithm = launch_of(acceptance="online_best", seeds=(0, 1), improvement_updates=3)
    advance(launch, CLONING)
    assert not algorithm.asks_environment(CLONING) and algorithm.asks_environment(IMPROVEMENT - 1)
    advance(launch, 1, start=CLONING)
    assert algorithm.shown is algorithm.old_actor
    clone = flat(algorithm.old_actor)
    algorithm.receive_scores(torch.tensor([-5.0, 10.0]))  # any score beats none, negative ones too
    assert torch.equal(flat(algorithm.actor), clone) and torch.equal(flat(algorithm.old_actor), clone)

    launch.update(IMPROVEMENT)
    assert algorithm.asks_environment(IMPROVEMENT) and algorithm.shown is algorithm.actor, "on trial"
    first = flat(algorithm.actor)
    algorithm.receive_scores(torch.tensor([-4.0, 10.0]))  # better; equal is not better
    assert algorithm.shown is algorithm.old_actor
    assert torch.equal(flat(algorithm.old_actor)[0], first[0]) and torch.equal(flat(algorithm.old_actor)[1], clone[1])
    assert torch.equal(flat(algorithm.actor), first), "π goes on from where it is, accepted or not"

    launch.update(IMPROVEMENT + 1)
    second = flat(algorithm.actor)
    algorithm.receive_scores(torch.tensor([-4.5, 11.0]))  # below the best so far, though above the clone
    assert torch.equal(flat(algorithm.old_actor)[0], first[0]) and torch.equal(flat(algorithm.old_actor)[1], second[1])
    launch.update(IMPROVEMENT + 2)
    report = launch.refresh(IMPROVEMENT + 2)
    assert [report[seed]["acceptances_online_best"] for seed in (0, 1)] == [1, 1]
    assert not launch.failures()


def test_online_best_begins_with_the_best_clone() -> None:
    updates = 2 * CLONE_JUDGED_EVERY + 10
    launch, algorithm = launch_of(acceptance="online_best", seeds=(0, 1), cloning_updates=updates)
    asked = [step - CLONING + 1 for step in range(1, CLONING + updates) if algorithm.asks_environment(step)]
    assert asked == [CLONE_JUDGED_EVERY, 2 * CLONE_JUDGED_EVERY, updates]
    clones = []
    for update, scores in zip(asked, ([3.0, 1.0], [9.0, 1.0], [7.0, 2.0]), strict=True):
        batch = batch_at(launch, CLONING + update - 1)
        algorithm.update(batch, CLONING + update - 1, batch)
        clones.append(flat(algorithm.old_actor))
        assert algorithm.shown is algorithm.old_actor
        algorithm.receive_scores(torch.tensor(scores))
    assert torch.equal(flat(algorithm.old_actor)[0], clones[1][0])
    assert torch.equal(flat(algorithm.old_actor)[1], clones[2][1])
    assert torch.equal(flat(algorithm.actor), flat(algorithm.old_actor))


@pytest.mark.parametrize("acceptance", ["offline_q", "online_best", "never"])
def test_a_job_stopped_at_any_update_resumes_exactly(acceptance: str) -> None:
    def go(launch: Launch, first: int, last: int) -> Launch:
        for step in range(first, last + 1):
            advance(launch, 1, start=step - 1)
            if launch.algorithm.asks_environment(step):
                launch.algorithm.receive_scores(torch.tensor([step % 3, -step], dtype=torch.float32))
        return launch

    def fresh() -> Launch:
        return launch_of(acceptance=acceptance, seeds=(0, 1))[0]

    straight = go(fresh(), 1, END - 1)
    expected, shown = straight.run_states(), straight.algorithm.evaluated_policy()
    for stop in range(1, END - 1):
        resumed = fresh()
        resumed.load(go(fresh(), 1, stop).run_states())
        go(resumed, stop + 1, END - 1)
        found = resumed.run_states()
        for seed, state in expected.items():
            for name, tensor in state.items():
                assert torch.equal(found[seed][name], tensor), (stop, name)
        for mine, theirs in zip(resumed.algorithm.evaluated_policy(), shown, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


def test_in_a_real_job_online_best_never_loses_what_it_had(tmp_path: Path) -> None:
    """Every evaluation runs the same episodes: from the best clone on, the policy shown cannot score less."""
    data, folder, task = tmp_path / "maze.npz", tmp_path / "job", "maze2d-open-dense-v0"
    assert run("data", "record", task, "--output", data, "--size", 400) == 0
    lengths = ["--updates", 10, "--value-updates", 10, "--cloning-updates", 20, "--improvement-updates", 12]
    small = ["--hidden-width", 16, "--value-width", 16, "--batch-size", 32, "--actor-lr", 3e-3]
    often = ["--eval-every", 2, "--eval-episodes", 2, "--seeds", 0, 1, "--device", "cpu"]
    job = ["--algorithm", "bppo", "--dataset", data, "--task", task, "--output", folder, "--acceptance", "online_best"]
    assert run("train", *job, *lengths, *small, *often) == 0
    for seed in (0, 1):
        lines = [line for line in metric_lines(folder) if line["seed"] == seed and line["update"] >= 40]
        scores = [line["score"] for line in lines if "score" in line]
        assert len(scores) == 7 and scores == sorted(scores)
        assert summary(folder)["last"]["scores"][seed] == scores[-1] > scores[0]
