"""Executes what documents say: fenced `sh` and `python` blocks, in order, in one folder, in this process."""

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from c4rl.cli.main import main

ROOT = Path(__file__).resolve().parents[1]

FENCED = re.compile(
    r"(?:^<!-- (?P<mark>not executed: [^>]*) -->\n)?^```(?P<language>sh|python|text)\n(?P<code>.*?)^```$",
    re.DOTALL | re.M,
)


class Block(NamedTuple):
    language: str  # sh, python, or text: what the blocks above it print
    code: str
    mark: str | None = None  # why it is not executed


def blocks(markdown: str) -> list[Block]:
    return [Block(match["language"], match["code"], match["mark"]) for match in FENCED.finditer(markdown)]


def command_lines(code: str) -> list[str]:
    return [line for line in code.replace("\\\n", " ").splitlines() if line.strip()]


def exit_code(line: str) -> object:
    """Of a command line of c4rl in this process."""
    program, *arguments = shlex.split(line, comments=True)
    assert program == "c4rl"
    try:
        return main(arguments)
    except SystemExit as end:  # --help
        return end.code


def executed(markdown: str, folder: Path) -> Iterator[tuple[Block, str]]:
    """Runs all blocks in the folder; each `text` block with what was printed since the last one."""
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        for block in blocks(markdown):
            if block.mark is not None:
                continue
            if block.language == "python":
                exec(compile(block.code, "a block of the page", "exec"), names)
            elif block.language == "sh":
                for line in command_lines(block.code):
                    assert exit_code(line) == 0, line
            else:
                yield block, printed.getvalue()
                printed.seek(0)
                printed.truncate()


def without_numbers(text: str) -> list[str]:
    """Its lines with one sign for each number, and without spaces and rules: other machines round differently."""
    lines = [re.sub(r"-?\d[\d,.]*", "#", line) for line in text.splitlines()]
    return [re.sub(r"[\s│┃─━]+", " ", line).strip() for line in lines]
