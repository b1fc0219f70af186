"""The seams: what may be plugged into any algorithm, and what it is shown there.

An algorithm asks its `Plugins` for four things and knows none of them by name: which rows form the batch (a sampler,
a weight per row, and where wanted other rows for the actor), what is added to each critic's loss, whether critics carry
LayerNorm, and what is added to the actor's loss.
"""

from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from c4rl.core.buffer import Batch, TransitionBuffer
from c4rl.core.errors import InputError
from c4rl.core.networks import Critic, CriticOutput, Stack
from c4rl.core.policies import TanhGaussian
from c4rl.core.random import Streams


class Sampler(Protocol):
    def rows(self, streams: Streams, batch_size: int) -> Tensor:
        """[R, B] indices into the buffer."""
        ...


class CriticStep(NamedTuple):
    """One critic update as a penalty sees it."""

    batch: Batch
    critic: Critic
    target: Critic
    output: CriticOutput  # of the critic at the batch's (s, a), with its graph
    backup_actions: Tensor  # [R, B, a], the actions of the TD target, without graph
    td_loss: Tensor  # [R, M]


class ActorStep(NamedTuple):
    """One actor update as an added term sees it."""

    batch: Batch  # the actor's
    critic: Critic | None  # None where the algorithm has none
    actions: Tensor  # [R, B, a], the policy's actions at s, with graph
    log_prob: Tensor | None  # [R, B] of those actions; None for deterministic policies
    distribution: TanhGaussian | None


class Host(Protocol):
    """The algorithm, as a plug-in sees it."""

    config_type: ClassVar[type[Any]]
    has_critic: ClassVar[bool]
    has_actor_term: ClassVar[bool]
    config: Any
    stack: Stack
    streams: Streams

    @classmethod
    def policy_has_density(cls, config: Any) -> bool: ...

    @property
    def plugins(self) -> "Plugins": ...

    @property
    def critics(self) -> tuple[Critic, Critic] | None: ...

    def critic_inputs(self, state_actions: Tensor) -> Tensor: ...

    def plain_actions(self, observations: Tensor) -> Tensor: ...


class Plugin:
    """Does nothing; a plug-in overrides what it needs."""

    critic_layer_norm = False
    needs_critic: ClassVar[bool] = False
    needs_policy: ClassVar[bool] = False  # one network that acts, with a loss to add to
    monitored: ClassVar[bool] = False  # its runs log the cross-covariance
    mixes_datasets: ClassVar[bool] = False  # with an `attach` of its own: runs on different data may share a launch
    period: int | None = None  # updates between two calls of `refresh`

    @classmethod
    def clash(cls, other: "type[Host] | type[Plugin]") -> str | None:
        """What this plug-in and the other part would both do, in words, where that is one too many."""
        chooses = [issubclass(kind, Plugin) and kind.sampler is not Plugin.sampler for kind in (cls, other)]
        return "choose the rows of a batch" if all(chooses) else None

    @classmethod
    def check(cls, options: Any, algorithm: type[Host], algorithm_options: Any) -> None:
        """Refuse options that make no sense with the algorithm and its options, before any work is done."""

    @classmethod
    def launch_key(cls, options: Any, rows: int, data: int) -> Hashable:
        """As an algorithm's: runs of equal keys may share a launch."""
        return 0 if cls.mixes_datasets or cls.attach is Plugin.attach else data

    def attach(self, algorithm: Host, buffer: TransitionBuffer) -> None:
        """Called once, after the networks are built."""

    def start(self, algorithm: Host) -> None:
        """Called once before the first update of runs that begin; others have their state restored instead."""

    def row_weights(self, buffer: TransitionBuffer) -> Tensor | None:
        """How often rows are drawn: weights of 0 or more of each run's own rows [R, n], n of the longest run; None: all
        alike. Asked for once, before `attach`; `refresh` may write new ones in place. Those of several plug-ins
        multiply, and a sampler takes them up: clusters at their next refresh."""
        return None

    def sampler(self) -> Sampler | None:
        """The rows of the batch, instead of ones drawn from all by their weights."""
        return None

    def actor_sampler(self) -> Sampler | None:
        """The rows of the actor's batch, instead of the critics' rows."""
        return None

    @property
    def chooses_actor_rows(self) -> bool:
        """Whether these rows are what it is for, or just not to be the critics': then another's choice comes first."""
        return False

    def critic_penalty(self, step: CriticStep) -> Tensor | None:
        """[R, M], added to each head's own loss."""
        return None

    @property
    def has_actor_term(self) -> bool:
        """Whether `actor_term` adds anything; if no plug-in does, no ActorStep is made."""
        return False

    def actor_term(self, step: ActorStep) -> Tensor | None:
        """[R], added to the actor's loss."""
        return None

    def refresh(self, algorithm: Host, step: int) -> dict[str, Tensor]:
        """Every `period` updates, between two updates; writes in place. step: of the last update; 0: as at the start,
        nothing is taken over. Returns what is to be logged, [R] each, NaN for a run that has no such number."""
        return {}

    @property
    def static_refresh(self) -> bool:
        """Whether a CUDA graph may capture `refresh`: the same operations each time, no waiting for the host."""
        return False

    def metrics(self) -> dict[str, Tensor]:
        """Of the last update, [R] each, read at the logging interval."""
        return {}

    def failures(self) -> dict[int, tuple[int, str]]:
        """Runs (by their place in the stack) that cannot go on -> (update, what happened, in words)."""
        return {}

    def state(self) -> dict[str, Tensor]:
        """Tensors to be stored with a checkpoint and restored in place; [R, ...] each."""
        return {}

    def unpadded(self, name: str, tensor: Tensor, run: int) -> Tensor:
        """One run's slice of a tensor of `state`, without the padding that the stack added."""
        return tensor

    def padded(self, name: str, own: Tensor, run: int) -> Tensor:
        """The reverse: pad what `unpadded` gave to this stack's size."""
        return own


