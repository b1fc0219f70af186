"""Nothing that a dataset says makes its reader look outside it, run code, or ask for more memory than it holds."""

import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from c4rl.core.errors import InputError
from c4rl.core.files import replacing
from c4rl.data import load_dataset

Make = Callable[..., dict[str, np.ndarray]]
Save = Callable[..., Path]
SECRET = 0.625  # what the other file holds: it must never be a number of a dataset
FIELDS = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts", "infos/goal")
ROWS = 20


@pytest.fixture
def fields(arrays: Make) -> dict[str, np.ndarray]:
    raw = arrays([12, 8])
    del raw["trajectory_ids"]
    return raw | {"timeouts": np.arange(ROWS) % 10 == 9, "infos/goal": np.zeros((ROWS, 2))}


@pytest.fixture
def other(tmp_path: Path, fields: dict[str, np.ndarray]) -> Path:
    """Another file of the user, in the same layout."""
    path = tmp_path / "secret.hdf5"
    with h5py.File(path, "w") as file:
        for name, values in fields.items():
            file[name] = np.full(values.shape, SECRET, np.float32)
    (tmp_path / "secret.raw").write_bytes(np.full(ROWS * 8, SECRET, np.float32).tobytes())
    return path


def external_link(file: h5py.File, name: str, other: Path) -> None:
    file[name] = h5py.ExternalLink(str(other), name)


def soft_link_through_an_external_one(file: h5py.File, name: str, other: Path) -> None:
    file["elsewhere"] = h5py.ExternalLink(str(other), "/")
    file[name] = h5py.SoftLink(f"/elsewhere/{name}")


def external_storage(file: h5py.File, name: str, other: Path) -> None:
    raw = str(other.with_suffix(".raw"))
    file.create_dataset(name, (ROWS, 2), "f4", external=[(raw, 0, ROWS * 8)])


def virtual_dataset(file: h5py.File, name: str, other: Path) -> None:
    with h5py.File(other) as secret:
        shape = secret[name].shape
    layout = h5py.VirtualLayout(shape, "f4")
    layout[...] = h5py.VirtualSource(str(other), name, shape)
    file.create_virtual_dataset(name, layout)


WAYS_OUT = [external_link, soft_link_through_an_external_one, external_storage, virtual_dataset]


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize("way_out", WAYS_OUT)
def test_hdf5_numbers_of_another_file_are_refused(
    fields: dict[str, np.ndarray], other: Path, tmp_path: Path, field: str, way_out: Callable[..., None]
) -> None:
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, values in fields.items():
            if name != field:
                file[name] = values
        way_out(file, field, other)
    with pytest.raises(InputError, match=r"data\.hdf5: '(infos/goal|elsewhere|\w+)' .* another file, which is refused"):
        load_dataset(tmp_path / "data.hdf5")


def test_links_within_the_file_are_followed(fields: dict[str, np.ndarray], tmp_path: Path) -> None:
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, values in fields.items():
            file[f"stored/{name}"] = values
            file[name] = h5py.SoftLink(f"/stored/{name}")
    assert np.array_equal(load_dataset(tmp_path / "data.hdf5").rewards, fields["rewards"])


@pytest.mark.parametrize("shape", [(10**12, 2), (2**50,), (ROWS, 10**9), (4 * 10**9,)])
@pytest.mark.parametrize("field", FIELDS)
def test_hdf5_arrays_that_were_never_written_cannot_fill_the_memory(
    fields: dict[str, np.ndarray], tmp_path: Path, field: str, shape: tuple[int, ...]
) -> None:
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, values in fields.items():
            if name != field:
                file[name] = values
        file.create_dataset(field, shape, "f4")
    with pytest.raises(
        InputError,
        match=r"bytes, in a file of [\d,]+; expected an array that its file and this machine's memory can hold",
    ):
        load_dataset(tmp_path / "data.hdf5")


