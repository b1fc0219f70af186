"""What an option is: its type, bounds, choices and help, declared once on a dataclass's field. Needs no PyTorch.

`read` converts text or JSON to an option's type and `expected` describes the type and bounds in words. The command
line, sweeps and stored configs all use these two.
"""

import dataclasses
import math
import types
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Union, get_args, get_origin

from c4rl.core.errors import InputError

_METADATA = "c4rl"


class Declaration(NamedTuple):
    """The allowed values of an option."""

    above: float | None = None
    at_least: float | None = None
    below: float | None = None
    at_most: float | None = None
    infinite: bool = False  # infinity is allowed
    choices: Collection[str] = ()  # the words it may be, where its type does not say
    chooses_rows: bool = False  # it decides which rows a run is trained on
    incidental: bool = False  # it decides where, how fast and how well watched a run is made, not what comes out of it

    def holds(self, value: float) -> bool:
        return (
            (isinstance(value, int) or math.isfinite(value) or (self.infinite and not math.isnan(value)))
            and (self.above is None or value > self.above)
            and (self.at_least is None or value >= self.at_least)
            and (self.below is None or value < self.below)
            and (self.at_most is None or value <= self.at_most)
        )

    @property
    def bounds(self) -> str:
        """As in " above 0, at most 1"."""
        bounds = {"above": self.above, "at least": self.at_least, "below": self.below, "at most": self.at_most}
        return ",".join(f" {name} {_plain(bound)}" for name, bound in bounds.items() if bound is not None)


def _plain(bound: float) -> str:
    return f"{int(bound):,}" if float(bound).is_integer() else f"{bound:g}"


def option(
    default: Any = dataclasses.MISSING,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
    infinite: bool = False,
    choices: Collection[str] = (),
    chooses_rows: bool = False,
    incidental: bool = False,
) -> Any:
    """A field of `Options`. Bounds are those of every number in it; words (choices, "auto") and None are left alone."""
    declaration = Declaration(above, at_least, below, at_most, infinite, choices, chooses_rows, incidental)
    return dataclasses.field(default=default, metadata={_METADATA: declaration})


def declaration(field: "dataclasses.Field[Any]") -> Declaration:
    """The declaration that `option` gave a field."""
    return field.metadata.get(_METADATA, Declaration())


def plain_name(name: str) -> str:
    """A field's name as people write it: lambda for lambda_, because lambda is a Python keyword."""
    return name.rstrip("_")


def flag_of(name: str) -> str:
    """A field's name on the command line, without the dashes in front."""
    return plain_name(name).replace("_", "-")


@dataclasses.dataclass(frozen=True)
class Options:
    """Frozen options whose values are checked when they are made; `check` may refuse combinations."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = _plain_value(field.type, getattr(self, field.name))
            object.__setattr__(self, field.name, value)
            check_value(field, value)
        # with tensors of one value per run, those values were checked one by one
        if not any(hasattr(value, "requires_grad") for value in vars(self).values()):
            self.check()

    def check(self) -> None:
        """Refuse combinations that make no sense, by an InputError."""


def _plain_value(kind: Any, value: Any) -> Any:
    """As configs are stored: Python's numbers for NumPy's, tuples for lists, ranges and arrays, paths for text."""
    if hasattr(value, "tolist") and not hasattr(value, "requires_grad"):  # tensors have one number per run
        value = value.tolist()
    if is_tuple(kind) and isinstance(value, list | range | tuple):
        (item, *_), *_ = (get_args(one) for one in (kind, *get_args(kind)) if get_origin(one) is tuple)
        return tuple(_plain_value(item, one) for one in value)
    return Path(value) if kind is Path and isinstance(value, str) else value


def check_value(field: "dataclasses.Field[Any]", value: Any) -> None:
    """Refuse values of another type, numbers out of bounds and words that are not choices, alone or in a tuple."""
    declared, every = declaration(field), value if isinstance(value, tuple) else (value,)
    fits = not expected(field) or _fits(field.type, value)
    for one in every:
        if isinstance(one, str):
            holds = (not declared.choices or one in declared.choices) and fits
        else:
            holds = fits and (not isinstance(one, int | float) or isinstance(one, bool) or declared.holds(one))
        if not holds:
            found = f"'{one}'" if isinstance(one, str) else f"{one:g}" if isinstance(one, float) and fits else one
            several = "a tuple: " if is_tuple(field.type) and not isinstance(value, tuple) else ""
            raise InputError(f"--{flag_of(field.name)}: found {found}, expected {several}{expected(field)}")
    if isinstance(value, tuple) and not value and declared.bounds:
        raise InputError(f"--{flag_of(field.name)}: found none, expected {expected(field)}")


# -- types: from text and from JSON, and in words

Leaf = Callable[[Any, Any], Any]  # (type, value) -> the value as this type, which is no union, choice or tuple


def read(kind: Any, value: Any, leaf: Leaf) -> Any:
    """The value as this type; ValueError where it is of another."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return read(arguments[0], value, leaf)
    if origin in (Union, types.UnionType):
        for one in arguments:
            with suppress(ValueError):
                return read(one, value, leaf)
    elif origin is Literal:
        for one in arguments:
            with suppress(ValueError):
                if read(type(one), value, leaf) == one:
                    return one
    elif origin in (tuple, list):
        if isinstance(value, list | tuple):
            return origin(read(arguments[0], item, leaf) for item in value)
    else:
        return leaf(kind, value)
    raise ValueError(value)


