"""`c4rl data info` and `c4rl train` see the same data, and say what they see."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.training import evaluation
from c4rl.training.evaluation import HeldOutEvaluation
from c4rl.training.launch import Launch
from tests.cli.support import SMALL, logged_arrays, metric_lines, run, save_npz, summary

Capture = pytest.CaptureFixture[str]


def train(folder: Path, dataset: Path, *flags: object, task: str = "none") -> int:
    base = ["train", "--dataset", dataset, "--task", task, "--output", folder / "job", "--updates", "4"]
    return run(*base, *SMALL, *flags)


def one_long_log(folder: Path) -> Path:
    return save_npz(folder / "log.npz", timeouts=None, terminals=None, next_observations=None)


def pendulum(folder: Path, largest: float) -> Path:
    """Rows of Pendulum-v1's shape, whose torques go from -2 to 2."""
    actions = np.linspace(-largest, largest, 240, dtype=np.float32)[:, None]
    return save_npz(folder / "p.npz", **logged_arrays(observation_dim=3) | {"actions": actions})


def test_both_commands_use_the_bounds_of_the_task(tmp_path: Path, capsys: Capture) -> None:
    good = pendulum(tmp_path, 2.0)
    assert run("data", "info", good, "--task", "gym:Pendulum-v1", "--json") == 0
    assert json.loads(capsys.readouterr().out)["action_high"] == [2.0]
    assert train(tmp_path, good, "--eval-episodes", "1", task="gym:Pendulum-v1") == 0
    capsys.readouterr()
    sentences = []
    for largest, bounds in ((2.5, []), (2.0, ["--action-high", "1.5"])):  # a bound that is given wins, for its side
        bad = pendulum(tmp_path, largest)
        assert run("data", "info", bad, "--task", "gym:Pendulum-v1", *bounds) == 2
        sentences.append(capsys.readouterr().err)
        assert train(tmp_path, bad, *bounds, "--output", tmp_path / "other", task="gym:Pendulum-v1") == 2
        assert capsys.readouterr().err == sentences[-1]
    assert "bounded by [-2, 2]" in sentences[0] and "bounded by [-2, 1.5]" in sentences[1]


def test_training_repeats_the_notes_and_warnings_of_data_info(tmp_path: Path, capsys: Capture) -> None:
    path = save_npz(tmp_path / "d.npz", rewards=np.zeros(240), torque=np.zeros(240), terminals=None)
    assert run("data", "info", path, "--json") == 0
    described = json.loads(capsys.readouterr().out)
    assert any("All rewards are 0" in warning for warning in described["warnings"])
    for word in ("torque", "'terminals'"):
        assert any(word in note for note in described["notes"])
    assert train(tmp_path, path) == 0
    out = capsys.readouterr().out
    for kind in ("note", "warning"):
        for sentence in described[f"{kind}s"]:
            assert out.count(f"{kind}: {path}: {sentence}\n") == 1


def test_a_kind_of_subset_without_a_size_is_said_to_do_nothing(tmp_path: Path, capsys: Capture) -> None:
    assert train(tmp_path, save_npz(tmp_path / "d.npz"), "--subset", "narrow") == 0
    assert "note: --subset narrow does nothing without --size\n" in capsys.readouterr().out


def test_training_on_good_data_warns_of_nothing(tmp_path: Path, capsys: Capture) -> None:
    rows = logged_arrays()["observations"]
    following = np.concatenate([rows[1:], rows[:1] + 1])
    assert train(tmp_path, save_npz(tmp_path / "d.npz", next_observations=following)) == 0
    assert "warning" not in capsys.readouterr().out


def test_one_long_log_trains_without_a_simulator(tmp_path: Path, capsys: Capture) -> None:
    assert train(tmp_path, one_long_log(tmp_path), "--hold-out", "0.25") == 0
    result = summary(tmp_path / "job")
    assert result["dataset"]["file_rows"] == 239 and result["dataset"]["rows"] == 179  # the last has no successor
    assert np.isfinite(result["last"]["held_out_td_rmse"]).all()


def test_nothing_need_be_held_out(tmp_path: Path, capsys: Capture) -> None:
    path = one_long_log(tmp_path)
    assert train(tmp_path, path, "--hold-out", "0") == 0
    out, result = capsys.readouterr().out, summary(tmp_path / "job")
    assert result["dataset"]["rows"] == 239 and result["last"].keys() == {"training_td_rmse", "training_action_rmse"}
    assert "of the rows trained on" in out and "held out" not in out
    lines = metric_lines(tmp_path / "job")
    assert run("train", "--resume", tmp_path / "job") == 0
    assert summary(tmp_path / "job")["last"] == result["last"] and metric_lines(tmp_path / "job") == lines


def test_of_many_training_rows_a_fixed_sample_is_evaluated(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluation, "MOST_TRAINING_ROWS", 100)
    seen, chunk = [], HeldOutEvaluation._chunk

    def counted(launch: Launch, batch: Batch, inside: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(batch.observations)
        return chunk(launch, batch, inside)

    monkeypatch.setattr(HeldOutEvaluation, "_chunk", staticmethod(counted))
    assert train(tmp_path, one_long_log(tmp_path), "--hold-out", "0", "--updates", "2", "--eval-every", "1") == 0
    assert "of the rows trained on (a fixed sample of 100)" in capsys.readouterr().out
    first, *others = seen
    assert first.shape[1] == 100 == len(first[0].unique(dim=0))
    assert others and all(torch.equal(first, other) for other in others)


def test_a_sample_of_rows_keeps_each_datasets_own() -> None:
    packed = torch.arange(30.0).unsqueeze(1)
    buffer = TransitionBuffer(packed, torch.zeros(30, dtype=torch.int32), (1, 1), [4, 20, 6])
    sample = buffer.sample(5)
    assert sample.dataset_lengths == [4, 5, 5]
    rows = sample.packed[:, 0]
    assert rows[:4].tolist() == [0, 1, 2, 3]
    assert len(rows.unique()) == 14 and (rows[4:9] >= 4).all() and (rows[4:9] < 24).all() and (rows[9:] >= 24).all()
    assert buffer.sample(20) is buffer
    alone = TransitionBuffer(packed[4:24], torch.zeros(20, dtype=torch.int32), (1, 1), [20])
    assert torch.equal(alone.sample(5).packed[:, 0], rows[4:9]), "whatever the other datasets are"


def test_held_out_numbers_are_explained_where_they_are_printed(tmp_path: Path, capsys: Capture) -> None:
    """What each one is, its unit, and what is good: the numbers to compare with are those of the held-out rows."""
    path = one_long_log(tmp_path)
    assert train(tmp_path, path, "--hold-out", "0.25", "--action-low", "-2", "--action-high", "2") == 0
    out, arrays = capsys.readouterr().out, logged_arrays()
    actions, rewards = arrays["actions"][179:239] / 2, arrays["rewards"][179:239]
    mean_action = np.sqrt(((actions - actions.mean(0)) ** 2).mean())
    assert "where each action's bounds count as -1 and 1. 0 repeats them; always playing their mean gives " in out
    assert f"gives {mean_action:.4g}." in out
    assert "in units of the training rewards. 0 fits perfectly" in out
    assert f"a critic that answers 0 gives {np.sqrt((rewards**2).mean()):.4g}." in out


def test_a_policy_without_a_critic_has_one_number_explained(tmp_path: Path, capsys: Capture) -> None:
    assert train(tmp_path, save_npz(tmp_path / "d.npz"), "--algorithm", "bc") == 0
    out = capsys.readouterr().out
    assert "held out action rmse: The policy's" in out and "td rmse" not in out
