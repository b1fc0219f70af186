"""Files that crash libhdf5, or keep it busy for ever, are refused like any other damaged file."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from c4rl.cli.main import main
from c4rl.core.errors import InputError
from c4rl.data import hdf5, load_dataset

# the message of a dataset's fill value, up to its size, which is 0: see `crash`
FILL_VALUE = b"\x05\x00\x08\x00\x01\x00\x00\x00\x02\x02\x02\x01"

LOOK = """
import sys
from c4rl.data import hdf5, load_dataset
load_dataset(sys.argv[1])
print(hdf5.STRUCTURE._process.pid)
"""


@pytest.fixture(params=["", "episode_0/"])
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A D4RL file, or that of a Minari folder."""
    episode = bool(request.param)
    fields = {"observations": np.zeros((4 + episode, 2)), "actions": np.zeros((4, 1)), "rewards": np.zeros(4)}
    for flag in ("terminations", "truncations") if episode else ("terminals", "timeouts"):
        fields[flag] = np.zeros(4, bool)
    with h5py.File(tmp_path / "main_data.hdf5", "w") as file:
        for name, values in fields.items():
            file[request.param + name] = values
    return tmp_path / "main_data.hdf5"


def crash(path: Path) -> None:
    """Give a fill value a negative size, as a flipped byte does. HDF5 2.0 takes it for a length. Found by fuzzing."""
    content = bytearray(path.read_bytes())
    at = content.index(FILL_VALUE) + len(FILL_VALUE)
    content[at : at + 4] = (-1_000_000_000).to_bytes(4, "little", signed=True)
    path.write_bytes(content)


def test_a_file_that_crashes_libhdf5_is_refused(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = path.read_bytes()
    count = len(load_dataset(path))
    crash(path)
    for dataset in (path, path.parent):
        assert main(["data", "info", str(dataset)]) == 2
        output, sentence = capsys.readouterr()
        # a libhdf5 that does not crash refuses the array
        assert output == "" and sentence.count("\n") == 1 and "not readable" in sentence, sentence
    path.write_bytes(whole)
    assert len(load_dataset(path)) == count


@pytest.mark.parametrize(
    ("limit", "least", "sentence"),
    [
        ("SECONDS", 1e-6, r"\(libhdf5 found nothing within 0 seconds\)"),
        ("MEMORY", 1, r"\((libhdf5 crashed|.*[Mm]emory)"),
    ],
)
def test_looking_at_a_file_is_limited(
    path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, least: float, sentence: str
) -> None:
    monkeypatch.setattr(hdf5, "SECONDS_PER_BYTE", 0)
    with monkeypatch.context() as limits, pytest.raises(InputError, match=f"main_data.hdf5: not readable .*{sentence}"):
        limits.setattr(hdf5, limit, least)
        load_dataset(path)
    load_dataset(path)


def test_the_process_that_looks_is_started_again_and_ends_with_its_owner(path: Path) -> None:
    load_dataset(path)
    process = hdf5.STRUCTURE._process
    assert process is not None
    process.kill()
    process.wait()
    load_dataset(path)
    run = subprocess.run([sys.executable, "-c", LOOK, path], capture_output=True, text=True, check=True)
    with pytest.raises(ProcessLookupError):
        os.kill(int(run.stdout), 0)
