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
from c4rl.training.buffer import Batch, Scaling, TransitionBuffer, UniformSampler
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
        stack = Stack(tuple(seeds), observation_dim, action_dim, device, dtype, config.updates)
        self.algorithm: Algorithm = _maker(algorithm_class(config.algorithm))(
            config.options, stack, self.streams, self.plugins
        )
        self.algorithm.attach(self.buffer)
        for plugin in self.plugins.all:
            plugin.attach(self.algorithm, self.buffer)
        self.sampler, self.uniform_sampler = self.plugins.sampler(self.buffer), UniformSampler(self.buffer)
        self.stage = 0  # of the last update
        # names and sums since the last reading of each stage's metrics; a captured graph adds to its stage's sums
        self._metrics: dict[int, tuple[list[str], Tensor]] = {}
        self.metric_count = 0
        self.failed_at = torch.full((len(seeds),), -1, dtype=torch.int64, device=device)  # first non-finite update
        self._next = -1  # the update that the device's step counter is ready for
        self._graphed = GraphedUpdates(self._update) if device.type == "cuda" and config.cuda_graph else None

    def update(self, step: int) -> None:
        """Update number `step`, from 1."""
        if step != self._next:
            self.step.fill_(step - 1)
        self._next = step + 1
        self.stage = self.algorithm.stage_at(step)[0]
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
        batch: Batch = self.buffer.gather(sampler.rows(self.streams, stage.batch_size))
        metrics = self.algorithm.update(batch, step)
        for plugin in self.plugins.all if stage.plugged else ():
            metrics |= plugin.metrics()
        if self.stage not in self._metrics:
            self._metrics[self.stage] = sorted(metrics), torch.zeros_like(torch.stack(list(metrics.values())))
        names, sums = self._metrics[self.stage]
        values = torch.stack([metrics[name] for name in names])  # [metrics, R]
        sums += values
        self._note_failures(values)

    def _note_failures(self, values: Tensor) -> None:
        """values [..., R]: runs with a number that is not finite failed at this update, if not before."""
        bad = ~values.isfinite().flatten(0, -2).all(0) & (self.failed_at < 0)
        self.failed_at.copy_(torch.where(bad, self.step, self.failed_at))

    def refresh(self, step: int) -> dict[int, dict[str, float]]:
        """What the algorithm and its plug-ins do between updates; per seed, what they report."""
        found = self.algorithm.between(step)
        for plugin in self.plugins.all if self.algorithm.stages[self.stage].plugged else ():
            if plugin.period is not None and step % plugin.period == 0:
                found |= plugin.refresh(self.algorithm, step)
        if not found:
            return {}
        per_run = torch.stack(list(found.values())).T.tolist()
        return {seed: dict(zip(found, run, strict=True)) for seed, run in zip(self.seeds, per_run, strict=True)}

    def ends_stage(self, step: int) -> bool:
        return self.algorithm.stage_at(step)[0] != self.algorithm.stage_at(step + 1)[0]

    def read_metrics(self) -> dict[int, dict[str, float]]:
        """Means since the last reading, per seed; starts anew."""
        names, sums = self._metrics[self.stage]
        means = (sums / max(self.metric_count, 1)).T.tolist()
        sums.zero_()
        self.metric_count = 0
        return {seed: dict(zip(names, run, strict=True)) for seed, run in zip(self.seeds, means, strict=True)}

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
        names, sums = self._metrics.get(self.stage, ([], ()))
        metrics = {METRICS + name: tensor for name, tensor in zip(names, sums, strict=True)}
        metrics |= {f"{METRICS}count": torch.tensor(self.metric_count), f"{METRICS}stage": torch.tensor(self.stage)}
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
        self.metric_count, self.stage = int(first[f"{METRICS}count"]), int(first[f"{METRICS}stage"])
        names = sorted({n.removeprefix(METRICS) for n in first if n.startswith(METRICS)} - {"count", "stage"})
        if names:  # a run stopped before its first update has none
            sums = [[states[seed].get(METRICS + name, 0.0) for seed in self.seeds] for name in names]
            self._metrics[self.stage] = names, torch.tensor(sums, dtype=self.streams.dtype, device=self.device)

    def policies(self, scaling: Scaling) -> dict[int, NumpyPolicy]:
        """The evaluation policy of every seed, with normaliser and bounds inside."""
        weights, biases = (
            [t.detach().float().cpu().numpy() for t in tensors] for tensors in self.algorithm.policy_layers()
        )
        return {
            seed: NumpyPolicy(
                weights=tuple(w[run].copy() for w in weights),
                biases=tuple(b[run].copy() for b in biases),
                observation_mean=scaling.observation_mean,
                observation_std=scaling.observation_std,
                action_low=scaling.action_low,
                action_high=scaling.action_high,
            )
            for run, seed in enumerate(self.seeds)
        }
