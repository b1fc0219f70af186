"""Self-contained HDF5 files: external links, external storage and virtual datasets are refused.

A process of its own asks libhdf5 where the numbers are (`hdf5_structure`). This one reads the bytes itself, and unpacks
them itself: HDF5 does not check that a chunk unpacks to its full size, and fills the rest with whatever is in memory.
"""

import atexit
import json
import math
import os
import signal
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from c4rl.core.array import Array
from c4rl.core.errors import InputError
from c4rl.data.assembly import BOUNDS
from c4rl.data.checks import Allowance, problem, reason, row_blocks, some

SIGNATURE = b"\x89HDF\r\n\x1a\n"
DEFLATE, SHUFFLE, FLETCHER32 = 1, 2, 3
EPISODE = "episode_"
# What only files written by c4rl have: a field of `Log` -> its place in D4RL's layout, and in a d3rlpy dump.
OWN_NEXT_ACTIONS = {name: f"infos/{name}" for name in ("next_actions", "next_action_valid")}
OWN_IN_D4RL = {**OWN_NEXT_ACTIONS, **{name: f"metadata/{name}" for name in BOUNDS}, "metadata": "metadata/c4rl"}
OWN_IN_D3RLPY = {name: f"c4rl/{name}" for name in ("next_observations", *OWN_NEXT_ACTIONS, *BOUNDS, "metadata")}
# The arrays that the readers may ask for: of a D4RL file, of a d3rlpy dump, whose columns are numbered by episode, and
# of each episode of a Minari dataset.
IN_FILE = ["observations", "actions", "rewards", "terminals", "timeouts", "next_observations", "infos/goal"]
IN_FILE += ["num_episodes", *OWN_IN_D4RL.values(), *OWN_IN_D3RLPY.values()]
NUMBERED = ["observations_", "actions_", "rewards_", "terminated_"]
IN_EPISODE = ["observations", "actions", "rewards", "terminations", "truncations", *OWN_NEXT_ACTIONS.values()]
IN_EPISODE += ["observations/observation", "observations/achieved_goal", "observations/desired_goal"]
# Limits of the process that finds the structure of one file; thousands of episodes take some seconds.
SECONDS, SECONDS_PER_BYTE, MEMORY = 60.0, 1e-6, 2**32


