"""`--preset best`: chosen by the data alone, and its seeds act together."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import c4rl
from c4rl.cli.train import config_of
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.diagnostics.advice import advise_preset
from c4rl.jobs.presets.best import best_for, state_gap
from c4rl.results.entries import entries_of
from c4rl.results.policies import score_folder
from c4rl.results.store import Store
from tests.cli.support import run, summary
from tests.helpers import small_dataset

TINY = ("--updates", "4", "--hidden-width", "8", "--batch-size", "16")


def write(path: Path, start_alike: bool, meet: bool = False) -> Path:
    """Ten trajectories of 20 rows; they start in one place, or anywhere. meet: in one of 15 places each row."""
    random = np.random.default_rng(0)
    observations = random.normal(size=(200, 4)).astype(np.float32)
    if meet:
        observations = observations[random.integers(15, size=200)]
    observations[::20] = 0.1 if start_alike else np.linspace(-2, 2, 10)[:, None]
    np.savez(
        path,
        observations=observations,
        actions=random.uniform(-1, 1, (200, 2)).astype(np.float32),
        rewards=random.normal(size=200).astype(np.float32),
        next_observations=random.normal(size=(200, 4)).astype(np.float32),
        terminals=np.zeros(200, bool),
        timeouts=np.arange(200) % 20 == 19,
    )
    return path


def test_values_are_learned_only_where_trajectories_start_apart_and_meet(tmp_path: Path) -> None:
    """Else the better ones are cloned where they start alike, and all where they start apart, as in AntMaze."""
    alike, apart = write(tmp_path / "alike.npz", True, True), write(tmp_path / "apart.npz", False, True)
    far = write(tmp_path / "far.npz", False)
    cloned = config_of(["--preset", "best", "--dataset", str(alike)])
    assert (cloned.algorithm, cloned.plugins, cloned.preset) == ("bc", ("returns",), "best")
    assert cloned.options.actor_schedule == "cosine" and len(cloned.seeds) == 5 and cloned.ensemble == 0
    valued = config_of(["--preset", "best", "--dataset", str(apart), "--task", "maze2d-umaze-v1"])
    assert (valued.algorithm, valued.plugins, valued.ensemble) == ("td3_bc", ("layer_norm",), 5)
    assert valued.options.alpha == 20
    assert config_of(["--preset", "best", "--dataset", str(far)]).algorithm == "bc"
    assert str(cloned.output) == "runs/alike-best"
    # the doctor says the same, and why
    reasons = ((alike, "bc + returns", "0.00 times"), (apart, "td3_bc + layer_norm", "paths meet"))
    for path, method, words in (*reasons, (far, "bc + returns", "hardly meet")):
        said = advise_preset(c4rl.load_dataset(path))
        assert said.value == method and words in said.reason
    few = config_of(["--preset", "best", "--dataset", str(apart), "--task", "maze2d-umaze-v1", "--seeds", "3", "4"])
    assert few.ensemble == 2


def test_why_returns_cannot_be_compared() -> None:
    alone = replace(small_dataset(200), trajectory_ids=np.zeros(200, np.int32))
    assert best_for(alone)[1].startswith("There is only one trajectory")
    with_pieces = replace(alone, trajectory_ids=np.maximum(np.arange(200) - 197, 0).astype(np.int32))
    assert best_for(with_pieces)[1].startswith("Only one trajectory is long enough")


def test_the_gap_of_states_is_to_the_nearest_on_another_way() -> None:
    """Two walks along a line, a quarter of a step apart: a row's own neighbours in time are no other way."""
    line = np.concatenate([np.arange(40.0), np.arange(40.0) + 0.25])[:, None].astype(np.float32)
    walks = np.repeat([0, 1], 40).astype(np.int32)
    two = replace(small_dataset(80), observations=line, trajectory_ids=walks)
    assert state_gap(two) == pytest.approx(0.25 / line.std(), rel=1e-5)
    assert state_gap(replace(two, observations=np.tile(line, 3))) == pytest.approx(0.25 / line.std(), rel=1e-5)
    assert state_gap(replace(two, trajectory_ids=0 * walks)) == np.inf


def test_one_walk_is_another_way_where_it_comes_back_much_later() -> None:
    """Up a line and back, a quarter of a step apart."""
    line = np.concatenate([np.arange(200.0), np.arange(200.0)[::-1] + 0.25])[:, None].astype(np.float32)
    walk = replace(small_dataset(400), observations=line, trajectory_ids=np.zeros(400, np.int32))
    assert state_gap(walk) == pytest.approx(0.25 / line.std(), rel=1e-4)


