"""Every option of every algorithm, plug-in and command, through the command line: what it may not be is refused.

The cases follow from the declarations, so that an option written tomorrow is tested tomorrow.
"""

import dataclasses
import json
import math
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import Field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest

from c4rl.cli import (
    bench,
    clusters,
    data,
    demo,
    diagnose,
    doctor,
    engine,
    evaluate,
    export,
    figure,
    ope,
    report,
    table,
    train_behaviour,
    watch,
)
from c4rl.cli.train import config_of
from c4rl.core.declarations import check_value, declaration, expected, flag_of, is_tuple, plain_name
from c4rl.core.errors import InputError
from c4rl.diagnostics.fitted_q import FittedQConfig
from c4rl.jobs.behaviour_config import BehaviourConfig
from c4rl.jobs.config import TrainConfig
from c4rl.jobs.config_file import to_json
from c4rl.jobs.registry import ALGORITHMS, PLUGINS
from c4rl.results.speed import SpeedOptions
from tests.cli.support import run


class Owner(NamedTuple):
    """A class that declares options, and a command that takes them as flags."""

    name: str
    kind: type
    command: tuple[str, ...]
    place: tuple[str | int, ...] | None = None  # of its values in config.json; None: not stored


JOB = ("train", "--dataset", "absent.npz", "--task", "none", "--output", "job")


def host_of(plugin: str) -> str:
    return next(name for name, kind in ALGORITHMS.items() if kind.has_critic and name != plugin)


OWNERS = [
    Owner("job", TrainConfig, JOB, ()),
    *(Owner(name, kind.config_type, (*JOB, "--algorithm", name), ("options",)) for name, kind in ALGORITHMS.items()),
    *(
        Owner(f"plug-in {n}", k, (*JOB, "--algorithm", host_of(n), "--plugins", n), ("plugin_options", 0))
        for n, (k, _) in PLUGINS.items()
    ),
    Owner("evaluate", evaluate.Flags, ("evaluate", "absent")),
    Owner("export", export.Flags, ("export", "absent")),
    Owner("ope", ope.Flags, ("ope", "absent")),
    Owner("fitted Q evaluation", FittedQConfig, ("ope", "absent")),
    Owner("data record", data.RecordFlags, ("data", "record", "maze2d-open-v0", "--output", "new.npz")),
    Owner("data train-behaviour", train_behaviour.Flags, ("data", "train-behaviour", "absent", "--output", "new")),
    Owner("behaviour agents", BehaviourConfig, ("data", "train-behaviour", "absent", "--output", "new")),
    Owner("data info", data.InfoFlags, ("data", "info", "absent.npz")),
    Owner("data convert", data.ConvertFlags, ("data", "convert", "absent.npz", "new.npz")),
    Owner("data fetch", data.FetchFlags, ("data", "fetch", "none")),
    Owner("demo", demo.Flags, ("demo", "--output", "job")),
    Owner("table", table.Flags, ("table", "main")),
    Owner("figure", figure.Flags, ("figure", "curves")),
    Owner("bench table", bench.TableFlags, ("bench", "table", "main", "--dry")),
    Owner("engine", engine.EngineFlags, (*JOB, "--engine", "ray")),
    Owner("engine of bench table", engine.EngineFlags, ("bench", "table", "main", "--dry", "--engine", "ray")),
    Owner("bench pages", bench.PagesFlags, ("bench", "pages", "absent.md")),
    Owner("bench speed", SpeedOptions, ("bench", "speed")),
    Owner("doctor", doctor.Flags, ("doctor", "absent.npz")),
    Owner("diagnose", diagnose.Flags, ("diagnose", "absent")),
    Owner("clusters", clusters.Flags, ("clusters", "absent")),
    Owner("watch", watch.Flags, ("watch", "absent")),
    Owner("report", report.Flags, ("report", "absent")),
]


