"""Valid files, spoiled in every way we could think of: each is a dataset that can be trained on, or one sentence.

`make test` tries a few hundred of them, `make fuzz` as many thousands as C4RL_FUZZ says; the same ones every time.
"""

import io
import json
import os
import struct
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hn

import c4rl
from c4rl.core.errors import InputError
from c4rl.data import describe, load_dataset, render
from c4rl.data.d3rlpy import write_columns
from tests.cli.support import listing
from tests.data.conftest import logged_arrays

CASES = int(os.environ.get("C4RL_FUZZ", "300"))
SOURCE = str(Path(c4rl.__file__).parent)
SECONDS = 20.0  # a small file takes milliseconds: one that takes this long is a way to hang the reader
LENGTHS = [9, 6, 7]
ROWS = sum(LENGTHS)

fuzz = settings(
    max_examples=max(1, CASES // 6),
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def check(path: Path, folder: Path) -> None:
    """A dataset whose numbers can be used, or one sentence; in time, and nothing written."""
    before, start = listing(folder), time.monotonic()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # they would be further lines on stderr
            data = load_dataset(path)
    except InputError as error:
        sentence = str(error)
        assert sentence.isprintable() and "expected" in sentence and len(sentence) < 1500, sentence
        assert str(folder) in sentence, "names the file"
        assert "exit code" not in sentence, "an error in our own look at the structure"
        assert error.__cause__ is None or _raised_elsewhere(error.__cause__.__traceback__), repr(error.__cause__)
    else:
        for name in ("observations", "actions", "rewards", "next_observations", "next_actions"):
            assert np.abs(getattr(data, name)).max() <= 1e15, name
        inside = (data.actions >= data.action_low) & (data.actions <= data.action_high)
        assert inside.all() and set(np.diff(data.trajectory_ids)) <= {0, 1} and len(data) > 0
        description = describe(data)
        json.dumps(description, allow_nan=False)
        render(description)
    assert time.monotonic() - start < SECONDS
    assert listing(folder) == before


def _raised_elsewhere(trace: TracebackType | None) -> bool:
    """Whether zipfile, NumPy, HDF5 or the system refused the file: our own readers must not stumble over it."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and not trace.tb_frame.f_code.co_filename.startswith(SOURCE)


# -- valid files, as bytes


def npz_bytes(fields: dict[str, Any], compressed: bool = False) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **fields)
    return out.getvalue()


def hdf5_bytes(fill: Callable[[h5py.File], None], **how: Any) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        with h5py.File(Path(folder) / "file", "w", **how) as file:
            fill(file)
        return (Path(folder) / "file").read_bytes()


def d4rl(file: h5py.File, compressed: bool = False) -> None:
    how = {"compression": "gzip", "chunks": True, "shuffle": True, "fletcher32": True} if compressed else {}
    for name, values in FIELDS.items():
        file.create_dataset(name, data=values, **how)
    file["infos/goal"] = np.ones((ROWS, 2))


def minari(file: h5py.File) -> None:
    rng = np.random.default_rng(0)
    for k, length in enumerate(LENGTHS):
        group = file.create_group(f"episode_{k}")
        group["observations"] = rng.normal(size=(length + 1, 3))
        group["actions"] = rng.uniform(-1, 1, (length, 2))
        group["rewards"] = rng.normal(size=length)
        group["terminations"] = group["truncations"] = np.arange(length) == length - 1


def goals(file: h5py.File) -> None:
    """The dictionary observations of AntMaze."""
    minari(file)
    for k, length in enumerate(LENGTHS):
        del file[f"episode_{k}/observations"]
        for name, width in (("observation", 27), ("achieved_goal", 2), ("desired_goal", 2)):
            file[f"episode_{k}/observations/{name}"] = np.ones((length + 1, width))


def d3rlpy(file: h5py.File) -> None:
    rng = np.random.default_rng(0)
    sizes = {"observations": 3, "actions": 2, "rewards": 1}
    episodes = [{name: rng.uniform(-1, 1, (length, width)) for name, width in sizes.items()} for length in LENGTHS]
    write_columns(file, [episode | {"terminated": True} for episode in episodes])


LOGGED = logged_arrays(LENGTHS, [True, False, False])
FIELDS = {name: values for name, values in LOGGED.items() if name != "trajectory_ids"} | {
    "timeouts": np.arange(ROWS) % 5 == 4
}
ALL_FIELDS = LOGGED | {
    "timeouts": FIELDS["timeouts"],
    "next_actions": np.zeros((ROWS, 2)),
    "next_action_valid": np.zeros(ROWS, bool),
    "action_low": np.full(2, -1.0),
    "action_high": np.array(1.0),
}
SPACE = {"type": "Box", "dtype": "float32", "shape": [2], "low": [-1.0, -1.0], "high": [1.0, 1.0]}
METADATA = {
    "data_format": "hdf5",
    "action_space": json.dumps(SPACE),
    "observation_space": json.dumps(SPACE | {"shape": [3]}),
    "total_episodes": 3,
}
WHOLE = {
    "npz": npz_bytes(ALL_FIELDS),
    "compressed npz": npz_bytes(ALL_FIELDS, compressed=True),
    "hdf5": hdf5_bytes(d4rl),
    "compressed hdf5": hdf5_bytes(lambda file: d4rl(file, compressed=True)),
    "latest hdf5": hdf5_bytes(d4rl, libver="latest"),
    "d3rlpy": hdf5_bytes(d3rlpy),
    "minari": hdf5_bytes(minari),
    "minari with goals": hdf5_bytes(goals),
}


@pytest.mark.parametrize("kind", WHOLE)
def test_the_files_are_valid_before_they_are_spoiled(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(WHOLE[kind])
    (tmp_path / "metadata.json").write_text(json.dumps(METADATA))
    assert len(load_dataset(tmp_path / "file")) == ROWS
    check(tmp_path / "file", tmp_path)


# -- damaged bytes


@st.composite
def damaged_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    content = bytearray(whole)
    # structure sits at either end and around the zip's and HDF5's signatures: as likely a place as all the rest
    marks = [i for mark in (b"PK", b"NUMPY", b"OHDR", b"TREE", b"SNOD", b"HEAP", b"FRHP") for i in _places(whole, mark)]
    for _ in range(draw(st.integers(1, 6))):
        near = st.sampled_from([0, max(0, len(content) - 60), *marks]).flatmap(lambda at: st.integers(at, at + 60))
        at = min(draw(st.one_of(near, st.integers(0, len(content)))), len(content))
        how = draw(st.sampled_from(["flip", "write", "number", "insert", "delete", "copy", "cut"]))
        length = draw(st.integers(1, 64))
        if how == "flip" and at < len(content):
            content[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "write":
            content[at : at + length] = draw(st.binary(min_size=1, max_size=length))
        elif how == "number":
            number = draw(st.sampled_from([0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**64 - 1]))
            content[at : at + 8] = struct.pack("<Q", number)[: draw(st.sampled_from([1, 2, 4, 8]))]
        elif how == "insert":
            content[at:at] = draw(st.binary(min_size=1, max_size=length))
        elif how == "delete":
            del content[at : at + length]
        elif how == "copy":
            other = draw(st.integers(0, len(content)))
            content[at : at + length] = content[other : other + length]
        elif draw(st.booleans()):
            del content[at:]
    return bytes(content)


def _places(content: bytes, mark: bytes) -> list[int]:
    found, at = [], content.find(mark)
    while at >= 0:
        found.append(at)
        at = content.find(mark, at + 1)
    return found


@fuzz
@given(st.sampled_from(sorted(WHOLE)).flatmap(lambda kind: damaged_bytes(WHOLE[kind])))
def test_damaged_bytes(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        (path.parent / "metadata.json").write_text(json.dumps(METADATA))
        check(path, path.parent)


# -- arrays of any type, shape and content

SHAPES = st.one_of(
    st.sampled_from([(), (ROWS,), (ROWS, 1), (ROWS, 2), (ROWS, 3), (ROWS, 111), (1,), (2,), (0,), (0, 3), (ROWS, 0)]),
    hn.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4),
)
NUMBERS = st.sampled_from(["f2", "f4", "f8", ">f8", "longdouble", "i1", "u1", "i4", ">i8", "u8", "?"]).map(np.dtype)
OTHERS = st.one_of(
    hn.scalar_dtypes(), hn.array_dtypes(), st.sampled_from(["O", "V8", "S3", "U3", "c16", "M8[s]", "f4,i4"])
)


@st.composite
def any_array(draw: st.DrawFn) -> np.ndarray:
    dtype, shape = draw(st.one_of(NUMBERS, NUMBERS, OTHERS.map(np.dtype))), draw(SHAPES)
    if dtype.kind not in "fiub":
        return np.zeros(shape, dtype)
    values = np.zeros(shape, dtype)
    for _ in range(draw(st.integers(0, 3)) if values.size else 0):
        value = draw(st.sampled_from([np.nan, np.inf, -np.inf, 1e300, 3e38, 1e16, -1.0, 1.0, 0.5, 2.0, 1e-45]))
        with np.errstate(all="ignore"):
            values.flat[draw(st.integers(0, values.size - 1))] = np.array(value).astype(dtype)
    return values


HEADERS = st.fixed_dictionaries(
    {},
    optional={
        "descr": st.sampled_from(
            ["<f4", "|O", "<q9", "2,3a,,", 5, ("<f4", (2,)), [("a", "|O")], "|V0", "", None, "f,"]
        ),
        "fortran_order": st.sampled_from([True, False, 7, None]),
        "shape": st.one_of(
            st.lists(st.sampled_from([0, 1, ROWS, 3, -1, 2**31, 2**62, 10**400, True, 1.0]), max_size=4).map(tuple),
            st.sampled_from([None, 5, [ROWS]]),
        ),
    },
)


def with_header(values: np.ndarray, change: dict[str, Any] | str, version: tuple[int, int]) -> bytes:
    """The npy bytes of an array under a header that says something else."""
    header = {"descr": values.dtype.str, "fortran_order": False, "shape": values.shape}
    text = (change if isinstance(change, str) else repr(header | change)).encode("latin1", "replace") + b"\n"
    return (
        b"\x93NUMPY"
        + bytes(version)
        + struct.pack("<H" if version[0] == 1 else "<I", len(text))
        + text
        + values.tobytes()
    )


@fuzz
@given(st.data())
def test_npz_members_of_any_kind(data: st.DataObject) -> None:
    members = {f"{name}.npy": npz_member(values) for name, values in ALL_FIELDS.items()}
    draw = data.draw
    entries = [(name, content, zipfile.ZIP_STORED) for name, content in members.items()]
    for _ in range(draw(st.integers(1, 3))):
        index = draw(st.integers(0, len(entries) - 1))
        name, content, _ = entries[index]
        how = draw(st.sampled_from(["array", "header", "bytes", "drop", "twice", "rename", "compress"]))
        if how == "array":
            entries[index] = (name, npz_member(draw(any_array())), zipfile.ZIP_STORED)
        elif how == "header":
            change = draw(st.one_of(HEADERS, st.sampled_from(["(((", "-" * 4000 + "1", "[1]", "{}", "\0", "a()", "'"])))
            version = draw(st.sampled_from([(1, 0), (2, 0), (3, 0), (9, 9)]))
            changed = with_header(ALL_FIELDS[name.removesuffix(".npy")], change, version) if name in members else b""
            entries[index] = (name, changed, zipfile.ZIP_STORED)
        elif how == "bytes":
            entries[index] = (name, draw(st.binary(max_size=200)), zipfile.ZIP_STORED)
        elif how == "drop" and len(entries) > 1:
            del entries[index]
        elif how == "twice":
            entries.append(entries[index])
        elif how == "rename":
            other = draw(
                st.sampled_from([*members, "../../evil.npy", "/tmp/evil.npy", "rewards", "rewards.npy.npy", ""])
            )
            entries[index] = (other, content, zipfile.ZIP_STORED)
        else:
            method = draw(st.sampled_from([zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]))
            entries[index] = (name, content + bytes(draw(st.sampled_from([0, 10**6]))), method)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a second member of one name
            for name, content, method in entries:
                archive.writestr(zipfile.ZipInfo(name), content, method)
        check(path, path.parent)


def npz_member(values: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, values)
    return out.getvalue()


# -- HDF5 files whose nodes are anything

Draw = Callable[[st.SearchStrategy[Any]], Any]


def spoil(file: h5py.File, name: str, draw: Draw) -> None:
    """Put something else where an array or a group was."""
    how = draw(st.sampled_from(["array", *SPOILERS, "array", "drop", "resize"]))
    before = file.get(name)
    shape = before.shape if isinstance(before, h5py.Dataset) and before.shape else (ROWS,)
    if name in file:
        del file[name]
    if how == "array":
        try:
            file[name] = draw(any_array())
        except (TypeError, ValueError):  # a type that HDF5 does not have
            file[name] = np.array(draw(st.sampled_from([b"x", 1.0])))
    elif how == "resize":
        sides = st.sampled_from([0, 1, 2, 3, ROWS, 10**6, 10**9, 2**40])
        size = tuple(draw(st.lists(sides, min_size=1, max_size=3)))
        if np.prod([float(side) for side in size]) < 2**60:
            file.create_dataset(name, size, draw(st.sampled_from(["f4", "u1", "f8"])), maxshape=(None, *size[1:]))
    elif how != "drop":
        SPOILERS[how](file, name, shape)


def _virtual(file: h5py.File, name: str, shape: tuple[int, ...]) -> None:
    layout = h5py.VirtualLayout(shape, "f4")
    layout[...] = h5py.VirtualSource("other", "rewards", shape)
    file.create_virtual_dataset(name, layout)


def _external(file: h5py.File, name: str, shape: tuple[int, ...]) -> None:
    other = str(Path(file.filename).parent / "other")
    file.create_dataset(name, shape, "u1", external=[(other, 0, h5py.h5s.UNLIMITED)])


def _link(target: Any) -> Callable[[h5py.File, str, tuple[int, ...]], None]:
    return lambda file, name, shape: file.__setitem__(name, target)


def _of_type(dtype: Any) -> Callable[[h5py.File, str, tuple[int, ...]], None]:
    return lambda file, name, shape: file.create_dataset(name, shape, dtype)


SPOILERS: dict[str, Callable[[h5py.File, str, tuple[int, ...]], Any]] = {
    "virtual": _virtual,
    "external storage": _external,
    "external link": _link(h5py.ExternalLink("other", "rewards")),
    "dangling link": _link(h5py.SoftLink("/nowhere")),
    "link to itself": _link(h5py.SoftLink("/")),
    "link through a file": _link(h5py.SoftLink("/out/rewards")),
    "link to rewards": _link(h5py.SoftLink("/rewards")),
    "type": _link(np.dtype("f4")),
    "nothing": _link(h5py.Empty("f4")),
    "group": lambda file, name, shape: file.create_group(f"{name}/inner"),
    "references": _of_type(h5py.ref_dtype),
    "regions": _of_type(h5py.regionref_dtype),
    "lists": _of_type(h5py.vlen_dtype("f4")),
    "text": _of_type(h5py.string_dtype()),
    "choices": _of_type(h5py.enum_dtype({"A": 0, "B": 1}, "i1")),
    "vectors": _of_type(np.dtype(("f4", (3,)))),
    "zeros": _of_type("f4"),
}


def spoiled_hdf5(path: Path, whole: bytes, draw: Draw) -> None:
    path.write_bytes(whole)
    (path.parent / "other").write_bytes(WHOLE["hdf5"])
    with h5py.File(path, "a") as file:
        names: list[str] = []
        file.visit(names.append)
        for name in draw(st.lists(st.sampled_from(names), min_size=1, max_size=3, unique=True)):
            if file.get(name.rpartition("/")[0] or "/") is not None and not _inside_array(file, name):
                spoil(file, name, draw)
        if draw(st.integers(0, 9)) == 0:
            file["out"] = h5py.ExternalLink("other", "/")


def _inside_array(file: h5py.File, name: str) -> bool:
    return not isinstance(file.get(name.rpartition("/")[0] or "/"), h5py.Group)


@fuzz
@given(st.data())
def test_hdf5_nodes_of_any_kind(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        spoiled_hdf5(path, WHOLE[data.draw(st.sampled_from(["hdf5", "compressed hdf5", "d3rlpy"]))], data.draw)
        check(path, path.parent)


# -- Minari folders

JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["", "Box", "hdf5", "Discrete", "x"])
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SPACE, "a"]), inner, max_size=3),
    max_leaves=8,
)
SPACES = st.one_of(
    JSON, JSON.map(json.dumps), st.dictionaries(st.sampled_from([*SPACE]), JSON).map(lambda c: json.dumps(SPACE | c))
)
METADATA_TEXTS = st.one_of(
    st.fixed_dictionaries(
        {}, optional={"data_format": JSON, "action_space": SPACES, "observation_space": SPACES, "extra": JSON}
    ).map(lambda change: json.dumps(METADATA | change).encode()),
    JSON.map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=40),
    st.sampled_from([b"[" * 100_000, b'{"a":' * 100_000, b"1" * 5000, json.dumps(METADATA).encode("utf-16")]),
    damaged_bytes(json.dumps(METADATA).encode()),
)


@fuzz
@given(METADATA_TEXTS)
def test_minari_metadata_of_any_shape(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "set" / "data"
        data.mkdir(parents=True)
        (data / "main_data.hdf5").write_bytes(WHOLE["minari"])
        (data / "metadata.json").write_bytes(content)
        check(data.parent, Path(folder))


@fuzz
@given(st.data())
def test_minari_episodes_of_any_kind(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "main_data.hdf5"
        (path.parent / "metadata.json").write_text(json.dumps(METADATA))
        spoiled_hdf5(path, WHOLE[data.draw(st.sampled_from(["minari", "minari with goals"]))], data.draw)
        check(path.parent, path.parent)


@fuzz
@given(st.data())
def test_minari_folders_of_any_kind(data: st.DataObject) -> None:
    """Files that are folders, links and pipes, inside the dataset's folder and out of it."""
    draw = data.draw
    with tempfile.TemporaryDirectory() as folder:
        root, outside = Path(folder) / "set", Path(folder) / "outside"
        (root / "data").mkdir(parents=True)
        (root / "data" / "main_data.hdf5").write_bytes(WHOLE["minari"])
        (root / "data" / "metadata.json").write_text(json.dumps(METADATA))
        left_out = False
        for name in draw(
            st.lists(st.sampled_from(["data/metadata.json", "data/main_data.hdf5", "data"]), max_size=2, unique=True)
        ):
            path = root / name
            if not os.path.lexists(path) or path.is_symlink() or not path.parent.is_dir():
                continue
            how = draw(st.sampled_from(["link out", "link in", "gone", "folder", "pipe", "loop", "dangling"]))
            place = outside if how == "link out" else root / f"moved-{path.name}"
            if how == "link out" and outside.exists():
                continue
            path.rename(place)
            left_out = left_out or how == "link out"
            if how.startswith("link"):
                path.symlink_to(place)
            elif how == "folder":
                path.mkdir()
            elif how == "pipe":
                os.mkfifo(path)
            elif how == "loop":
                path.symlink_to(path.name)
            elif how == "dangling":
                path.symlink_to("nothing")
        if left_out:
            with pytest.raises(InputError):
                load_dataset(root)
        check(root, Path(folder))