def test_one_small_array_linked_many_times_cannot_fill_the_memory(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "main_data.hdf5", "w") as file:
        first = file.create_group("episode_0")
        for name, shape in {"observations": (20_001, 2), "actions": (20_000, 2), "rewards": (20_000,)}.items():
            first.create_dataset(name, data=np.zeros(shape), compression="gzip", chunks=shape)
        for name in ("terminations", "truncations"):
            first.create_dataset(name, data=np.zeros(20_000, bool), compression="gzip")
        for k in range(1, 1000):
            file[f"episode_{k}"] = first
    with pytest.raises(InputError, match="an array that its file and this machine's memory can hold"):
        load_dataset(tmp_path)


@pytest.mark.parametrize(
    ("how", "raw"),
    [
        ({"compression": "gzip"}, zlib.compress(bytes(16))),
        ({"compression": "gzip"}, zlib.compress(bytes(1000))),
        ({"compression": "gzip", "shuffle": True}, zlib.compress(bytes(16))),
        ({"shuffle": True}, bytes(16)),
        ({"fletcher32": True}, b"abc"),
        ({"fletcher32": True}, bytes(80) + b"\1\0\0\0"),
        ({"fletcher32": True, "compression": "gzip"}, b"abcd"),
    ],
)
def test_short_hdf5_chunks_are_not_filled_up_from_memory(
    fields: dict[str, np.ndarray], tmp_path: Path, how: dict[str, object], raw: bytes
) -> None:
    """HDF5 itself reads on beyond the end of the chunk, or crashes. Found by fuzzing."""
    with h5py.File(tmp_path / "data.hdf5", "w") as file:
        for name, values in fields.items():
            if name != "rewards":
                file[name] = values
        rewards = file.create_dataset("rewards", (ROWS,), "f4", chunks=(ROWS,), **how)
        rewards.id.write_direct_chunk((0,), raw)
    with pytest.raises(InputError, match=r"'rewards' has a chunk that is not readable"):
        load_dataset(tmp_path / "data.hdf5")


def with_header(shape: str, data: bytes = b"") -> bytes:
    header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + data


def rewrite(path: Path, name: str, content: bytes, method: int = zipfile.ZIP_STORED) -> Path:
    """The same archive with another member of this name."""
    with zipfile.ZipFile(path) as archive:
        members = {member: archive.read(member) for member in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for member, stored in (members | {name: content}).items():
            archive.writestr(member, stored, method if member == name else zipfile.ZIP_STORED)
    return path


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (with_header("(1000000000000, 5)"), "20,000,000,000,000 bytes, in a file of"),
        (
            with_header(f"({'9' * 400},)"),
            r"has shape \(9+\.\.\.; expected an array that its file and this machine's memory can hold",
        ),
        (with_header("(-7,)"), r"has shape \(-7,\)"),
        (with_header("(7,)"), r"has shape \(7,\) and dtype float32, but 0 bytes"),
        (with_header("(7,)", bytes(100)), "but 100 bytes; expected as many bytes as its numbers take"),
        (with_header("(True,)", bytes(4)), "not readable as an npz file's array"),
        (with_header("((((("), "not readable as an npz file's array"),
        (with_header("__import__('os').mkdir('/opened')"), "not readable as an npz file's array"),
        (b"no array", "not readable as an npz file's array"),
        (b"", "not readable as an npz file's array"),
    ],
)
def test_npz_members_that_lie_about_themselves_are_refused(
    arrays: Make, save: Save, content: bytes, sentence: str
) -> None:
    with pytest.raises(InputError, match=f"data.npz: 'rewards' .*{sentence}"):
        load_dataset(rewrite(save(arrays([4, 3])), "rewards.npy", content))
    assert not Path("/opened").exists()


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_bomb_is_refused_before_it_is_unpacked(arrays: Make, save: Save, method: int) -> None:
    bomb = with_header("(5000000,)", bytes(20_000_000))
    with pytest.raises(InputError, match=r"'rewards' has shape .* 20,000,000 bytes, in a file of"):
        load_dataset(rewrite(save(arrays([4, 3])), "rewards.npy", bomb, method))


def test_two_members_of_one_name_are_refused(arrays: Make, save: Save) -> None:
    path = save(arrays([4, 3]))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("rewards", archive.read("rewards.npy"))
    with pytest.raises(InputError, match="'rewards' is in the archive 2 times; expected each array once"):
        load_dataset(path)


