"""C4 in anyone's PyTorch loop, with any critic: three lines (examples/plug_into_your_loop.py)."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from c4rl.core.errors import InputError
from c4rl.core.random import Streams
from c4rl.plugins.c4.any_critic import (
    CriticFunction,
    at_rest,
    penultimate_features,
    q_values,
    takes_joined,
    uncompiled,
    unwrapped,
)
from c4rl.plugins.c4.clustering import Clustering, ClusteringConfig
from c4rl.plugins.c4.cross_covariance import PenaltyConfig, WeightedPenalty
from c4rl.plugins.c4.feature_gradients import input_gradient

DRAWN_AHEAD = 50  # batches: a draw is many operations on few numbers


@dataclass(frozen=True)
class C4AnywhereConfig(ClusteringConfig, PenaltyConfig):
    """Options of C4 that work from outside a loop; the actor's loss and the networks stay the loop's own."""


class C4Anywhere:
    """Single-cluster batches and the penalty for a loop of your own.

    critic, target: map [B, s + a], or [B, s] and [B, a], to Q [B] or [B, 1]; rows are clustered by them. C4 reads which
    of the two from their signature; `joined` overrides it, and the second form needs `action_dim`. Pass twin critics
    one by one. state_actions and next_state_actions: all rows of the data [N, s + a], the latter with the logged next
    action; next_valid: [N], False where there is none. `from_transitions` finds the next actions itself.
    In proxy mode the penultimate features are the input of the `nn.Linear` whose output is Q; if Q is not the output of
    such a layer, name the layer with `head`.
    """

    @torch.inference_mode(False)  # here and below: what is made in that mode cannot be changed or differentiated later
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
        action_dim: int | None = None,
        joined: bool | None = None,
    ) -> None:
        self.config = C4AnywhereConfig() if config is None else config
        if not isinstance(self.config, C4AnywhereConfig):
            raise InputError(f"C4Anywhere: config is a {type(config).__name__}, expected a C4AnywhereConfig")
        self.critic, self.target, self.head = critic, target, head
        self.action_dim, self.joined = action_dim, joined
        self.x, self.x_next, self.valid = state_actions, next_state_actions, next_valid.bool()
        self._check_rows()
        device = state_actions.device
        self.dtype = dtype = torch.promote_types(state_actions.dtype, torch.float32)  # float16 lacks their digits
        self.step = torch.zeros((), dtype=torch.int64, device=device)
        self.streams = Streams([seed], self.step, dtype)
        self.clustering = Clustering(self.config, [seed], [0], [len(state_actions)], device)
        self.weighted_penalty = WeightedPenalty(self.config, 1, device, dtype)
        self.report: dict[str, Tensor] = {}  # of the last clustering, and λR of the last penalty
        self._updates, self._clustered_at = 0, 0
        self._rows: Tensor | None = None
        self._forms: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
        # since which update, rows [S, B] and clusters [S] of S updates from the clusters at hand
        self._ahead: tuple[int, Tensor, Tensor] | None = None
        self._refresh()

    @classmethod
    @torch.inference_mode(False)
    def from_transitions(
        cls,
        critic: CriticFunction,
        target: CriticFunction,
        states: Tensor,
        actions: Tensor,
        next_states: Tensor,
        terminals: Tensor,
        **options: Any,
    ) -> "C4Anywhere":
        """Build it from a log without next actions, in the order of its trajectories: [N, s], [N, a], [N, s] and [N].

        A row's next action is the next row's action, if that row begins in this row's next state and this row is not
        terminal. options: those of the class.
        """
        given = (states, actions, next_states, terminals)
        shapes = [list(one.shape) if isinstance(one, Tensor) else type(one).__name__ for one in given]
        if not all(isinstance(one, Tensor) for one in given) or not (
            states.dim() == actions.dim() == 2
            and next_states.shape == states.shape
            and len(actions) == terminals.numel() == len(states)
        ):
            found = ", ".join(map(str, shapes))
            raise InputError(
                f"C4Anywhere: states, actions, next states and terminals are {found}, expected tensors [N, s], [N, a], "
                "[N, s], [N]"
            )
        follows = torch.zeros(len(states), dtype=torch.bool, device=states.device)
        follows[:-1] = (next_states[:-1] == states[1:]).all(1) & ~terminals.flatten()[:-1].bool()
        if (count := int(follows.sum())) < len(states) / 10:  # shuffled rows meet their successors by chance only
            raise InputError(
                f"C4Anywhere: {count} of {len(states)} rows end where the row below begins, expected whole "
                "trajectories in order"
            )
        next_actions = torch.where(follows.unsqueeze(1), actions.roll(-1, 0), 0)
        rows, next_rows = torch.cat([states, actions], 1), torch.cat([next_states, next_actions], 1)
        return cls(critic, target, rows, next_rows, follows, **{"action_dim": actions.shape[1]} | options)

    def rows(self, batch_size: int) -> Tensor:
        """The next batch, [B] row indices; re-clusters when due. Call it once per critic update."""
        self.refresh_when_due()
        return self.draw(batch_size)

    def refresh_when_due(self) -> None:
        """Re-cluster if `period` batches were drawn since the last time; `rows` does this too."""
        if self._updates - self._clustered_at >= self.config.period:
            self._refresh()

    @torch.inference_mode(False)
    def draw(self, batch_size: int) -> Tensor:
        """Like `rows`, but from the present clusters: never evaluates the critic, so another thread may draw ahead."""
        self._updates += 1
        self.step.fill_(self._updates)
        if self.config.sampler == "uniform":
            count = torch.tensor([len(self.x)], device=self.x.device)
            self._rows = self.streams.integers("rows", count, batch_size)[0]
        else:
            self._rows = self._clustered_rows(batch_size)
        return self._rows

    @property
    def last_rows(self) -> Tensor:
        """Those drawn last, [B]."""
        if self._rows is None:
            raise InputError("C4Anywhere: penalty was called before any rows were drawn, expected rows() or rows=")
        return self._rows

    def _clustered_rows(self, batch_size: int) -> Tensor:
        if self.x.device.type != "cpu":
            return self.clustering.rows(self.streams, batch_size)[0]
        first, rows, clusters = self._ahead or (0, self.x.new_zeros(0, 0), self.x.new_zeros(0))
        if not 0 <= self._updates - first < len(rows) or rows.shape[1] != batch_size:
            first = self._updates
            until_refresh = self._clustered_at + self.config.period - first + 1
            steps = torch.arange(first, first + max(1, min(DRAWN_AHEAD, until_refresh)))
            rows, clusters = self.clustering.tables.rows(Streams(self.streams.seeds, steps.unsqueeze(1)), batch_size)
            self._ahead = first, rows, clusters
        self.clustering.cluster.copy_(clusters[self._updates - first])
        return rows[self._updates - first]

    def penalty(
        self,
        critic: CriticFunction,
        target: CriticFunction,
        td_loss: Tensor | None = None,
        rows: Tensor | None = None,
        features: Tensor | None = None,
    ) -> Tensor:
        """λR of these rows, to be added to this critic's loss (td_loss is needed for lambda "auto").

        rows: [B] indices, if batches are drawn ahead of their use; default those drawn last. features: [B, m], the
        critic's penultimate features at these rows, if the loop has them: proxy mode then does not compute them again.
        """
        known = None if features is None or self.config.mode == "exact" else features.unsqueeze(0)
        return self.joint_penalty([(critic, target)], td_loss, rows, known)

    def joint_penalty(
        self,
        critics: Sequence[tuple[CriticFunction, CriticFunction]],
        td_loss: Tensor | None = None,
        rows: Tensor | None = None,
        g: Tensor | None = None,
        g_next: Tensor | None = None,
    ) -> Tensor:
        """The sum of several critics' penalties, to be added to the sum of their losses; faster than one by one.

        critics: each with its target. td_loss: the mean of their losses. g, g_next: the critics' penultimate features
        (proxy) or input gradients (exact) at these rows, [critics, B, m], and the targets' at the logged next actions,
        if they are known already.
        """
        rows = self.last_rows if rows is None else rows
        if self.weighted_penalty.is_zero:
            weighted = self.x.new_zeros((), dtype=self.dtype)
        else:
            if g is None:
                x = self.x[rows]
                g = _stacked([self._gradients(critic, x, create_graph=True) for critic, _ in critics])
            if g_next is None:
                x_next = self.x_next[rows]
                g_next = _stacked([self._gradients(target, x_next, create_graph=False) for _, target in critics])
            if g.shape != g_next.shape:
                raise InputError(
                    f"C4Anywhere: the critics' features have the shape {list(g.shape)}, expected {list(g_next.shape)} "
                    "as those of their targets at these rows, of the same layer"
                )
            if torch.is_grad_enabled() and not g.requires_grad:
                raise InputError(
                    "C4Anywhere: no gradient reaches the critic through its features, expected layers below the last "
                    "one that are trained, and no detached features (or mode 'exact')"
                )
            if td_loss is not None and td_loss.numel() != 1:
                raise InputError(f"C4Anywhere: td_loss has shape {list(td_loss.shape)}, expected one number, a mean")
            td_loss = td_loss.reshape(1, 1).to(self.dtype) if td_loss is not None else None
            g, g_next = g.to(self.dtype), self._where_defined(g_next.to(self.dtype), rows)
            with torch.autocast(self.x.device.type, enabled=False):  # C is a small difference of large sums
                weighted = self.weighted_penalty(g_next[None], g[None], self.valid[rows][None], td_loss).sum()
        self.report["c4_penalty"] = weighted.detach()
        return weighted

    def features(self, critic: CriticFunction, x: Tensor) -> Tensor:
        """Penultimate features (proxy) or input gradients (exact) of a critic at x [B, s + a], [B, m], detached."""
        return self._gradients(critic, x, create_graph=False).detach()

    def state_dict(self) -> dict[str, Any]:
        """Tensors and integers from which, with its own networks, a stopped loop continues unchanged."""
        state = {f"clustering.{name}": tensor.clone() for name, tensor in self.clustering.state().items()}
        rows = {} if self._rows is None else {"rows": self._rows.clone()}
        counts = {"updates": self._updates, "clustered_at": self._clustered_at}
        report = {f"report.{name}": tensor.clone() for name, tensor in self.report.items()}
        return {**counts, "averages": self.weighted_penalty.averages.clone(), **rows, **report, **state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an object with the same options, seed and rows."""
        kept = {f"clustering.{name}": tensor for name, tensor in self.clustering.state().items()}
        kept["averages"] = self.weighted_penalty.averages
        for name in (*kept, "updates", "clustered_at"):
            if name not in state:
                raise InputError(f"C4Anywhere: the state has no '{name}', expected that of an object of these options")
        for name, tensor in kept.items():
            if state[name].shape != tensor.shape:
                found, expected = list(state[name].shape), list(tensor.shape)
                raise InputError(f"C4Anywhere: '{name}' of the state has the shape {found}, expected {expected}")
        for name, tensor in kept.items():
            tensor.copy_(state[name])
        self._updates, self._clustered_at = int(state["updates"]), int(state["clustered_at"])
        self._rows = state["rows"].to(self.x.device) if "rows" in state else None
        report = {name.removeprefix("report."): state[name] for name in state if name.startswith("report.")}
        self.report |= {name: tensor.clone().to(self.x.device) for name, tensor in report.items()}
        self._ahead = None
        self.step.fill_(self._updates)

    def _check_rows(self) -> None:
        x, x_next, valid = self.x, self.x_next, self.valid
        if x.dim() != 2 or x_next.shape != x.shape or valid.shape != x.shape[:1]:
            found = ", ".join(str(list(tensor.shape)) for tensor in (x, x_next, valid))
            raise InputError(
                f"C4Anywhere: rows, next rows and next_valid have shapes {found}, expected [N, d] twice, [N]"
            )
        most = int(self.config.K.max()) if isinstance(self.config.K, Tensor) else self.config.K
        if (count := int(valid.sum())) < 2 * most:
            raise InputError(f"C4Anywhere: {count} rows have a next action, expected 2 for each of {most} clusters")
        if not (torch.isfinite(x).all() and torch.isfinite(x_next).all()):
            raise InputError("C4Anywhere: the rows hold numbers that are not finite, expected finite ones")

    def _refresh(self) -> None:
        kind, dtype = self.x.device.type, self.dtype
        autocast = torch.is_autocast_enabled(kind)

        def gradients(rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            # the critic as the loop has it; not its cache, which may keep casts without grad for the loop's own calls
            with torch.autocast(kind, enabled=autocast, cache_enabled=False):
                g_next = self._gradients(self.target, self.x_next[rows[0]], create_graph=False)
                g = self._gradients(self.critic, self.x[rows[0]], create_graph=False)
            g_next = self._where_defined(g_next.to(dtype), rows[0])
            return g_next.unsqueeze(0), g.detach().unsqueeze(0).to(dtype), self.valid[rows]

        # batches may be drawn in any mode; statistics need gradients (exact) and all digits
        with torch.inference_mode(False), torch.autocast(kind, enabled=False):
            self.report = self.clustering.refresh(gradients, self.streams, self._updates)
        self._clustered_at = self._updates // self.config.period * self.config.period
        self._ahead = None
        for step, reason in self.clustering.failures().values():
            raise RuntimeError(f"update {step}: {reason}")

    def _where_defined(self, g_next: Tensor, rows: Tensor) -> Tensor:
        """[..., B, m] with 0 for rows without a next action: a critic need not be defined at the 0 that stands for it,
        and 0 times NaN is NaN."""
        return g_next.masked_fill(~self.valid[rows].unsqueeze(1), 0)

    def _gradients(self, critic: CriticFunction, x: Tensor, create_graph: bool) -> Tensor:
        critic = unwrapped(critic)
        joined = self._takes_joined(critic) if self.joined is None else self.joined
        if not joined and self.action_dim is None:
            raise InputError(
                "C4Anywhere: the critic takes states and actions apart, expected action_dim, the number of actions"
            )
        actions = None if joined else self.action_dim
        with uncompiled(critic), nullcontext() if create_graph else at_rest(critic):
            if self.config.mode == "exact":
                return input_gradient(lambda x: q_values(critic, x, actions), x, create_graph)
            with torch.set_grad_enabled(create_graph):
                return penultimate_features(critic, x, self.head, actions)

    def _takes_joined(self, critic: CriticFunction) -> bool:
        """`takes_joined`, of modules once: reading a signature takes as long as a layer."""
        if not isinstance(critic, nn.Module):
            return takes_joined(critic)
        if critic not in self._forms:
            self._forms[critic] = takes_joined(critic)
        return self._forms[critic]


def _stacked(features: list[Tensor]) -> Tensor:
    """[critics, B, m]; of one critic without a copy."""
    return features[0].unsqueeze(0) if len(features) == 1 else torch.stack(features)
