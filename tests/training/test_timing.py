"""`timing` in summary.json is time that passed, also where a device works behind the host's back."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from c4rl.core.errors import Interrupted
from c4rl.plugins.c4.plugin import C4Config
from c4rl.training.evaluation import HeldOutEvaluation
from c4rl.training.launch import Launch
from c4rl.training.loop import resume, train
from c4rl.training.timer import DeviceTimer
from tests.helpers import small_config

PAUSE = 0.2


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """As on a GPU, an update takes no time but reading its metrics waits; re-clustering and evaluations take theirs."""

    def slower(owner: type, name: str) -> None:
        original = getattr(owner, name)

        def slowed(self: Any, *arguments: Any) -> Any:
            if name != "refresh" or self.refreshes(*arguments):
                time.sleep(PAUSE)
            return original(self, *arguments)

        monkeypatch.setattr(owner, name, slowed)

    slower(Launch, "read_metrics")
    slower(Launch, "refresh")
    slower(HeldOutEvaluation, "__call__")
    return monkeypatch


def job(data: Path, output: Path) -> Any:
    every = {"log_every": 2, "checkpoint_every": 2, "eval_every": 3, "updates": 6}
    return small_config(
        "td3_bc", ("c4",), dataset=data, output=output, plugin_options=(C4Config(K=2, period=2),), **every
    )


@pytest.mark.usefixtures("slow")
def test_what_was_waited_for_is_counted_where_it_belongs(plain_data: Path, tmp_path: Path) -> None:
    began = time.monotonic()
    timing = train(job(plain_data, tmp_path / "job"))["timing"]
    passed = time.monotonic() - began
    assert 3 * PAUSE <= timing["clustering_seconds"] <= timing["total_seconds"] - 5 * PAUSE
    assert 2 * PAUSE <= timing["evaluation_seconds"] <= timing["total_seconds"] - 6 * PAUSE
    assert timing["total_seconds"] <= passed
    trained = timing["total_seconds"] - timing["evaluation_seconds"]
    assert timing["run_updates_per_second"] == pytest.approx(6 / trained)


def test_a_resumed_job_goes_on_counting(plain_data: Path, tmp_path: Path, slow: pytest.MonkeyPatch) -> None:
    with slow.context() as context:
        update = Launch.update

        def interrupting(self: Launch, step: int) -> None:
            update(self, step)
            if step == 4:
                os.kill(os.getpid(), signal.SIGINT)

        context.setattr(Launch, "update", interrupting)
        with pytest.raises(Interrupted):
            train(job(plain_data, tmp_path / "job"))
    timing = resume(tmp_path / "job")["timing"]
    assert timing["clustering_seconds"] >= 3 * PAUSE
    assert timing["evaluation_seconds"] >= 2 * PAUSE
    assert timing["total_seconds"] >= 8 * PAUSE


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU on this machine")
def test_a_gpu_is_timed_without_waiting_for_it() -> None:
    gpu = torch.device("cuda")
    timer, cycles = DeviceTimer(gpu), 10**9
    torch.cuda._sleep(1000)
    torch.cuda.synchronize()
    began = time.monotonic()
    with timer.running():
        torch.cuda._sleep(cycles)
    assert time.monotonic() - began < 0.1
    assert timer.take() == 0, "it is not finished"
    torch.cuda.synchronize()
    assert timer.take() == pytest.approx(time.monotonic() - began, rel=0.1)
    assert timer.take() == 0