def test_the_gap_of_states_is_measured_all_over_the_data() -> None:
    """1,000 rows far from each other, then 4,000 in one place."""
    line = np.concatenate([np.arange(1000.0), np.full(4000, -5.0)])[:, None].astype(np.float32)
    data = replace(small_dataset(5000), observations=line, trajectory_ids=np.arange(5000, dtype=np.int32))
    assert state_gap(data) == 0


def test_a_newcomer_is_told_what_it_trains_why_and_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "alike.npz", True)
    assert run("train", "--preset", "best", "--dataset", "alike.npz", *TINY) == 0
    first, *_, last = capsys.readouterr().out.splitlines()
    assert first.startswith("best trains bc + returns on alike.npz. First observations vary 0.00 times")
    assert last == "wrote runs/alike-best"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--algorithm", "cql"), "--algorithm: found with --preset best"),
        (("--plugins", "c4"), "--plugins: found with --preset best"),
        (("--dataset", "alike.npz", "apart.npz"), "datasets that need different recipes"),
    ],
)
def test_what_best_chooses_itself_is_refused(
    flags: tuple[str, ...],
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "alike.npz", True), write(tmp_path / "apart.npz", False, True)
    given = flags if "--dataset" in flags else ("--dataset", "alike.npz", *flags)
    assert run("train", "--preset", "best", *given) == 2
    error = capsys.readouterr().err
    assert words in error and len(error.strip().splitlines()) == 1
    assert run("train", "--preset", "best") == 2
    assert not (tmp_path / "runs").exists()


def test_seeds_act_together_in_training_scores_evaluate_and_export(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, job = write(tmp_path / "apart.npz", False, True), tmp_path / "job"
    task = ("--task", "maze2d-open-v0", "--eval-episodes", "2", "--seeds", "0", "1", "2", "3", "--ensemble", "2")
    assert run("train", "--preset", "best", "--dataset", data, *task, *TINY, "--output", job) == 0
    assert "2 seeds acting together, the mean of their actions: " in capsys.readouterr().out
    ensemble = summary(job)["ensemble"]
    assert ensemble["members"] == 2 and len(ensemble["scores"]) == 2
    members = [c4rl.load_policy(job, seed=seed) for seed in range(4)]
    seen = np.random.default_rng(1).normal(size=(7, 4)).astype(np.float32)
    together = NumpyPolicy.ensemble(members[:2])
    expected = np.mean([member.act(seen) for member in members[:2]], axis=0)
    np.testing.assert_allclose(together.act(seen), expected, atol=1e-6)
    np.testing.assert_allclose(together.act(seen[0]), expected[0], atol=1e-6)
    # all four, by the commands
    scored = score_folder(job, 2, "last", 10_000, ensemble=True)
    assert [row["ensemble"] for row in scored["runs"]] == [[0, 1, 2, 3]]
    assert run("evaluate", job, "--ensemble", "--episodes", "1") == 0
    assert "0+1+2+3" in capsys.readouterr().out
    file, scores = tmp_path / "all[b].npz", tmp_path / "scores.json"
    assert run("export", job, "--ensemble", "--output", file) == 0
    exported = NumpyPolicy.from_arrays(np.load(file, allow_pickle=False))
    np.testing.assert_allclose(exported.act(seen), np.mean([m.act(seen) for m in members], axis=0), atol=1e-6)
    assert run("export", job, "--ensemble", "--seed", "1") == 2
    # each ensemble is an entry of its own
    store = Store(tmp_path / "store")
    assert len(store.add(entries_of(job))) == 6
    assert sorted(entry.data["run"].get("members", 1) for entry in store) == [1, 1, 1, 1, 2, 2]
    found = [entry.data["curve"][-1][1] for entry in store if entry.data["run"].get("members")]
    assert sorted(found) == sorted([round(r, 3) for r in returns] for returns in ensemble["returns"])
    capsys.readouterr()
    assert run("evaluate", file, "--task", task[1], "--episodes", "2", "--json", scores) == 0
    assert file.name in capsys.readouterr().out, "brackets are no markup"
    (row,) = json.loads(scores.read_text())["runs"]
    assert row["mean"] == pytest.approx(scored["runs"][0]["mean"], abs=0.1)
