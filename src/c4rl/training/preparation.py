"""From a config to rows ready for training: everything that can be wrong with the input is found here."""

import math
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from c4rl.core.errors import InputError
from c4rl.data.dataset import Dataset
from c4rl.data.info import describe, observation_statistics
from c4rl.data.loading import load_for_task
from c4rl.data.minari import PREFIX
from c4rl.data.packing import Scaling, baselines, check_scaled
from c4rl.data.subsets import SUBSETS, hold_out, trajectory_returns, whole_trajectories
from c4rl.environments.tasks import Task, get_task, missing
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.registry import algorithm_class
from c4rl.jobs.runs import data_configs

ALL_THREADS = torch.get_num_threads()  # PyTorch's own choice, before any job makes another


@dataclass(frozen=True)
class Preparation:
    """The data as the training loop needs them."""

    task: Task
    train: Dataset
    held_out: Dataset | None
    scaling: Scaling
    facts: dict[str, Any]  # the summary's "dataset" entry
    remarks: list[str]  # the notes and warnings of `c4rl data info`

    def without_rows(self) -> "Preparation":
        """Once they are packed, the rows are only in the way."""
        rows = {name: value for name, value in vars(self.train).items() if isinstance(value, np.ndarray)}
        arrays: dict[str, Any] = {name: value[:0].copy() for name, value in rows.items()}
        return replace(self, train=replace(self.train, **arrays), held_out=None)


def prepare(config: TrainConfig) -> Preparation:
    """Prepare a job with one dataset."""
    (path,), (task_name,) = config.dataset, config.task
    task = get_task(task_name)
    if task.name != "none" and (reason := missing(task)) is not None:
        raise InputError(f"--task {task_name}: cannot be evaluated here: {reason}")
    full = load_for_task(path, task, config)
    described = describe(full)
    remarks = [f"{kind}: {path}: {text}" for kind in ("note", "warning") for text in described[f"{kind}s"]]
    train, held = full, None
    measured = task.name == "none" or config.select != "none"  # on held-out rows
    if measured and config.hold_out > 0:
        train, held = hold_out(train, config.hold_out, config.subset_seed)
    if config.size is not None:
        if len(train) < config.size <= len(full):
            held_out = f"{len(full) - len(train):,} of {len(full):,} are held out (--hold-out)"
            raise InputError(f"--size: found {config.size:,}, expected at most {len(train):,} rows: {held_out}")
        train = SUBSETS[config.subset](train, config.size, config.subset_seed)
    elif config.subset != TrainConfig.subset:
        remarks.append(f"note: --subset {config.subset} does nothing without --size")
    train = algorithm_class(config.algorithm).select_rows(config.options, train)
    facts = {"path": str(path), "rows": len(train), "sha256": full.sha256, "file_rows": len(full)}
    facts |= {name: train.metadata[name] for name in ("name", "subset") if name in train.metadata}
    scaling = _scaling(config, train, full)
    check_scaled(full, scaling)
    if measured:
        facts |= baselines(train if held is None else held, scaling)
    return Preparation(task, train, held, scaling, facts, remarks)


def in_any_folder(config: TrainConfig) -> TrainConfig:
    """The config with paths of datasets that hold in any working folder."""
    paths = (path if str(path).startswith(PREFIX) else path.absolute() for path in config.dataset)
    return replace(config, dataset=tuple(paths))


def prepare_all(config: TrainConfig) -> tuple[Preparation, ...]:
    """Prepare every dataset of the job, for every choice of rows in its sweep; all must have one shape."""
    first, *others = (prepare(one) for one in data_configs(config))
    for other in others:
        here, there = other.train, first.train
        if (here.observation_dim, here.action_dim) != (there.observation_dim, there.action_dim):
            raise InputError(
                f"{other.facts['path']}: found {here.observation_dim} observations and {here.action_dim} actions, "
                f"expected {there.observation_dim} and {there.action_dim} as in {first.facts['path']}"
            )
    return first, *others


def _scaling(config: TrainConfig, train: Dataset, full: Dataset) -> Scaling:
    s = train.observation_dim
    mean, std = np.zeros(s, np.float32), np.ones(s, np.float32)
    if config.normalize_observations:
        rows = train if config.observation_statistics == "subset" else full
        mean, std = observation_statistics(rows.observations)
    scaling = Scaling(mean, std, train.action_low, train.action_high, config.reward_scale, config.reward_shift)
    if not config.normalize_returns:
        return scaling
    returns = trajectory_returns(train)[whole_trajectories(train)]
    spread = float(returns.max() - returns.min())
    if spread == 0:
        raise InputError(
            f"{config.dataset[0]}: --normalize-returns needs returns that differ, found only {returns[0]:g}"
        )
    return replace(scaling, reward_scale=config.reward_scale * 1000 / spread)


@cache
def free_threads() -> int:
    """As many threads as cores are free when first asked: threads that share a core wait for each other at every sum,
    so that one alone is often ten times faster. Asked once, since later the load is our own."""
    busy = os.getloadavg()[0] / (os.cpu_count() or 1)
    return max(1, math.ceil(ALL_THREADS * (1 - busy)))


@contextmanager
def _full_precision() -> Iterator[None]:
    """Of products of float32 matrices, which people set to TF32 for their own networks."""
    products: list[Any] = [getattr(backend, "matmul", None) for backend in (torch.backends.cuda, torch.backends.mkldnn)]
    newer = [(one, one.fp32_precision) for one in products if hasattr(one, "fp32_precision")]  # PyTorch 2.9
    before = None
    with suppress(RuntimeError):  # it was set for one backend alone
        before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if before is not None:
            torch.set_float32_matmul_precision(before)
        else:
            for one, precision in newer:
                one.fp32_precision = precision


@contextmanager
def pytorch_given_back() -> Iterator[None]:
    """PyTorch's modes as in a new process, whatever the program around has set: gradients, full precision, tensors made
    on the CPU. Its number of threads, which belongs to the whole process, is given back."""
    threads = torch.get_num_threads()
    try:
        with _full_precision(), ExitStack() as modes:
            modes.enter_context(torch.inference_mode(False))  # ends no_grad too
            for kind in ("cpu", "cuda"):
                if torch.is_autocast_enabled(kind):
                    modes.enter_context(torch.autocast(kind, enabled=False))
            if torch.get_default_device().type != "cpu":  # not always: it slows every operation
                modes.enter_context(torch.device("cpu"))
            yield
    finally:
        torch.set_num_threads(threads)


def choose_device(name: str) -> torch.device:
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"--device: found '{name}', expected auto, cpu, cuda or cuda:N") from None
    if name != "cpu" and device.type != "cuda":  # other kinds, and cpu:1
        raise InputError(f"--device: found '{name}', expected auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"--device: found '{name}', but this machine shows {torch.cuda.device_count()} CUDA devices")
    if device.type == "cuda" and device.index is not None:
        # graphs and fused kernels act on the current device, wherever their tensors are
        torch.cuda.set_device(device.index)
    return device