def leaves(kind: Any) -> Iterator[Any]:
    """The types that a union, tuple or choice is made of; choices as they are."""
    if get_origin(kind) is Literal or not get_args(kind):
        yield kind
    else:
        for one in get_args(kind):
            yield from leaves(one)


def is_number(field: "Field[Any]") -> bool:
    return any(leaf in (int, float) for leaf in leaves(field.type))


def is_choice(field: "Field[Any]") -> bool:
    return bool(declaration(field).choices) or any(get_origin(leaf) is Literal for leaf in leaves(field.type))


OPTIONS = [
    pytest.param(owner, field, id=f"{owner.name}: {flag_of(field.name)}")
    for owner in OWNERS
    for field in dataclasses.fields(owner.kind)
]
NUMBERS = [case for case in OPTIONS if is_number(case.values[1])]
CHOICES = [case for case in OPTIONS if is_choice(case.values[1]) and not is_number(case.values[1])]
SWITCHES = [case for case in OPTIONS if case.values[1].type is bool]


def outside(field: "Field[Any]") -> list[float]:
    """The numbers next to the bounds, on their far sides."""
    bounds, whole = declaration(field), int in leaves(field.type)
    below = bounds.above if bounds.at_least is None else _next(bounds.at_least, -1, whole)
    above = bounds.below if bounds.at_most is None else _next(bounds.at_most, 1, whole)
    return [int(n) if whole else n for n in (below, above) if n is not None and math.isfinite(n)]


def _next(bound: float, side: int, whole: bool) -> float:
    return int(bound) + side if whole and math.isfinite(bound) else math.nextafter(bound, side * math.inf)


def bad_numbers(field: "Field[Any]") -> list[str]:
    declared = declaration(field)
    infinite = [] if declared.infinite else ["inf", "-inf"]
    texts = [*(repr(n) for n in outside(field)), "nan", *infinite, "much", "", "1e12", str(10**12)]
    whole = int in leaves(field.type)
    return [t for t in texts if not (t == "1e12" and not whole and declared.holds(1e12)) and not _is_fine(t, field)]


def _is_fine(text: str, field: "Field[Any]") -> bool:
    """10^12 is a good seed."""
    return text == str(10**12) and declaration(field).holds(10**12)


