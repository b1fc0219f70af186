"""Options, declared once: a field's type, bounds, help, and whether the runs of one launch may differ in it.

    @dataclass(frozen=True)
    class MyOptions(Options):
        discount: PerRun = option(0.99, at_least=0, at_most=1)
        \"\"\"γ.\"\"\"

The type says whether runs may differ (`PerRun`, `PerRunInt`), the text below a field is its help. Flags, refusals,
sweeps, stored configs and tensors with one value per run all follow from the declaration; subclasses inherit it.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar, get_args

import torch
from torch import Tensor

from c4rl.core.errors import InputError

PerRun = float | Tensor  # a number, or one per run [R] where the runs of a launch differ
PerRunInt = int | Tensor

_METADATA = "c4rl"


class Declaration(NamedTuple):
    """What an option's numbers may be."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    infinite: bool = False  # infinity is a value too
    chooses_rows: bool = False  # it decides which rows a run is trained on

    def holds(self, value: float) -> bool:
        return (
            (math.isfinite(value) or (self.infinite and not math.isnan(value)))
            and (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )

    @property
    def words(self) -> str:
        """As in "a number above 0, at most 1"."""
        bounds = {"above": self.above, "at least": self.at_least, "below": self.below, "at most": self.at_most}
        parts = [f"{name} {bound:,g}" for name, bound in bounds.items() if bound is not None]
        return "a number" + (f" {', '.join(parts)}" if parts else "")


def option(
    default: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    infinite: bool = False,
    chooses_rows: bool = False,
) -> Any:
    """A field of `Options`. Bounds are those of every number in it; words (choices, "auto") and None are left alone."""
    declaration = Declaration(above, at_least, below, at_most, infinite, chooses_rows)
    return dataclasses.field(default=default, metadata={_METADATA: declaration})


def declaration(field: "dataclasses.Field[Any]") -> Declaration:
    return field.metadata.get(_METADATA, Declaration())


def may_differ(field: "dataclasses.Field[Any]") -> bool:
    """Whether runs of one launch may take different values."""
    return Tensor in get_args(field.type)


def flag_of(name: str) -> str:
    """A field's name as people write it: lambda for lambda_, which Python keeps for itself."""
    return name.rstrip("_").replace("_", "-")


@dataclasses.dataclass(frozen=True)
class Options:
    """Frozen options whose numbers are checked when they are made; `check` may refuse combinations."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_number(flag_of(field.name), getattr(self, field.name), declaration(field))
        self.check()

    def check(self) -> None:
        """Refuse combinations that make no sense, by an InputError."""


def check_number(flag: str, value: Any, declared: Declaration) -> None:
    """Refuse numbers out of bounds, alone or in a tuple. Tensors hold numbers that have passed."""
    for number in value if isinstance(value, tuple) else (value,):
        if isinstance(number, int | float) and not isinstance(number, bool) and not declared.holds(number):
            raise InputError(f"--{flag}: found {number:g}, expected {declared.words}")


SomeOptions = TypeVar("SomeOptions", bound=Options)


def stacked(options: Sequence[SomeOptions], device: torch.device, dtype: torch.dtype) -> SomeOptions:
    """The options of runs that share a launch: one value, or a tensor [R] where they differ."""
    values: dict[str, Tensor] = {}
    for field in dataclasses.fields(options[0]):
        own = [getattr(one, field.name) for one in options]
        if any(value != own[0] for value in own):
            assert may_differ(field), f"{field.name} differs within a launch"
            kind = torch.int64 if all(isinstance(value, int) for value in own) else dtype
            values[field.name] = torch.tensor(own, dtype=kind, device=device)
    return dataclasses.replace(options[0], **values) if values else options[0]
