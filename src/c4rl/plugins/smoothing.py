"""Policy smoothing (after RORL, Yang et al., 2022): a policy that acts alike at states that are nearly the same."""

from dataclasses import dataclass

import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.options import Options, PerRun, option
from c4rl.plugins.seams import ActorStep, Host, Plugin


@dataclass(frozen=True)
class SmoothingConfig(Options):
    smoothing_weight: PerRun = option(0.1, at_least=0, at_most=1e6)
    """Weight of the mean squared distance between π(s) and π(s + δ) in the actor's loss. RORL: 0.1 to 1."""
    smoothing_radius: PerRun = option(0.01, at_least=0, at_most=1e6)
    """ε: δ is uniform on ±ε in each dimension, in normalised observations. RORL: 0.001 to 0.01."""


class Smoothing(Plugin):
    """w · mean (π(s) - π(s + δ))² with one δ per row.

    Both sides have a gradient: it is then that of w · |J δ|², J the policy's Jacobian, to leading order. With π(s) held
    fixed, each draw would also push π itself along J δ, which is noise, and along its curvature, which moves π(s).
    """

    mixes_datasets = True
    needs_policy = True
    has_actor_term = True

    def __init__(self, config: SmoothingConfig) -> None:
        self.config = config

    def attach(self, algorithm: Host, buffer: TransitionBuffer) -> None:
        self._act, self._streams, stack = algorithm.plain_actions, algorithm.streams, algorithm.stack
        radius = torch.as_tensor(self.config.smoothing_radius, device=stack.device, dtype=stack.dtype)
        self._radius = radius.view(-1, 1, 1)

    def actor_term(self, step: ActorStep) -> Tensor:
        states = step.batch.observations
        delta = (2 * self._streams.uniform("smoothing", *states.shape[1:]) - 1) * self._radius
        here, there = self._act(torch.cat([states, states + delta], dim=1)).chunk(2, dim=1)
        return self.config.smoothing_weight * (here - there).square().mean((1, 2))