class StructureProcess:
    """The running `hdf5_structure`, started when the first file is opened."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._owner, self._lock = 0, threading.Lock()
        atexit.register(self.close)

    def ask(self, path: Path) -> dict[str, Any]:
        """The structure of a file, or an InputError if libhdf5 did not survive it."""
        seconds = SECONDS + SECONDS_PER_BYTE * path.stat().st_size
        request = {"path": str(path.absolute()), "in_file": IN_FILE, "in_episode": IN_EPISODE}
        request |= {"numbered": NUMBERED}
        with self._lock:
            try:
                lines = self._lines(json.dumps(request | {"seconds": seconds, "memory": MEMORY}))
            except BaseException:  # Ctrl-C: the next file must not get the answer of this one
                self.close()
                raise
        code = int(lines[-1].removeprefix("exit "))
        if code == 0:
            return json.loads(lines[0])
        died = f"found nothing within {seconds:.0f} seconds" if code == -signal.SIGALRM else f"crashed ({_name(code)})"
        found = f"not readable as HDF5 (libhdf5 {died})"
        raise InputError(f"{path}: {found}; expected a complete, undamaged file.")

    def _lines(self, request: str) -> list[str]:
        """The answer, and last the line with its exit code."""
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(request + "\n")
        process.stdin.flush()
        lines: list[str] = []
        while not lines or not lines[-1].startswith("exit "):
            lines.append(process.stdout.readline())
            if not lines[-1]:
                raise OSError("the process that reads HDF5 files ended")
        return lines

    def _running(self) -> "subprocess.Popen[str]":
        if self._process is None or self._process.poll() is not None or self._owner != os.getpid():  # after a fork
            places = [
                str(Path(spec.origin).parents[1])
                for name in ("h5py", "numpy")
                if (spec := find_spec(name)) and spec.origin
            ]
            self._owner = os.getpid()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("hdf5_structure.py")), *places],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the command, which closes this process when it ends
            )
        return self._process

    def close(self) -> None:
        if self._process is not None and self._owner == os.getpid():
            self._process.kill()
            self._process.communicate()
        self._process = None


def _name(code: int) -> str:
    return signal.Signals(-code).name if -code in list(signal.Signals) else f"exit code {code}"


STRUCTURE = StructureProcess()


class Hdf5Array:
    """An array of numbers in the file, unread."""

    def __init__(self, file: "Hdf5", name: str, node: dict[str, Any]) -> None:
        self._file, self._name, self._node = file, name, node
        self.shape, self.dtype, self.ndim = tuple(node["shape"]), np.dtype(node["dtype"]), len(node["shape"])
        self._stored = np.dtype("i1") if self.dtype == bool else self.dtype

    def __len__(self) -> int:
        return self.shape[0]

    def blocks(self) -> Iterator[tuple[tuple[slice, ...], Array]]:
        """All stored numbers, block by block: (place in the array, numbers)."""
        if "chunk" in self._node:
            yield from self._chunks(tuple(self._node["chunk"]))
            return
        row = math.prod(self.shape[1:]) * self._stored.itemsize
        if "bytes" in self._node:
            raw = bytes.fromhex(self._node["bytes"])
        elif self._node["at"] is None or row == 0:  # never written
            return
        rest = tuple(slice(0, side) for side in self.shape[1:])
        for rows in row_blocks(len(self), 1 + 2**24 // max(row, 1)):  # 16 MiB: a read of 2 GiB would come back short
            start, size = rows.start * row, (rows.stop - rows.start) * row
            block = raw[start : start + size] if "bytes" in self._node else self._bytes(self._node["at"] + start, size)
            yield (rows, *rest), np.frombuffer(block, self._stored).reshape(-1, *self.shape[1:])

    def _chunks(self, chunk: tuple[int, ...]) -> Iterator[tuple[tuple[slice, ...], Array]]:
        size = math.prod(chunk) * self._stored.itemsize
        for offset, mask, at, length in self._node["pieces"]:
            used = [entry for i, entry in enumerate(self._node["filters"]) if not mask >> i & 1]
            raw = self._unpack(self._bytes(at, length), used, size)
            where = tuple(slice(a, min(a + c, n)) for a, c, n in zip(offset, chunk, self.shape, strict=True))
            if all(side.start < side.stop for side in where):
                block = np.frombuffer(raw, self._stored).reshape(chunk)
                yield where, block[tuple(slice(side.stop - side.start) for side in where)]

    def _bytes(self, at: int, size: int) -> bytes:
        raw = self._file.bytes(at, size)
        if len(raw) != size:
            found = f"ends at byte {at + size:,} of a file of {self._file.allowance.stored:,}"
            raise problem(self._file.path, self._name, found, "a complete, undamaged file")
        return raw

    def _unpack(self, raw: bytes, filters: list[tuple[int, list[int]]], size: int) -> bytes:
        """A chunk's bytes, exactly `size` of them."""
        damage = None
        for code, values in reversed(filters):
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
            raise problem(self._file.path, self._name, found, f"{size} bytes in a complete, undamaged file")
        return raw

    def read(self, dtype: type | None = None, width: int | None = None) -> Array:
        """All numbers, as this type if one is given, or the first `width` columns of them."""
        shape = self.shape if width is None else (self.shape[0], width)
        fill = np.frombuffer(bytes.fromhex(self._node["fill"]), self._stored)[0]
        with np.errstate(over="ignore", invalid="ignore"):  # an overflow becomes inf, which `check_finite` refuses
            result = np.full(shape, fill, dtype or self._stored)
            for where, block in self.blocks():
                target = result[where]
                target[...] = block[tuple(slice(side) for side in target.shape)]
        return result


