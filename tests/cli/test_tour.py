"""What a tour of some thousands of bad inputs found on the command line, each as a test of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from c4rl.cli.main import COMMANDS
from c4rl.results.policies import export_policy
from tests.cli.support import SMALL, listing, run, save_npz

NOT_UTF8 = "\udcff"  # a byte of a file's name, as Python shows it


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tour")
    dataset = save_npz(folder / "data.npz")
    assert run("train", "--dataset", dataset, "--output", folder / "job", "--updates", "2", *SMALL) == 0
    return folder / "job"


REFUSED = {
    "export into the working folder": (["export", "JOB", "--output", "."], "--output .: exists already"),
    "export into the root": (["export", "JOB", "--output", "/"], "--output /: exists already"),
    "export to no name": (["export", "JOB", "--output", ""], "exists already"),
    "a report of a loop of links": (["report", "loop", "--output", "page.html"], "loop: no such folder"),
    "a page that is a device": (["bench", "pages", "/dev/zero"], "/dev/zero: not a regular file"),
    "a page that is no text": (["bench", "pages", "data.npz"], "data.npz: not UTF-8"),
    "a page that is not there": (["bench", "pages", "a\nb"], "a\\nb: no such file"),
    "a page with half a command": (["bench", "pages", "page.md"], "No closing quotation"),
    "speed of no algorithm": (["bench", "speed", "--algorithms", "ppo"], "--algorithms: found 'ppo'"),
    "speed of nothing": (["bench", "speed", "--algorithms"], "--algorithms: found none"),
    "speed to nowhere": (["bench", "speed", "--json", "no/where"], "'no' is not a folder"),
    "an empty run": (["clusters", "JOB", "--run", ""], "found no run ''"),
    "more clusters than rows": (["clusters", "JOB", "--K", "900", "--size", "20"], "--K: found 900, expected at most"),
    "methods of the index": (["table", "index", "--methods", "x"], "--methods: found with table index"),
    "a store that is not there": (["table", "index", "--store", "nowhere"], "nowhere: no such folder"),
    "none and a plug-in": (
        ["train", "--dataset", "data.npz", "--output", "new", "--plugins", "none", "c4"],
        "--plugins: found none c4, expected plug-ins, or none alone",
    ),
    "one CPU of several": (
        ["train", "--dataset", "data.npz", "--output", "new", "--device", "cpu:1"],
        "--device: found 'cpu:1', expected auto, cpu, cuda or cuda:N",
    ),
    "a config that the system does not read": (
        ["train", "--config", "/proc/self/mem", "--output", "new"],
        "/proc/self/mem: cannot be read",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_in_one_sentence(
    name: str, job: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, sentence = REFUSED[name]
    if words[2:3] and not Path(words[2]).exists() and words[2].startswith(("/dev", "/proc")):
        pytest.skip(f"no {words[2]} here")
    monkeypatch.chdir(job.parent)
    if not os.path.lexists("loop"):
        Path("loop").symlink_to("loop")
        Path("page.md").write_text("<!-- c4rl table 'main -->\n<!-- end -->\n")
    before = listing(job.parent)
    assert run(*(job if word == "JOB" else word for word in words)) == 2
    output, error = capsys.readouterr()
    assert error.startswith("c4rl: ") and error.count("\n") == 1 and error[:-1].isprintable() and output == "", error
    assert sentence in error, error
    assert listing(job.parent) == before


def c4rl(*words: object, **how: object) -> "subprocess.CompletedProcess[str]":
    streams = {"stderr": subprocess.PIPE} | how
    return subprocess.run([sys.executable, "-m", "c4rl", *map(str, words)], text=True, **streams)  # type: ignore[call-overload, no-any-return]


def test_names_that_are_no_utf8_can_be_written(job: Path, tmp_path: Path) -> None:
    written, _ = export_policy(job, "last", None, tmp_path / f"{NOT_UTF8}.npz")
    assert [path.name for path in written] == [f"{NOT_UTF8}.npz", f"{NOT_UTF8}.npz.md"]
    assert "\\udcff.npz" in written[1].read_text()


def test_names_that_are_no_utf8_can_be_printed(tmp_path: Path) -> None:
    found = c4rl("data", "fetch", "hopper-medium-v2", "--output", NOT_UTF8, cwd=tmp_path, stdout=subprocess.PIPE)
    assert found.returncode == 0 and found.stderr == "" and "--dataset \\udcff" in found.stdout


def test_a_terminal_without_unicode_gets_the_output() -> None:
    found = c4rl("tasks", stdout=subprocess.PIPE, env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert found.returncode == 0 and found.stderr == "" and "hopper-medium-v2" in found.stdout


@pytest.mark.parametrize("line", ["tasks >&-", "tasks --help >&-", "--help | head -1", "tasks --help | head -1"])
def test_output_that_nobody_reads_is_no_error(line: str) -> None:
    found = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{sys.executable} -m c4rl {line}"], capture_output=True, text=True
    )
    assert found.returncode == 0 and found.stderr == ""


def test_a_job_whose_output_nobody_reads_is_not_done(job: Path, tmp_path: Path) -> None:
    line = f"{sys.executable} -m c4rl train --config {job} --updates 99999 --output {tmp_path}/job | head -1"
    found = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True)
    sentence = "nobody reads the output any more: left as of the last checkpoint; continue with: c4rl train --resume"
    assert (found.returncode, found.stderr) == (130, f"c4rl: {sentence} {tmp_path}/job\n")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("words", [["tasks"], ["--version"]])
def test_output_that_cannot_be_written_is_one_sentence(words: list[str]) -> None:
    with open("/dev/full", "w") as full:
        found = c4rl(*words, stdout=full)
    assert found.returncode == 2 and found.stderr.count("\n") == 1 and "No space left on device" in found.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_refusal_that_nobody_can_read_keeps_its_exit_code() -> None:
    with open("/dev/full", "w") as full:
        assert c4rl("nope", stderr=full).returncode == 2


def test_an_interruption_while_modules_load_is_no_traceback(tmp_path: Path) -> None:
    """NumPy makes an ImportError of it."""
    (tmp_path / "onnx.py").write_text(
        "import os, signal\n"
        "try:\n    os.kill(os.getpid(), signal.SIGINT)\n"
        "except KeyboardInterrupt:\n    raise ImportError('broken') from None\n"
    )
    start = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # ignored in the background
    start += "from c4rl.cli import main; main.COMMANDS['tasks'] = lambda words: __import__('onnx'); main.command_line()"
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    found = subprocess.run(
        [sys.executable, "-c", start, "tasks"], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path}
    )
    assert found.returncode == 130 and found.stderr == "c4rl: interrupted\n"


def test_an_interrupted_command_says_so_with_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(arguments: list[str]) -> int:
        raise KeyboardInterrupt

    monkeypatch.setitem(COMMANDS, "tasks", interrupted)
    assert run("tasks") == 130
    assert capsys.readouterr().err == "c4rl: interrupted\n"
