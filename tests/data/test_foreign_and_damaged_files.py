"""Whatever the file is, the answer is a dataset or one sentence."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.data import load_dataset

Make = Callable[..., dict[str, np.ndarray]]
Save = Callable[..., Path]


def refusal(path: Path | str) -> str:
    with pytest.raises(InputError) as caught:
        load_dataset(path)
    message = str(caught.value)
    assert "\n" not in message and "expected" in message and message.endswith(".")
    return message


def test_the_format_is_told_by_content_not_by_name(arrays: Make, save: Save, tmp_path: Path) -> None:
    renamed = save(arrays([5])).rename(tmp_path / "looks-like.hdf5")
    assert len(load_dataset(renamed)) == 5


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"", "the file is empty"),
        (b"hello, world", "in no known format"),
        (b"\x93NUMPY\x01\x00v\x00", "a single numpy array"),
        (b"PAR1....", "a Parquet file"),
        (b"\x1f\x8b\x08\x00", "a gzip archive"),
        (b"PK\x03\x04 and nothing more", "not readable as an npz file"),
        (b"\x89HDF\r\n\x1a\n and nothing more", "not readable as HDF5"),
    ],
)
def test_foreign_files_are_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert sentence in refusal(path)


def test_missing_files_and_empty_folders_are_named(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "nothing.npz")
    assert "holds no 'main_data.hdf5'" in refusal(tmp_path)


def test_other_zip_and_hdf5_files_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("readme.txt", "hello")
    assert "'observations' is missing among ['readme.txt']" in refusal(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as archive:
        for name in ("observations", "actions", "rewards"):
            archive.writestr(name, "no array")
    assert "'observations'" in refusal(tmp_path / "b.zip")
    with h5py.File(tmp_path / "weights.h5", "w") as file:
        file["layers/kernel"] = np.ones(3)
    assert "'observations' is missing among ['layers']" in refusal(tmp_path / "weights.h5")
    with h5py.File(tmp_path / "group.h5", "w") as file:
        file.create_group("observations")
    assert "'observations' is a group" in refusal(tmp_path / "group.h5")


def test_an_unreadable_file_is_called_unreadable(arrays: Make, save: Save, tmp_path: Path) -> None:
    path = save(arrays([5]))
    path.chmod(0)
    if os.access(path, os.R_OK):  # the superuser reads everything: try as somebody else
        for folder in (tmp_path, *tmp_path.parents[:2]):
            folder.chmod(0o755)
        os.seteuid(65534)
    try:
        assert "data.npz: cannot be read (Permission denied)" in refusal(path)
    finally:
        os.seteuid(os.getuid())
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be read (Too many levels" in refusal(tmp_path / "loop")
    assert "cannot be read (Not a directory)" in refusal(path / "inside")
    assert "cannot be read (File name too long)" in refusal("x" * 300)
    assert refusal(tmp_path / "a\nb\x1b[31m").startswith(f"{tmp_path}/a\\nb\\x1b[31m: there is no such file")


@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_truncated_files_are_refused_at_any_length(arrays: Make, save: Save, tmp_path: Path, kind: str) -> None:
    raw = arrays([40, 30])
    path = save(raw)
    if kind == "hdf5":
        path = tmp_path / "data.hdf5"
        with h5py.File(path, "w") as file:
            for name, values in raw.items():
                file.create_dataset(name, data=values, compression="gzip")
    content = path.read_bytes()
    assert len(load_dataset(path)) == 70
    for length in np.linspace(1, len(content) - 1, 40).astype(int):
        path.write_bytes(content[:length])
        refusal(path)


def test_damaged_compressed_rows_are_refused(arrays: Make, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez_compressed(path, **arrays([400]))
    content = bytearray(path.read_bytes())
    content[300:340] = bytes(40)
    path.write_bytes(content)
    assert "not readable as an npz file" in refusal(path)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["observations", "actions", "rewards", "trajectory_ids"])
def test_signalling_nans_are_refused_without_a_warning(arrays: Make, tmp_path: Path, save: Save, name: str) -> None:
    """NumPy warns when it converts them, which would be a second line. Found by fuzzing."""
    raw = arrays([40])
    values = raw[name].astype(np.float64)
    values.view(np.uint64).flat[3] = 0x7FF0000000000001
    raw[name] = values
    assert "holds nan" in refusal(save(raw))
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for field, stored in raw.items():
            file[field] = stored
    assert name == "trajectory_ids" or "holds nan" in refusal(tmp_path / "data.hdf5")
