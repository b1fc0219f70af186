"""JSON values as the types of a dataclass's fields, where what does not fit is named; and numbers that JSON lacks."""

import dataclasses
import math
import types
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from c4rl.core.errors import InputError


def from_dict(kind: Any, data: Any, origin: str, **ready: Any) -> Any:
    if not isinstance(data, dict):
        raise InputError(f"{origin}: found {data!r}, expected an object with the fields of {kind.__name__}")
    fields = {f.name: f for f in dataclasses.fields(kind)}
    for name in data:
        if name not in fields:
            raise InputError(f"{origin}: unknown field '{name}' for {kind.__name__}")
    for name, f in fields.items():
        if f.default is f.default_factory is dataclasses.MISSING and name not in data:
            raise InputError(f"{origin}: field '{name}' is missing, expected all fields of {kind.__name__}")
    return kind(**{name: typed(fields[name].type, value, name, origin) for name, value in data.items()}, **ready)


def typed(kind: Any, value: Any, name: str, origin: str) -> Any:
    try:
        return _read(kind, value)
    except TypeError:
        expected = kind.__name__ if type(kind) is type else str(kind).replace("typing.", "")
        raise InputError(f"{origin}: field '{name}' is {value!r}, expected {expected}") from None


def _read(kind: Any, value: Any) -> Any:
    """A JSON value as this type (JSON has no tuples and no paths); TypeError where it is of another."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        for option in arguments:
            with suppress(TypeError):
                return _read(option, value)
    elif origin is Literal and value in arguments:
        return value
    elif origin is Annotated:
        return _read(arguments[0], value)
    elif origin is tuple and isinstance(value, list | tuple):
        return tuple(_read(arguments[0], item) for item in value)
    elif kind is Path and isinstance(value, str):
        return Path(value)
    elif kind is float and (type(value) in (int, float) or value in ("inf", "-inf", "nan")):
        return float(value)
    elif kind is Any or (isinstance(kind, type) and type(value) is kind):
        return value
    raise TypeError


def jsonable(value: Any) -> Any:
    """NaN and infinity are not JSON: they become their names."""
    if isinstance(value, dict):
        return {name: jsonable(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
