"""The completion scripts, read by the real shells."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.support import run

CASES = {
    "tr": "train",
    "data ": "record info convert fetch",
    "data co": "convert",
    "train --algo": "--algorithm",
    "train --algorithm c": "cql",
    "train --plugins c4 la": "layer_norm",
    "train --lamb": "--lambda --lambda-fraction",
    "bench table main --engine r": "ray",
    "data info --clip": "--clip-actions",
    "export job --format ": "npz onnx",
    "train --dataset data --algo": "--algorithm",
    "train --dataset ": "",  # left to the shell: a path
}


def script_of(shell: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    assert run("completion", shell) == 0
    script = folder / f"c4rl.{shell}"
    script.write_text(capsys.readouterr().out)
    return script


def answers(shell: str, lines: list[str], *options: str) -> list[str]:
    done = subprocess.run(
        [shell, *options, "-c", "\n".join(lines)], capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout.splitlines()


def check(found: list[str]) -> None:
    for (words, expected), line in zip(CASES.items(), found, strict=True):
        assert set(expected.split()) <= set(line.split()), words
        assert all(word.startswith(words.split(" ")[-1]) for word in line.split()), words


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_bash_and_zsh_complete_commands_flags_and_choices(
    shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """zsh calls the function as bash does, with arrays that begin at 0."""
    script = script_of(shell, tmp_path, capsys)
    if shell == "bash":
        lines = [f"source {script}", "complete -p c4rl"]
    else:
        lines = [f"ZDOTDIR={tmp_path}; source {script}", "echo $_comps[c4rl]", "setopt ksharrays shwordsplit"]
    for words in CASES:
        *before, current = words.split(" ")
        given = " ".join([*before, f"'{current}'"])
        lines.append(
            f'COMP_WORDS=(c4rl {given}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _c4rl; echo "${{COMPREPLY[*]}}"'
        )
    registered, *found = answers(shell, lines, *(["-f"] if shell == "zsh" else []))
    assert "-F _c4rl" in registered
    if shell == "zsh":  # it leaves out itself what does not begin with the word
        begun = [words.split(" ")[-1] for words in CASES]
        found = [" ".join(w for w in line.split() if w.startswith(b)) for b, line in zip(begun, found, strict=True)]
    check(found)


def test_fish_completes_commands_flags_and_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = script_of("fish", tmp_path, capsys)
    empty = tmp_path / "empty"
    empty.mkdir()  # what the script leaves open is completed as a path
    lines = [f"source {script}; cd {empty}"]
    for words in CASES:
        lines.append(f"echo (complete -C 'c4rl {words}' | string split -f 1 \\t)")
    check(answers("fish", lines, "--no-config"))


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_a_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", shell) == 0
    script = capsys.readouterr().out
    assert "algorithm" in script and "td3_bc" in script
