"""c4rl.train called from someone's own program."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import c4rl
from c4rl.algorithms.bc import BCConfig
from c4rl.data.recording import record
from c4rl.plugins.dr3 import DR3Config
from c4rl.training.trainer import Trainer
from tests.cli.support import assert_same_tensors, save_npz
from tests.helpers import small_config


def test_a_job_runs_in_any_thread(tmp_path: Path) -> None:
    data = tmp_path / "maze.npz"
    record("maze2d-open-dense", 300, 0, data)
    values = {"dataset": data, "task": "maze2d-open-dense", "updates": 4, "eval_every": 4, "eval_episodes": 1}
    config = small_config("td3_bc", output=tmp_path / "main", **values)
    here = c4rl.train(config)
    with ThreadPoolExecutor(1) as pool:
        there = pool.submit(c4rl.train, replace(config, output=tmp_path / "thread")).result()
    assert there["last"]["returns"] == here["last"]["returns"]


def test_bad_input_raises_the_one_exception_that_means_it(tmp_path: Path) -> None:
    config = small_config("td3_bc", dataset=tmp_path / "absent.npz", output=tmp_path / "job")
    with pytest.raises(c4rl.InputError, match=r"absent\.npz"):
        c4rl.train(config)
    assert not (tmp_path / "job").exists()


def test_options_may_be_numpys_numbers_and_paths_text(tmp_path: Path) -> None:
    data, folder = str(save_npz(tmp_path / "logs.npz")), str(tmp_path / "job")
    seeds: Any = np.arange(2)
    bounds: Any = np.full(2, 2, np.float32)
    c4rl.train(
        small_config(
            "bc",
            dataset=(data,),
            output=folder,
            task="none",
            updates=np.int64(2),
            seeds=seeds,
            hold_out=np.float32(0.25),
            normalize_observations=np.bool_(False),
            action_low=-bounds,
            action_high=bounds,
        )
    )
    assert c4rl.resume(folder, updates=np.int64(4))["updates"] == 4
    assert np.all(c4rl.load_policy(folder, seed=1).action_low == -2)  # read back from its config.json


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("seeds", 0, "0"),
        ("seeds", (0.0,), "0.0"),
        ("seeds", (True,), "True"),
        ("seeds", None, "None"),
        ("updates", 2.5, "2.5"),
        ("updates", None, "None"),
        ("hold_out", None, "None"),
        ("dataset", None, "None"),
        ("normalize_observations", 1, "1"),
    ],
)
def test_values_of_another_type_are_refused(name: str, value: Any, found: str) -> None:
    flag = name.replace("_", "-")
    with pytest.raises(c4rl.InputError, match=f"^--{flag}: found {found}, expected"):
        small_config("bc", **{"dataset": Path("logs.npz"), name: value})


def test_one_value_where_several_belong_is_refused_as_such() -> None:
    with pytest.raises(c4rl.InputError, match=r"^--seeds: found 0, expected a tuple: a whole number .* each$"):
        small_config("bc", dataset=Path("logs.npz"), seeds=0)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({"options": BCConfig()}, "BCConfig and C4Config"),
        ({"options": {"alpha": 1}}, "dict and C4Config"),
        ({"plugin_options": ()}, "TD3BCConfig"),
        ({"plugin_options": DR3Config()}, "TD3BCConfig and DR3Config"),
    ],
)
def test_options_of_another_method_are_refused(given: dict[str, Any], found: str) -> None:
    expected = rf"^options, plugin_options: found {found}, expected TD3BCConfig and C4Config$"
    with pytest.raises(c4rl.InputError, match=expected):
        c4rl.empty_config("td3_bc", ("c4",), dataset=Path("logs.npz"), output=Path("job"), **given)


def test_a_config_changed_to_another_method_is_refused_without_its_options() -> None:
    config = c4rl.empty_config("td3_bc", "c4", dataset=Path("logs.npz"), output=Path("job"))
    assert config.plugins == ("c4",)
    with pytest.raises(
        c4rl.InputError, match=r"^options, plugin_options: found TD3BCConfig and C4Config, expected CQL"
    ):
        replace(config, algorithm="cql")
    with pytest.raises(c4rl.InputError, match=r"found TD3BCConfig and C4Config, expected TD3BCConfig$"):
        replace(config, plugins=("none",))


def test_every_public_name_is_offered_for_completion() -> None:
    code = "import sys, c4rl; assert {*c4rl.__all__} <= {*dir(c4rl)}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_what_cannot_change_is_refused(tmp_path: Path) -> None:
    values = {"dataset": save_npz(tmp_path / "logs.npz"), "output": tmp_path / "job", "task": "none", "updates": 2}
    c4rl.train(small_config("bc", **values))
    with pytest.raises(c4rl.InputError, match=r"^seeds: cannot change, expected changes of dataset, updates"):
        c4rl.resume(tmp_path / "job", seeds=(1,))


def test_threads_are_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    values = {"dataset": save_npz(tmp_path / "logs.npz"), "output": tmp_path / "job", "task": "none", "updates": 2}
    c4rl.train(small_config("bc", **values, threads=before + 1))
    assert torch.get_num_threads() == before


@contextmanager
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def products_in_16_bits() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
        assert torch.get_float32_matmul_precision() == "medium"  # given back
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize(
    "around",
    [
        products_in_16_bits,
        torch.no_grad,
        torch.inference_mode,
        partial(torch.device, "meta"),
        partial(torch.autocast, "cpu", torch.bfloat16),
        float64_by_default,
    ],
)
def test_what_the_program_around_has_set_in_pytorch_does_not_matter(
    around: Callable[[], AbstractContextManager[Any]], tmp_path: Path
) -> None:
    values = {"dataset": save_npz(tmp_path / "logs.npz"), "task": "none", "updates": 2}
    for folder, modes in (("plain", nullcontext), ("job", around)):
        with modes():
            wide = {"batch_size": 256, "hidden_width": 256}  # the CPU multiplies small matrices in full precision
            c4rl.train(small_config("td3_bc", ("c4", "returns"), **values, **wide, output=tmp_path / folder))
            c4rl.resume(tmp_path / folder, updates=4)
    assert_same_tensors(tmp_path / "plain", tmp_path / "job")


def test_ctrl_c_before_the_first_update_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(self: Trainer) -> None:
        raise KeyboardInterrupt

    values = {"dataset": save_npz(tmp_path / "logs.npz"), "output": tmp_path / "job", "task": "none", "updates": 2}
    monkeypatch.setattr(Trainer, "_start_clock", interrupted)
    with pytest.raises(KeyboardInterrupt):
        c4rl.train(small_config("bc", **values))
    assert not (tmp_path / "job").exists()


def test_a_run_is_chosen_in_one_way(tmp_path: Path) -> None:
    values = {"dataset": save_npz(tmp_path / "logs.npz"), "output": tmp_path / "job", "task": "none", "updates": 2}
    c4rl.train(small_config("bc", **values, seeds=(0, 1)))
    for other in ({"ensemble": True}, {"run": "seed_1"}):
        with pytest.raises(c4rl.InputError, match=r"^--seed: found 0 with --"):
            c4rl.load_policy(tmp_path / "job", seed=0, **other)  # type: ignore[arg-type]
