"""The completion script, read by a real bash."""

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
    "train --dataset ": "",  # left to the shell: a path
}


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_bash_completes_commands_flags_and_choices(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", "bash") == 0
    script = tmp_path / "c4rl.bash"
    script.write_text(capsys.readouterr().out)
    lines = [f"source {script}", "complete -p c4rl"]
    for words in CASES:
        *before, current = words.split(" ")
        given = " ".join([*before, f"'{current}'"])
        lines.append(
            f'COMP_WORDS=(c4rl {given}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _c4rl; echo "${{COMPREPLY[*]}}"'
        )
    done = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True)
    registered, *found = done.stdout.splitlines()
    assert done.returncode == 0 and done.stderr == "" and "-F _c4rl c4rl" in registered
    for (words, expected), line in zip(CASES.items(), found, strict=True):
        assert set(expected.split()) <= set(line.split()), words
        assert all(word.startswith(words.split(" ")[-1]) for word in line.split()), words


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_have_a_script(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("completion", shell) == 0
    script = capsys.readouterr().out
    assert "algorithm" in script and "td3_bc" in script
    if shutil.which(shell) is not None:
        (tmp_path / "script").write_text(script)
        assert subprocess.run([shell, "-n", str(tmp_path / "script")]).returncode == 0
