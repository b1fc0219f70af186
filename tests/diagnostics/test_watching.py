"""`c4rl watch`: a job as its folder shows it, growing, rewound, diverged or done."""

import io
import json
import os
import re
import time
from pathlib import Path

import pytest
from rich.console import Console

from c4rl.diagnostics.watching import Follower, JobView, render, sparkline
from c4rl.training.display import number
from tests.cli.support import SMALL, listing, run, save_npz
from tests.diagnostics.folders import make_folder


def shown(view: JobView, rows: int = 100) -> str:
    console = Console(file=io.StringIO(), width=150)
    console.print(render(view, rows))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_growing_file_is_read_once_and_in_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = Follower(path)
    assert follower.poll() == (False, [])
    path.write_text('{"a": 1}\n{"a": 2')
    assert follower.poll() == (True, [b'{"a": 1}'])
    with open(path, "a") as file:
        file.write('}\n{"a": 3}\n')
    assert follower.poll() == (False, [b'{"a": 2}', b'{"a": 3}'])
    assert follower.poll() == (False, [])
    path.with_name("new").write_text('{"a": 9}\n')
    path.with_name("new").replace(path)  # as a resumed job does
    assert follower.poll() == (True, [b'{"a": 9}'])


def test_a_running_job_gets_on(tmp_path: Path) -> None:
    job = make_folder(tmp_path / "job", updates=1000, lines=10, seeds=(0, 1))
    lines = (job / "metrics.jsonl").read_text().splitlines(keepends=True)
    (job / "metrics.jsonl").write_text("".join(lines[:20]))
    view = JobView(job)
    view.poll()
    assert view.update == 500 and "500 of 1,000 updates" in shown(view) and "training" in shown(view)
    assert view.speed() is None
    with open(job / "metrics.jsonl", "a") as file:
        file.writelines(lines[20:])
    view.poll()
    assert view.update == 1000 and (view.speed() or 0) > 0
    assert view.runs[1].scores == [float(step + 1) for step in range(1, 11)]
    assert "updates/s" in shown(view)


def test_the_time_left_is_that_of_the_updates_left(tmp_path: Path) -> None:
    view = JobView(make_folder(tmp_path / "job", updates=1000))
    view.poll()
    view.total, view._first = 4000, (time.monotonic() - 5000, 500)  # ten seconds an update
    left = re.search(r"([\d,]+) s left", shown(view))
    assert left is not None and float(left[1].replace(",", "")) == pytest.approx(30_000, rel=0.01)


def test_a_resumed_job_is_read_again(tmp_path: Path) -> None:
    job = make_folder(tmp_path / "job")
    view = JobView(job)
    view.poll()
    lines = (job / "metrics.jsonl").read_text().splitlines(keepends=True)
    (job / "metrics.jsonl").write_text("".join(lines[:4]))
    view.poll()
    assert view.update == 200 and len(view.runs[0].scores) == 2


def test_a_run_that_diverged_is_marked(tmp_path: Path) -> None:
    job = make_folder(tmp_path / "job")
    with open(job / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"update": 1100, "seed": 0, "critic_loss": "nan", "q": 1.0}) + "\n")
    view = JobView(job)
    view.poll()
    assert "diverged at 1,100" in shown(view)


def test_more_runs_than_lines_are_shown_by_setting_best_first(tmp_path: Path) -> None:
    rates = ",".join(map(str, range(1, 11)))
    view = JobView(make_folder(tmp_path / "job", seeds=(0, 1), sweep=(f"alpha={rates}",)))
    view.poll()
    text = shown(view, rows=6)
    assert text.index("alpha=10.0") < text.index("alpha=9.0") and "alpha=2.0" not in text
    assert "and 4 more, with lower scores" in text


def test_without_a_simulator_errors_are_called_errors(tmp_path: Path) -> None:
    rates = ",".join(map(str, range(1, 11)))
    job = make_folder(tmp_path / "job", sweep=(f"alpha={rates}",), task=("none",))
    metrics = job / "metrics.jsonl"
    lines = metrics.read_text().replace('"score"', '"held_out_action_rmse"').splitlines(keepends=True)
    metrics.write_text("".join(line for line in lines if "_rmse" not in line or '"alpha=9.0' not in line))
    view = JobView(job)
    view.poll()
    text = shown(view, rows=6)
    assert "action error" in text and "and 4 more, with larger errors" in text and "score" not in text
    assert text.index("alpha=1.0") < text.index("alpha=2.0") and "alpha=10.0" not in text
    assert "alpha=9.0" not in text, "one without any comes last"


