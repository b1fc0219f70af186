"""C4 in anyone's PyTorch loop, with any critic: three lines (examples/plug_into_your_loop.py)."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from c4rl.core.errors import InputError
from c4rl.core.random import Streams
from c4rl.plugins.c4.clustering import Clustering, ClusteringConfig
from c4rl.plugins.c4.cross_covariance import PenaltyConfig, WeightedPenalty
from c4rl.plugins.c4.feature_gradients import input_gradient

CriticFunction = nn.Module | Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class C4AnywhereConfig(ClusteringConfig, PenaltyConfig):
    """What can be done from outside a loop; the actor's loss and the networks are the loop's own."""


class C4Anywhere:
    """Single-cluster batches and the penalty for a loop of your own.

    critic, target: map [B, s + a] to Q [B] or [B, 1]; the clusters are theirs. state_actions and next_state_actions:
    all rows of the data [N, s + a], the latter with the logged next action; next_valid: [N], False where there is none.
    In proxy mode the penultimate features are what enters the module's last linear layer; name it with `head` if it is
    not the last `nn.Linear` of your module.
    """

    def __init__(
        self,
        critic: CriticFunction,
        target: CriticFunction,
        state_actions: Tensor,
        next_state_actions: Tensor,
        next_valid: Tensor,
        *,
        config: C4AnywhereConfig | None = None,
        seed: int = 0,
        head: str | None = None,
    ) -> None:
        self.config = C4AnywhereConfig() if config is None else config
        if not isinstance(self.config, C4AnywhereConfig):
            raise InputError(f"C4Anywhere: config is a {type(config).__name__}, expected a C4AnywhereConfig")
        self.critic, self.target, self.head = critic, target, head
        self.x, self.x_next, self.valid = state_actions, next_state_actions, next_valid.bool()
        device, dtype = state_actions.device, state_actions.dtype
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.streams = Streams([seed], self.step, dtype)
        self.clustering = Clustering(self.config, [seed], [0], [len(state_actions)], device)
        self.weighted_penalty = WeightedPenalty(self.config, 1, device, dtype)
        self.report: dict[str, Tensor] = {}
        self._updates = 0
        self._refresh()

    def rows(self, batch_size: int) -> Tensor:
        """The next batch, [B] row indices; re-clusters when due. Call it once per critic update."""
        if self._updates and self._updates % self.config.period == 0:
            self._refresh()
        self._updates += 1
        self.step.fill_(self._updates)
        if self.config.sampler == "uniform":
            count = torch.tensor([len(self.x)], device=self.x.device)
            self._rows = self.streams.integers("rows", count, batch_size)[0]
        else:
            self._rows = self.clustering.rows(self.streams, batch_size)[0]
        return self._rows

    def penalty(self, critic: CriticFunction, target: CriticFunction, td_loss: Tensor | None = None) -> Tensor:
        """λR of the batch drawn last, to be added to this critic's loss (td_loss is needed for lambda "auto")."""
        g = self._gradients(critic, self.x[self._rows], create_graph=True)
        g_next = self._gradients(target, self.x_next[self._rows], create_graph=False)
        td_loss = td_loss.reshape(1, 1) if td_loss is not None else None
        return self.weighted_penalty(g_next[None, None], g[None, None], self.valid[self._rows][None], td_loss)[0, 0]

    def _refresh(self) -> None:
        def gradients(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            g_next = self._gradients(self.target, self.x_next[rows[0]], create_graph=False)
            g = self._gradients(self.critic, self.x[rows[0]], create_graph=False)
            return g_next.unsqueeze(0), g.detach().unsqueeze(0), self.valid[rows]

        self.report = self.clustering.refresh(gradients, self.streams, self._updates)
        for step, reason in self.clustering.failures().values():
            raise RuntimeError(f"update {step}: {reason}")

    def _gradients(self, critic: CriticFunction, x: Tensor, create_graph: bool) -> Tensor:
        if self.config.mode == "exact":
            return input_gradient(critic, x, create_graph)
        with torch.set_grad_enabled(create_graph):
            return penultimate_features(critic, x, self.head)


def penultimate_features(critic: CriticFunction, x: Tensor, head: str | None = None) -> Tensor:
    """What enters the module's last linear layer at x, [B, m]."""
    if not isinstance(critic, nn.Module):
        raise InputError("proxy features: the critic is a function, expected an nn.Module (or mode 'exact')")
    linears = [module for module in critic.modules() if isinstance(module, nn.Linear)]
    if head is None and not linears:
        raise InputError("proxy features: the critic has no nn.Linear, expected one, or `head` naming its last layer")
    last = critic.get_submodule(head) if head is not None else linears[-1]
    seen: list[Tensor] = []
    handle = last.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    try:
        critic(x)
    finally:
        handle.remove()
    return seen[-1]
