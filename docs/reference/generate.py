"""The pages that MkDocs makes at build time: commands and their flags, the API, and documents from outside docs/.

`mkdocs build` calls `on_files` and `on_page_markdown`. All text comes from declarations and docstrings.
"""

import ast
import dataclasses
import importlib
import inspect
import os
import posixpath
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"

# documents of the repository -> their pages
OUTSIDE = {
    "PAPER.md": "paper.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/speed.md": "speed.md",
}
EXAMPLES = "examples.md"
COMMANDS, API = "reference/commands.md", "reference/api.md"


# -- commands


def commands_page() -> str:
    from c4rl.cli.main import COMMANDS as commands
    from c4rl.cli.parsing import declared_by
    from c4rl.jobs.registry import ALGORITHMS, PLUGINS

    lines = [
        "# Commands",
        "",
        "Every command and flag, as `c4rl COMMAND --help` shows them. Flags of `train` that belong to an algorithm or "
        "a plug-in have [sections of their own](#flags-of-the-algorithms).",
        "",
        "A switch is written `--flag` or `--no-flag`. Bad values are refused in one sentence, with exit code 2, before "
        "anything is written. Exit code 1: a run failed; 130: interrupted, all saved.",
        "",
        "| command | |",
        "|---|---|",
    ]
    for name, command in commands.items():
        first = _cell((command.__doc__ or "").splitlines()[0])
        lines.append(f"| [`c4rl {name}`](#c4rl-{name.replace(' ', '-')}) | {first} |")
    for name, command in commands.items():
        declared = declared_by(command, [])
        lines += ["", f"## c4rl {name}", "", declared.description, ""]
        common = [flag for flag in declared.flags if name != "train" or flag.panel in ("", "engine")]
        lines += _flag_table(common, declared.defaults)
    lines += [
        "",
        "## Flags of the algorithms",
        "",
        "With `c4rl train --algorithm NAME`. A preset changes the defaults. Runs that differ only in options marked "
        '"per run" train together.',
    ]
    for algorithm in ALGORITHMS:
        declared = declared_by(commands["train"], ["--algorithm", algorithm])
        own = [flag for flag in declared.flags if flag.panel == algorithm]
        lines += ["", f"### --algorithm {algorithm}", "", f"[What it computes](../algorithms.md#{algorithm})", ""]
        lines += _flag_table(own, declared.defaults)
    lines += ["", "## Flags of the plug-ins", "", "With `c4rl train --plugins NAME`."]
    for plugin in PLUGINS:
        host = next(name for name, kind in ALGORITHMS.items() if kind.has_critic and name != plugin)
        declared = declared_by(commands["train"], ["--algorithm", host, "--plugins", plugin])
        own = [flag for flag in declared.flags if flag.panel == plugin]
        lines += ["", f"### --plugins {plugin}", "", f"[What it does](../algorithms.md#plug-in-{plugin})", ""]
        lines += _flag_table(own, declared.defaults)
    return "\n".join(lines) + "\n"


def _flag_table(flags: Sequence[Any], defaults: Mapping[str, Any]) -> list[str]:
    from c4rl.cli.parsing import NOT_GIVEN
    from c4rl.core.declarations import expected
    from c4rl.core.options import may_differ

    if not flags:
        return ["It has no flags."]
    lines = ["| flag | value | default | |", "|---|---|---|---|"]
    for flag in flags:
        value = defaults[flag.field.name]
        default = "required" if value is NOT_GIVEN else _shown(value)
        kind = "a switch" if flag.field.type is bool else expected(flag.field)
        kind += "; per run" if may_differ(flag.field) else ""
        lines.append(f"| `{flag.name}` | {_cell(kind)} | {default} | {_cell(flag.help)} |")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value in ((), ""):
        return ""
    words = (
        " ".join(map(str, value)) if isinstance(value, tuple) else f"{value:g}" if isinstance(value, float) else value
    )
    return f"`{words}`"


# -- the API


def public_names() -> dict[str, list[str]]:
    """Modules with an `__all__` -> the names in it, the package itself first."""
    found = {}
    for path in sorted(
        SOURCE.glob("c4rl/**/*.py"), key=lambda path: (len(path.parts), path.name != "__init__.py", path)
    ):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]:
                parts = path.relative_to(SOURCE).with_suffix("").parts
                module = ".".join(part for part in parts if part != "__init__")
                found[module] = ast.literal_eval(node.value)
    return found


def api_page() -> str:
    lines = [
        "# Python API",
        "",
        "Every public name. `import c4rl` is enough for those of the first section; the others are imported from their "
        "module. Bad input raises `c4rl.InputError`.",
    ]
    shown: set[int] = set()
    for module_name, names in public_names().items():
        module = importlib.import_module(module_name)
        lines += ["", f"## {module_name}", "", inspect.getdoc(module) or ""]
        for name in names:
            value = getattr(module, name)
            lines += ["", f"### {module_name}.{name}", ""]
            if id(value) in shown:
                lines.append(f"The same as [{value.__name__}](#c4rl{value.__name__.lower()}) above.")
            elif inspect.isclass(value):
                lines += _class_lines(name, value)
            elif callable(value):
                lines += _function_lines(name, value)
            else:
                lines.append(f"`{name} = {_comment(module, name) or repr(value)}`")
            if inspect.isclass(value) or inspect.isfunction(value):
                shown.add(id(value))
    return "\n".join(lines) + "\n"


