"""What a node does with a launch, and what is refused before any cluster is asked; needs no Ray."""

import json
import sys
from pathlib import Path

import pytest

from c4rl.cli.train import config_of
from c4rl.jobs.config_file import to_json
from c4rl.training import ray_worker
from c4rl.training.ray_engine import RayOptions
from c4rl.training.run_directory import RunDirectory, job_config
from tests.cli.support import SMALL, run

FLAGS = ["--task", "none", "--algorithm", "bc", *SMALL, "--updates", "4", "--threads", "1", "--device", "cpu"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the first launch of a job."""
    monkeypatch.setattr(ray_worker, "_node", lambda: "node-7")
    launches = tmp_path / "job" / "launches"
    launches.mkdir(parents=True)
    (launches / ray_worker.TOKEN).write_text("token")
    return launches / "1"


def task(folder: Path, data: Path, token: str = "token", **versions: str) -> tuple[str, str]:
    config = config_of(["--dataset", str(data), *FLAGS, "--output", str(folder)])
    return ray_worker.train_part(to_json(config), {}, token, versions)


def test_a_launch_waits_for_a_lock_and_then_names_who_held_it_last(
    folder: Path, plain_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert task(folder, plain_data) == ("done", "")
    place = folder.with_name("1.json")
    assert json.loads(place.read_text())["node"] == "node-7"
    place.write_text(json.dumps(json.loads(place.read_text()) | {"node": "node-3", "pid": 55}))
    (folder / "summary.json").unlink()
    holder = RunDirectory(folder)  # on a node that is gone, as its storage sees it
    holder.reopen(job_config(folder))
    monkeypatch.setattr(ray_worker, "LOCK_SECONDS", 0)
    monkeypatch.setattr(ray_worker.time, "sleep", lambda seconds: None)
    state, sentence = task(folder, plain_data)
    assert state == "refused" and sentence.startswith("node-7: ")
    assert "in use by another c4rl process" in sentence and "last trained on node-3, process 55" in sentence
    monkeypatch.setattr(ray_worker, "LOCK_SECONDS", 60)
    monkeypatch.setattr(ray_worker.time, "sleep", lambda seconds: holder.close())  # it dies while we wait
    assert task(folder, plain_data) == ("done", "")
    assert json.loads(place.read_text())["attempt"] == 3


def test_a_folder_that_was_being_made_when_its_worker_died_is_made_again(folder: Path, plain_data: Path) -> None:
    folder.mkdir()
    (folder / ".lock").touch()
    assert task(folder, plain_data) == ("done", "")


def test_a_node_refuses_other_storage_and_other_versions(folder: Path, plain_data: Path) -> None:
    state, sentence = task(folder, plain_data, token="another")
    assert state == "refused" and "expected storage that all nodes share" in sentence
    state, sentence = task(folder, plain_data, numpy="1.0")
    assert state == "refused" and "found numpy" in sentence and "expected 1.0 as on the driver's" in sentence
    assert not folder.exists()


def test_without_ray_or_a_cluster_one_sentence_and_nothing_is_made(
    plain_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train = ["train", "--dataset", plain_data, *FLAGS, "--output", tmp_path / "job"]
    table = ["bench", "table", "overhead"]
    cases = [
        ([*train, "--num-gpus", "1"], "--num-gpus: found without --engine ray"),
        ([*train, "--retries", "2"], "--retries: found without --engine ray"),
        ([*table, "--engine", "ray"], "--engine: found ray, expected local: 'overhead' is a table of speed"),
    ]
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "ray", None)
        for words, sentence in [
            *cases,
            ([*train, "--engine", "ray"], "needs the package 'ray': pip install 'c4rl[ray]'"),
        ]:
            assert run(*words) == 2
            out, err = capsys.readouterr()
            assert out == "" and err.count("\n") == 1 and sentence in err, err
    assert not (tmp_path / "job").exists()


def test_the_command_that_goes_on_names_the_cluster_and_the_gpus() -> None:
    folder, command = Path("runs/my job"), "c4rl train --resume 'runs/my job' --engine ray"
    assert RayOptions().how_to_resume(folder) == command
    assert RayOptions("head:6379", 0.5).how_to_resume(folder) == f"{command} --address head:6379 --num-gpus 0.5"
