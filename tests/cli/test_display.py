"""A live table for people at a terminal, plain lines for everything else."""

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from c4rl.cli.summary import print_summary
from c4rl.jobs.runs import explain_launches, runs_of
from tests.cli.support import SMALL, run, save_npz
from tests.helpers import small_config


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
    for fragment in ("td3_bc without", "seed", "critic loss", "held out td rmse", "training", "60/60", "left"):
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
    assert lines[0].startswith("td3_bc without a simulator, ") and lines[0].endswith("rows, cpu")
    assert lines[1].startswith("update 10/60  critic_loss ")
    evaluations = [line for line in lines if "held_out_td_rmse" in line]
    assert [line.split()[1] for line in evaluations] == ["30/60", "60/60"]
    assert all("updates/s" in line for line in evaluations)
    assert lines[-3].startswith("held out ") and lines[-2].startswith("held out ")
    assert lines[-1].startswith("wrote ")


def test_a_precision_that_this_device_does_not_have_is_named(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*command, "--precision", "bf16x3", "--device", "cpu") == 0
    assert "cpu, fp32 (bf16x3 needs fused GPU kernels)" in " ".join(capsys.readouterr().out.split())


def test_a_narrow_table_shows_whole_names_and_no_spread_of_one_seed(capsys: pytest.CaptureFixture[str]) -> None:
    names = [f"hopper-medium-expert-v2,alpha=0.5,lambda={value}" for value in ("0.125", "0.375")]
    result = {"scores": [1.5], "mean": 1.5, "std": None}
    results = dict.fromkeys(("last", "late", "best"), result) | {"curve": {"updates": [10], "scores": [[1.5]]}}
    failure = {"reason": "a loss was not finite", "failed_at": 1200, "update": 1000}
    print_summary(
        {
            "algorithm": "td3_bc",
            "plugins": ["c4", "layer_norm"],
            "task": "hopper-medium-expert-v2",
            "score": "normalised",
            "seeds": [7],
            "groups": [
                {"name": name, "seeds": [7], "failed": failed, **results}
                for name, failed in zip(names, ([], [7]), strict=True)
            ],
            "runs": [
                {"name": f"{name},seed=7", "failed": failed}
                for name, failed in zip(names, (None, failure), strict=True)
            ],
        },
        Console(width=70),
    )
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert "".join(row[0] for row in rows) == "".join(names)
    assert [row[2:] for row in rows if row[2]] == [["1.5", "-", "1.5"]] * 3 + [["1.5†", "-", "1.5†"]] * 3
    title = " ".join(out.partition("┏")[0].split())
    assert title == "td3_bc + c4 + layer_norm on hopper-medium-expert-v2 (normalised)"
    assert f"† {names[1]},seed=7: a loss was not finite at update 1,200; stopped, kept as of update 1,000" in out


@pytest.mark.parametrize(
    ("name", "score", "shown"),
    [
        ("normalised", 0.0321, "0.0"),
        ("raw return", 0.0321, "0.0321"),
        ("raw return", -12.345, "-12.35"),
        ("raw return", 12345.6, "12345.6"),
    ],
)
def test_returns_of_any_size_keep_their_digits(
    name: str, score: float, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    result = {"scores": [score], "mean": score, "std": None}
    results = dict.fromkeys(("last", "late", "best"), result) | {"curve": {"updates": [10], "scores": [[score]]}}
    job = {"algorithm": "bc", "plugins": [], "task": "gym:Own-v0", "score": name, "failed": [], "seeds": [0]}
    print_summary(job | {"runs": [{"name": "", "failed": None}]} | results, Console(width=80))
    out = capsys.readouterr().out
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert rows == [[which, shown, "-", shown] for which in ("last", "late mean", "best in simulator")]
    assert f"by updates: {shown} at 10" in out


@pytest.mark.parametrize("seeds", [5, 8])
def test_no_word_or_number_is_broken_in_80_columns(seeds: int, capsys: pytest.CaptureFixture[str]) -> None:
    scores = [100.0 + seed for seed in range(seeds)]
    result = {"scores": scores, "mean": 102.0, "std": 14.2}
    results = dict.fromkeys(("last", "late", "best"), result)
    curve = {"updates": [10], "scores": [[score] for score in scores]}
    job = {"algorithm": "bc", "plugins": [], "task": "hopper-expert-v2", "score": "normalised", "failed": []}
    own = {"seeds": list(range(seeds)), "curve": curve, "runs": [{"name": "", "failed": None}] * seeds}
    print_summary(job | own | results, Console(width=80))
    out = capsys.readouterr().out
    ends = [f"{score:.1f}" for score in (scores if seeds == 5 else (scores[0], scores[-1]))]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert rows == [[name, "102.0", "14.2", *ends] for name in ("last", "late mean", "best in simulator")]
    assert ("last, per seed: 100.0 101.0" in out) == (seeds == 8)


@pytest.mark.parametrize(
    ("seeds", "sweep", "device", "words"),
    [
        (3, (), "cpu", None),
        (10, (), "cuda", None),
        (10, (), "cpu", "10 runs in 2 launches: on a CPU td3_bc is fastest with 8 at a time"),
        (
            2,
            ("lambda=0,0.1,0.3", "K=2,3"),
            "cuda",
            "12 runs in 2 launches: runs that differ in lambda do not always share one",
        ),
        (
            5,
            ("lambda=0,0.1,0.3",),
            "cpu",
            "15 runs in 3 launches: runs that differ in lambda do not always share one, and on a CPU td3_bc is "
            "fastest with 8 at a time",
        ),
    ],
)
def test_a_job_tells_into_how_many_launches_it_was_split_and_why(
    seeds: int, sweep: tuple[str, ...], device: str, words: str | None
) -> None:
    config = small_config("td3_bc", ("c4",), seeds=tuple(range(seeds)), sweep=sweep)
    assert explain_launches(config, runs_of(config), [200], torch.device(device)) == words


def test_the_help_has_a_panel_for_each_plug_in(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("train", "--algorithm", "cql", "--plugins", "c4", "dr3", "--help")
    panels = re.split(r"\n\W+ (\w+) options \W+\n", capsys.readouterr().out)
    assert panels[1::2] == ["engine", "cql", "c4", "dr3"]
    text = dict(zip(panels[1::2], panels[2::2], strict=True))
    assert "--cql-actions" in text["cql"] and "--lambda" in text["c4"] and "--lambda" not in text["cql"]
    assert "--resume" in panels[0] and "--config" in panels[0]
