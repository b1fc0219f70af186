"""A launch: runs that are updated together. On a GPU it holds all that can share one; on a CPU, as many as is best."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Algorithm
from c4rl.core.buffer import TransitionBuffer, UniformSampler
from c4rl.core.errors import InputError
from c4rl.core.networks import Stack
from c4rl.core.numpy_policy import NumpyPolicy
from c4rl.core.ops import kernels, products
from c4rl.core.ops.metrics import add_metrics, note_failures
from c4rl.core.random import Streams
from c4rl.data.packing import Scaling
from c4rl.jobs.config import MOST, TrainConfig
from c4rl.jobs.registry import MONITOR, PLUGINS, algorithm_class, plugin_names
from c4rl.jobs.runs import Run, RunKey, as_runs, file_name, launch_groups, runs_of, stacked_options
from c4rl.plugins.seams import Plugin, Plugins
from c4rl.training.cuda_graph import GraphedCalls
from c4rl.training.snapshot import RunState, Snapshot

METRICS = "metrics/"  # in a RunState: sums since the last reading, so that a resumed job logs the same means


def launches_of(
    config: TrainConfig,
    buffer: TransitionBuffer,
    device: torch.device,
    runs: Sequence[Run] | None = None,
    states: Mapping[RunKey, RunState] | None = None,
) -> "list[Launch]":
    """Launches of all runs, or of these. buffer: the job's prepared data, in order. states: to resume from."""
    every = runs_of(config)
    wanted = {run.key for run in (every if runs is None else runs)}
    # grouped before any is left out: where others have failed, sums of another stack would round differently
    groups = launch_groups(config, every, buffer.dataset_lengths, device)
    together = [[run for run in group if run.key in wanted] for group in groups]
    return [Launch(config, some, buffer, device, states=states) for some in together if some]


def _kind(tensor: Tensor | None) -> str:
    if tensor is None:
        return "nothing"
    return f"{'numbers' if tensor.is_floating_point() else 'integers'} of shape {list(tensor.shape)}"


def _maker(kind: type) -> Any:
    """Each class takes its own options, which its base class cannot name."""
    return kind