class Plugins:
    """All plug-ins of a stack, as the algorithm sees them."""

    def __init__(self, plugins: Sequence[Plugin] = ()) -> None:
        self.all = tuple(plugins)

    @property
    def critic_layer_norm(self) -> bool:
        return any(plugin.critic_layer_norm for plugin in self.all)

    def row_weights(self, buffer: TransitionBuffer) -> tuple[Tensor, ...]:
        """[R, n] of each plug-in that weighs rows."""
        found = {plugin: weights for plugin in self.all if (weights := plugin.row_weights(buffer)) is not None}
        for plugin, weights in found.items():
            if not (weights.isfinite().all() and (weights >= 0).all() and (weights.sum(1) > 0).all()):
                name = type(plugin).__name__
                raise InputError(f"{name}: found weights of rows that are negative, not finite or all 0 in a run")
        return tuple(found.values())

    def sampler(self, buffer: TransitionBuffer) -> Sampler:
        samplers = [sampler for plugin in self.all if (sampler := plugin.sampler()) is not None]
        return samplers[0] if samplers else buffer.sampler()

    def actor_sampler(self) -> Sampler | None:
        chosen_first = sorted(self.all, key=lambda plugin: not plugin.chooses_actor_rows)
        return next((s for plugin in chosen_first if (s := plugin.actor_sampler()) is not None), None)

    @property
    def choose_actor_rows(self) -> bool:
        return any(plugin.chooses_actor_rows for plugin in self.all)

    def critic_penalty(self, step: CriticStep) -> Tensor | float:
        terms = [term for plugin in self.all if (term := plugin.critic_penalty(step)) is not None]
        return sum(terms[1:], start=terms[0]) if terms else 0.0

    @property
    def have_actor_term(self) -> bool:
        return any(plugin.has_actor_term for plugin in self.all)

    def actor_term(self, step: ActorStep) -> Tensor | float:
        terms = [term for plugin in self.all if (term := plugin.actor_term(step)) is not None]
        return sum(terms[1:], start=terms[0]) if terms else 0.0


def module_state(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """Named parameters of named modules, as live tensors."""
    return {f"{key}/{name}": p.data for key, module in modules.items() for name, p in module.named_parameters()}