@pytest.mark.parametrize("width", [40, 80])
def test_a_narrow_terminal_cuts_no_number(width: int, tmp_path: Path) -> None:
    view = JobView(make_folder(tmp_path / "job", seeds=(10, 11)))
    view.poll()
    console = Console(file=io.StringIO(), width=width)
    console.print(render(view, columns=width))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(f" {words} " in text for words in ("10", "11", "seed", "best"))
    assert " training " in text or " done " in text


def test_of_errors_the_least_is_the_best(tmp_path: Path) -> None:
    job = make_folder(tmp_path / "job", task=("none",))
    metrics = job / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"score"', '"held_out_action_rmse"'))  # from 1 to 10
    view = JobView(job)
    view.poll()
    assert f" {number(10)} │ {number(1)} " in " ".join(shown(view).split())


def test_sparklines() -> None:
    assert sparkline([0.0, 3.5, 7.0]) == "▁▅█"
    assert sparkline([2.0, 2.0]) == "▁▁" and sparkline([]) == ""
    assert sparkline([float("nan"), 1.0, 2.0]) == "▁█"


def test_without_a_terminal_it_prints_once_and_leaves_the_folder_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_folder(tmp_path / "job")
    before = listing(tmp_path)
    assert run("watch", job) == 0
    assert "1,000 of 1,000 updates" in capsys.readouterr().out
    assert listing(tmp_path) == before


@pytest.mark.parametrize(
    ("words", "expected"),
    [(["nowhere"], "no such folder"), (["JOB", "--every", "0"], "at least 0.1"), ([], "expected a path")],
)
def test_bad_input_is_one_sentence(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = make_folder(tmp_path / "job")
    assert run("watch", *(str(job) if word == "JOB" else word for word in words)) == 2
    error = capsys.readouterr().err
    assert expected in error and error.count("\n") == 1


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished job."""
    folder = tmp_path_factory.mktemp("sound")
    dataset = save_npz(folder / "data.npz")
    assert run("train", "--dataset", dataset, "--output", folder / "job", "--updates", "2", *SMALL) == 0
    return folder / "job"


SPOILED = {
    "foreign": b"hello\n",
    "not text": b"\xff\xfe\n",
    "deep": b"[" * 100_000 + b"\n",
    "null": b"null\n",
    "without update": b'{"seed": 0}\n',
    "update of another kind": b'{"update": "x", "seed": 0}\n',
    "another run": b'{"update": 1, "seed": 77}\n',
    "run of another kind": b'{"update": 1, "run": []}\n',
    "score of another kind": b'{"update": 1, "seed": 0, "score": [], "returns": [1]}\n',
}


@pytest.mark.parametrize("command", [["watch"], ["report", "--output", "page.html"], ["diagnose"], ["export"]])
@pytest.mark.parametrize("log", SPOILED)
def test_a_spoiled_log_is_refused(
    log: str, command: list[str], sound: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By every command that reads it, in the middle as well. Found by a tour of bad inputs."""
    monkeypatch.chdir(sound.parent)
    path = sound / "metrics.jsonl"
    whole = path.read_bytes()
    path.write_bytes(SPOILED[log] + whole)
    before = listing(sound.parent)
    assert run(command[0], sound, *command[1:]) == 2
    output, error = capsys.readouterr()
    assert str(path) in error and "expected" in error and error.count("\n") == 1 and output == ""
    assert listing(sound.parent) == before
    path.write_bytes(whole)


@pytest.mark.parametrize("command", [["watch"], ["report", "--output", "page.html"]])
@pytest.mark.parametrize("name", ["metrics.jsonl", "summary.json"])
def test_a_pipe_in_place_of_a_file_is_not_waited_for(
    name: str, command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = make_folder(tmp_path / "job")
    (job / name).unlink(missing_ok=True)
    os.mkfifo(job / name)
    assert run(command[0], job, *command[1:]) == 2
    assert f"{name}: not a regular file" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["null", "{", "[" * 100_000, "{}", '{"timing": {"total_seconds": "long"}}'])
def test_a_spoiled_summary_is_refused(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = make_folder(tmp_path / "job")
    (job / "summary.json").write_text(text)
    assert run("watch", job) == 2
    error = capsys.readouterr().err
    assert "summary.json" in error and "expected" in error and error.count("\n") == 1
