"""Copies of the runs' tensors, taken between two updates; taking one never waits for the device."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Protocol

import torch
from torch import Tensor

RunState = dict[str, Tensor]  # one run's tensors, without the run axis, on the CPU
# (name, slice of a run, place of the run) -> the slice without the padding that the stack added
Unpad = Callable[[str, Tensor, int], Tensor]


@dataclass(frozen=True)
class Snapshot:
    """A launch's tensors at one moment, on their device. All but scalars carry the run axis first."""

    runs: tuple[Any, ...]
    tensors: dict[str, Tensor]
    taken: torch.cuda.Event | None  # on a GPU: when the copies are made
    unpadded: Unpad

    @classmethod
    def of(cls, runs: Sequence[Any], live: dict[str, Tensor], unpadded: Unpad) -> "Snapshot":
        copies = {name: t.detach().clone(memory_format=torch.contiguous_format) for name, t in live.items()}
        taken, device = None, _gpu(copies)
        if device is not None:
            taken = torch.cuda.Event()
            taken.record(torch.cuda.current_stream(device))
        return cls(tuple(runs), copies, taken, unpadded)

    def run_states(self) -> dict[Any, RunState]:
        """Per run, on the CPU. May be called in any thread while training on the GPU continues."""
        host = self._on_host()
        return {
            run: {name: self.unpadded(name, tensor[i], i) if tensor.dim() else tensor for name, tensor in host.items()}
            for i, run in enumerate(self.runs)
        }

    def _on_host(self) -> dict[str, Tensor]:
        if self.taken is None:
            return self.tensors
        stream = _copy_stream(_gpu(self.tensors))
        stream.wait_event(self.taken)
        with torch.cuda.stream(stream):
            host = {name: _pinned(t).copy_(t, non_blocking=True) for name, t in self.tensors.items()}
        stream.synchronize()
        return host


def _gpu(tensors: dict[str, Tensor]) -> torch.device | None:
    return next((t.device for t in tensors.values() if t.is_cuda), None)


@cache
def _copy_stream(device: torch.device) -> torch.cuda.Stream:
    """PyTorch reuses a few streams: with a priority of its own, this is never the one that captures a graph."""
    return torch.cuda.Stream(device, priority=-1)


def _pinned(like: Tensor) -> Tensor:
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)  # pinned: the copy needs no CPU


class _Launch(Protocol):
    def snapshot(self) -> Snapshot: ...


@dataclass(frozen=True)
class GoodStates:
    """Every run's last good state: snapshots of runs in training, kept states of stopped ones."""

    update: int = 0  # of the snapshots
    kept: dict[Any, RunState] = field(default_factory=dict)
    snapshots: tuple[Snapshot, ...] = ()

    def advanced(self, update: int, launches: Sequence[_Launch]) -> "GoodStates":
        """As of now; runs that are in no launch any more stay as they were."""
        snapshots = tuple(launch.snapshot() for launch in launches)
        training = {run for snapshot in snapshots for run in snapshot.runs}
        kept = {run: state for run, state in self.kept.items() if run not in training}
        stopped = [run for run in self.runs if run not in training and run not in kept]
        for run, state in self.states(stopped).items():
            kept[run] = {name: t.clone() for name, t in state.items()}  # a view would keep its whole stack in memory
        return GoodStates(update, kept, snapshots)

    @property
    def runs(self) -> list[Any]:
        return [*self.kept, *(run for snapshot in self.snapshots for run in snapshot.runs)]

    def states(self, runs: Collection[Any] | None = None) -> dict[Any, RunState]:
        """States on the CPU, of all runs or of these."""
        wanted = set(self.runs if runs is None else runs)
        out = {run: state for run, state in self.kept.items() if run in wanted}
        for snapshot in self.snapshots:
            if wanted & set(snapshot.runs):
                out |= {run: state for run, state in snapshot.run_states().items() if run in wanted}
        return out