def as_text(kind: Any, value: Any) -> Any:
    """A leaf: the words of a command line."""
    if kind in (int, float) and isinstance(value, str) and (number := kind(value)) == number:  # NaN is refused
        return number
    if kind in (str, Path) and isinstance(value, str):
        return kind(value)
    if kind is bool and value in ("True", "False"):
        return value == "True"
    if kind is types.NoneType and value in ("None", ["None"]):
        return None
    raise ValueError(value)


def as_json(kind: Any, value: Any) -> Any:
    """A leaf: JSON values. JSON has no paths, and stores infinity by its name."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    if kind is float and (type(value) in (int, float) or value in ("inf", "-inf", "nan")):
        with suppress(OverflowError):
            return float(value)
    if kind is Any or (isinstance(kind, type) and type(value) is kind):
        return value
    raise ValueError(value)


def _as_it_is(kind: Any, value: Any) -> Any:
    if isinstance(value, bool) and kind in (int, float):  # a whole number only to Python
        raise ValueError(value)
    if kind is Any or isinstance(value, (int, float) if kind is float else kind):
        return value
    raise ValueError(value)


def _fits(kind: Any, value: Any) -> bool:
    with suppress(ValueError):
        read(kind, value, _as_it_is)
        return True
    return False


def read_text(field: "dataclasses.Field[Any]", words: str | list[str], given: str) -> Any:
    """An option's value from a word, or from several where it is a tuple; given: its name in error messages."""
    alone = isinstance(words, list) and len(words) == 1 and not is_tuple(field.type)
    try:
        return read(field.type, words[0] if alone else words, as_text)
    except ValueError:
        found = f"'{words if isinstance(words, str) else ' '.join(words)}'" if words != [] else "nothing"
        several = isinstance(words, list) and len(words) > 1 and not is_tuple(field.type)
        hint = ", one word (quote a name with spaces)" if several else ""
        raise InputError(f"{given}: found {found}, expected {expected(field)}{hint}") from None


def is_tuple(kind: Any) -> bool:
    return get_origin(kind) is tuple or any(is_tuple(one) for one in get_args(kind))


def expected(field: "dataclasses.Field[Any]") -> str:
    """As in "a number above 0, at most 1 or auto"."""
    return _words(field.type, declaration(field))


def _words(kind: Any, declared: Declaration) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _words(arguments[0], declared)
    if origin in (Union, types.UnionType):
        return " or ".join(words for one in arguments if (words := _words(one, declared)))
    if origin is Literal or (kind is str and declared.choices):
        choices = tuple(map(str, arguments or declared.choices))
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    if origin is tuple:
        return f"{_words(arguments[0], declared)} each"
    names = {int: f"a whole number{declared.bounds}", float: f"a number{declared.bounds}", str: "text"}
    return names.get(kind) or {bool: "True or False", types.NoneType: "None", Path: "a path"}.get(kind, "")
