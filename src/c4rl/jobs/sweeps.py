"""--sweep and --by-dataset: options of the algorithm or of a plug-in that take several values within one job."""

import types
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from torch import Tensor

from c4rl.core.errors import InputError

ALGORITHM = -1  # the place of an option that is the algorithm's; plug-ins are numbered from 0
Options = tuple[Any, tuple[Any, ...]]  # the algorithm's options, and those of each plug-in


class Swept(NamedTuple):
    """One option and the values it takes."""

    flag: str  # as on the command line, without dashes
    place: int
    field: str  # of that options object
    values: tuple[Any, ...]  # all of them for every dataset (--sweep), or one for each (--by-dataset)


def flag_of(field: str) -> str:
    """The name that people write: lambda for lambda_, which Python keeps for itself."""
    return field.rstrip("_")


def parse_values(
    name_of_flag: str, words: Sequence[str], options: Options, job_fields: Sequence[str]
) -> tuple[Swept, ...]:
    """The words "flag=value,value,..." of --sweep or --by-dataset; job_fields: names that belong to the whole job."""
    given = f"--{name_of_flag}"
    algorithm_options, plugin_options = options
    owners = {ALGORITHM: algorithm_options, **dict(enumerate(plugin_options))}
    known = {flag_of(f.name): (place, f) for place, owner in owners.items() for f in fields(owner)}
    found: list[Swept] = []
    for word in words:
        name, equals, text = word.partition("=")
        flag = flag_of(name.lstrip("-").replace("-", "_"))
        if not equals or not text:
            raise InputError(f"{given}: found '{word}', expected FLAG=VALUE,VALUE,... as lambda=0.1,0.3")
        if flag in job_fields:
            raise InputError(f"{given} {word}: --{name} is a setting of the whole job, expected one of {_list(known)}")
        if flag not in known:
            raise InputError(f"{given} {word}: no option is called '{name}', expected one of {_list(known)}")
        if flag in (swept.flag for swept in found):
            raise InputError(f"{given}: found '{name}' twice, expected each option once")
        place, field = known[flag]
        values = tuple(_value(field.type, part, f"{given} {word}") for part in text.split(","))
        found.append(Swept(flag, place, field.name, values))
    return tuple(found)


def parse_sweep(words: Sequence[str], options: Options, job_fields: Sequence[str]) -> tuple[Swept, ...]:
    found = parse_values("sweep", words, options, job_fields)
    for word, swept in zip(words, found, strict=True):
        if len(set(swept.values)) < len(swept.values):
            raise InputError(f"--sweep {word}: found a value twice, expected each once")
    return found


def parse_by_dataset(
    words: Sequence[str], options: Options, job_fields: Sequence[str], datasets: int
) -> tuple[Swept, ...]:
    found = parse_values("by-dataset", words, options, job_fields)
    for word, swept in zip(words, found, strict=True):
        if len(swept.values) != datasets:
            raise InputError(
                f"--by-dataset {word}: found {len(swept.values)} values for {datasets} datasets, expected one for each"
            )
    return found


def differences(options: Sequence[Options]) -> list[str] | None:
    """Words of --by-dataset that lead from the first options to each of the others; None where none do."""
    words = []
    for owners in zip(*((algorithm, *plugins) for algorithm, plugins in options), strict=True):
        if len({type(owner) for owner in owners}) > 1:
            return None
        for field in fields(owners[0]):
            values = [getattr(owner, field.name) for owner in owners]
            if any(value != values[0] for value in values):
                if any(isinstance(value, tuple) for value in values):
                    return None
                words.append(f"{flag_of(field.name)}={','.join(map(str, values))}")
    return words


def with_values(options: Options, swept: Sequence[Swept], values: Sequence[Any]) -> Options:
    """The options of a run that takes these values; every owner checks them as it checks flags."""
    algorithm_options, plugin_options = options
    for place in (ALGORITHM, *range(len(plugin_options))):
        own = {s.field: value for s, value in zip(swept, values, strict=True) if s.place == place}
        if own and place == ALGORITHM:
            algorithm_options = replace(algorithm_options, **own)
        elif own:
            changed = replace(plugin_options[place], **own)
            plugin_options = (*plugin_options[:place], changed, *plugin_options[place + 1 :])
    return algorithm_options, plugin_options


def _list(known: dict[str, Any]) -> str:
    return ", ".join(sorted(known, key=str.lower))


def _value(kind: Any, text: str, given: str) -> Any:
    try:
        return _parse(kind, text.strip())
    except ValueError:
        raise InputError(f"{given}: found '{text}', expected {_expected(kind)}") from None


def _parse(kind: Any, text: str) -> Any:
    """The text as a value of this type; ValueError where it is none."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _parse(arguments[0], text)
    if origin in (Union, types.UnionType):
        for option in arguments:
            with suppress(ValueError):
                return _parse(option, text)
    elif origin is Literal:
        for argument in arguments:
            if str(argument) == text:
                return argument
    elif kind is types.NoneType and text == "None":
        return None
    elif kind is bool and text in ("True", "False"):
        return text == "True"
    elif kind in (int, float) and (value := kind(text)) == value:  # NaN is none
        return value
    raise ValueError(text)


def _expected(kind: Any) -> str:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _expected(arguments[0])
    if origin in (Union, types.UnionType):
        return " or ".join(_expected(option) for option in arguments if option is not Tensor)
    if origin is Literal:
        return "one of " + ", ".join(map(str, arguments)) if len(arguments) > 1 else str(arguments[0])
    names = {int: "a whole number", float: "a number", bool: "True or False", types.NoneType: "None"}
    return names.get(kind, "an option that is a number, a choice or a switch")