def _function_lines(name: str, function: Any) -> list[str]:
    return ["```python", _signature(name, function), "```", "", inspect.getdoc(function) or ""]


def _class_lines(name: str, kind: type) -> list[str]:
    from c4rl.cli.parsing import help_texts

    lines = []
    is_data = dataclasses.is_dataclass(kind)
    if not is_data and not issubclass(kind, Exception):
        lines += ["```python", _signature(name, kind), "```", ""]
    lines.append(inspect.getdoc(kind) or "")
    if is_data:
        texts = _comments(kind) | help_texts(kind)
        rows = [
            f"| `{field.name}` | {_cell(_type_words(field.type))} | {_field_default(field)} | {_cell(text)} |"
            for field in dataclasses.fields(kind)
            for text in [texts.get(field.name, "")]
        ]
        if rows:
            lines += ["", "| field | type | default | |", "|---|---|---|---|", *rows]
    for method, value in _public_methods(kind):
        function = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        lines += ["", f"#### {name}.{method}", "", *_function_lines(f"{name}.{method}", function)]
    return lines


def _public_methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, value in vars(kind).items():
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)):
            yield name, value


def _signature(name: str, function: Any) -> str:
    """As the source has it."""
    made = vars(function)["__init__"] if inspect.isclass(function) else function
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(made))).body
    assert isinstance(node, ast.FunctionDef)
    given = node.args
    plain = [*given.posonlyargs, *given.args]
    defaults = [None] * (len(plain) - len(given.defaults)) + list(given.defaults)
    words = [_parameter(*pair) for pair in zip(plain, defaults, strict=True) if pair[0].arg not in ("self", "cls")]
    if given.vararg or given.kwonlyargs:
        words.append("*" + (_parameter(given.vararg, None) if given.vararg else ""))
    words += [_parameter(*pair) for pair in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    words += ["**" + _parameter(given.kwarg, None)] if given.kwarg else []
    end = "" if node.returns is None or inspect.isclass(function) else " -> " + ast.unparse(node.returns).strip("'")
    line = f"{name}({', '.join(words)}){end}"
    return line if len(line) <= 90 else f"{name}(\n    " + ",\n    ".join(words) + f",\n){end}"


def _parameter(one: ast.arg, default: ast.expr | None) -> str:
    kind = "" if one.annotation is None else ": " + ast.unparse(one.annotation).strip("'")
    return one.arg + kind + ("" if default is None else f" = {ast.unparse(default)}")


def _type_words(kind: Any) -> str:
    text = kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind)
    return f"`{re.sub(r'(?:[a-z_0-9]+[.])+', '', text)}`"


def _field_default(field: "dataclasses.Field[Any]") -> str:
    if field.default is not dataclasses.MISSING:
        return _shown(field.default)
    return "" if field.default_factory is not dataclasses.MISSING else "required"


@cache
def _comments(kind: type) -> dict[str, str]:
    """The comments behind a class's fields."""
    return dict(re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", inspect.getsource(kind), re.M))


def _comment(module: Any, name: str) -> str:
    """A constant as its line has it."""
    found = re.search(rf"^{name} = (.+)$", inspect.getsource(module), re.M)
    return found[1] if found else ""


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


# -- documents outside docs/


def examples_page() -> str:
    # whole programs would crowd out every other result of a search
    lines = ["---", "search: {exclude: true}", "---", "", "# Examples", "", "Whole programs of the folder `examples`."]
    for path in sorted((ROOT / "examples").glob("*.py")):
        lines += ["", f"## {path.name}", "", "```python", path.read_text().rstrip(), "```"]
    return "\n".join(lines) + "\n"


def with_site_links(markdown: str, source: str, page: str) -> str:
    """Links of a file of the repository as links between pages; those to files that are no page become plain text."""

    def changed(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if path.startswith("docs/"):
            wanted = path.removeprefix("docs/")
        elif path.startswith("examples/"):
            wanted, anchor = EXAMPLES, f"#{posixpath.basename(path).replace('.', '')}"
        elif path in OUTSIDE:
            wanted = OUTSIDE[path]
        else:
            assert (ROOT / path).exists(), f"{source}: {target} does not exist"
            return text
        return f"[{text}]({posixpath.relpath(wanted, posixpath.dirname(page) or '.')}{anchor})"

    return re.sub(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)]*)?\)", changed, markdown)


# -- MkDocs


def generated_pages() -> dict[str, str]:
    pages = {COMMANDS: commands_page(), API: api_page(), EXAMPLES: examples_page()}
    for source, page in OUTSIDE.items():
        pages[page] = with_site_links((ROOT / source).read_text(), source, page)
    return pages


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    os.environ.setdefault("COLUMNS", "100")
    for page, text in generated_pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.generated_by is not None:
        return markdown
    return with_site_links(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)
