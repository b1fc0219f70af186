"""A live table for people at a terminal, plain lines for everything else."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.support import SMALL, run, save_npz


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    data = save_npz(tmp_path / "plain.npz")
    flags = ["--dataset", data, "--task", "none", "--updates", "60", "--eval-every", "30", "--log-every", "10"]
    return [str(word) for word in ("train", *flags, *SMALL, "--seeds", "3", "8", "--output", tmp_path / "job")]


def test_a_terminal_shows_a_live_table(command: list[str]) -> None:
    ours, theirs = pty.openpty()
    environment = os.environ | {"TERM": "xterm-256color", "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "FORCE_COLOR"):
        environment.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-m", "c4rl", *command], stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # Linux: the other end is closed
        pass
    os.close(ours)
    assert process.wait() == 0
    text = shown.decode()
    assert "\x1b[1A" in text and "\x1b[2K" in text  # drawn over itself
    final = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    for fragment in ("td3_bc on none", "seed", "critic loss", "held out td rmse", "training", "60/60", "left"):
        assert fragment in final
    assert re.search(r"\b3 ", final) and re.search(r"\b8 ", final)
    assert "update 30/60" not in final
    assert "held out td rmse per seed" in final
    assert "\x1b[?25h" in text  # the cursor is back


def test_elsewhere_there_are_plain_lines(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*command) == 0
    out, err = capsys.readouterr()
    assert err == "" and "\x1b" not in out
    lines = out.splitlines()
    assert lines[0].startswith("td3_bc on none, ") and lines[0].endswith("rows, cpu")
    assert lines[1].startswith("update 10/60  critic_loss ")
    evaluations = [line for line in lines if "held_out_td_rmse" in line]
    assert [line.split()[1] for line in evaluations] == ["30/60", "60/60"]
    assert all("updates/s" in line for line in evaluations)
    assert lines[-2].startswith("held out ") and lines[-1].startswith("held out ")


def test_a_precision_that_this_device_does_not_have_is_named(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, "--precision", "bf16x3", "--device", "cpu") == 0
    assert "cpu, fp32 (bf16x3 needs fused GPU kernels)" in " ".join(capsys.readouterr().out.split())
