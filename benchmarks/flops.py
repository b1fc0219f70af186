"""How much one update computes, against a GPU's peak: `python benchmarks/flops.py [--algorithms cql]`.

Counts the multiplications and additions in matrix products of one run's update of 4x256 networks, without refreshes.
"""

import argparse
from dataclasses import replace
from typing import Any, get_args

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from c4rl.data.dataset import Dataset
from c4rl.jobs.config import TrainConfig
from c4rl.results.speed import TimedRuns, Variant, bench_config, made_up_dataset


def peak_flops(device: torch.device) -> float | None:
    """Additions and multiplications per second that a GPU's fp32 units can do at their highest clock."""
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    clock = getattr(properties, "clock_rate", None)  # kHz; PyTorch 2.7 and later
    return None if clock is None else properties.multi_processor_count * 128 * 2 * clock * 1e3


def update_flops(config: TrainConfig, data: Dataset, stage: int = 0) -> float:
    """Multiplications and additions of the matrix products of one run's update, without refreshes."""
    alone = replace(config, seeds=config.seeds[:1], cuda_graph=False, fused_kernels=False)
    update = TimedRuns(alone, data, torch.device("cpu"), stage).update
    update()
    with _ProductFlops() as counter:
        update()
        update()  # two updates, as some work is done every second time
    return counter.total / 2


class _ProductFlops(TorchDispatchMode):
    """As PyTorch's own counter, which follows modules as well and fails where they are called without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if count := flop_registry.get(func._overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=result)
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=["td3_bc", "cql"])
    parser.add_argument("--plugins", nargs="+", choices=get_args(Variant), default=["none", "c4-proxy"])
    arguments = parser.parse_args()
    data = made_up_dataset(10_000, 17, 6)
    for algorithm in arguments.algorithms:
        for plugins in arguments.plugins:
            config = bench_config(algorithm, plugins, 1)
            config = replace(config, options=replace(config.options, hidden_layers=4, hidden_width=256))
            print(f"{algorithm}, {plugins}: {update_flops(config, data) / 1e9:.2f} GFLOP per update")
    if torch.cuda.is_available() and (peak := peak_flops(torch.device("cuda"))) is not None:
        print(f"{torch.cuda.get_device_name()}: {peak / 1e12:.1f} TFLOP/s in fp32")


if __name__ == "__main__":
    main()
