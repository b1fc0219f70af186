"""Options, declared once: a field's type, bounds, help, and whether the runs of one launch may differ in it.

    @dataclass(frozen=True)
    class MyOptions(Options):
        discount: PerRun = option(0.99, at_least=0, at_most=1)
        \"\"\"γ.\"\"\"

The type says whether runs may differ (`PerRun`, `PerRunInt`), the text below a field is its help. Flags, refusals,
sweeps, stored configs and tensors with one value per run all follow from the declaration; subclasses inherit it.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor

from c4rl.core.declarations import Options, declaration, flag_of, option

__all__ = ["Options", "PerRun", "PerRunInt", "declaration", "flag_of", "may_differ", "option", "stacked"]

PerRun = float | Tensor  # a number, or one per run [R] where the runs of a launch differ
PerRunInt = int | Tensor


def may_differ(field: "dataclasses.Field[Any]") -> bool:
    """Whether runs of one launch may take different values."""
    return Tensor in get_args(field.type)


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
