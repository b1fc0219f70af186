"""C4 in TorchRL's TD3BCLoss, CQLLoss and IQLLoss: `TensorDictReplayBuffer(sampler=with_c4(loss, storage), ...)`
(docs/integrations.md)."""

import copy
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from c4rl.core.errors import InputError
from c4rl.core.extras import how_to_install
from c4rl.integrations.loss_penalty import LossPenalty
from c4rl.plugins.c4.anywhere import C4Anywhere, C4AnywhereConfig

__all__ = ["with_c4"]

CRITIC_LOSSES = {"TD3BCLoss": "qvalue_loss", "CQLLoss": "q_loss", "IQLLoss": "qvalue_loss"}  # method of each loss
MARK = "_c4rl"  # on a loss whose critic loss has the penalty
STATE = "c4.safetensors"  # of a sampler, in the folder of its buffer


def with_c4(loss: Any, storage: Any, config: C4AnywhereConfig | None = None, seed: int = 0) -> Any:
    """The sampler for a replay buffer on this storage: single-cluster batches. Adds the penalty to the critic loss.

    storage: holds all transitions, in the order of their trajectories and scaled as the loss should see them.
    """
    try:
        import torchrl.objectives
    except ModuleNotFoundError as error:
        raise InputError(f"c4rl.integrations.torchrl: {how_to_install('torchrl')}") from error
    kinds: tuple[Any, ...] = tuple(getattr(torchrl.objectives, name) for name in CRITIC_LOSSES)
    if not isinstance(loss, kinds):
        raise InputError(f"with_c4: found a {type(loss).__name__}, expected one of {', '.join(CRITIC_LOSSES)}")
    if hasattr(loss, MARK):
        raise InputError("with_c4: this loss has C4 already, expected one without it")
    if not loss.delay_qvalue:
        raise InputError("with_c4: found delay_qvalue=False, expected True: C4 compares critics with their targets")
    if loss.reduction != "mean":
        raise InputError(f"with_c4: found reduction='{loss.reduction}', expected 'mean'")
    return _sampler_class()(loss, storage, C4AnywhereConfig() if config is None else config, seed)


@cache
def _sampler_class() -> type:
    from torchrl.data.replay_buffers import Sampler

    class ClusterSampler(Sampler):
        """Batches that C4 chooses. `c4`: rows, report and state."""

        def __init__(self, loss: Any, storage: Any, config: C4AnywhereConfig, seed: int) -> None:
            action = loss.tensor_keys.action
            keys = [key for key in loss.qvalue_network.in_keys if key != action]
            rows = storage[:]
            self._inputs = (*keys, action)
            critics = _members(loss, self._inputs, rows)
            self.c4 = C4Anywhere.from_transitions(
                *critics[0],
                torch.cat([rows[key] for key in keys], 1),
                rows[action],
                torch.cat([rows["next", key] for key in keys], 1),
                rows["next", loss.tensor_keys.terminated],
                config=config,
                seed=seed,
                joined=True,
            )
            self._lock = Lock()  # a prefetching buffer draws in threads of its own
            self._add_penalty(loss, critics)

        def sample(self, storage: Any, batch_size: int) -> tuple[Tensor, dict[str, Any]]:
            with self._lock:
                return self.c4.draw(batch_size), {}

        def _add_penalty(self, loss: Any, critics: "list[tuple[_Member, _Member]]") -> None:
            name = next(method for kind, method in CRITIC_LOSSES.items() if _is_a(loss, kind))
            plain, c4_penalty = getattr(loss, name), LossPenalty(self.c4, critics, [loss.qvalue_network], _Member.bind)

            def with_penalty(tensordict: Any) -> tuple[Tensor, dict[str, Any]]:
                rows = self._rows_of(tensordict)
                with c4_penalty.recording():
                    value, metadata = plain(tensordict)
                with self._lock:  # here, and not where batches are drawn: other threads must not use the critic
                    self.c4.refresh_when_due()
                penalty = c4_penalty.of(value, rows)
                return value + penalty, metadata | {"c4_penalty": penalty.detach()}

            setattr(loss, name, with_penalty)
            setattr(loss, MARK, self.c4)

        def _rows_of(self, batch: Any) -> Tensor:
            """Which of the storage's rows a batch holds: batches are drawn ahead, so each carries its indices."""
            if (rows := batch.get("index", None)) is None:
                raise InputError(
                    "with_c4: found a batch without 'index', expected one of a TensorDictReplayBuffer with this sampler"
                )
            rows = rows.to(self.c4.x.device)
            if not torch.equal(torch.cat([batch[key] for key in self._inputs], 1), self.c4.x[rows]):
                raise InputError(
                    "with_c4: found a batch that differs from the storage's rows, expected them unchanged: apply "
                    "transforms before the storage is filled, and add no rows afterwards"
                )
            return rows

        def state_dict(self) -> dict[str, Any]:
            return self.c4.state_dict()

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            with self._lock:
                self.c4.load_state_dict(state_dict)

        def dumps(self, path: str | Path) -> None:
            Path(path).mkdir(parents=True, exist_ok=True)
            state = {name: torch.as_tensor(value).contiguous() for name, value in self.state_dict().items()}
            save_file(state, Path(path) / STATE)

        def loads(self, path: str | Path) -> None:
            self.load_state_dict(load_file(Path(path) / STATE))

        def _empty(self) -> None:
            raise InputError(
                "with_c4: found a buffer to be emptied, expected its rows to stay: C4's clusters are theirs"
            )

    return ClusterSampler


def _is_a(loss: Any, kind: str) -> bool:
    return any(one.__name__ == kind for one in type(loss).__mro__)


class _Member(nn.Module):
    """One critic of a loss, of joined rows. TorchRL keeps the weights of all in one stack, outside their network."""

    def __init__(self, loss: Any, weights: str, index: int, inputs: Sequence[Any], widths: Sequence[int]) -> None:
        super().__init__()
        self.network = copy.deepcopy(loss.qvalue_network)  # its own: the loss may be using the other
        self._weights = lambda: getattr(loss, weights)
        self._output = lambda: loss.tensor_keys.state_action_value
        self._index, self._inputs, self._widths = index, inputs, list(widths)
        self._places: list[int] = []  # in memory: of the weights that the network holds views of

    def forward(self, x: Tensor) -> Tensor:
        from tensordict import TensorDict

        batch = TensorDict(dict(zip(self._inputs, x.split(self._widths, 1), strict=True)), batch_size=len(x))
        if torch.is_grad_enabled():
            with self._own(self._weights()).to_module(self.network):
                return self.network(batch)[self._output()]
        self.bind()
        return self.network(batch)[self._output()]

    def bind(self, graph: bool = False) -> None:
        """Make the network's weights views of the loss's; cheap where they are. Optimisers write in place."""
        weights = self._weights()
        if graph:
            self._own(weights).to_module(self.network)
            self._places = []
            return
        if (places := [weight.data_ptr() for weight in weights.values(True, True)]) != self._places:
            self._own(weights.data).to_module(self.network)
            self._places = places

    def _own(self, weights: Any) -> Any:
        return weights[self._index] if weights.ndim else weights


def _members(loss: Any, inputs: Sequence[Any], rows: Any) -> list[tuple[_Member, _Member]]:
    """Each critic with its target."""
    widths = [rows[key].shape[1] for key in inputs]
    names = "qvalue_network_params", "target_qvalue_network_params"
    return [
        (_Member(loss, names[0], i, inputs, widths), _Member(loss, names[1], i, inputs, widths))
        for i in range(loss.num_qvalue_nets)
    ]
