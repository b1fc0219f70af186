"""Options from JSON objects, where what does not fit is named; and numbers that JSON lacks."""

import dataclasses
import math
from typing import Any

from c4rl.core.declarations import as_json, expected, read
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
    values = {name: typed(fields[name], value, origin) for name, value in data.items()}
    try:
        return kind(**values, **ready)
    except InputError as error:
        raise InputError(f"{origin}: {error}") from None


def typed(field: "dataclasses.Field[Any]", value: Any, origin: str) -> Any:
    try:
        return read(field.type, value, as_json)
    except ValueError:
        raise InputError(f"{origin}: field '{field.name}' is {value!r}, expected {expected(field)}") from None


def jsonable(value: Any) -> Any:
    """NaN and infinity are not JSON: they become their names."""
    if isinstance(value, dict):
        return {name: jsonable(v) for name, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
