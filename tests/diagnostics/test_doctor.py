"""`c4rl doctor` from flags to verdict; its probes on small data."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from c4rl.algorithms.bc import BCConfig
from c4rl.data import info
from c4rl.data.dataset import Dataset
from c4rl.data.loading import load_dataset
from c4rl.diagnostics.advice import _stop, advise
from c4rl.diagnostics.cloning_probe import CloningCurve, probe_cloning
from c4rl.diagnostics.coverage import describe_coverage, directions_for, participation_ratio
from c4rl.diagnostics.critic_probe import probe_critic
from c4rl.diagnostics.doctor import cloning_sentences, examine
from c4rl.diagnostics.returns import describe_returns, effective_number
from c4rl.environments.tasks import get_task
from tests.cli.support import listing, run
from tests.diagnostics.broken_copies import FAULTS, LENGTHS, sound_arrays
from tests.helpers import small_dataset


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.npz"
    np.savez(path, **sound_arrays())
    return path


# -- the command


def test_a_sound_file_gets_a_clean_bill(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", file, "--no-probe") == 0
    printed = capsys.readouterr().out
    assert "no fault found" in printed and "weight rows by returns" in printed
    assert "stop cloning" not in printed  # not probed


def test_a_single_row_is_examined(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", **{name: values[:1] for name, values in sound_arrays().items()})
    assert run("doctor", tmp_path / "one.npz", "--no-probe") in (0, 1)


def test_a_fault_changes_the_exit_code_and_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arrays = sound_arrays()
    FAULTS["constant observation"][0](arrays)
    np.savez(tmp_path / "data.npz", **arrays)
    page = tmp_path / "page.html"
    assert run("doctor", tmp_path / "data.npz", "--no-probe", "--html", page) == 1
    sentence = "1 observation columns never change (columns 2)."
    assert sentence in " ".join(capsys.readouterr().out.split())
    assert sentence in page.read_text()


def test_numbers_as_json(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", file, "--json", "--seconds", "0.2") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["dataset"]["rows"] == sum(LENGTHS) and found["findings"] == []
    assert found["cloning"]["updates"] and found["critic"]["clusters"]["effective_clusters"] >= 1


def test_what_looks_wrong_is_looked_for_once(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Dataset] = []
    look = info._disagreements
    monkeypatch.setattr(info, "_disagreements", lambda dataset: looks.append(dataset) or look(dataset))
    examine(load_dataset(file), get_task("none"), probe=False, seconds=0)
    assert len(looks) == 1


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--task", "hoper"], "did you mean"),
        (["--html", "DATA"], "exists already"),
        (["--seconds", "0"], "expected a number above 0"),
        (["--task", "halfcheetah-medium-v2"], "'actions' has 3 columns"),
    ],
)
def test_bad_input_is_one_sentence_and_writes_nothing(
    flags: list[str], words: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = listing(file.parent)
    assert run("doctor", file, *(str(file) if flag == "DATA" else flag for flag in flags)) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert listing(file.parent) == before


# -- coverage and returns


def test_effective_dimensions() -> None:
    assert participation_ratio(np.ones(7)) == pytest.approx(7)
    assert participation_ratio(np.array([5.0, 0, 0])) == pytest.approx(1)
    assert directions_for(np.array([0.5, 0.3, 0.2, 0.0]), 0.8) == 2
    assert directions_for(np.array([1.0, 98.0, 1.0]), 0.99) == 2
    assert [directions_for(np.full(n, 0.1), k / n) for n in range(1, 20) for k in range(1, n + 1)] == [
        k for n in range(1, 20) for k in range(1, n + 1)
    ]
    assert directions_for(np.zeros(3), 0.99) == participation_ratio(np.zeros(3)) == 0


def test_coverage_is_what_a_search_row_by_row_finds() -> None:
    """Columns of different units, one constant; some rows have only neighbours in time in their own trajectory."""
    lengths, draw = (20, 25, 15, 8), np.random.default_rng(0)
    ids = np.repeat(np.arange(4, dtype=np.int32), lengths)
    observations = np.cumsum(draw.normal(size=(68, 4)), axis=0) * [1, 50, 0.1, 0] + ids[:, None] * [2, 0, 0, 0] + 3
    low, high = np.float32([-1, 0]), np.float32([3, 10])
    actions = draw.uniform(low, high, (68, 2))
    data = replace(
        small_dataset(68, 4),
        observations=observations.astype(np.float32),
        actions=actions.astype(np.float32),
        action_low=low,
        action_high=high,
        trajectory_ids=ids,
    )
    found = describe_coverage(data)
    std = observations.std(0)
    states = (observations - observations.mean(0))[:, :3] / (std[:3] + 1e-3)
    scaled = 2 * (actions - low) / (high - low) - 1
    others, own, gaps = [], [], []
    for i in range(68):
        distance = np.sqrt(np.square(states - states[i]).sum(1))
        elsewhere = [j for j in range(68) if ids[j] != ids[i]]
        at_home = [j for j in range(68) if ids[j] == ids[i] and abs(i - j) >= 10]
        nearest = min(elsewhere, key=lambda j: distance[j])
        gaps.append(np.square(scaled[i] - scaled[nearest]))
        if at_home:
            others.append(distance[nearest])
            own.append(distance[at_home].min())
    assert len(own) == 55
    assert found["novelty"] == pytest.approx(np.median(others) / np.median(own), rel=1e-3)
    assert found["neighbour_action_rmse"] == pytest.approx(np.sqrt(np.mean(gaps) / 2), rel=1e-4)
    variances = np.linalg.svd(states, compute_uv=False) ** 2
    np.testing.assert_allclose(found["state_spectrum"], [*(variances / variances.sum()), 0], atol=1e-5)
    assert found["state_effective_dimension"] == pytest.approx(variances.sum() ** 2 / (variances**2).sum(), rel=1e-4)
    np.testing.assert_allclose(found["action_spread"], scaled.std(0), rtol=1e-4)
    assert found["scale_ratio"] == pytest.approx(std[:3].max() / std[:3].min(), rel=1e-4)


def test_copies_of_columns_add_no_effective_dimension(tmp_path: Path) -> None:
    arrays = sound_arrays()
    plain, doubled = tmp_path / "plain.npz", tmp_path / "doubled.npz"
    np.savez(plain, **arrays)
    for name in ("observations", "next_observations"):
        arrays[name] = np.concatenate([arrays[name], arrays[name]], axis=1)
    np.savez(doubled, **arrays)
    one, two = (describe_coverage(load_dataset(path))["state_effective_dimension"] for path in (plain, doubled))
    assert two == pytest.approx(one, rel=1e-3)


def test_an_action_that_never_changes_has_no_spread() -> None:
    data = replace(small_dataset(20_000), actions=np.full((20_000, 2), 0.3, np.float32))
    assert describe_coverage(data)["action_spread"] == pytest.approx([0, 0], abs=1e-7)


def test_the_effective_number_is_that_of_equal_weights() -> None:
    assert effective_number(np.array([1.0, 1.0, 0.0])) == pytest.approx(2)
    assert effective_number(np.array([3.0, 1.0])) == pytest.approx(1.6)


def logged_returns(lengths: list[int], per_row: list[float], terminal: list[bool]) -> Dataset:
    """Trajectories that start alike."""
    rows, stops = sum(lengths), np.cumsum(lengths)
    data = small_dataset(rows)
    observations, terminals = data.observations.copy(), np.zeros(rows, bool)
    observations[stops - lengths] = 0
    terminals[stops - 1] = terminal
    return replace(
        data,
        observations=observations,
        rewards=np.repeat(per_row, lengths).astype(np.float32),
        terminals=terminals,
        trajectory_ids=np.repeat(np.arange(len(lengths), dtype=np.int32), lengths),
    )


def test_returns_and_what_their_weighting_keeps_are_means_over_rows() -> None:
    """Two that met a limit of ten rows, one that ended, a piece of two rows, and one of a single row."""
    length, returns = np.array([10, 10, 5, 2]), np.array([10.0, 30, 40, -2])
    data = logged_returns([*length, 1], [1, 3, 8, -1, 5], [False, False, True, False, False])
    found = describe_returns(data, get_task("none"))
    assert found["comparable"] and (found["trajectories"], found["rows"], found["cut"]) == (4, 27, 1)
    assert found["values"] == [40, 30, 10, -2] and (found["best"], found["spread"]) == (40, 42)
    assert found["uniform_mean"] == pytest.approx((100 + 300 + 200 - 4) / 27)
    kept = {row["name"]: row for row in found["weighted"]}
    for temperature in (0.3, 0.1, 0.03):
        weights = np.exp((np.array([*returns, 5]) - 40) / (temperature * 42))
        rows = np.repeat(weights, [*length, 1])
        of_trajectories = weights[:4] * length
        row = kept[f"temperature {temperature:g}"]
        assert row["effective_rows"] == pytest.approx(rows.sum() ** 2 / (rows**2).sum())
        effective = of_trajectories.sum() ** 2 / (of_trajectories**2).sum()
        assert row["effective_trajectories"] == pytest.approx(effective)
        assert row["mean"] == pytest.approx((of_trajectories * returns).sum() / of_trajectories.sum())
    # the best ones hold less than the fifth of all rows that `best` asks for
    assert kept["temperature 0.03"]["effective_rows"] < 28 / 5 <= kept["as --preset best"]["effective_rows"]


def test_single_rows_are_ranked_where_there_are_no_longer_trajectories() -> None:
    for lengths, counted in (([2, 1], [4]), ([1, 1], [3, 2])):
        found = describe_returns(logged_returns(lengths, [2, 3], [True, True]), get_task("none"))
        assert found["values"] == counted and found["trajectories"] == len(counted)


def test_weighting_is_advised_where_it_lifts_the_mean_and_leaves_rows(tmp_path: Path) -> None:
    def advice(lengths: list[int], returns: list[float], apart: float = 0.0) -> str:
        count = sum(lengths)
        ids = np.repeat(np.arange(len(lengths)), lengths)
        observations = np.random.default_rng(0).normal(size=(count, 3)).astype(np.float32)
        observations[np.cumsum(lengths) - lengths] = apart * np.arange(len(lengths))[:, None]
        np.savez(
            tmp_path / "data.npz",
            observations=observations,
            next_observations=np.ones((count, 3), np.float32),
            actions=np.random.default_rng(1).uniform(-1, 1, (count, 2)).astype(np.float32),
            rewards=(np.array(returns) / lengths)[ids].astype(np.float32),
            trajectory_ids=ids,
        )
        dataset = load_dataset(tmp_path / "data.npz")
        found = describe_returns(dataset, get_task("none"))
        assert apart == 0 or found["weighted"][-1]["effective_rows"] == pytest.approx(count)
        return advise(found, describe_coverage(dataset), None)[0].value

    assert advice([1500] * 4, [100, 90, 10, 0]) == "yes"
    assert advice([1500] * 4, [100, 99, 98, 97]) == "no"
    assert advice([1500] * 4, [7, 7, 7, 7]) == "no"
    assert advice([300, 1500, 1500], [100, 10, 0]) == "yes"  # of the others as many as a fifth of the rows need
    assert advice([1500] * 4, [100, 90, 10, 0], apart=1.0) == "no"  # the plug-in would weight nothing


def test_returns_of_any_size_are_told_apart(tmp_path: Path) -> None:
    arrays = sound_arrays()
    arrays["observations"][np.cumsum(LENGTHS) - LENGTHS] = 0
    arrays["rewards"] = arrays["rewards"] * np.float32(1e-6)
    np.savez(tmp_path / "data.npz", **arrays)
    dataset = load_dataset(tmp_path / "data.npz")
    weighting, *_ = advise(describe_returns(dataset, get_task("none")), describe_coverage(dataset), None)
    assert "e-0" in weighting.reason and " 0.0 " not in weighting.reason


def test_observations_of_different_scales_are_to_be_normalised(tmp_path: Path) -> None:
    arrays = sound_arrays()
    values = []
    for factor in (1.0, 50.0, 1e10):
        scale = np.array([1, 1, 1, 1, factor], np.float32)
        scaled = {name: arrays[name] * scale for name in ("observations", "next_observations")}
        np.savez(tmp_path / "data.npz", **arrays | scaled)
        dataset = load_dataset(tmp_path / "data.npz")
        (*_, setting) = advise(describe_returns(dataset, get_task("none")), describe_coverage(dataset), None)
        values.append(setting.value)
    assert values == ["no need", "yes", "yes"]
    assert re.search(r" is \d(\.\d+)?e\+\d+ times the smallest", setting.reason), setting.reason


# -- the probes


def curve(held_out: list[float]) -> CloningCurve:
    updates = [100 * 2**i for i in range(len(held_out))]
    return CloningCurve(updates, held_out, held_out, 1.0, 2, {"networks": "2 x 8"})


def test_when_to_stop_is_read_off_the_curve() -> None:
    rising = curve([0.5, 0.4, 0.41, 0.5])
    assert rising.overfits and rising.best == 200 and rising.stop == 400
    shaking = curve([0.5, 0.01, 0.011, 0.012])
    assert not shaking.overfits and shaking.best == 200
    falling = curve([0.5, 0.4, 0.3, 0.2])
    assert not falling.overfits and falling.stop == falling.best == 800


def test_a_probe_that_ended_early_claims_no_more_than_it_saw() -> None:
    assert _stop(curve([0.5])).reason.startswith("The held-out action error had not risen by update 100, where")


def test_no_advice_is_read_off_a_clone_that_learned_nothing() -> None:
    assert _stop(curve([1.3, 1.2, 1.25, 1.5])).value == "not known"  # a constant action has 1


def test_of_a_single_trajectory_the_end_is_held_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "one.npz", **{name: values[:60] for name, values in sound_arrays().items()})
    found = probe_cloning(load_dataset(tmp_path / "one.npz"), 2, 60, BCConfig(hidden_layers=1, hidden_width=8))
    assert found.held_out_trajectories == 0 and "its end is held out" in cloning_sentences(found)[-1]


def test_random_actions_are_overfitted_and_clear_ones_are_not(tmp_path: Path) -> None:
    small = BCConfig(hidden_layers=2, hidden_width=64, actor_lr=1e-2, batch_size=128)
    arrays = sound_arrays()
    arrays["observations"][:, :3] = np.arctanh(np.clip(arrays["actions"] / 0.9, -0.99, 0.99))  # no noise left
    np.savez(tmp_path / "clear.npz", **arrays | {"next_observations": arrays["observations"]})
    clear = probe_cloning(load_dataset(tmp_path / "clear.npz"), 150, 60, small)
    arrays["actions"] = np.random.default_rng(0).uniform(-1, 1, arrays["actions"].shape).astype(np.float32)
    few = {name: values[::5] for name, values in arrays.items()}
    np.savez(tmp_path / "noise.npz", **few | {"next_observations": few["observations"]})
    noise = probe_cloning(load_dataset(tmp_path / "noise.npz"), 250, 60, small)
    assert noise.overfits and noise.training[-1] < noise.held_out[-1]
    assert not clear.overfits and min(clear.held_out) < 0.3 * clear.mean_action


def test_the_critic_probe_finds_a_spectrum_and_clusters(file: Path) -> None:
    found = probe_critic(load_dataset(file), updates=20, width=16)
    values = found["spectrum"]["singular_values"]
    assert values == sorted(values, reverse=True)
    assert 1 <= found["spectrum"]["effective_rank"] <= found["spectrum"]["features"] == 8
    assert sum(cluster["share"] for cluster in found["clusters"]["clusters"]) == pytest.approx(1)
    listed = [t for cluster in found["clusters"]["clusters"] for t in cluster["trajectories"]]
    assert sorted(listed) == list(range(len(LENGTHS)))
