"""The documentation site: a strict build, every command, flag and public name, and nothing from elsewhere."""

import dataclasses
import importlib
import importlib.util
import inspect
import json
import re
from pathlib import Path
from types import ModuleType

import pytest

from c4rl.cli.main import COMMANDS
from c4rl.core.declarations import flag_of
from c4rl.core.options import may_differ
from c4rl.jobs.registry import ALGORITHMS, PLUGINS
from tests.cli.test_every_option import OWNERS
from tests.documents import ROOT


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "reference" / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as `make docs` does: one warning fails it."""
    pytest.importorskip("material", reason="the site needs the extra `docs`")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    folder = tmp_path_factory.mktemp("site")
    config = load_config(str(ROOT / "mkdocs.yml"), site_dir=str(folder), strict=True)
    config.plugins.on_startup(command="build", dirty=False)
    build(config)
    return folder


def test_every_command_and_flag_is_on_the_page(generate: ModuleType) -> None:
    parts = re.split(r"^##+ ", generate.commands_page(), flags=re.M)
    sections = {part.split("\n", 1)[0]: part for part in parts}
    for command, function in COMMANDS.items():
        assert (function.__doc__ or "").splitlines()[0].endswith("."), f"{command}: its help is longer than a line"
        assert f"[`c4rl {command}`](#c4rl-{command.replace(' ', '-')})" in parts[0]
    headings = {f"--algorithm {name}" for name in ALGORITHMS} | {f"--plugins {name}" for name in PLUGINS}
    assert sections.keys() >= headings | {f"c4rl {command}" for command in COMMANDS}
    for owner in OWNERS:  # all that declare options, as the tests of the command line know them
        known = {"job": "c4rl train", "fitted Q evaluation": "c4rl ope"}
        known |= {"behaviour agents": "c4rl data train-behaviour", "engine": "c4rl train"}
        known |= {"engine of bench table": "c4rl bench table"}
        name = known.get(owner.name, f"c4rl {owner.name}")
        name = f"--algorithm {owner.name}" if owner.name in ALGORITHMS else name.replace("c4rl plug-in", "--plugins")
        for field in dataclasses.fields(owner.kind):
            if field.name in ("options", "plugin_options", *(["task"] if owner.name == "behaviour agents" else [])):
                continue
            flags = f"| `--{flag_of(field.name)}` |", f"| `{field.name.upper()}` |"
            (line,) = (row for row in sections[name].splitlines() if row.startswith(flags))
            assert ("; per run |" in line) == may_differ(field), line


def test_every_public_name_is_on_the_page_and_explained(generate: ModuleType) -> None:
    page = generate.api_page()
    modules = generate.public_names()
    assert modules.keys() >= {"c4rl", "c4rl.data", "c4rl.integrations.d3rlpy", "c4rl.integrations.torchrl"}
    for module, names in modules.items():
        for name in names:
            assert f"\n### {module}.{name}\n" in page
            value = getattr(importlib.import_module(module), name)
            if not (inspect.isclass(value) or inspect.isfunction(value)):
                continue
            assert value.__doc__, f"{module}.{name} has no docstring"
            for method, function in generate._public_methods(value) if inspect.isclass(value) else ():
                assert f"\n#### {name}.{method}\n" in page and inspect.getdoc(function), f"{name}.{method}"


def test_the_site_builds_strictly_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert {"index.html", "commands.html", "api.html", "own_data.html"} <= {page.name for page in pages}
    loading = re.compile(
        r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"(?:https?:)?//[^\"]*|<link\b[^>]*\bhref=\"(?:https?:)?//[^\"]*"
    )
    for page in pages:
        assert not loading.search(page.read_text()), page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet
    search = json.loads((site / "search" / "search_index.json").read_text())
    found = {entry["location"]: entry["title"] for entry in search["docs"]}
    assert "tutorials/own_data.html" in found and "paper.html" in found
    assert found["reference/api.html#c4rlc4anywhere"] == "c4rl.C4Anywhere"
    assert any("lambda-fraction" in entry["text"] for entry in search["docs"])


def test_links_to_files_of_the_repository_lead_to_pages(generate: ModuleType) -> None:
    def changed(link: str) -> str:
        return generate.with_site_links(link, "docs/tutorials/a.md", "tutorials/a.md")

    assert changed("[x](../../PAPER.md)") == "[x](../paper.md)"
    assert changed("[x](../c4.md#in-your-own-loop)") == "[x](../c4.md#in-your-own-loop)"
    assert changed("[x](../../examples/corl_loop.py)") == "[x](../examples.md#corl_looppy)"
    assert changed("[x](../../LICENSE) and [y](https://example.org)") == "x and [y](https://example.org)"
    assert generate.with_site_links("[x](docs/data.md)", "PAPER.md", "paper.md") == "[x](data.md)"
    with pytest.raises(AssertionError, match="absent does not exist"):
        changed("[x](../../absent)")
