"""A policy that data are recorded with: an MLP whose actions are drawn from a Gaussian. Needs NumPy alone."""

from dataclasses import dataclass

import numpy as np

from c4rl.core.array import Array

LOG_STD_BOUNDS = -20.0, 2.0


@dataclass(frozen=True)
class BehaviourPolicy:
    """Normalise, MLP, Gaussian, squash. All float32; weights are [in, out]."""

    hidden: tuple[tuple[Array, Array], ...]  # (weight, bias) of each layer
    mean: tuple[Array, Array]
    log_std: tuple[Array, Array] | Array | None  # a head, a constant vector, or a deterministic policy
    observation_mean: Array
    observation_std: Array
    observation_clip: float | None = None  # of the normalised observation
    log_std_bounds: tuple[float, float] = LOG_STD_BOUNDS  # of a standard deviation that depends on the state
    activation: str = "relu"  # or "tanh"
    squash: str = "tanh"  # of the sample; or "clip"
    action_low: Array | float = -1.0
    action_high: Array | float = 1.0

    def act(self, observation: Array, rng: np.random.Generator | None = None) -> Array:
        """[s] -> [a] or [B, s] -> [B, a], float32, in the task's units; without a generator, the mean action."""
        x = (np.asarray(observation, np.float32) - self.observation_mean) / self.observation_std
        if self.observation_clip is not None:
            x = np.minimum(np.maximum(x, -self.observation_clip), self.observation_clip)
        for w, b in self.hidden:
            x = x @ w + b
            x = np.tanh(x) if self.activation == "tanh" else np.maximum(x, 0)
        drawn = x @ self.mean[0] + self.mean[1]
        if rng is not None and self.log_std is not None:
            log_std = self.log_std
            if isinstance(log_std, tuple):
                log_std = np.clip(x @ log_std[0] + log_std[1], *self.log_std_bounds)
            drawn = drawn + np.exp(log_std) * rng.standard_normal(drawn.shape, np.float32)
        unit = np.tanh(drawn) if self.squash == "tanh" else np.clip(drawn, -1, 1)
        action = self.action_low + (unit + 1) / 2 * (self.action_high - self.action_low)
        return np.minimum(action, self.action_high).astype(np.float32)  # rounding may lead one step beyond
