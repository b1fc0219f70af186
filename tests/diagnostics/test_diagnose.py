"""Theorem 1 at a checkpoint, what moves the critic, whether Q is plausible, and when a run blew up."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from c4rl.algorithms.implicit_q import ImplicitQ
from c4rl.core.buffer import Batch
from c4rl.diagnostics.cluster_structure import RowFacts, describe_clusters, explained, find_clusters
from c4rl.diagnostics.divergence import first_warning
from c4rl.diagnostics.gradients import gradient_pairs, sample_rows
from c4rl.diagnostics.metrics import metrics_by_run
from c4rl.diagnostics.q_health import describe_q
from c4rl.diagnostics.spectra import describe_spectrum
from c4rl.diagnostics.td_terms import describe_td_terms, measured_variance, order_of, paired_directions, terms_of_rows
from c4rl.plugins.c4.monitor import expected_td_terms
from c4rl.training.gradient_cosines import gradient_cosines
from c4rl.training.launch import Launch
from c4rl.training.records import FAILED
from c4rl.training.run_directory import job_config
from tests.cli.support import SMALL, listing, run, save_npz
from tests.diagnostics.folders import make_folder
from tests.helpers import advance, make_launch, small_config, small_dataset, with_trajectories


@pytest.fixture(scope="module")
def launch() -> Launch:
    """Two runs of TD3+BC after a few updates, in float64."""
    config = small_config("td3_bc", seeds=(0, 1), discount=0.9)
    return advance(make_launch(config, with_trajectories(small_dataset(), 20)), 20)


@pytest.fixture(scope="module")
def batch(launch: Launch) -> Batch:
    return sample_rows(launch, 64).batch


# -- Theorem 1


def test_only_rows_with_a_next_action_are_looked_at(launch: Launch) -> None:
    sample = sample_rows(launch, 10**6)
    assert len(sample.rows) == 190  # 200 rows in ten trajectories, whose last rows have none
    assert sample.batch.next_valid.all() and sample.batch.rewards.shape == (2, 190)
    assert (sample.batch.rewards[0] == launch.buffer.packed[sample.rows, -3]).all()


def test_terms_are_those_of_isotropic_directions(launch: Launch, batch: Batch) -> None:
    """With many directions A -> gamma^2 k^2 E|g'|^2 / m, B -> k^2 E|g|^2 / m, C -> 2 gamma k^2 E<g', g> / m."""
    found = describe_td_terms(launch, batch, steps=(0.1,), directions=2000)
    g_next, g = gradient_pairs(launch, batch)
    m = g.shape[-1]
    for one, g1, g0 in zip(found, g_next, g, strict=True):
        k = one["k"]
        assert one["A"] == pytest.approx(float(0.81 * k**2 * g1.square().sum(-1).mean() / m), rel=0.1)
        assert one["B"] == pytest.approx(float(k**2 * g0.square().sum(-1).mean() / m), rel=0.1)
        assert one["C"] == pytest.approx(float(1.8 * k**2 * (g1 * g0).sum(-1).mean() / m), rel=0.1)
        assert one["variance"] == pytest.approx(one["A"] + one["B"] - one["C"])


def test_the_measured_variance_is_that_of_displaced_residuals(launch: Launch, batch: Batch) -> None:
    """Against delta itself, with its reward, row by row."""
    assert launch.algorithm.critics is not None
    critic, target = launch.algorithm.critics
    w, k = paired_directions(512, 7)[:32], 0.3
    (found, _) = describe_td_terms(launch, batch, steps=(k,))
    with torch.no_grad():
        deltas = torch.stack(
            [
                batch.rewards.unsqueeze(1)
                + 0.9 * target.at(batch.next_state_actions + k * d).q
                - critic.at(batch.state_actions + k * d).q
                for d in w
            ]
        )
    assert found["by_step"][0]["measured"] == pytest.approx(float(deltas[:, 0].var(dim=0, correction=0).mean()))


def test_the_terms_logged_in_training_are_those_of_many_directions(launch: Launch, batch: Batch) -> None:
    """In closed form; here against 16,384 random directions."""
    g_next, g = gradient_pairs(launch, batch)
    logged = expected_td_terms(g_next, g, torch.ones_like(batch.rewards), 0.9)
    for place, drawn in enumerate(describe_td_terms(launch, batch, directions=16_384)):
        for term in "ABC":
            assert float(logged[f"td_{term}"][place]) == pytest.approx(drawn[term], rel=0.03)


def test_the_terms_logged_in_training_leave_out_rows_without_a_next_action(launch: Launch, batch: Batch) -> None:
    g_next, g = gradient_pairs(launch, batch)
    valid = torch.ones_like(batch.rewards)
    valid[:, ::3] = 0
    masked = expected_td_terms(g_next, g, valid, 0.9)
    kept = expected_td_terms(g_next[:, :, valid[0] > 0], g[:, :, valid[0] > 0], valid[:, valid[0] > 0], 0.9)
    assert all(torch.allclose(masked[name], kept[name]) for name in kept)


def test_the_gap_vanishes_with_k_and_tells_how(launch: Launch, batch: Batch) -> None:
    for one in describe_td_terms(launch, batch):
        gaps = [point["gap"] for point in one["by_step"]]
        assert gaps == sorted(gaps, reverse=True) and gaps[-1] < 0.3 * gaps[0]
        assert 0.5 < one["gap_order"] < 1.5  # these are ReLU networks


def test_the_gap_of_a_smooth_critic_falls_with_the_square_of_k() -> None:
    generator = torch.Generator().manual_seed(0)
    matrix = torch.randn(7, 20, generator=generator, dtype=torch.float64)
    x, x_next = torch.randn(2, 1, 30, 7, generator=generator, dtype=torch.float64)

    def value(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ matrix).sum(-1)

    def gradient(x: torch.Tensor) -> torch.Tensor:
        return ((1 - torch.tanh(x @ matrix).square()) @ matrix.T).unsqueeze(1)

    smooth: Any = SimpleNamespace(at=lambda x: SimpleNamespace(q=value(x).unsqueeze(1)))
    w, steps = paired_directions(32, 7), (0.1, 0.05, 0.025)
    A, B, C = terms_of_rows(gradient(x_next), gradient(x), w, 0.9)
    curve = []
    for k in steps:
        linear = k * k * (A + B - C)
        measured = measured_variance(smooth, smooth, x, x_next, w, k, 0.9)
        curve.append({"k": k, "gap": float((measured - linear).abs().mean() / linear.mean())})
    assert order_of(curve) == pytest.approx(2, abs=0.1)


def test_the_base_residual_is_that_of_the_theorem(launch: Launch, batch: Batch) -> None:
    """r + gamma Q'(x') - Q(x) at the logged next action; its variance over rows is not part of A + B - C."""
    assert launch.algorithm.critics is not None
    critic, target = launch.algorithm.critics
    with torch.no_grad():
        base = (
            batch.rewards.unsqueeze(1) + 0.9 * target.at(batch.next_state_actions).q - critic.at(batch.state_actions).q
        )
    expected = base[1].var(dim=1, correction=0).mean()
    assert describe_td_terms(launch, batch)[1]["base_variance"] == pytest.approx(float(expected))


# -- what moves the critic


def test_a_constant_residual_is_all_mean_and_a_balanced_one_all_variance(launch: Launch, batch: Batch) -> None:
    residual = launch.algorithm.td_errors(batch).detach()
    far = batch._replace(rewards=batch.rewards + 1000)  # |E[delta]| far above its spread
    (first, _) = gradient_cosines(launch, far, batch_size=64)
    assert first["td_cosine_with_mean"] > 0.999 and first["variance_share"] < 0.01
    balanced = batch._replace(rewards=batch.rewards - residual[:, 0].mean(1, keepdim=True))
    (first, _) = gradient_cosines(launch, balanced, batch_size=64)
    assert first["variance_share"] > 0.9 and first["td_cosine_with_variance"] > 0.9


def test_the_residual_is_that_of_the_algorithms_own_target() -> None:
    launch = make_launch(small_config("iql"))
    assert isinstance(launch.algorithm, ImplicitQ)
    with torch.no_grad():
        launch.algorithm.value.mlp.biases[-1].add_(1000)  # iql backs up V, and no action's Q
    (found,) = gradient_cosines(launch, launch.buffer.gather(torch.arange(100).unsqueeze(0)), batch_size=50)
    assert found["td_cosine_with_mean"] > 0.999 and found["variance_share"] < 0.01


# -- spectra and clusters


def test_the_spectrum_of_known_gradients() -> None:
    g = torch.randn(5000, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([3.0, 1.0, 0.0])
    found = describe_spectrum(2 * g, g)
    assert found["singular_values"] == pytest.approx([18, 2, 0], rel=0.1, abs=1e-9)
    assert found["normalised_trace"] == pytest.approx(1) and found["spectral"] == found["singular_values"][0]
    assert found["effective_rank"] == pytest.approx(400 / 328, rel=0.05)
    assert describe_spectrum(-2 * g, g)["normalised_trace"] == pytest.approx(-1)


def test_clusters_that_are_there_are_found_and_explained() -> None:
    centres = np.repeat(np.eye(3) * 20, [300, 200, 100], axis=0)
    rng = np.random.default_rng(0)
    g = torch.tensor(centres + rng.normal(size=centres.shape))
    clusters = find_clusters(g, -g, K=3)
    assert clusters.effective == 3
    truth = np.repeat([0, 1, 2], [300, 200, 100])
    assert (clusters.labels == truth).all()  # the largest first
    assert clusters.split["between_trace"] < 0  # g' = -g
    assert abs(clusters.split["within_trace"]) < 0.1 * abs(clusters.split["between_trace"])
    facts = RowFacts(np.arange(600) // 100, truth * 5.0, rng.normal(size=600))
    found = describe_clusters(clusters, facts)
    assert found["explains_return"] == pytest.approx(1) and found["explains_time"] < 0.05
    assert found["trajectory_purity"] == 1
    assert [cluster["trajectories"] for cluster in found["clusters"]] == [[0, 1, 2], [3, 4], [5]]
    assert explained(np.array([1.0, 1.0]), np.array([0, 1])) == 0
    assert explained(np.full(2048, 0.1), np.arange(2048) % 5) == 0  # whose variance is 1e-33 in float64


def test_the_clusters_of_a_critic_that_blew_up_are_those_of_a_small_one() -> None:
    generator = torch.Generator().manual_seed(0)
    g = 5 * torch.eye(3)[torch.arange(600) % 3] + torch.randn(600, 3, generator=generator)
    small, large = (find_clusters(scale * g, scale * g, K=3) for scale in (1.0, 1e18))
    assert (small.labels == large.labels).all()
    assert large.split == {name: pytest.approx(1e36 * value, rel=1e-4) for name, value in small.split.items()}


# -- Q


def test_q_is_read_at_three_kinds_of_actions(launch: Launch, batch: Batch) -> None:
    assert launch.algorithm.critics is not None
    with torch.no_grad():
        q = launch.algorithm.critics[0].at(batch.state_actions).q.amin(1)
    for i, one in enumerate(describe_q(launch, batch)):
        assert one["data"]["mean"] == pytest.approx(float(q[i].mean()))
        assert one["data"]["max"] >= one["data"]["mean"] >= one["data"]["min"]
        assert len({one[kind]["mean"] for kind in ("data", "policy", "random")}) == 3
        assert one["bound"] == pytest.approx(float(launch.buffer.packed[:, -3].abs().max()) / 0.1)


# -- divergence


def log(losses: list[Any], q: float = 1.0) -> list[dict[str, Any]]:
    return [{"update": 10 * (i + 1), "critic_loss": loss, "q": q} for i, loss in enumerate(losses)]


def test_a_healthy_log_gives_no_warning() -> None:
    assert first_warning(log([100.0, 10.0, 1.0, 1.2, 0.9] + [1.0] * 50), bound=10) is None
    assert first_warning(log([1.0] * 9 + [1e6] + [1.0] * 9), bound=10) is None  # a single outlier
    assert first_warning([], bound=10) is None
    assert first_warning(log([1.0] * 20, q=1e-3), bound=0) is None  # without any reward


def test_each_sign_names_its_update() -> None:
    grown = first_warning(log([1.0] * 9 + [200.0, 300.0, 400.0, 500.0]))
    assert grown is not None and grown.update == 120 and "loss is 400" in grown.reason
    lost = first_warning(log([1.0, 1.0, "nan", 1.0]))
    assert lost is not None and lost.update == 30 and "not finite" in lost.reason
    stopped = first_warning(
        [*log([1.0] * 4), {"update": 50, "score": 1.0, FAILED: 43}]
    )  # nothing else was logged of it
    assert stopped is not None and stopped.update == 43 and "run failed" in stopped.reason
    high = first_warning(log([1.0] * 3) + log([1.0] * 4, q=21.0)[3:], bound=10)
    assert high is not None and high.update == 40 and "rewards allow at most 10" in high.reason


# -- the command, on jobs that ran


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    folder = tmp_path_factory.mktemp("jobs")
    data = save_npz(folder / "data.npz")
    usual = ["train", "--dataset", data, "--task", "none", "--threads", "1", *SMALL, "--eval-every", "40"]
    found = SimpleNamespace(sound=folder / "sound", wild=folder / "wild", cloned=folder / "cloned", data=data)
    assert run(*usual, "--output", found.sound, "--updates", "40", "--seeds", "0", "1", "--log-every", "5") == 0
    wild = ["--critic-lr", "1", "--log-every", "2", "--checkpoint-every", "10"]
    assert run(*usual, "--output", found.wild, "--updates", "40", *wild) in (0, 1)
    assert run(*usual, "--output", found.cloned, "--updates", "4", "--algorithm", "bc") == 0
    return found


def test_a_sound_job_is_diagnosed_and_saved(jobs: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diagnose", jobs.sound, "--size", "100", "--save") == 0
    printed = capsys.readouterr().out
    assert "Var[delta] ~ A + B - C" in printed and printed.count("no sign of divergence") == 2
    stored = json.loads((jobs.sound / "diagnostics.json").read_text())
    assert [one["run"] for one in stored["runs"]] == ["seed_0", "seed_1"] and stored["update"] == 40


def test_a_run_that_blew_up_is_named_with_its_update(jobs: SimpleNamespace, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("diagnose", jobs.wild, "--size", "100", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["runs"]
    warning = one["warning"]
    lines = [line for line in metrics_by_run(jobs.wild, job_config(jobs.wild))[0] if "q" in line]
    beyond = [line["update"] for line in lines if abs(float(line["q"])) > 2 * one["q"]["bound"]]
    assert warning is not None and warning["update"] == beyond[0] < 40


@pytest.mark.parametrize(
    ("folder", "flags", "words"),
    [
        ("cloned", [], "/cloned: found algorithm 'bc', expected one with a critic"),
        ("sound", ["--run", "seed_7"], "no run 'seed_7', expected one of seed_0, seed_1"),
        ("nowhere", [], "no such folder"),
        ("sound", ["--size", "1"], "expected a whole number at least 2"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    folder: str, flags: list[str], words: str, jobs: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(jobs.data.parent)
    assert run("diagnose", jobs.data.parent / folder, *flags) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert listing(jobs.data.parent) == before


def test_a_line_being_written_is_left_out(tmp_path: Path) -> None:
    job = make_folder(tmp_path / "job")
    (job / "metrics.jsonl").write_text('{"update": 2, "seed": 0}\n{"update": 1, "seed": 0}\n{"update": 3, "se')
    assert [line["update"] for line in metrics_by_run(job, job_config(job))[0]] == [1, 2]
