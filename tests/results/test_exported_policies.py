"""Policies out: ONNX models that act as NumPy's policies do, with their facts inside and a model card beside them."""

import io
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import c4rl
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.core.onnx_policy import onnx_bytes
from c4rl.training.distillation import distil
from tests.cli.support import SMALL, logged_arrays, run, save_npz

onnx = pytest.importorskip("onnx", reason="writing ONNX needs the package onnx")
runtime = pytest.importorskip("onnxruntime", reason="running ONNX models needs the package onnxruntime")


def session(model: bytes | Path) -> Any:
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    content = model if isinstance(model, bytes) else model.read_bytes()
    return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])


def some_policy(seed: int, squash: str = "tanh", layer_norm: bool = False) -> NumpyPolicy:
    """Wide enough a head that actions reach their bounds, which differ."""
    random = np.random.default_rng(seed)
    sizes = [(5, 32), (32, 32), (32, 3)]
    return NumpyPolicy(
        weights=tuple(random.normal(0, 2 * i**-0.5, (i, o)).astype(np.float32) for i, o in sizes),
        biases=tuple(random.normal(0, 0.3, o).astype(np.float32) for _, o in sizes),
        observation_mean=np.array([0, 1, -2, 30, 4], np.float32),
        observation_std=np.array([1, 0.1, 3, 20, 1], np.float32),
        action_low=np.array([-1, 0, -3], np.float32),
        action_high=np.array([1, 40, -0.8], np.float32),
        squash=squash,
        gains=tuple(random.uniform(0.2, 1, 32).astype(np.float32) for _ in range(2 * layer_norm)),
        shifts=tuple(random.normal(0, 0.3, 32).astype(np.float32) for _ in range(2 * layer_norm)),
    )


@pytest.mark.parametrize(("squash", "layer_norm"), [("tanh", False), ("clip", False), ("tanh", True)])
@pytest.mark.parametrize("members", [1, 3])
def test_onnx_actions_equal_numpys_at_any_batch(squash: str, layer_norm: bool, members: int) -> None:
    policies = [some_policy(seed, squash, layer_norm) for seed in range(members)]
    policy = NumpyPolicy.ensemble(policies) if members > 1 else policies[0]
    model = session(onnx_bytes(policy, {"task": "none"}))
    span, spread = policy.action_high - policy.action_low, []
    for batch in (1, 7, 1024):
        random = np.random.default_rng(batch)
        noise = random.normal(size=(batch, 5)).astype(np.float32)
        observations = policy.observation_mean + policy.observation_std * noise
        (actions,) = model.run(None, {"observation": observations})
        expected = policy.act(observations)
        assert actions.dtype == np.float32 and actions.shape == (batch, 3)
        assert (actions <= policy.action_high).all()  # in float32, -3 + (-0.8 - -3) is above -0.8
        assert (expected <= policy.action_high).all()
        assert np.all(np.abs(actions - expected) <= 1e-6 * span)
        spread.append(np.ptp(expected, axis=0) / span)
    assert np.all(spread[-1] > 0.3)  # the actions compared are not all at one bound


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exports")
    data = save_npz(folder / "logs.npz")
    flags = ["--updates", "40", "--eval-every", "20", "--actor-lr", "1e-3", "--seeds", "3", "5"]
    command = ["train", "--algorithm", "td3_bc", "--task", "none", "--dataset", data, "--output", folder / "job"]
    assert run(*command, *flags, "--actor-layer-norm", *SMALL) == 0
    return folder / "job"