def test_members_that_nobody_asked_for_are_not_even_opened(arrays: Make, save: Save, tmp_path: Path) -> None:
    path = save(arrays([4, 3]))
    rewrite(rewrite(path, "../evil.npy", b"x"), str(tmp_path / "evil"), b"x")
    before = sorted(tmp_path.parent.rglob("*"))
    assert len(load_dataset(path)) == 7
    assert sorted(tmp_path.parent.rglob("*")) == before


def test_encrypted_archives_are_refused(arrays: Make, save: Save) -> None:
    path = save(arrays([4, 3]))
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(mark)
        while at >= 0:
            content[at + offset] |= 1
            at = content.find(mark, at + 4)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"'observations' is not readable as an npz file's array .*encrypted"):
        load_dataset(path)


# -- Minari folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A dataset folder `sets/mine`, and a like one outside of `sets`."""
    for path in (tmp_path / "sets" / "mine", tmp_path / "outside"):
        (path / "data").mkdir(parents=True)
        with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
            group = file.create_group("episode_0")
            group["observations"], group["actions"] = np.zeros((4, 2)), np.zeros((3, 1))
            group["rewards"] = np.full(3, SECRET if path.name == "outside" else 0.0)
            group["terminations"] = group["truncations"] = np.zeros(3, bool)
        (path / "data" / "metadata.json").write_text(json.dumps({"data_format": "hdf5"}))
    assert len(load_dataset(tmp_path / "sets" / "mine")) == 3
    return tmp_path / "sets" / "mine"


@pytest.mark.parametrize("name", ["data", "data/main_data.hdf5", "data/metadata.json"])
def test_links_out_of_a_minari_folder_are_refused(folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).rename(tmp_path / "taken-away")
    (folder / name).symlink_to(tmp_path / "outside" / name)
    with pytest.raises(InputError, match=r"a link out of .*mine.*, which is refused"):
        load_dataset(folder)


def test_metadata_beyond_a_link_is_refused_even_if_the_data_lead_back(folder: Path, tmp_path: Path) -> None:
    """Found by fuzzing."""
    (folder / "data" / "main_data.hdf5").rename(folder / "kept.hdf5")
    (folder / "data").rename(tmp_path / "elsewhere")
    (folder / "data").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "main_data.hdf5").symlink_to(folder / "kept.hdf5")
    with pytest.raises(InputError, match=r"metadata.json: a link out of .*mine.*, which is refused"):
        load_dataset(folder)


def test_a_minari_folder_may_be_a_link_itself(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "here").symlink_to(folder)
    assert len(load_dataset(tmp_path / "here")) == 3


@pytest.mark.parametrize("name", ["../outside", "..", ".", "", "mine/../../outside", "./mine", "~", "a\nb", "mine\0"])
def test_dataset_ids_cannot_leave_the_root(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder.parent))
    assert len(load_dataset("minari:mine")) == 3
    for dataset_id in (name, str(tmp_path / "outside")):
        with pytest.raises(InputError, match="no Minari dataset id; expected names joined by slashes") as caught:
            load_dataset(f"minari:{dataset_id}")
        assert str(caught.value).isprintable()


def test_pipes_are_not_waited_for(folder: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (folder / "data" / "metadata.json").unlink()
    os.mkfifo(folder / "data" / "metadata.json")
    for path in (tmp_path / "pipe", folder):
        with pytest.raises(InputError, match="not a regular file"):
            load_dataset(path)


# -- what we write


def test_a_planted_link_does_not_receive_what_is_written(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("keep me")
    (tmp_path / f".new.json.{os.getpid()}.partial").symlink_to(target)
    with replacing(tmp_path / "new.json") as temporary:
        temporary.write_text("{}")
    assert target.read_text() == "keep me" and (tmp_path / "new.json").read_text() == "{}"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new.json", "precious"]


def test_a_written_file_is_as_public_as_any_other(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    with replacing(tmp_path / "own.json") as temporary:
        temporary.write_text("{}")
    assert (tmp_path / "own.json").stat().st_mode == (tmp_path / "plain").stat().st_mode
