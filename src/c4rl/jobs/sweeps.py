"""--sweep and --by-dataset: options of the algorithm or of a plug-in that take several values within one job."""

from collections.abc import Sequence
from dataclasses import Field, fields, replace
from typing import Any, NamedTuple

from c4rl.core.declarations import plain_name, read_text
from c4rl.core.errors import InputError

ALGORITHM = -1  # the place of an option that is the algorithm's; plug-ins are numbered from 0
RunOptions = tuple[Any, tuple[Any, ...]]  # the algorithm's options, and those of each plug-in


class Swept(NamedTuple):
    """One option and the values it takes."""

    name: str  # as people write it
    place: int
    field: "Field[Any]"  # of that options object
    values: tuple[Any, ...]  # all of them for every dataset (--sweep), or one for each (--by-dataset)


def parse_values(
    name_of_flag: str, words: Sequence[str], options: RunOptions, job_fields: Sequence[str]
) -> tuple[Swept, ...]:
    """The words "flag=value,value,..." of --sweep or --by-dataset; job_fields: names that belong to the whole job."""
    given = f"--{name_of_flag}"
    algorithm_options, plugin_options = options
    owners = {ALGORITHM: algorithm_options, **dict(enumerate(plugin_options))}
    known = {plain_name(f.name): (place, f) for place, owner in owners.items() for f in fields(owner)}
    found: list[Swept] = []
    for word in words:
        given_name, equals, text = word.partition("=")
        name = plain_name(given_name.lstrip("-").replace("-", "_"))
        others = ", ".join(sorted(known, key=str.lower))
        if not equals or not text:
            raise InputError(f"{given}: found '{word}', expected FLAG=VALUE,VALUE,... as lambda=0.1,0.3")
        if name in job_fields:
            raise InputError(f"{given} {word}: --{given_name} is a setting of the whole job, expected one of {others}")
        if name not in known:
            raise InputError(f"{given} {word}: no option is called '{given_name}', expected one of {others}")
        if name in (swept.name for swept in found):
            raise InputError(f"{given}: found '{given_name}' twice, expected each option once")
        place, field = known[name]
        values = tuple(read_text(field, part.strip(), f"{given} {word}") for part in text.split(","))
        found.append(Swept(name, place, field, values))
    return tuple(found)


def parse_sweep(words: Sequence[str], options: RunOptions, job_fields: Sequence[str]) -> tuple[Swept, ...]:
    found = parse_values("sweep", words, options, job_fields)
    for word, swept in zip(words, found, strict=True):
        if len(set(swept.values)) < len(swept.values):
            raise InputError(f"--sweep {word}: found a value twice, expected each once")
    return found


def parse_by_dataset(
    words: Sequence[str], options: RunOptions, job_fields: Sequence[str], datasets: int
) -> tuple[Swept, ...]:
    found = parse_values("by-dataset", words, options, job_fields)
    for word, swept in zip(words, found, strict=True):
        if len(swept.values) != datasets:
            raise InputError(
                f"--by-dataset {word}: found {len(swept.values)} values for {datasets} datasets, expected one for each"
            )
    return found


def differences(options: Sequence[RunOptions]) -> list[str] | None:
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
                words.append(f"{plain_name(field.name)}={','.join(map(str, values))}")
    return words


def with_values(options: RunOptions, swept: Sequence[Swept], values: Sequence[Any]) -> RunOptions:
    """The options of a run that takes these values; every owner checks them as it checks flags."""
    algorithm_options, plugin_options = options
    for place in (ALGORITHM, *range(len(plugin_options))):
        own = {s.field.name: value for s, value in zip(swept, values, strict=True) if s.place == place}
        if own and place == ALGORITHM:
            algorithm_options = replace(algorithm_options, **own)
        elif own:
            changed = replace(plugin_options[place], **own)
            plugin_options = (*plugin_options[:place], changed, *plugin_options[place + 1 :])
    return algorithm_options, plugin_options
