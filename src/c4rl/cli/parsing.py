"""Flags from declared options: tyro splits the command line and writes the help; every refusal is one sentence."""

import ast
import dataclasses
import difflib
import inspect
import io
import itertools
import textwrap
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import MISSING, Field
from functools import cache, partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from c4rl.core.declarations import declaration, expected, flag_of, is_tuple, read_text
from c4rl.core.errors import InputError

Arguments = list[str]
Kind = TypeVar("Kind")

NOT_GIVEN = object()


def parse_as(kind: type[Kind], command: str, arguments: Arguments, description: str | None) -> Kind:
    """The command's flags, which are the fields of this dataclass."""
    return kind(**parse(command, arguments, flags_of(kind), description=description))


def free_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2, ... where that exists."""
    first = Path("runs") / name
    return next(path for i in range(1, 10**6) if not (path := first if i == 1 else Path(f"{first}-{i}")).exists())


def flags_of(kind: type, panel: str = "") -> "list[Flag]":
    """In the order of the class's arguments. panel: the part of the help that they stand in."""
    fields = sorted(dataclasses.fields(kind), key=lambda field: bool(field.kw_only))
    return [Flag(field, help_texts(kind).get(field.name, ""), panel) for field in fields]


@dataclasses.dataclass(frozen=True)
class Flag:
    field: "Field[Any]"
    help: str
    panel: str = ""

    @property
    def name(self) -> str:
        """As in error messages."""
        return self.field.name.upper() if self.positional else f"--{flag_of(self.field.name)}"

    @property
    def positional(self) -> bool:
        return tyro.conf.Positional in get_args(self.field.type)

    @property
    def words(self) -> Literal[1, "*"]:
        """How many it takes; positionals take any number, so that we report a missing one ourselves."""
        return "*" if self.positional or is_tuple(self.field.type) else 1

    def for_tyro(self, default: Any) -> tuple[str, Any, "Field[Any]"]:
        """A field of a dataclass: its words are read by our own parser."""
        kind = self.field.type
        hint = "(required)" if default is NOT_GIVEN else None
        shown = tyro.conf.arg(name=flag_of(self.field.name), help=self.help, help_behavior_hint=hint)
        if kind is bool:  # a switch: --flag, --no-flag
            return self.field.name, Annotated[bool, shown], dataclasses.field(default=default)
        spec: PrimitiveConstructorSpec[Any] = PrimitiveConstructorSpec(
            nargs=self.words,
            metavar=self.field.name.upper()
            if self.positional
            else _metavar(kind, tuple(declaration(self.field).choices)),
            instance_from_str=partial(read_text, self.field, given=self.name),
            is_instance=lambda value: True,
            str_from_instance=lambda value: [str(one) for one in (value if isinstance(value, tuple) else (value,))],
        )
        if self.positional:
            return self.field.name, Annotated[Any, tyro.conf.Positional, spec, shown], dataclasses.field()
        return self.field.name, Annotated[Any, spec, shown], dataclasses.field(default=default)


@dataclasses.dataclass(frozen=True)
class Declared:
    """What a command declares: its words, its flags, and the values of those that are not given."""

    description: str
    flags: Sequence[Flag]
    defaults: Mapping[str, Any]


