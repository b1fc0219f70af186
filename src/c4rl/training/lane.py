"""A lane: the runs that are updated in one launch. On a GPU one lane holds them all; on a CPU, as many as pay."""

from typing import Any

import torch
from torch import Tensor

from c4rl.algorithms.algorithm import Algorithm
from c4rl.c4.monitor import CrossCovarianceMonitor
from c4rl.config import TrainConfig
from c4rl.networks import Stack
from c4rl.numpy_policy import NumpyPolicy
from c4rl.plugins import Plugins
from c4rl.random import Streams
from c4rl.registry import PLUGINS, algorithm_class, plugin_names
from c4rl.training.buffer import Batch, Scaling, TransitionBuffer
from c4rl.training.cuda_graph import GraphedUpdates

RunState = dict[str, Tensor]  # one run's tensors, without the run axis, on the CPU
METRICS = "metrics/"  # in a RunState: sums since the last reading, so that a resumed job logs the same means


def lane_seeds(config: TrainConfig, seeds: list[int], device: torch.device) -> list[list[int]]:
    """Seeds grouped into lanes. How they are grouped changes speed only, never a result."""
    width = len(seeds) if device.type == "cuda" else algorithm_class(config.algorithm).runs_together_on_cpu
    return [seeds[i : i + width] for i in range(0, len(seeds), max(width, 1))]


def _maker(kind: type) -> Any:
    """Each class takes its own options, which its base class cannot name."""
    return kind


