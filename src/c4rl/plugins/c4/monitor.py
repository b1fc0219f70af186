"""The cross-covariance as the paper watches it, on a fixed uniform sample of rows, for any algorithm with a critic."""

import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.random import Streams
from c4rl.plugins.c4.cross_covariance import traces
from c4rl.plugins.c4.feature_gradients import both_feature_gradients
from c4rl.plugins.seams import Host, Plugin

SAMPLE = 1024  # rows
SAMPLE_SEED = 0  # the same for every run: what is compared must be measured on the same rows


class CrossCovarianceMonitor(Plugin):
    """Logs tr C / m and its scale-free form, exact and proxy, averaged over the critics."""

    def __init__(self, period: int = 200) -> None:
        self.period = period

    def attach(self, algorithm: Host, buffer: TransitionBuffer) -> None:
        step = torch.zeros((), dtype=torch.int64, device=buffer.packed.device)
        streams = Streams([SAMPLE_SEED] * len(buffer.lengths), step)
        rows = streams.integers("monitor", buffer.lengths, SAMPLE) + buffer.offsets.unsqueeze(1)
        self.batch = buffer.gather(rows)

    @property
    def static_refresh(self) -> bool:
        return True

    def refresh(self, algorithm: Host, step: int) -> dict[str, Tensor]:
        assert algorithm.critics is not None
        critic, target = algorithm.critics
        exact_next, proxy_next = both_feature_gradients(target, algorithm.critic_inputs(self.batch.next_state_actions))
        exact, proxy = both_feature_gradients(critic, algorithm.critic_inputs(self.batch.state_actions))
        out = {}
        for mode, g_next, g in (("exact", exact_next, exact), ("proxy", proxy_next, proxy)):
            trace, normalised = traces(g_next, g, self.batch.next_valid.unsqueeze(1))
            out[f"cross_covariance_trace_{mode}"] = trace.mean(1)
            out[f"cross_covariance_trace_{mode}_normalised"] = normalised.mean(1)
        return out
