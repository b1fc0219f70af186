"""docs/algorithms.md against the code: sections, flags, defaults, and commands that the command line understands."""

import contextlib
import re
import shlex
from pathlib import Path

import pytest

from c4rl.cli.train import config_of
from c4rl.core.errors import InputError
from c4rl.jobs.config import TrainConfig, field_names
from c4rl.jobs.registry import ALGORITHMS, PLUGINS, plugin_names

PATH = Path(__file__).resolve().parents[1] / "docs" / "algorithms.md"
PAGE = PATH.read_text()
SECTIONS = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.M))
ALGORITHM_SECTIONS = {name: SECTIONS.get(name, "") for name in ALGORITHMS}
PLUGIN_SECTIONS = {name: SECTIONS.get(f"plug-in {name}", "") for name in PLUGINS}


def commands(text: str) -> list[str]:
    """The `c4rl train` lines of fenced blocks, continued lines joined."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.M)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+", " ", line) for line in lines if line.startswith("c4rl train ")]


def default_flags(text: str) -> list[str]:
    """The flags behind **Defaults:**."""
    found = re.search(r"\*\*Defaults:\*\* `([^`]+)`", text)
    return found[1].split() if found else []


def flags_of(*kinds: type) -> set[str]:
    """Of options, as on the command line; a switch has two."""
    names = {name.rstrip("_").replace("_", "-") for kind in kinds for name in kind.__dataclass_fields__}
    return {f"--{name}" for name in names} | {f"--no-{name}" for name in names}


JOB_FLAGS = {f"--{name.replace('_', '-')}" for name in field_names()} | {"--no-normalize-observations", "--help"}


def parse(command: str) -> TrainConfig:
    """From a command to the config that `c4rl train` would start its job with."""
    program, verb, *arguments = shlex.split(command)
    assert (program, verb) == ("c4rl", "train")
    return config_of(arguments)


@pytest.mark.parametrize("command", commands(PAGE))
def test_every_command_is_understood(command: str) -> None:
    config = parse(command)
    assert f"--algorithm {config.algorithm}" in command
    for name in config.plugins:
        assert name == "none" or name in command.split()


def test_commands_can_follow_each_other() -> None:
    """A job's folder must not exist: each command has one of its own."""
    outputs = re.findall(r"--output (\S+)", "\n".join(commands(PAGE)))
    assert len(outputs) == len(commands(PAGE)) == len(set(outputs))


@pytest.mark.parametrize("name", ALGORITHMS)
class TestEveryAlgorithm:
    def test_has_a_section_and_a_row_of_the_table(self, name: str) -> None:
        assert name in SECTIONS
        assert re.search(rf"^\| \[{name}\]\(#{name}\) \|", PAGE, re.M)

    def test_has_a_command_that_runs_it(self, name: str) -> None:
        assert any(f"--algorithm {name} " in command for command in commands(ALGORITHM_SECTIONS[name]))

    def test_its_defaults_are_the_codes(self, name: str) -> None:
        flags = default_flags(ALGORITHM_SECTIONS[name])
        assert len(flags) >= 8
        config = parse(f"c4rl train --algorithm {name} --task none --dataset d --output o {shlex.join(flags)}")
        assert config.options == ALGORITHMS[name].config_type()

    def test_its_section_names_flags_that_exist(self, name: str) -> None:
        own = flags_of(ALGORITHMS[name].config_type, *(options for options, _ in PLUGINS.values()))
        assert set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", ALGORITHM_SECTIONS[name])) <= own | JOB_FLAGS

    def test_its_stages_and_their_lengths_are_named(self, name: str) -> None:
        kind = ALGORITHMS[name]
        stages = kind.plan(kind.config_type(), updates=777)
        (row,) = re.findall(rf"^\| \[{name}\].*$", PAGE, re.M)
        counted = [stage.name for stage in stages if stage.updates == 777]
        assert counted == re.findall(r"\*\*(.+?)\*\*", row)
        assert ", ".join(stage.name for stage in stages) in row.replace("**", "")

    def test_refused_plugins_are_named(self, name: str) -> None:
        refused = {plugin for plugin in PLUGINS if is_refused(plugin, name)}
        (row,) = re.findall(rf"^\| \[{name}\].*$", PAGE, re.M)
        if not ALGORITHMS[name].has_critic:
            assert "| those that need no critic |" in row
            refused -= {plugin for plugin, (_, kind) in PLUGINS.items() if kind.needs_critic}
        for text in (row, ALGORITHM_SECTIONS[name]):
            exceptions = "".join(re.findall(r"\ball but ([\w, ]+)", text)[:1])
            assert refused == set(re.findall(r"\w+", exceptions)) & set(PLUGINS)


def is_refused(plugin: str, algorithm: str) -> bool:
    with contextlib.suppress(InputError):
        plugin_names((plugin,), algorithm)
        return False
    return True


@pytest.mark.parametrize("name", PLUGINS)
class TestEveryPlugin:
    def test_has_a_section_and_is_named_at_the_top(self, name: str) -> None:
        assert f"plug-in {name}" in SECTIONS
        assert f"[{name}](#plug-in-{name})" in PAGE

    def test_a_command_uses_it(self, name: str) -> None:
        assert any(name in parse(command).plugins for command in commands(PAGE))

    def test_its_defaults_are_the_codes(self, name: str) -> None:
        flags = shlex.join(default_flags(PLUGIN_SECTIONS[name]))
        config = parse(f"c4rl train --algorithm cql --plugins {name} --task none --dataset d --output o {flags}")
        assert config.plugin_options == (PLUGINS[name][0](),)

    def test_its_section_names_flags_that_exist(self, name: str) -> None:
        own = flags_of(PLUGINS[name][0])
        assert set(re.findall(r"(?<![\w-])--[a-zA-Z][\w-]*", PLUGIN_SECTIONS[name])) <= own | JOB_FLAGS | {
            "--dr3-weight"
        }


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((?!https?://)([^)]+)\)", PAGE):
        name, _, anchor = target.partition("#")
        page = PATH.parent / name if name else PATH
        assert page.exists(), target
        titles = re.findall(r"^#+ (.+)$", page.read_text(), re.M) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}, (
            target
        )