class Lane:
    """R runs of the job's algorithm, their data, plug-ins and random streams."""

    def __init__(
        self,
        config: TrainConfig,
        seeds: list[int],
        buffer: TransitionBuffer,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config, self.seeds, self.device = config, list(seeds), device
        self.buffer = buffer.for_runs([0] * len(seeds))
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.streams = Streams(self.seeds, self.step, dtype)
        names = plugin_names(config.plugins, config.algorithm)
        chosen = [_maker(PLUGINS[name][1])(options) for name, options in zip(names, config.plugin_options, strict=True)]
        if (config.monitor or "c4" in names) and algorithm_class(config.algorithm).has_critic:
            chosen.append(CrossCovarianceMonitor())
        self.plugins = Plugins(chosen)
        observation_dim, action_dim = buffer.widths
        stack = Stack(tuple(seeds), observation_dim, action_dim, device, dtype)
        self.algorithm: Algorithm = _maker(algorithm_class(config.algorithm))(
            config.options, stack, self.streams, self.plugins
        )
        for plugin in self.plugins.all:
            plugin.attach(self.algorithm, self.buffer)
        self.sampler = self.plugins.sampler(self.buffer)
        self.metric_names: list[str] = []
        self.metric_sums = torch.zeros(0, device=device, dtype=dtype)
        self.metric_count = 0
        self.failed_at = torch.full((len(seeds),), -1, dtype=torch.int64, device=device)  # first non-finite update
        self._next = -1  # the update that the device's step counter is ready for
        self._graphed = GraphedUpdates(self._update) if device.type == "cuda" and config.cuda_graph else None

    def update(self, step: int) -> None:
        """Update number `step`, from 1."""
        if step != self._next:
            self.step.fill_(step - 1)
        self._next = step + 1
        if self._graphed is not None:
            self._graphed(step, self.algorithm.phase(step))
        else:
            self._update(step)
        self.metric_count += 1

    def _update(self, step: int) -> None:
        """All of an update that runs on the device."""
        self.step.add_(1)
        batch: Batch = self.buffer.gather(self.sampler.rows(self.streams, self.config.options.batch_size))
        metrics = self.algorithm.update(batch, step)
        for plugin in self.plugins.all:
            metrics |= plugin.metrics()
        if not self.metric_names:
            self.metric_names = sorted(metrics)
            self.metric_sums = torch.zeros_like(torch.stack(list(metrics.values())))
        values = torch.stack([metrics[name] for name in self.metric_names])  # [metrics, R]
        self.metric_sums += values
        self._note_failures(values)

    def _note_failures(self, values: Tensor) -> None:
        """values [..., R]: runs with a number that is not finite failed at this update, if not before."""
        bad = ~values.isfinite().flatten(0, -2).all(0) & (self.failed_at < 0)
        self.failed_at.copy_(torch.where(bad, self.step, self.failed_at))

    def refresh(self, step: int) -> dict[int, dict[str, float]]:
        """What plug-ins do between updates; per seed, what they report."""
        reports: dict[int, dict[str, float]] = {seed: {} for seed in self.seeds}
        for plugin in self.plugins.all:
            if plugin.period is not None and step % plugin.period == 0:
                for name, values in plugin.refresh(self.algorithm, step).items():
                    for seed, value in zip(self.seeds, values.tolist(), strict=True):
                        reports[seed][name] = value
        return {seed: report for seed, report in reports.items() if report}

    def read_metrics(self) -> dict[int, dict[str, float]]:
        """Means since the last reading, per seed; starts anew."""
        means = (self.metric_sums / max(self.metric_count, 1)).T.tolist()
        self.metric_sums.zero_()
        self.metric_count = 0
        return {
            seed: dict(zip(self.metric_names, run, strict=True)) for seed, run in zip(self.seeds, means, strict=True)
        }

    def failures(self) -> dict[int, tuple[int, str]]:
        """Seeds that cannot go on -> the update at which it showed, and what it was."""
        for tensor in self.live_state().values():
            if tensor.dim() and tensor.is_floating_point():
                self._note_failures(tensor.reshape(len(self.seeds), -1).T)
        steps = zip(self.seeds, self.failed_at.tolist(), strict=True)
        out = {seed: (step, "a loss or weight was not finite") for seed, step in steps if step >= 0}
        for plugin in self.plugins.all:
            out |= {self.seeds[run]: failure for run, failure in plugin.failures().items()}
        return out

    def live_state(self) -> dict[str, Tensor]:
        """Every tensor training changes, live. All but scalars carry the run axis first."""
        out = self.algorithm.state()
        for plugin in self.plugins.all:
            out |= {f"plugin.{type(plugin).__name__}/{name}": tensor for name, tensor in plugin.state().items()}
        return out

    def run_states(self) -> dict[int, RunState]:
        """A copy per seed."""
        metrics = {METRICS + name: sums for name, sums in zip(self.metric_names, self.metric_sums, strict=True)}
        metrics[f"{METRICS}count"] = torch.tensor(self.metric_count)
        host = {name: tensor.detach().cpu() for name, tensor in (self.live_state() | metrics).items()}
        return {
            seed: {name: (tensor[run] if tensor.dim() else tensor).clone() for name, tensor in host.items()}
            for run, seed in enumerate(self.seeds)
        }

    def load(self, states: dict[int, RunState]) -> None:
        """Restore in place what `run_states` gave."""
        for name, tensor in self.live_state().items():
            runs = [states[seed][name] for seed in self.seeds]
            tensor.copy_(torch.stack(runs) if tensor.dim() else runs[0])
        first = states[self.seeds[0]]
        self.metric_count = int(first[f"{METRICS}count"])
        self.metric_names = sorted(n.removeprefix(METRICS) for n in first if n.startswith(METRICS))
        self.metric_names.remove("count")
        # a run stopped before its first line of metrics has none
        sums = [[states[seed].get(METRICS + name, 0.0) for seed in self.seeds] for name in self.metric_names]
        self.metric_sums = torch.tensor(sums, dtype=self.metric_sums.dtype, device=self.device)

    def policies(self, scaling: Scaling) -> dict[int, NumpyPolicy]:
        """The evaluation policy of every seed, with normaliser and bounds inside."""
        mlp, a = self.algorithm.actor.mlp, self.buffer.widths[1]
        weights = [w.detach().float().cpu().numpy() for w in mlp.weights]  # [R, 1, in, out]
        biases = [b.detach().float().cpu().numpy() for b in mlp.biases]
        weights[-1], biases[-1] = weights[-1][..., :a], biases[-1][..., :a]  # of a Gaussian: the mean alone
        return {
            seed: NumpyPolicy(
                weights=tuple(w[run, 0].copy() for w in weights),
                biases=tuple(b[run, 0].copy() for b in biases),
                observation_mean=scaling.observation_mean,
                observation_std=scaling.observation_std,
                action_low=scaling.action_low,
                action_high=scaling.action_high,
            )
            for run, seed in enumerate(self.seeds)
        }