def test_an_exported_model_acts_as_the_policy_on_logged_rows_and_carries_its_facts(job: Path, tmp_path: Path) -> None:
    observations = logged_arrays()["observations"]
    summary = json.loads((job / "summary.json").read_text())
    for flags, policy in (
        (["--seed", "5"], c4rl.load_policy(job, seed=5)),
        (["--ensemble"], c4rl.load_policy(job, ensemble=True)),
    ):
        output = tmp_path / f"{flags[0]}.onnx"
        assert run("export", job, "--format", "onnx", "--output", output, *flags) == 0
        model = session(output)
        (actions,) = model.run(None, {"observation": observations})
        assert np.abs(actions - policy.act(observations)).max() <= 2e-6  # of a range of 2
        facts = model.get_modelmeta().custom_metadata_map
        assert facts["task"] == "none" and facts["dataset_sha256"] == summary["dataset"]["sha256"]
        assert json.loads(facts["trained_with"]) == summary["versions"]
        assert facts["seeds"] == ("3 5" if flags == ["--ensemble"] else "5")
    single = session(tmp_path / "--seed.onnx").get_modelmeta().custom_metadata_map
    assert float(single["held_out_action_rmse"]) == summary["last"]["held_out_action_rmse"][1]
    assert single["update"] == "40"


def test_the_card_of_an_unfinished_job_tells_the_updates_of_the_policy(job: Path, tmp_path: Path) -> None:
    unfinished = shutil.copytree(job, tmp_path / "job")
    (unfinished / "summary.json").unlink()
    config = (unfinished / "config.json").read_text()
    (unfinished / "config.json").write_text(config.replace('"updates": 40', '"updates": 1000'))
    for folder, updates in ((job, "40"), (unfinished, "40 of 1,000; the job has not finished")):
        output = tmp_path / f"{len(updates)}.npz"
        assert run("export", folder, "--seed", "5", "--output", output) == 0
        assert f"| updates | {updates} |" in output.with_name(f"{output.name}.md").read_text()


@pytest.mark.parametrize(("flag", "chosen"), [("--seed=5", {"seed": 5}), ("--ensemble", {"ensemble": True})])
def test_an_exported_file_is_loaded_as_its_folder_is(
    flag: str, chosen: dict[str, Any], job: Path, tmp_path: Path
) -> None:
    file = tmp_path / "policy.npz"
    assert run("export", job, flag, "--output", file) == 0
    observations = logged_arrays()["observations"]
    expected = c4rl.load_policy(job, **chosen).act(observations)
    np.testing.assert_array_equal(c4rl.load_policy(file).act(observations), expected)
    with pytest.raises(c4rl.InputError, match="found a file, whose policy was chosen when it was exported"):
        c4rl.load_policy(file, **chosen)


def test_the_model_card_tells_data_method_seeds_held_out_numbers_and_limits(job: Path, tmp_path: Path) -> None:
    assert run("export", job, "--seed", "3", "--output", tmp_path / "policy.npz") == 0
    text = (tmp_path / "policy.npz.md").read_text()
    summary = json.loads((job / "summary.json").read_text())
    assert text.startswith("# td3_bc on logs.npz")
    assert f"`{summary['dataset']['sha256']}`" in text and f"| rows trained on | {summary['dataset']['rows']} |" in text
    assert "| seeds trained | 3, 5 |" in text
    errors = summary["last"]["held_out_action_rmse"]
    row = next(line for line in text.splitlines() if line.startswith("| held out action rmse"))
    assert f"| {errors[0]:.4g} | {np.mean(errors):.4g} |" in row
    assert f"{summary['dataset']['mean_action_rmse']:.4g} for the mean action" in row
    assert "Never run in a simulator" in text and "/" not in text.split("## Method")[0].replace("n/a", "")