class _DeclarationFound(Exception):
    """Ends a command that was only asked for its flags."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared


_asking = False  # whether the next `parse` is to answer with what was declared


def declared_by(command: Callable[[Arguments], int], arguments: Arguments) -> Declared:
    """The flags of a command with these arguments, which does not run."""
    global _asking
    _asking = True
    try:
        command([*arguments, "--help"])
    except _DeclarationFound as found:
        return found.declared
    finally:
        _asking = False
    raise AssertionError(f"{command.__name__} parses nothing")


def parse(
    command: str,
    arguments: Arguments,
    flags: Sequence[Flag],
    defaults: Mapping[str, Any] | None = None,
    description: str | None = None,
    others_follow: bool = False,
) -> dict[str, Any]:
    """Values by the names of their fields. defaults: instead of the fields' own; others_follow: ignore other flags, and
    leave --help to the parse that has them all."""
    chosen = {flag.field.name: _default(flag.field) for flag in flags} | dict(defaults or {})
    if _asking and not others_follow:
        raise _DeclarationFound(Declared(description or "", flags, chosen))
    if others_follow:
        arguments = [argument for argument in arguments if argument not in ("-h", "--help")]
    given = set(map(flag_in, arguments))
    switches = {flag.name for flag in flags if flag.field.type is bool}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if equals and flag_in(name) in switches:
            raise InputError(f"{name}: found '{value}', expected the flag alone, without a value")
    # the others keep their defaults, and tyro needs time for each
    helping = bool(given & {"-h", "--help"})
    shown = [flag for flag in flags if flag.positional or flag.name in given or helping]
    fields = [flag.for_tyro(chosen[flag.field.name]) for flag in shown if not (helping and flag.panel)]
    for panel in dict.fromkeys(flag.panel for flag in shown if helping and flag.panel):
        own = [flag.for_tyro(chosen[flag.field.name]) for flag in shown if flag.panel == panel]
        part: Any = dataclasses.make_dataclass(panel, own, kw_only=True)
        fields.append((panel, part, dataclasses.field(default_factory=part)))
    kind: Any = dataclasses.make_dataclass("Flags", fields, kw_only=True, namespace={"__doc__": description})
    prog = f"c4rl {command}"
    try:
        with redirect_stderr(io.StringIO()) as output:
            parsed, unknown = tyro.cli(
                kind,
                prog=prog,
                args=arguments,
                description=description,
                return_unknown_args=True,
                add_help=not others_follow,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as stop:
        if not stop.code:
            raise  # it was --help
        raise InputError(_without_value(arguments, flags, output.getvalue())) from None
    except InputError:
        # what is missing may have been given with a flag that there is not
        known = [flag.name for flag in flags]
        strange = [word for word in arguments if word[:2] == "--" != word and flag_in(word) not in known]
        if strange and not others_follow:
            raise InputError(_unknown(strange, known, prog)) from None
        raise
    if unknown and not others_follow:
        raise InputError(_unknown(unknown, [flag.name for flag in flags], prog))
    values = chosen | {flag.field.name: getattr(parsed, flag.field.name) for flag in shown}
    written = [] if others_follow else [flag_in(word) for word in arguments if word.startswith("--")]
    for flag in (flag for flag in shown if flag.words == "*" and flag.name in written):
        if (times := written.count(flag.name)) > 1:  # the last would win, and the others be lost
            raise InputError(f"{flag.name}: found {times} times, expected it once, with all its words")
        if values[flag.field.name] == ():  # an empty variable of a shell
            raise InputError(f"{flag.name}: found none, expected one or more: {expected(flag.field)}")
    missing = [flag for flag in flags if values[flag.field.name] is NOT_GIVEN]
    if missing and not others_follow:
        names = ", ".join(f"{flag.name} ({expected(flag.field)})" for flag in missing)
        raise InputError(f"{names}: not given, expected every flag that has no default (`{prog} --help` shows them)")
    return values


def flag_in(argument: str) -> str:
    """The flag that an argument writes, by its `Flag.name`: --no-flag and --flag=value are --flag."""
    return argument.partition("=")[0].replace("_", "-").replace("--no-", "--")


def _default(field: "Field[Any]") -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return NOT_GIVEN if field.default is MISSING else field.default


def _unknown(words: Sequence[str], known: Sequence[str], prog: str) -> str:
    word = next((word for word in words if word.startswith("-")), words[0]).partition("=")[0]
    close = difflib.get_close_matches(word.replace("_", "-"), known, n=1, cutoff=0.75)
    hint = f"did you mean {close[0]}?" if close else f"`{prog} --help` shows them all"
    return f"{word}: found where a known flag was expected; {hint}"


def _without_value(arguments: Arguments, flags: Sequence[Flag], message: str) -> str:
    """A flag without its value, the only error left to tyro; any other message of tyro as one line."""
    known = {flag.name: flag for flag in flags if flag.words == 1 and flag.field.type is not bool}
    for word, following in itertools.pairwise([*arguments, "--"]):
        flag = known.get(word.replace("_", "-"))
        if flag is not None and following.startswith("--"):
            return f"{flag.name}: found no value, expected {expected(flag.field)}"
    return " ".join(message.split())


@cache
def help_texts(kind: type) -> dict[str, str]:
    """Names of fields -> the text below them, in the class or in those it inherits from."""
    texts: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
        except (OSError, TypeError):  # made by a program
            continue
        assert isinstance(tree, ast.ClassDef)
        for field, text in itertools.pairwise(tree.body):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                assert isinstance(field.target, ast.Name)
                texts[field.target.id] = " ".join(str(text.value.value).split())
    return texts


def _metavar(kind: Any, choices: tuple[str, ...]) -> str:
    """As in {None}|INT."""
    arguments = get_args(kind)
    if choices and not is_tuple(kind):
        return f"{{{','.join(choices)}}}"
    if get_origin(kind) is Literal:
        return f"{{{','.join(map(str, arguments))}}}"
    if get_origin(kind) is tuple:
        one = _metavar(arguments[0], choices)
        return f"[{one} [{one} ...]]"
    if arguments:
        return "|".join(words for one in arguments if (words := _metavar(one, choices)))
    return {int: "INT", float: "FLOAT", str: "STR", Path: "PATH", types.NoneType: "{None}"}.get(kind, "")
