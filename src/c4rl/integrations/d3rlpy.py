"""C4 in d3rlpy's TD3+BC, CQL and IQL: `algo.fit(with_c4(algo, dataset), ...)` (docs/integrations.md)."""

import dataclasses
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from c4rl.core.errors import InputError
from c4rl.core.extras import how_to_install
from c4rl.integrations.loss_penalty import LossPenalty
from c4rl.plugins.c4.anywhere import C4Anywhere, C4AnywhereConfig

__all__ = ["ClusteredDataset", "with_c4"]

MARK = "_c4rl"  # on an implementation whose critic loss has the penalty


def with_c4(algo: Any, dataset: Any, config: C4AnywhereConfig | None = None, seed: int = 0) -> "ClusteredDataset":
    """The dataset to fit to: its batches come from one cluster each, and the algorithm's critic loss has the penalty.

    Builds the algorithm's scalers and networks, unless they are built: C4 needs both before the first batch.
    """
    try:
        from d3rlpy.algos.qlearning.torch.ddpg_impl import DDPGBaseImpl
        from d3rlpy.algos.utility import build_scalers_with_transition_picker
        from d3rlpy.dataset import ReplayBuffer
    except ModuleNotFoundError as error:
        raise InputError(f"c4rl.integrations.d3rlpy: {how_to_install('d3rlpy')}") from error
    if not isinstance(dataset, ReplayBuffer):
        raise InputError(f"with_c4: found a {type(dataset).__name__}, expected a d3rlpy ReplayBuffer")
    if algo.compiled:
        raise InputError("with_c4: found compile_graph=True, expected False: a captured loss would not see C4's rows")
    shapes = list(dataset.dataset_info.observation_signature.shape)
    if len(shapes) != 1 or len(shapes[0]) != 1:
        raise InputError(f"with_c4: found observations of the shapes {shapes}, expected vectors")
    build_scalers_with_transition_picker(algo, dataset)
    if algo.impl is None:
        algo.build_with_dataset(dataset)
    if not isinstance(algo.impl, DDPGBaseImpl):
        raise InputError(f"with_c4: found {type(algo).__name__}, expected TD3PlusBC, CQL or IQL (continuous actions)")
    if hasattr(algo.impl, MARK):
        raise InputError("with_c4: this algorithm has C4 already, expected one without it")
    return ClusteredDataset(algo, dataset, C4AnywhereConfig() if config is None else config, seed)


class ClusteredDataset:
    """A d3rlpy dataset whose batches C4 chooses; everything else is the dataset's own. `c4` has rows, report, state."""

    def __init__(self, algo: Any, dataset: Any, config: C4AnywhereConfig, seed: int) -> None:
        self._algo, self._dataset, self._impl = algo, dataset, algo.impl
        modules = self._impl.modules
        critics = [
            (_QValue(q), _QValue(target)) for q, target in zip(modules.q_funcs, modules.targ_q_funcs, strict=True)
        ]
        self._transitions = [dataset.transition_picker(*place) for place in dataset.buffer]
        batch = self._scaled(self._batch(self._transitions))
        critic, target = critics[0]
        self.c4 = C4Anywhere(
            critic,
            target,
            torch.cat([batch.observations, batch.actions], 1),
            torch.cat([batch.next_observations, batch.next_actions], 1),
            batch.terminals.flatten() == 0,
            config=config,
            seed=seed,
            action_dim=batch.actions.shape[1],
            joined=False,
        )
        self._drawn: tuple[Any, Tensor] | None = None
        self._add_penalty(critics)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def sample_transition_batch(self, batch_size: int) -> Any:
        """Like d3rlpy's own, but with the rows that C4 draws."""
        if self._algo.impl is not self._impl:
            raise InputError("with_c4: the algorithm was rebuilt, expected the networks that C4 was given")
        rows = self.c4.rows(batch_size)
        batch = self._batch([self._transitions[row] for row in rows.tolist()])
        self._drawn = batch, rows
        return batch

    def _add_penalty(self, critics: "list[tuple[_QValue, _QValue]]") -> None:
        plain, penalty = self._impl.compute_critic_loss, LossPenalty(self.c4, critics)

        def with_penalty(batch: Any, q_tpn: Tensor) -> Any:
            if self._drawn is None or batch.numpy_batch is not self._drawn[0]:
                raise InputError("with_c4: found a batch of another dataset, expected algo.fit(with_c4(algo, dataset))")
            with penalty.recording():
                loss = plain(batch, q_tpn)
            return _with_field(loss, penalty.of(loss.critic_loss, self._drawn[1]))

        self._impl.compute_critic_loss = with_penalty
        setattr(self._impl, MARK, self.c4)

    @staticmethod
    def _batch(transitions: list[Any]) -> Any:
        from d3rlpy.dataset import TransitionMiniBatch

        return TransitionMiniBatch.from_transitions(transitions)

    def _scaled(self, batch: Any) -> Any:
        """As the algorithm's own update scales a batch."""
        from d3rlpy.torch_utility import TorchMiniBatch

        algo = self._algo
        return TorchMiniBatch.from_batch(
            batch=batch,
            gamma=algo.gamma,
            compute_returns_to_go=False,
            device=self._impl.device,
            observation_scaler=algo.observation_scaler,
            action_scaler=algo.action_scaler,
            reward_scaler=None,
        )


class _QValue(nn.Module):
    """A d3rlpy Q function that gives a tensor."""

    def __init__(self, q_function: nn.Module) -> None:
        super().__init__()
        self.q_function = q_function

    def forward(self, observation: Tensor, action: Tensor) -> Tensor:
        return self.q_function(observation, action).q_value


def _with_field(loss: Any, penalty: Tensor) -> Any:
    """The loss with the penalty added, and `c4_penalty` as one more field, which d3rlpy logs."""
    values = {field.name: getattr(loss, field.name) for field in dataclasses.fields(loss)}
    values |= {"critic_loss": loss.critic_loss + penalty, "c4_penalty": penalty}
    return _with_penalty_field(loss.__class__)(**values)


@cache
def _with_penalty_field(kind: type) -> Any:
    return dataclasses.make_dataclass("C4CriticLoss", [("c4_penalty", Tensor)], bases=(kind,), frozen=True)
