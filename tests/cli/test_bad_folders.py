"""Commands on a folder that is in order, or whose checkpoint is damaged: refused in one sentence, nothing changed."""

from pathlib import Path

import pytest
import torch

from c4rl.core.networks import StackedMLP
from tests.cli.support import SMALL, listing, logged_arrays, run, save_npz


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    data = save_npz(folder / "good.npz")
    flags = ["--dataset", data, "--task", "none", "--output", folder / "job", "--updates", "1", "--seeds", "4"]
    assert run("train", *flags, *SMALL) == 0
    return folder / "job"


class TestAFinishedJob:
    """What is wrong with commands on a folder that is in order."""

    @pytest.mark.parametrize(
        ("command", "fragments"),
        [
            (["train", "--dataset", "x.npz", "--task", "none", "--output", "JOB"], ["exists already", "--resume"]),
            (["evaluate", "JOB"], ["job", "was trained with --task none", "expected a task"]),
            (["evaluate", "JOB", "--json", "JOB/config.json"], ["--json", "config.json", "exists already"]),
            (["evaluate", "JOB", "--json", "JOB/no/where.json"], ["--json", "where.json", "is not a folder"]),
            (["export", "JOB", "--output", "JOB/config.json"], ["--output", "config.json", "exists already"]),
            (["export", "JOB", "--output", "JOB/no/where.npz"], ["--output", "where.npz", "is not a folder"]),
            (["export", "JOB", "--seed", "5"], ["job", "no run of seed 5", "expected one of [4]"]),
            (["export", "JOB", "--checkpoint", "best"], ["--checkpoint: found best, expected last"]),
        ],
        ids=lambda value: " ".join(value[:4]) if value[0] in ("train", "evaluate", "export") else "",
    )
    def test_is_left_as_it_is(
        self, job: Path, command: list[str], fragments: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = listing(job)
        assert run(*(word.replace("JOB", str(job)) for word in command)) == 2
        out, err = capsys.readouterr()
        assert out == "" and err.count("\n") == 1
        missing = [fragment for fragment in fragments if fragment not in err]
        assert not missing, f"{missing} not in: {err}"
        assert listing(job) == before

    @pytest.mark.parametrize("damage", ["truncated", "of another kind"])
    def test_with_a_damaged_checkpoint_is_not_resumed(
        self, job: Path, damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        copy = tmp_path / "copy"
        copy.mkdir()
        (copy / "config.json").write_bytes((job / "config.json").read_bytes())
        whole = (job / "checkpoint.safetensors").read_bytes()
        other = (job / "policy_last.safetensors").read_bytes()
        (copy / "checkpoint.safetensors").write_bytes(whole[:1000] if damage == "truncated" else other)
        assert run("train", "--resume", copy) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and "checkpoint.safetensors" in err and "expected" in err
        assert not (copy / "summary.json").exists()


def test_a_job_is_not_resumed_on_data_that_changed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = save_npz(tmp_path / "data.npz")
    flags = ["--dataset", data, "--task", "none", "--output", tmp_path / "job", "--updates", "2", "--seeds", "4"]
    assert run("train", *flags, *SMALL) == 0
    save_npz(data, rewards=logged_arrays()["rewards"] + 1)
    capsys.readouterr()
    assert run("train", "--resume", tmp_path / "job") == 2
    assert "data.npz: its bytes changed since the job began" in capsys.readouterr().err


def test_a_divergence_that_the_policy_cannot_have_is_refused_before_any_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = save_npz(tmp_path / "data.npz")
    flags = ["--dataset", data, "--task", "none", "--output", tmp_path / "job", "--plugins", "c4"]
    assert run("train", *flags, "--divergence", "kl", "--divergence-weight", "1") == 2
    error = capsys.readouterr().err
    assert "divergence 'kl'" in error and "a deterministic policy has none" in error
    assert not (tmp_path / "job").exists()


def test_networks_that_do_not_fit_into_memory_are_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def allocate(*_: object, **__: object) -> None:
        torch.empty(2**60)  # what networks of 100,000 units would ask for, on a machine that lends no more than it has

    monkeypatch.setattr(StackedMLP, "__init__", allocate)
    data = save_npz(tmp_path / "data.npz")
    assert run("train", "--dataset", data, "--task", "none", "--output", tmp_path / "job", *SMALL) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        "c4rl: found not enough memory to allocate 4611686018427387904 bytes, expected smaller networks"
    )
    assert err.count("\n") == 1
    assert not (tmp_path / "job").exists()
