"""Corrective labels (after CCIL, Ke et al., 2023): also clone at states from which a logged action leads back to the
data.

For a logged (s, a), a state s̃ from which a leads to s shall be answered by a. CCIL searches for s̃ with a model of the
dynamics. Here a model of predecessors, fitted to the data's own (s', a) -> s, gives it in one step.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.networks import per_row
from c4rl.core.options import Options, PerRun, option
from c4rl.plugins.seams import ActorStep, Host, Plugin

FEATURES = 512  # random ones, of the model
FREQUENCY = 0.3  # of the features, for inputs of unit size
RIDGE = 0.1
MOST_ROWS = 40_000  # of a dataset that the model is fitted on
CHUNK = 8192  # rows at a time: their features take several kB each


@dataclass(frozen=True)
class CorrectiveLabelsConfig(Options):
    corrective_weight: PerRun = option(1.0, at_least=0, at_most=1e6)
    """Weight of the squared error at corrected states in the actor's loss; logged states count 1 in bc and td3_bc."""
    corrective_bound: PerRun = option(0.5, at_least=0, at_most=1e6)
    """Rows whose corrected state lies farther than this from the logged one are left out: root mean square over
    dimensions, in normalised observations."""


class CorrectiveLabels(Plugin):
    """w · mean (π(s̃) - a)² over rows whose s̃ is near s."""

    mixes_datasets = True
    needs_policy = True
    has_actor_term = True

    def __init__(self, config: CorrectiveLabelsConfig) -> None:
        self.config = config

    def attach(self, algorithm: Host, buffer: TransitionBuffer) -> None:
        self._act = algorithm.plain_actions
        some, read, start = buffer.sample(MOST_ROWS), set(buffer.offsets.tolist()), 0
        observations = buffer.unpack(buffer.packed).observations
        self._states = observations.clone()  # s̃ of each row; of datasets that no run here reads, s
        for fitted, own in zip(
            some.packed.split(some.dataset_lengths), buffer.packed.split(buffer.dataset_lengths), strict=True
        ):
            if start in read:
                self._states[start : start + len(own)] = predecessors(buffer, fitted, own)
            start += len(own)
        self._distance = (self._states - observations).square().mean(1).sqrt()

    def actor_term(self, step: ActorStep) -> Tensor:
        rows, actions = step.batch.rows, step.batch.actions
        assert rows is not None
        states = self._states.index_select(0, rows.flatten()).view(*rows.shape, -1)
        near = self._distance.index_select(0, rows.flatten()).view(rows.shape) <= per_row(self.config.corrective_bound)
        error = (self._act(states) - actions).square().mean(2)
        return self.config.corrective_weight * (error * near).mean(1)


def predecessors(buffer: TransitionBuffer, fitted: Tensor, asked: Tensor) -> Tensor:
    """States from which the logged actions would lead to the logged states of `asked`; both are packed rows [n, ...].

    s - s' by ridge regression on (s', a), its entries and random Fourier features of it. Terminal rows have no s'.
    """
    known = buffer.unpack(fitted[buffer.unpack(fitted).continues > 0].double())
    draw = torch.Generator().manual_seed(0)
    inputs = sum(buffer.widths)
    frequencies = torch.randn(inputs, FEATURES, generator=draw, dtype=torch.float64) * FREQUENCY / inputs**0.5
    phases = 2 * math.pi * torch.rand(FEATURES, generator=draw, dtype=torch.float64)
    frequencies, phases = frequencies.to(asked.device), phases.to(asked.device)

    def features(states: Tensor, actions: Tensor) -> Tensor:
        x = torch.cat([states, actions], 1)
        return torch.cat([torch.cos(x @ frequencies + phases), x, torch.ones_like(x[:, :1])], 1)

    x = features(known.next_observations, known.actions)
    gram = x.T @ x + RIDGE * torch.eye(x.shape[1]).to(x)
    model = torch.linalg.solve(gram, x.T @ (known.observations - known.next_observations))

    def at(rows: Tensor) -> Tensor:
        wanted = buffer.unpack(rows.double())
        return (wanted.observations + features(wanted.observations, wanted.actions) @ model).to(rows)

    return torch.cat([at(rows) for rows in asked.split(CHUNK)])