def test_evaluations_that_do_not_go_together_are_refused(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(job, tmp_path / "job")
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    lines[-1] = lines[-1].replace("held_out_action_rmse", "other_rmse")
    (copy / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    assert run("export", copy, "--output", tmp_path / "policy.npz") == 2
    assert "metrics.jsonl: found evaluations with " in capsys.readouterr().err
    assert not (tmp_path / "policy.npz").exists()


def test_a_policy_that_has_no_evaluation_yet_is_not_given_an_earlier_ones(job: Path, tmp_path: Path) -> None:
    """Killed after an evaluation, a resumed job has the policies of that update and the log of its checkpoint."""
    copy = shutil.copytree(job, tmp_path / "job")
    (copy / "summary.json").unlink()
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    (copy / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines if json.loads(line)["update"] <= 20))
    assert run("export", copy, "--seed", "5", "--format", "onnx", "--output", tmp_path / "p.onnx") == 0
    facts = session(tmp_path / "p.onnx").get_modelmeta().custom_metadata_map
    assert facts["update"] == "40" and "held_out_action_rmse" not in facts
    assert "| held out action rmse | - |" in (tmp_path / "p.onnx.md").read_text()


def test_one_policy_that_was_distilled_is_not_given_its_teachers_errors(job: Path, tmp_path: Path) -> None:
    single = tmp_path / "job"
    command = ["train", "--algorithm", "bc", "--task", "none", "--dataset", job.parent / "logs.npz", "--output", single]
    assert run(*command, "--updates", "2", *SMALL) == 0
    flags = ["--ensemble", "--distil", "2", "--format", "onnx", "--output", tmp_path / "p.onnx"]
    assert run("export", single, *flags) == 0
    facts = session(tmp_path / "p.onnx").get_modelmeta().custom_metadata_map
    assert "distilled_updates" in facts and "held_out_action_rmse" not in facts


def test_scores_of_the_card_come_with_intervals_over_seeds() -> None:
    from c4rl.jobs.config import empty_config
    from c4rl.jobs.runs import Run
    from c4rl.results.model_card import card
    from c4rl.results.provenance import Provenance

    runs = tuple(Run(seed, seed) for seed in range(3))
    scores = {0: [90.0, 10.0], 1: [20.0, 20.0], 2: [30.0, 30.0]}
    records: Any = {
        seed: [{"seed": seed, "update": 100 * i, "score": s, "returns": [s]} for i, s in enumerate(own, 1)]
        for seed, own in scores.items()
    }
    where = {"dataset": Path("x/hopper.npz"), "task": "hopper-medium-v2", "output": Path("job")}
    config = empty_config("td3_bc", ("none",), **where)
    found = Provenance(config, runs[:1], runs, {2: "nan"}, "best", {0: 100, 1: 100, 2: 100}, records, "00", {})
    text = card(found, some_policy(0), "p.npz")
    assert "| seed_0, update 100 | 90.0 | - | its own |" in text  # the best of its evaluations, as asked for
    assert "| last evaluation of every seed | 20.0 | -4.8 to 44.8 | 3 |" in text  # 20 +- 4.303 * 10 / sqrt(3)
    assert "| best evaluation of every seed (chosen with the simulator) | 46.7 |" in text
    assert "biased upwards" in text and "failed: seed_2" in text


def test_nothing_is_written_where_a_policy_or_its_card_would_be_overwritten(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.onnx.md").write_text("mine")
    assert run("export", job, "--format", "onnx", "--output", tmp_path / "p.onnx") == 2
    assert "p.onnx.md: exists already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["p.onnx.md"]
    assert run("export", job, "--format", "onxx") == 2
    assert "--format: found 'onxx'" in capsys.readouterr().err


def test_the_npz_still_holds_the_policy(job: Path, tmp_path: Path) -> None:
    assert run("export", job, "--ensemble", "--output", tmp_path / "p.npz") == 0
    with np.load(io.BytesIO((tmp_path / "p.npz").read_bytes()), allow_pickle=False) as arrays:
        policy = NumpyPolicy.from_arrays(arrays)
        assert set(arrays) == policy.arrays().keys()  # NumPy 2.0 would store `allow_pickle` with them
    observations = logged_arrays()["observations"]
    np.testing.assert_array_equal(policy.act(observations), c4rl.load_policy(job, ensemble=True).act(observations))
    assert "| its members |" in (tmp_path / "p.npz.md").read_text()  # their errors: the ensemble's was not measured


def test_a_distilled_network_acts_as_the_ensemble_on_and_beside_the_rows(job: Path, tmp_path: Path) -> None:
    ensemble, single = c4rl.load_policy(job, ensemble=True), c4rl.load_policy(job)
    observations = logged_arrays()["observations"]
    output = tmp_path / "one.npz"
    assert run("export", job, "--ensemble", "--distil", "1500", "--output", output) == 0
    one = NumpyPolicy.from_arrays(np.load(output, allow_pickle=False))
    assert one.weights[0].shape == single.weights[0].shape
    beside = observations + 0.1 * observations.std(0) * np.random.default_rng(0).normal(size=observations.shape)
    half = (one.action_high - one.action_low) / 2
    for states in (observations, beside.astype(np.float32)):
        away, other = (
            np.sqrt(np.mean(((policy.act(states) - ensemble.act(states)) / half) ** 2)) for policy in (one, single)
        )
        assert away < 0.02 < other
    page = (tmp_path / "one.npz.md").read_text()
    assert "The mean action of 2 policies, seeds 3, 5, last checkpoint, distilled into one network in 1,500" in page
    assert "it was not scored" in page


def test_a_dataset_whose_name_is_not_utf_8_may_stand_in_the_facts() -> None:
    model = session(onnx_bytes(some_policy(0), {"dataset": os.fsdecode(b"lo\xffgs.npz")}))
    assert model.get_modelmeta().custom_metadata_map == {"dataset": r"lo\udcffgs.npz"}


def test_distilling_reads_the_data_with_the_bounds_of_training(tmp_path: Path) -> None:
    """One of them is the environment's, which is not made again."""
    logged = logged_arrays(observation_dim=3)
    logged["actions"] = np.linspace(1.3, 1.9, len(logged["rewards"]), dtype=np.float32)[:, None]
    data, job = save_npz(tmp_path / "logs.npz", **logged), tmp_path / "job"
    how = ["--task", "gym:Pendulum-v1", "--action-low", "1.2", "--updates", "2", "--eval-episodes", "1", *SMALL]
    assert run("train", "--algorithm", "bc", "--dataset", data, "--output", job, *how, "--seeds", "0", "1") == 0
    assert run("export", job, "--ensemble", "--distil", "2", "--output", tmp_path / "one.npz") == 0
    one = NumpyPolicy.from_arrays(np.load(tmp_path / "one.npz", allow_pickle=False))
    assert (one.action_low.tolist(), one.action_high.tolist()) == ([np.float32(1.2)], [2.0])


def test_the_distance_of_a_distilled_network_is_that_of_its_actions() -> None:
    ensemble = NumpyPolicy.ensemble([some_policy(seed, "clip", layer_norm=True) for seed in range(2)])
    noise = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    observations = ensemble.observation_mean + ensemble.observation_std * noise
    first, again, far = (distil(ensemble, observations, 50, noise) for noise in (0.1, 0.1, 1.0))
    share = (first.policy.act(observations) - ensemble.act(observations)) / (ensemble.action_high - ensemble.action_low)
    assert first.distance == pytest.approx(np.sqrt(np.mean(share**2)), rel=1e-4) and first.policy.misfit() is None
    assert first.distance == again.distance != far.distance


def test_distilling_refuses_one_policy_and_other_data(job: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert run("export", job, "--distil", "10", "--output", tmp_path / "a.npz") == 2
    assert "--distil: found 10 without --ensemble, expected both" in capsys.readouterr().err
    data, kept = job.parent / "logs.npz", (job.parent / "logs.npz").read_bytes()
    save_npz(data, rewards=logged_arrays()["rewards"] + 1)
    try:
        assert run("export", job, "--ensemble", "--distil", "10", "--output", tmp_path / "a.npz") == 2
    finally:
        data.write_bytes(kept)
    assert "its sha256 is" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("kind", "name"), [("npz", "policy.onnx"), ("onnx", "policy.npz")])
def test_a_name_of_the_other_format_is_refused(
    kind: str, name: str, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("export", job, "--format", kind, "--output", tmp_path / name) == 2
    assert f"found '{name}' with --format {kind}, expected a name that ends in .{kind}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