class Hdf5:
    """An open file; `array` gives access to its numbers."""

    def __init__(self, path: Path, descriptor: int, nodes: dict[str, dict[str, Any]]) -> None:
        self.path, self._descriptor, self._nodes, self.allowance = path, descriptor, nodes, Allowance(path)
        self.episodes = [name for name in self.names("") if name.startswith(EPISODE)]

    def __contains__(self, name: str) -> bool:
        return name in self._nodes  # true for a link to nothing, which `array` reports

    def names(self, group: str) -> list[str]:
        """The names in a group, if it is one."""
        return self._nodes.get(group, {}).get("names", [])

    def is_group(self, name: str) -> bool:
        return self._nodes.get(name, {}).get("kind") == "group"

    def shape(self, name: str) -> tuple[int, ...] | None:
        """The shape of an array; None if there is none of this name."""
        found = self._nodes.get(name, {})
        return tuple(found["shape"] or ()) if found.get("kind") == "array" else None

    def bytes(self, at: int, size: int) -> bytes:
        """As many of these bytes of the file as there are."""
        parts, most = [], min(size, self.allowance.stored - at)
        # a call reads 2 GiB at most
        while at >= 0 and most > 0 and (part := os.pread(self._descriptor, min(most, 1 << 30), at)):
            parts.append(part)
            at, most = at + len(part), most - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def number(self, name: str, expected: str) -> int:
        """A single whole number or flag."""
        node = self._node(name, expected)
        if "value" not in node:
            kind = np.dtype(node["dtype"]) if node["dtype"] else node["type"]
            raise problem(self.path, name, f"has shape {tuple(node['shape'] or ())} and dtype {kind}", expected)
        return node["value"]

    def array(self, name: str, expected: str) -> Hdf5Array:
        """An array of numbers, unread, or an InputError that says what was found instead."""
        node = self._node(name, expected)
        if other := {code for code, _ in node["filters"]} - {DEFLATE, SHUFFLE, FLETCHER32}:
            raise problem(self.path, name, f"is packed by the HDF5 filter {min(other)}", "no compression, or gzip")
        if node["dtype"] is None:
            raise problem(self.path, name, f"has dtype {node['type']}", "real numbers")
        dtype = np.dtype(node["dtype"])
        self.allowance.take(name, dtype, tuple(node["shape"]) if node["shape"] else None)
        if not node["plain"]:
            raise problem(self.path, name, "holds numbers in a format of its own", "plain integers or floats")
        if "chunk" in node:
            self.allowance.check(name, dtype, tuple(node["chunk"]))
        return Hdf5Array(self, name, node)

    def _node(self, name: str, expected: str) -> dict[str, Any]:
        """What is known of an array in this file, or an InputError."""
        node = self._nodes.get(name, {"kind": "missing"})
        if node["kind"] == "error":
            raise problem(self.path, name, f"is not readable ({reason(ValueError(node['error']))})", expected)
        if node["kind"] != "array":
            missing = f"missing among {some(self.names(name.rpartition('/')[0]))}"
            found = missing if node["kind"] == "missing" else f"a {node['kind']}"
            raise problem(self.path, name, f"is {found}", expected)
        if node.get("elsewhere"):
            found = "takes its numbers from another file, which is refused"
            raise problem(self.path, name, found, "an array in the file itself")
        return node


@contextmanager
def open_hdf5(path: Path) -> Iterator[Hdf5]:
    answer = STRUCTURE.ask(path)
    if "error" in answer:
        found = f"not readable as HDF5 ({reason(ValueError(answer['error']))})"
        raise InputError(f"{path}: {found}; expected a complete, undamaged file.")
    if "outside" in answer:
        raise problem(path, answer["outside"], "is a link to another file, which is refused", "all data in one file")
    with path.open("rb") as file:
        yield Hdf5(path, file.fileno(), answer["nodes"])
