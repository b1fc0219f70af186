"""Self-contained HDF5 files: external links, external storage and virtual datasets are refused.

HDF5 itself does not check that a chunk unpacks to its full size: it fills the rest with whatever is in memory, or
crashes. So this module unpacks chunks itself.
"""

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from c4rl.data.checks import Allowance, problem, row_blocks
from c4rl.data.dataset import Array

DEFLATE, SHUFFLE, FLETCHER32 = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32


NAMED = 12  # names that a message lists


class Hdf5Array:
    """An array of numbers in the file, unread."""

    def __init__(self, path: Path, values: h5py.Dataset) -> None:
        self._path, self._values = path, values
        self.shape, self.dtype, self.ndim = values.shape, values.dtype, values.ndim

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self) -> Iterator[tuple[tuple[slice, ...], Array]]:
        """All stored numbers, block by block: (place in the array, numbers)."""
        if self._values.chunks is None:
            rest = tuple(slice(0, side) for side in self.shape[1:])
            yield from (((rows, *rest), self._values[rows]) for rows in row_blocks(len(self)))
            return
        chunk, properties = self._values.chunks, self._values.id.get_create_plist()
        filters = [properties.get_filter(i) for i in range(properties.get_nfilters())]
        dtype = np.dtype("i1") if self.dtype == bool else self.dtype
        size = int(np.prod(chunk, dtype=object)) * dtype.itemsize
        stored: list[h5py.h5d.StoreInfo] = []
        self._values.id.chunk_iter(stored.append)
        for info in stored:
            mask, raw = self._values.id.read_direct_chunk(info.chunk_offset)
            used = [entry for i, entry in enumerate(filters) if not mask >> i & 1]
            raw = self._unpack(raw, used, size)
            where = tuple(slice(a, min(a + c, n)) for a, c, n in zip(info.chunk_offset, chunk, self.shape, strict=True))
            if all(side.start < side.stop for side in where):
                block = np.frombuffer(raw, dtype).reshape(chunk)
                yield where, block[tuple(slice(side.stop - side.start) for side in where)]

    def _unpack(self, raw: bytes, filters: list[tuple], size: int) -> bytes:
        """A chunk's bytes, exactly `size` of them."""
        damage = None
        for code, _, values, _ in reversed(filters):
            if code == DEFLATE:
                try:
                    raw = zlib.decompressobj().decompress(raw, size + 64)  # room for the checksums of other filters
                except zlib.error as error:
                    damage = str(error)
            elif code == FLETCHER32:
                raw, checksum = raw[:-4], int.from_bytes(raw[-4:], "little")
                words = np.frombuffer(raw + bytes(len(raw) % 2), ">u2").astype(np.uint64)
                sums = words.sum(), (words * np.arange(len(words), 0, -1, dtype=np.uint64)).sum()
                if any(int(a) % 65535 != b % 65535 for a, b in zip(sums, divmod(checksum, 65536)[::-1], strict=True)):
                    damage = "wrong checksum"
            elif values and values[0] > 1:  # SHUFFLE: the first bytes of all numbers first
                whole = len(raw) - len(raw) % values[0]
                raw = np.frombuffer(raw[:whole], np.uint8).reshape(values[0], -1).T.tobytes() + raw[whole:]
        if damage or len(raw) != size:
            found = f"has a chunk that is not readable ({damage or f'{len(raw)} bytes'})"
            raise problem(self._path, self._values.name[1:], found, f"{size} bytes in a complete, undamaged file")
        return raw

    def read(self, dtype: type | None = None, width: int | None = None) -> Array:
        """All numbers, as this type if one is given, or the first `width` columns of them."""
        shape = self.shape if width is None else (self.shape[0], width)
        with np.errstate(over="ignore"):  # an overflow becomes inf, which `check_finite` refuses
            result = np.full(shape, self._values.fillvalue, "i1" if self.dtype == bool else dtype or self.dtype)
            for where, block in self.blocks():
                target = result[where]
                target[...] = block[tuple(slice(side) for side in target.shape)]
        return result


class Hdf5:
    """An open file; `array` gives access to its numbers."""

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path, self.file, self.allowance = path, file, Allowance(path)

    def __contains__(self, name: str) -> bool:
        return self.file.get(name, getlink=True) is not None  # true for a link to nothing, which `array` reports

    def number(self, name: str, expected: str) -> int:
        """A single whole number or flag."""
        values = self._dataset(name, expected)
        if values.shape != () or values.dtype.kind not in "iub":
            raise problem(self.path, name, f"has shape {values.shape} and dtype {values.dtype}", expected)
        return int(values[()])

    def array(self, name: str, expected: str) -> Hdf5Array:
        """An array of numbers, unread, or an InputError that says what was found instead."""
        values = self._dataset(name, expected)
        properties, stored = values.id.get_create_plist(), values.id.get_type()
        codes = {properties.get_filter(i)[0] for i in range(properties.get_nfilters())}
        if other := codes - {DEFLATE, SHUFFLE, FLETCHER32}:
            raise problem(self.path, name, f"is packed by the HDF5 filter {min(other)}", "no compression, or gzip")
        self.allowance.take(name, values.dtype, values.shape or None)
        if values.dtype != bool and not stored.equal(h5py.h5t.py_create(values.dtype)):
            raise problem(self.path, name, "holds numbers in a format of its own", "plain integers or floats")
        if values.chunks is not None:
            self.allowance.check(name, values.dtype, values.chunks)
        return Hdf5Array(self.path, values)

    def _dataset(self, name: str, expected: str) -> h5py.Dataset:
        values = self.file.get(name)
        if values is None:
            parent = self.file.get(name.rpartition("/")[0] or "/")
            found = "is a link to nothing" if name in self else f"is missing among {_some(names_in(parent))}"
            raise problem(self.path, name, found, expected)
        if not isinstance(values, h5py.Dataset):
            raise problem(self.path, name, f"is a {type(values).__name__.lower()}", expected)
        if values.is_virtual or values.id.get_create_plist().get_external_count():
            found = "takes its numbers from another file, which is refused"
            raise problem(self.path, name, found, "an array in the file itself")
        return values


def _some(names: list[str]) -> str:
    """A file of episodes may have thousands."""
    return str(names) if len(names) <= NAMED else f"{names[:NAMED]} and {len(names) - NAMED} more"


def names_in(group: object) -> list[str]:
    """The names in a group, if it is one; those that are no UTF-8 are made so."""
    names = list(group) if isinstance(group, h5py.Group) else []
    return sorted(name if isinstance(name, str) else name.decode(errors="replace") for name in names)


@contextmanager
def open_hdf5(path: Path) -> Iterator[Hdf5]:
    with h5py.File(path, "r") as file:
        inside = h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT
        outside = file.id.links.visit(lambda name, info: None if info.type in inside else name, info=True)
        if outside is not None:
            found = "is a link to another file, which is refused"
            raise problem(path, outside.decode(errors="replace"), found, "all data in one file")
        yield Hdf5(path, file)
