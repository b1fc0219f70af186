"""`c4rl demo`, made small: what it prints is what it stored, and it draws what it says."""

import os
import re
import signal
from pathlib import Path

import pytest
from matplotlib.image import imread

from tests.cli.support import run, summary
from tests.training.jobs import at_update

SMALL = ["--size", "600", "--updates", "20", "--episodes", "2", "--seeds", "0", "1"]


def test_the_table_and_the_picture_are_those_of_the_stored_jobs(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    folder = tmp_path / "demo[b]"  # which is no markup
    assert run("demo", *SMALL, "--output", folder) == 0
    printed = capsys.readouterr().out
    jobs = sorted(path.parent for path in folder.glob("*/summary.json"))
    assert len(jobs) >= 2
    for job in jobs:
        last = summary(job)["last"]
        cells = [f"{last['mean']:.1f}", f"{last['std']:.1f}", *(f"{score:.1f}" for score in last["scores"])]
        assert re.search(r"│\s*".join(map(re.escape, cells)).replace("│", r"\s*│"), printed), job.name
    picture = imread(folder / "maze.png")
    assert min(picture.shape[:2]) > 200 and picture.std() > 0.05, "a picture of some size, not blank"
    assert str(folder / "maze.png") in printed.replace("\n", "")
    page = (folder / "report.html").read_text("utf-8")
    assert str(folder / "report.html") in printed.replace("\n", "")
    assert "data:image/png;base64," in page and "Inside the critic" in page
    assert all(job.name in page for job in jobs) and len(page) < 3e6


def test_interrupted_it_says_how_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    at_update(monkeypatch, 2, lambda launch: os.kill(os.getpid(), signal.SIGINT))
    assert run("demo", *SMALL, "--output", tmp_path / "demo") == 130
    advice = f"interrupted: saved at update 2 of 4; continue with: c4rl train --resume {tmp_path}/demo/cloning"
    assert capsys.readouterr().err == f"c4rl: {advice}\n"


def test_a_second_demo_leaves_the_first_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "demo").mkdir(parents=True)
    small = ["--size", "300", "--updates", "4", "--episodes", "1", "--seeds", "0"]
    assert run("demo", *small) == 0
    assert not any((tmp_path / "runs" / "demo").iterdir())
    assert (tmp_path / "runs" / "demo-2" / "maze.png").exists()
    capsys.readouterr()
    assert run("demo", *small, "--output", tmp_path / "runs" / "demo-2") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "flags", [("--task", "hopper-medium-v2"), ("--task", "no-such-task"), ("--updates", "0"), ("--episodes", "0")]
)
def test_bad_flags_are_refused_before_anything_is_written(
    flags: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert run("demo", *flags, "--output", tmp_path / "demo") == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
    assert not (tmp_path / "demo").exists()
