"""--sweep, --points and --by-dataset: options of the algorithm or of a plug-in that take several values in one job."""

import json
from collections.abc import Sequence
from dataclasses import Field, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from c4rl.core.declarations import as_json, expected, is_tuple, plain_name, read, read_text
from c4rl.core.errors import InputError
from c4rl.core.files import read_bytes

RunOptions = tuple[Any, tuple[Any, ...]]  # the algorithm's options, and those of each plug-in


class Swept(NamedTuple):
    """One option and the values it takes."""

    name: str  # as people write it
    place: int  # of its options object: 0 the algorithm's, then those of the plug-ins
    field: "Field[Any]"  # of that options object
    # all of them for every dataset (--sweep), one for each dataset (--by-dataset), or one for each point (--points)
    values: tuple[Any, ...]


def _found(given: str, written: str, options: RunOptions, job_fields: Sequence[str]) -> tuple[str, int, "Field[Any]"]:
    """The name, place and field of an option; given: where it was written, for error messages."""
    owners = (options[0], *options[1])
    known = {plain_name(f.name): (place, f) for place, owner in enumerate(owners) for f in fields(owner)}
    name = plain_name(written.lstrip("-").replace("-", "_"))
    others = ", ".join(sorted(known, key=str.lower))
    if name in job_fields:
        raise InputError(f"{given}: --{written} is a setting of the whole job, expected one of {others}")
    if name not in known:
        raise InputError(f"{given}: no option is called '{written}', expected one of {others}")
    return name, *known[name]


def parse_values(
    name_of_flag: str, words: Sequence[str], options: RunOptions, job_fields: Sequence[str]
) -> tuple[Swept, ...]:
    """The words "flag=value,value,..." of --sweep or --by-dataset; job_fields: names that belong to the whole job."""
    given = f"--{name_of_flag}"
    found: list[Swept] = []
    for word in words:
        given_name, equals, text = word.partition("=")
        if not equals or not text:
            raise InputError(f"{given}: found '{word}', expected FLAG=VALUE,VALUE,... as lambda=0.1,0.3")
        name, place, field = _found(f"{given} {word}", given_name, options, job_fields)
        if name in (swept.name for swept in found):
            raise InputError(f"{given}: found '{given_name}' twice, expected each option once")
        values = tuple(read_text(field, part.strip(), f"{given} {word}") for part in text.split(","))
        found.append(Swept(name, place, field, values))
    return tuple(found)


@lru_cache(64)  # every run asks for them, and there may be thousands
def parse_sweep(words: tuple[str, ...], options: RunOptions, job_fields: tuple[str, ...]) -> tuple[Swept, ...]:
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


# -- points: a list of settings, not their product


@lru_cache(64)  # every run asks for them, and there may be thousands
def parse_points(words: tuple[str, ...], options: RunOptions, job_fields: tuple[str, ...]) -> tuple[Swept, ...]:
    """The words "flag=value,flag=value,..." of points; an option that a point does not name keeps the job's value."""
    swept: dict[str, tuple[int, Field[Any]]] = {}
    points: list[dict[str, Any]] = []
    for word in words:
        point: dict[str, Any] = {}
        for part in word.split(","):
            written, equals, text = part.partition("=")
            if not equals or not text:
                raise InputError(f"--points: found '{word}', expected FLAG=VALUE,FLAG=VALUE,... as lambda=0.1,K=5")
            name, place, field = _found(f"--points {word}", written, options, job_fields)
            if name in point:
                raise InputError(f"--points {word}: found '{written}' twice, expected each option once")
            point[name] = read_text(field, text.strip(), f"--points {word}: {written}")
            swept.setdefault(name, (place, field))
        points.append(point)
    owners = (options[0], *options[1])
    found = tuple(
        Swept(name, place, field, tuple(p.get(name, getattr(owners[place], field.name)) for p in points))
        for name, (place, field) in swept.items()
    )
    first: dict[tuple[Any, ...], int] = {}
    for number, values in enumerate(zip(*(one.values for one in found), strict=True), 1):
        if (other := first.setdefault(values, number)) != number:
            raise InputError(
                f"--points: found the settings {words[number - 1]} twice, in points {other} and {number}, "
                "expected each once (an option that is not named keeps the job's value)"
            )
    return found


def read_points(path: Path, options: RunOptions, job_fields: Sequence[str]) -> tuple[str, ...]:
    """The words of a file of points: a JSON list of objects, or an object per line."""
    what = 'a list of settings as [{"lambda": 0.1, "K": 5}, ...], or such an object per line'
    try:
        text = read_bytes(path, what).decode().strip()
    except UnicodeDecodeError:
        raise InputError(f"{path}: not text, expected {what}") from None
    if text.startswith("["):
        listed = _json(text, f"{path}", what)
        entries = [(f"{path}: point {number}", entry) for number, entry in enumerate(listed, 1)]
    else:
        lines = [(f"{path}: line {number}", line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        entries = [(origin, _json(line, origin, what)) for origin, line in lines]
    if not entries:
        raise InputError(f"{path}: found no point, expected {what}")
    return tuple(_words(entry, origin, options, job_fields) for origin, entry in entries)


def _json(text: str, origin: str, what: str) -> Any:
    """JSON in which no object names a field twice: Python's reader would keep the last in silence."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise InputError(f"{origin}: found '{twice}' twice, expected each option once")
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError):
        raise InputError(f"{origin}: not JSON, expected {what}") from None


def _words(entry: Any, origin: str, options: RunOptions, job_fields: Sequence[str]) -> str:
    """The word of a point, its values as JSON has them."""
    if not isinstance(entry, dict) or not entry:
        raise InputError(f"{origin}: found {json.dumps(entry)[:80]}, expected an object with an option or more")
    words: dict[str, str] = {}
    for written, value in entry.items():
        name, _, field = _found(origin, written, options, job_fields)
        if name in words:
            raise InputError(f"{origin}: found '{written}' twice, expected each option once")
        try:
            typed = read(field.type, value, as_json)
        except ValueError:
            typed = ()
        if isinstance(typed, tuple):  # as in --sweep: a run is named after its values
            one = "a single value" if is_tuple(field.type) else expected(field)
            raise InputError(f"{origin}: field '{written}' is {json.dumps(value)[:80]}, expected {one}")
        words[name] = f"{name}={typed}"
    return ",".join(words.values())


def differences(options: Sequence[RunOptions]) -> list[str] | None:
    """Words of --by-dataset that describe how the options differ; None if words cannot."""
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
    owners = [options[0], *options[1]]
    for place, owner in enumerate(owners):
        own = {s.field.name: value for s, value in zip(swept, values, strict=True) if s.place == place}
        if own:
            owners[place] = replace(owner, **own)
    return owners[0], tuple(owners[1:])