def refused(words: tuple[str, ...], names: tuple[str, ...], folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, one line on stderr that begins with one of the names, and an empty folder."""
    assert run(*words) == 2, words
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and err.endswith("\n"), f"{words}: {out}{err}"
    assert err.removeprefix("c4rl: ").startswith(names), f"{words}: {err}"
    assert not list(folder.iterdir()), words


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the command runs, and leaves nothing."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize(("owner", "field"), NUMBERS)
def test_a_number_declares_both_bounds(owner: Owner, field: "Field[Any]") -> None:
    declared = declaration(field)
    assert (declared.above, declared.at_least) != (None, None), "no lower bound"
    assert (declared.below, declared.at_most) != (None, None), "no upper bound"


@pytest.mark.parametrize(("owner", "field"), NUMBERS)
def test_a_number_may_be_its_bounds(owner: Owner, field: "Field[Any]") -> None:
    bounds = (declaration(field).at_least, declaration(field).at_most)
    for bound in (bound for bound in bounds if bound is not None):
        value: Any = int(bound) if int in leaves(field.type) else float(bound)
        value = (value,) if is_tuple(field.type) else value
        check_value(field, value)
        try:
            _made(owner.kind, **{field.name: value})
        except InputError as error:  # another option may not go with it
            assert expected(field) not in str(error)


@pytest.mark.parametrize(("owner", "field"), NUMBERS)
def test_a_number_is_refused_as_a_flag(
    owner: Owner, field: "Field[Any]", folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = f"--{flag_of(field.name)}"
    for text in bad_numbers(field):
        refused((*owner.command, f"{flag}={text}"), (f"{flag}: ",), folder, capsys)
    if is_tuple(field.type):
        refused((*owner.command, flag), (f"{flag}: ",), folder, capsys)


@pytest.mark.parametrize(("owner", "field"), [case for case in NUMBERS if case.values[0].place])
def test_a_number_is_refused_in_a_sweep(
    owner: Owner, field: "Field[Any]", folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for text in bad_numbers(field):
        refused((*owner.command, "--sweep", f"{plain_name(field.name)}=1,{text}"), ("--sweep",), folder, capsys)


@pytest.mark.parametrize(("owner", "field"), [case for case in NUMBERS if case.values[0].place is not None])
def test_a_number_is_refused_in_a_stored_config(
    owner: Owner, field: "Field[Any]", folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    infinite = [] if declaration(field).infinite else [math.inf, "-inf"]
    values = [*outside(field), math.nan, "nan", *infinite, "much", "", True]
    if int in leaves(field.type) or not declaration(field).holds(1e12):
        values.append(1e12)
    for value in values:
        _stored_is_refused(owner, field, [value] if is_tuple(field.type) else value, folder, capsys)


@pytest.mark.parametrize(("owner", "field"), CHOICES)
def test_a_word_that_is_no_choice_is_refused(
    owner: Owner, field: "Field[Any]", folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = f"--{flag_of(field.name)}"
    for text in ("no-such-word", "1e12", ""):
        refused((*owner.command, f"{flag}={text}"), (f"{flag}: ",), folder, capsys)
        if owner.place:
            refused((*owner.command, "--sweep", f"{field.name}={text},x"), ("--sweep",), folder, capsys)
    for value in ("no-such-word", "", -77, True) if owner.place is not None else ():
        _stored_is_refused(owner, field, [value] if is_tuple(field.type) else value, folder, capsys)


@pytest.mark.parametrize(("owner", "field"), SWITCHES)
def test_a_switch_takes_no_word(
    owner: Owner, field: "Field[Any]", folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flag = f"--{flag_of(field.name)}"
    refused((*owner.command, f"{flag}=maybe"), (f"{flag}: found 'maybe', expected the flag alone",), folder, capsys)
    if owner.place is not None:
        for value in ("maybe", 1, None):
            _stored_is_refused(owner, field, value, folder, capsys)


@pytest.mark.parametrize("owner", [owner for owner in OWNERS if owner.place is not None], ids=lambda owner: owner.name)
def test_flags_are_told_apart(owner: Owner) -> None:
    """An option of the job, of an algorithm and of a plug-in never share a name."""
    config = config_of(list(owner.command[1:]))
    kinds = (TrainConfig, type(config.options), *map(type, config.plugin_options))
    names = [flag_of(field.name) for kind in kinds for field in dataclasses.fields(kind)]
    assert len(set(names)) == len(names)


def _made(kind: type, **values: Any) -> None:
    """With what has no default filled in."""
    required = {"algorithm": "td3_bc", "dataset": Path("d"), "task": "none", "output": Path("o"), "folder": Path("f")}
    required |= {"name": "n", "files": ("in", "out"), "robots": ("hopper",)}
    names = {f.name for f in dataclasses.fields(kind) if f.default is f.default_factory is dataclasses.MISSING}
    kind(**{name: value for name, value in required.items() if name in names} | values)


@cache
def _stored(owner: Owner) -> dict[str, Any]:
    return to_json(config_of(list(owner.command[1:])))


def _stored_is_refused(
    owner: Owner, field: "Field[Any]", value: Any, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values: Any = (stored := deepcopy(_stored(owner)))
    for step in owner.place or ():
        values = values[step]
    assert field.name in values
    values[field.name] = value
    path = folder.parent / "config.json"
    path.write_text(json.dumps(stored))
    beginnings = (f"{path}: field '{field.name}' is", f"{path}: --{flag_of(field.name)}: ")
    refused(("train", "--config", str(path), "--output", "job"), beginnings, folder, capsys)
