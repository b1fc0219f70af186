"""The cross-covariance as the paper watches it, on a fixed uniform sample of rows, for any algorithm with a critic; and
Theorem 1's terms there."""

import torch
from torch import Tensor

from c4rl.core.buffer import TransitionBuffer
from c4rl.core.options import PerRun
from c4rl.core.random import Streams
from c4rl.plugins.c4.cross_covariance import traces
from c4rl.plugins.c4.feature_gradients import both_feature_gradients
from c4rl.plugins.seams import Host, Plugin

SAMPLE = 1024  # rows
DISPLACEMENT = 0.1  # k of Theorem 1's terms
SAMPLE_SEED = 0  # the same for every run: what is compared must be measured on the same rows


class CrossCovarianceMonitor(Plugin):
    """Logs tr C / m and its scale-free form, exact and proxy, and A, B and C, averaged over the critics."""

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
        out |= expected_td_terms(exact_next, exact, self.batch.next_valid, algorithm.config.discount)
        return out


def expected_td_terms(g_next: Tensor, g: Tensor, valid: Tensor, gamma: PerRun) -> dict[str, Tensor]:
    """Theorem 1's terms, prefactors inside, over all directions w of the unit sphere at once, [R] each.

    Both inputs are displaced by k w: Var<w, g> = |g|^2 / m and Cov(<w, g'>, <w, g>) = <g', g> / m, so that A = gamma^2
    k^2 |g'|^2 / m, B = k^2 |g|^2 / m, C = 2 gamma k^2 <g', g> / m of a row. g', g [R, M, n, m]; valid [R, n].
    """

    def mean_of_rows(products: Tensor) -> Tensor:
        per_row = products.mean(3).mean(1)  # over features, and over critics
        return DISPLACEMENT**2 * (per_row * valid).sum(1) / valid.sum(1)

    return {
        "td_A": gamma**2 * mean_of_rows(g_next.square()),
        "td_B": mean_of_rows(g.square()),
        "td_C": 2 * gamma * mean_of_rows(g_next * g),
    }