class Launch:
    """R runs of the job's algorithm, their data, plug-ins and random streams."""

    def __init__(
        self,
        config: TrainConfig,
        runs: Sequence[Run | int],
        buffer: TransitionBuffer,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        states: Mapping[RunKey, RunState] | None = None,
    ) -> None:
        """runs: a group of `launch_groups`; a seed stands for a run of a plain job. states: to resume from."""
        self.config, self.runs, self.device = config, as_runs(runs), device
        self.seeds = [run.seed for run in self.runs]
        self.keys: list[RunKey] = [run.key for run in self.runs]
        self.buffer = buffer.for_runs([run.data for run in self.runs])
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.streams = Streams(self.seeds, self.step, dtype)
        names = plugin_names(config.plugins, config.algorithm)
        own_options, plugin_options = stacked_options(config, self.runs, device, dtype)
        chosen = [_maker(PLUGINS[name][1])(options) for name, options in zip(names, plugin_options, strict=True)]
        monitored = config.monitor or any(plugin.monitored for plugin in chosen)
        self.monitor = MONITOR() if monitored and algorithm_class(config.algorithm).has_critic else None
        if self.monitor is not None:
            chosen.append(self.monitor)
        self.plugins = Plugins(chosen)
        observation_dim, action_dim = buffer.widths
        stack = Stack(tuple(self.seeds), observation_dim, action_dim, device, dtype, config.updates)
        self.algorithm: Algorithm = _maker(algorithm_class(config.algorithm))(
            own_options, stack, self.streams, self.plugins
        )
        self.buffer.weights = self.plugins.row_weights(self.buffer)
        with kernels(config.fused_kernels):
            self.algorithm.attach(self.buffer)
            for plugin in self.plugins.all:
                plugin.attach(self.algorithm, self.buffer)
            for plugin in self.plugins.all if states is None else ():
                plugin.start(self.algorithm)
        self.sampler, self.uniform_sampler = self.plugins.sampler(self.buffer), UniformSampler(self.buffer)
        self.actor_sampler = self.plugins.actor_sampler()
        self.precision = config.precision  # of updates; refreshes and diagnostics are always float32
        self.stage = 0  # of the last update
        # names and sums since the last reading of each stage's metrics; a captured graph adds to its stage's sums
        self._metrics: dict[int, tuple[list[str], Tensor]] = {}
        self.metric_count = 0
        self.failed_at = torch.full((len(runs),), -1, dtype=torch.int64, device=device)  # first non-finite update
        self._next = -1  # the update that the device's step counter is ready for
        self._graphed = GraphedCalls(self._update) if device.type == "cuda" and config.cuda_graph else None
        self._refreshes: dict[Plugin, Callable[[int], dict[str, Tensor]]] = {
            plugin: partial(plugin.refresh, self.algorithm) for plugin in self.plugins.all
        }
        if self._graphed is not None:
            with kernels(config.fused_kernels):
                static = [plugin for plugin in self.plugins.all if plugin.static_refresh]
            for plugin in static:
                self._refreshes[plugin] = GraphedCalls(self._refreshes[plugin], self._graphed.pool)
        if states is not None:
            self.load(states)

    def update(self, step: int) -> None:
        """Update number `step`, from 1."""
        if step != self._next:
            self.step.fill_(step - 1)
        self._next = step + 1
        self.stage = self.algorithm.stage_at(step)[0]
        with kernels(self.config.fused_kernels), products(self.precision):
            if self._graphed is not None:
                self._graphed(step, self.algorithm.phase(step))
            else:
                self._update(step)
        self.metric_count += 1

    def _update(self, step: int) -> None:
        """All of an update that runs on the device."""
        self.step.add_(1)
        stage = self.algorithm.stages[self.stage]
        sampler = self.sampler if stage.plugged else self.uniform_sampler
        batch = actor_batch = self.buffer.gather(sampler.rows(self.streams, stage.batch_size))
        if self.actor_sampler is not None and stage.plugged:
            actor_batch = self.buffer.gather(self.actor_sampler.rows(self.streams, stage.batch_size))
        metrics = self.algorithm.update(batch, step, actor_batch)
        for plugin in self.plugins.all if stage.plugged else ():
            metrics |= plugin.metrics()
        if self.stage not in self._metrics:
            self._metrics[self.stage] = sorted(metrics), torch.zeros_like(torch.stack(list(metrics.values())))
        names, sums = self._metrics[self.stage]
        values = torch.stack([metrics[name] for name in names]).detach()  # [metrics, R]
        add_metrics(values, sums, self.failed_at, self.step)

    def _due(self, step: int) -> list[Plugin]:
        plugged = self.plugins.all if self.algorithm.stages[self.stage].plugged else ()
        return [plugin for plugin in plugged if plugin.period is not None and step % plugin.period == 0]

    def refreshes(self, step: int) -> bool:
        """Whether `refresh` has plug-ins to refresh after this update."""
        return bool(self._due(step))

    def refresh(self, step: int) -> dict[RunKey, dict[str, float]]:
        """Work of the algorithm and its plug-ins between updates. Returns their reports, per run."""
        with kernels(self.config.fused_kernels):
            found = self.algorithm.after_update(step)
            for plugin in (due := self._due(step)):
                report = self._refreshes[plugin](step)
                # copied: graphs share their memory, and the next one's numbers may lie where this report does
                found = found | {name: value.clone() for name, value in report.items()}
            if due:  # with a million rows, their running sums take longer than an update
                self.buffer.take_up_weights()
        if not found:
            return {}
        per_run = torch.stack(list(found.values())).T.tolist()
        return {  # NaN: this run has no such number
            key: {name: value for name, value in zip(found, values, strict=True) if value == value}
            for key, values in zip(self.keys, per_run, strict=True)
        }

    def ends_stage(self, step: int) -> bool:
        return self.algorithm.stage_at(step)[0] != self.algorithm.stage_at(step + 1)[0]

    def read_metrics(self) -> dict[RunKey, dict[str, float]]:
        """Means since the last reading, per run; starts anew."""
        names, sums = self._metrics[self.stage]
        means = (sums / max(self.metric_count, 1)).T.tolist()
        sums.zero_()
        self.metric_count = 0
        return {key: dict(zip(names, run, strict=True)) for key, run in zip(self.keys, means, strict=True)}

    def failures(self) -> dict[RunKey, tuple[int, str]]:
        """Failed runs -> (the update at which it was noticed, the reason)."""
        # the largest magnitude in each tensor, one launch each: not finite if any number in the tensor is not
        largest = [
            torch.linalg.vector_norm(tensor.reshape(len(self.runs), -1), torch.inf, dim=1).to(self.streams.dtype)
            for tensor in self.live_state().values()
            if tensor.dim() and tensor.is_floating_point() and tensor.numel()
        ]
        note_failures(torch.stack(largest), self.failed_at, self.step)
        steps = zip(self.keys, self.failed_at.tolist(), strict=True)
        out = {key: (step, "a loss or weight was not finite") for key, step in steps if step >= 0}
        for plugin in self.plugins.all:
            out |= {self.keys[run]: failure for run, failure in plugin.failures().items()}
        return out

    def live_state(self) -> dict[str, Tensor]:
        """All tensors that training changes; not copies. All but scalars carry the run axis first."""
        out = self.algorithm.state()
        for plugin in self.plugins.all:
            out |= {f"plugin.{type(plugin).__name__}/{name}": tensor for name, tensor in plugin.state().items()}
        return out

    def run_states(self) -> dict[RunKey, RunState]:
        """A copy per run."""
        return self.snapshot().run_states()

    def snapshot(self) -> Snapshot:
        """A copy of all tensors, on the device."""
        names, sums = self._metrics.get(self.stage, ([], ()))
        metrics = {METRICS + name: tensor for name, tensor in zip(names, sums, strict=True)}
        metrics |= {f"{METRICS}count": torch.tensor(self.metric_count), f"{METRICS}stage": torch.tensor(self.stage)}
        return Snapshot.of(self.keys, self.live_state() | metrics, self._unpadded)

    def _unpadded(self, name: str, tensor: Tensor, run: int) -> Tensor:
        owner, own_name = self._owner(name)
        return owner.unpadded(own_name, tensor, run)

    def _padded(self, name: str, own: Tensor, run: int) -> Tensor:
        owner, own_name = self._owner(name)
        return owner.padded(own_name, own, run)

    def _owner(self, name: str) -> tuple[Plugin | Algorithm, str]:
        """The plug-in or algorithm that a tensor of `live_state` belongs to, and its name there."""
        for plugin in self.plugins.all:
            prefix = f"plugin.{type(plugin).__name__}/"
            if name.startswith(prefix):
                return plugin, name.removeprefix(prefix)
        return self.algorithm, name

    def load(self, states: Mapping[RunKey, RunState]) -> None:
        """Restore in place what `run_states` returned, for any stack."""
        for run, key in enumerate(self.keys):
            self._check(run, states[key])
        for name, tensor in self.live_state().items():
            runs = [self._padded(name, states[key][name], run) for run, key in enumerate(self.keys)]
            tensor.copy_(torch.stack(runs) if tensor.dim() else runs[0])
        self.buffer.take_up_weights()
        first = states[self.keys[0]]
        self.metric_count, self.stage = int(first[f"{METRICS}count"]), int(first[f"{METRICS}stage"])
        names = sorted({n.removeprefix(METRICS) for n in first if n.startswith(METRICS)} - {"count", "stage"})
        if names:  # a run stopped before its first update has none
            sums = [[states[key].get(METRICS + name, 0.0) for key in self.keys] for name in names]
            self._metrics[self.stage] = names, torch.tensor(sums, dtype=self.streams.dtype, device=self.device)

    def _check(self, run: int, state: RunState) -> None:
        """Refuse the state of other networks or plug-ins, and numbers that no update leaves behind."""
        live = {n: self._unpadded(n, t[run], run) if t.dim() else t for n, t in self.live_state().items()}
        live |= {name: torch.zeros(()) for name in state if name.startswith(METRICS)}
        live |= {f"{METRICS}count": torch.tensor(0), f"{METRICS}stage": torch.tensor(0)}
        below = {f"{METRICS}count": MOST, f"{METRICS}stage": len(self.algorithm.stages)}
        for name in sorted(live.keys() | state.keys()):
            found, own, problem = state.get(name), live.get(name), ""
            if found is None or _kind(found) != _kind(own):
                problem = f"{_kind(found)}, expected {_kind(own)}"
            elif found.is_floating_point():
                problem = "" if found.isfinite().all() else "numbers that are not finite, expected finite ones"
            else:  # most integers are rows or clusters
                bound = below.get(name, len(self.buffer.packed))
                within = found.ge(0) & found.lt(bound)
                problem = "" if within.all() else f"other integers than 0 to {bound - 1:,}, expected those"
            if problem:
                raise InputError(f"{file_name(self.keys[run])}/{name}: found {problem}")

    def policies(self, scaling: Scaling | Sequence[Scaling]) -> dict[RunKey, NumpyPolicy]:
        """The evaluated policy of every run, with normaliser and bounds: those of one dataset, or of the job's
        prepared data in order."""
        scalings = [scaling if isinstance(scaling, Scaling) else scaling[run.data] for run in self.runs]
        weights, biases, gains, shifts = (
            [t.detach().float().cpu().numpy() for t in tensors] for tensors in self.algorithm.evaluated_policy()
        )
        return {
            key: NumpyPolicy(
                weights=tuple(w[run].copy() for w in weights),
                biases=tuple(b[run].copy() for b in biases),
                gains=tuple(gain[run].copy() for gain in gains),
                shifts=tuple(shift[run].copy() for shift in shifts),
                observation_mean=own.observation_mean,
                observation_std=own.observation_std,
                action_low=own.action_low,
                action_high=own.action_high,
            )
            for run, (key, own) in enumerate(zip(self.keys, scalings, strict=True))
        }
