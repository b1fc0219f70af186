"""HDF5 files whose every number is in the file: no link, no storage and no virtual dataset leads out of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py

from c4rl.data.checks import Allowance, problem


class Hdf5:
    """An open file; `array` is the way to its numbers."""

    def __init__(self, path: Path, file: h5py.File) -> None:
        self.path, self.file, self.allowance = path, file, Allowance(path)

    def __contains__(self, name: str) -> bool:
        return self.file.get(name, getlink=True) is not None  # a link to nothing is there, and `array` says so

    def array(self, name: str, expected: str) -> h5py.Dataset:
        """An array of numbers, unread, or an InputError that says what was found instead."""
        values = self.file.get(name)
        if values is None:
            parent = self.file.get(name.rpartition("/")[0] or "/")
            there = sorted(parent) if isinstance(parent, h5py.Group) else []
            raise problem(
                self.path, name, "is a link to nothing" if name in self else f"is missing among {there}", expected
            )
        if not isinstance(values, h5py.Dataset):
            raise problem(self.path, name, f"is a {type(values).__name__.lower()}", expected)
        properties = values.id.get_create_plist()
        if values.is_virtual or properties.get_external_count():
            found = "takes its numbers from another file, which is refused"
            raise problem(self.path, name, found, "an array in the file itself")
        for i in range(properties.get_nfilters()):
            code, *_, label = properties.get_filter(i)
            if not h5py.h5z.filter_avail(code):
                found = f"is compressed by filter {code} {label!r}, which is not available here"
                raise problem(self.path, name, found, "no compression, gzip or lzf")
        if h5py.check_enum_dtype(values.dtype) is not None:
            raise problem(self.path, name, "holds an enumeration", "real numbers")
        self.allowance.take(name, values.dtype, values.shape or None)
        return values


@contextmanager
def open_hdf5(path: Path) -> Iterator[Hdf5]:
    with h5py.File(path, "r", rdcc_nbytes=0) as file:  # arrays are read in whole chunks, which need no cache
        inside = h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT
        outside = file.id.links.visit(lambda name, info: None if info.type in inside else name, info=True)
        if outside is not None:
            found = "is a link to another file, which is refused"
            raise problem(path, outside.decode(errors="replace"), found, "all data in one file")
        yield Hdf5(path, file)
