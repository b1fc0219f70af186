"""The README's commands and code blocks, executed in order in one folder; and the policy file's reader."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import c4rl
from tests.documents import ROOT, command_lines, exit_code

README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent

# fenced blocks, and commands with flags inside sentences
PARTS = re.compile(
    r"^```(?P<language>sh|python)\n(?P<code>.*?)^```$|`(?P<inline>c4rl [^`]+ --[^`]+)`", re.DOTALL | re.M
)
# the only thing that is changed: there are four updates, with two evaluations
NUMBERS = {
    re.compile(r"(\bupdates[ =])\d{2,}\b"): r"\g<1>4",
    re.compile(r"(\beval[-_]every[ =])\d{2,}\b"): r"\g<1>2",
}


def readme_parts() -> list[tuple[str, str]]:
    """("sh" or "python", code) in the order of the README."""
    parts = []
    for match in PARTS.finditer(README):
        if match["inline"]:
            parts.append(("sh", re.sub(r"\s+", " ", match["inline"])))
        else:
            parts.append((match["language"], match["code"]))
    return parts


def shortened(code: str) -> str:
    for number, shorter in NUMBERS.items():
        code = number.sub(shorter, code)
    return code


def is_make(line: str) -> bool:
    return line.startswith("make ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With `my_data.npz`: the README's arrays and no more, actions in [0, 40]."""
    path = tmp_path_factory.mktemp("readme")
    rng = np.random.default_rng(0)
    rows = 600
    timeouts = np.arange(rows) % 50 == 49
    np.savez(
        path / "my_data.npz",
        observations=rng.standard_normal((rows, 5)).astype(np.float32),
        actions=rng.uniform(0, 40, (rows, 2)).astype(np.float32),
        rewards=rng.standard_normal(rows).astype(np.float32),
        terminals=np.zeros(rows, bool),
        timeouts=timeouts,
    )
    return path


def execute(command: list[str], folder: Path) -> str:
    # one thread: on a busy machine two wait for each other longer than they work
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{command[-1]}\nended with {done.returncode}:\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def executed(folder: Path) -> Path:
    """The folder after everything in the README was run there: `data info` by a shell, as all would be, other commands
    in this process, which has imported PyTorch."""
    for language, code in readme_parts():
        if language == "python":
            execute([sys.executable, "-c", shortened(code)], folder)
            continue
        lines = [line for line in command_lines(code) if not is_make(line)]
        for line in map(shortened, lines):
            if line.startswith("c4rl data info"):
                execute(["bash", "-c", line], folder)
                continue
            with contextlib.chdir(folder):
                assert exit_code(line) == 0, line
    return folder


def test_the_readme_holds_what_is_executed_here() -> None:
    """A README whose fences changed would otherwise pass by running nothing."""
    languages = [language for language, _ in readme_parts()]
    commands = "\n".join(code for language, code in readme_parts() if language == "sh")
    assert languages.count("python") >= 1
    for verb in ("data info", "data record", "train", "evaluate", "export"):
        assert re.search(rf"^c4rl {verb}\b", commands, re.M), verb


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    lines = [line for language, code in readme_parts() if language == "sh" for line in code.splitlines()]
    targets = {line.split()[1] for line in lines if is_make(line)}
    assert targets >= {"run", "test"}
    for target in targets:
        assert re.search(rf"^{re.escape(target)}:", makefile, re.M), target
    variables = {name for line in lines if is_make(line) for name in re.findall(r"\b([A-Z]+)=", line)}
    for name in variables:
        assert re.search(rf"^{name} \?=", makefile, re.M), name


def test_commands_and_code_do_what_they_say(executed: Path) -> None:
    for name in ("my_policy.npz", "maze.npz", "runs/mine/summary.json", "runs/maze/summary.json", "runs/library"):
        assert (executed / name).exists(), name


def test_the_exported_policy_needs_numpy_alone_and_fifteen_lines(executed: Path) -> None:
    text = (ROOT / "docs" / "policy_file.md").read_text()
    (reader,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.M)
    assert sum(bool(line) for line in reader.splitlines()) <= 15
    observations = np.load(executed / "my_data.npz", allow_pickle=False)["observations"][:50]
    np.save(executed / "observations.npy", observations)
    use = (
        "import sys\n"
        "actions = load('my_policy.npz')(np.load('observations.npy'))\n"
        "assert not {'torch', 'c4rl', 'gymnasium'} & set(sys.modules)\n"
        "np.save('actions.npy', actions)\n"
        "first = load('my_policy.npz')(np.load('observations.npy')[0])\n"  # an ensemble's axes look like a batch's
        "assert first.shape == (2,) and np.allclose(first, actions[0], atol=1e-4)\n"
    )
    execute([sys.executable, "-c", f"{reader}\n{use}"], executed)
    actions = np.load(executed / "actions.npy", allow_pickle=False)
    assert actions.shape == (50, 2) and actions.min() >= 0 and actions.max() <= 40
    np.testing.assert_array_equal(actions, c4rl.load_policy(executed / "runs/mine", ensemble=True).act(observations))


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!https?://)([^)#]+)\)", README))))
def test_links_lead_somewhere(target: str) -> None:
    assert (ROOT / target).exists()
