"""The structure of HDF5 files, found in a process of its own: damaged files can crash libhdf5 or keep it busy for ever.

`c4rl.data.hdf5` starts this file as a script, with the folders of h5py and NumPy as arguments. It answers one request a
line. Each file gets a fork of its own, with limits to its time and memory, so that a crash costs that file alone.
"""

import json
import os
import resource
import signal
import sys
from typing import Any

if __name__ == "__main__":
    sys.path.extend(sys.argv[1:])

import h5py
import numpy as np

Node = dict[str, Any]
# What h5py raises for damaged files. Other exceptions are errors of this file, and end the process.
REFUSALS = (OSError, LookupError, RuntimeError, ValueError, TypeError, ArithmeticError, MemoryError)


def structure(path: str, in_file: list[str], in_episode: list[str], numbered: list[str]) -> Node:
    """The names at the root, and what stands under the names wanted: in a file of columns, in each Minari episode, and
    where they begin like those of a d3rlpy dump, which numbers its columns by episode."""
    with h5py.File(path, "r") as file:
        inside = h5py.h5l.TYPE_HARD, h5py.h5l.TYPE_SOFT
        outside = file.id.links.visit(lambda name, info: None if info.type in inside else name, info=True)
        if outside is not None:
            return {"outside": outside.decode(errors="replace")}
        nodes = {"": _node(file, "/")}
        episodes = [name for name in nodes[""]["names"] if name.startswith("episode_")]
        columns = [name for name in nodes[""]["names"] if name.startswith(tuple(numbered))]
        for name in episodes or columns:
            _add(file, name, nodes)
        for name in [f"{episode}/{name}" for episode in episodes for name in in_episode] or in_file:
            _look_up(file, name, nodes)
        return {"nodes": nodes}


def _look_up(file: h5py.File, name: str, nodes: dict[str, Node]) -> None:
    """Add the node of this name, if there is one, and the groups that it is in."""
    group, _, own = name.rpartition("/")
    if group not in nodes:
        _look_up(file, group, nodes)
    if own in nodes.get(group, {}).get("names", ()):
        _add(file, name, nodes)


def _add(file: h5py.File, name: str, nodes: dict[str, Node]) -> None:
    try:
        nodes[name] = _node(file, name)
    except REFUSALS as error:  # reported by the reader that needs this array
        nodes[name] = {"kind": "error", "error": str(error) or type(error).__name__}


def _node(file: h5py.File, name: str) -> Node:
    found = file.get(name)
    if isinstance(found, h5py.Group):
        names = [name if isinstance(name, str) else name.decode(errors="replace") for name in found]
        return {"kind": "group", "names": sorted(names)}
    if not isinstance(found, h5py.Dataset):
        return {"kind": "link to nothing" if found is None else type(found).__name__.lower()}
    return {"kind": "array", **_array(found)}


def _array(values: h5py.Dataset) -> Node:
    """The type and shape of an array, and where in the file its bytes are."""
    properties, dtype = values.id.get_create_plist(), values.dtype
    node: Node = {"shape": values.shape, "dtype": dtype.str if dtype.kind in "fiub" else None}
    node["elsewhere"] = properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count() > 0
    filters = [properties.get_filter(i) for i in range(properties.get_nfilters())]
    node["filters"] = [(code, values[:1]) for code, _, values, _ in filters]
    if node["dtype"] is None:
        node["type"] = str(dtype)[:300]
    if node["elsewhere"] or node["dtype"] is None or not node["shape"]:
        if node["shape"] == () and dtype.kind in "iub" and not node["elsewhere"]:
            node["value"] = int(values[()])
        return node
    node["plain"] = bool(dtype.kind == "b" or values.id.get_type().equal(h5py.h5t.py_create(dtype)))
    node["fill"] = np.asarray(values.fillvalue, dtype).tobytes().hex()
    if values.chunks is not None:
        node["chunk"], node["pieces"] = values.chunks, []
        values.id.chunk_iter(
            lambda piece: node["pieces"].append((piece.chunk_offset, piece.filter_mask, piece.byte_offset, piece.size))
        )
    elif properties.get_layout() == h5py.h5d.COMPACT:
        node["bytes"] = values[()].tobytes().hex()  # at most 64 KiB, among the structure
    else:
        node["at"] = values.id.get_offset()
    return node


def answer(request: Node) -> Node:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (request["memory"], request["memory"]))
    signal.setitimer(signal.ITIMER_REAL, request["seconds"])  # SIGALRM ends even a loop in C
    try:
        return structure(*(request[name] for name in ("path", "in_file", "in_episode", "numbered")))
    except REFUSALS as error:
        return {"error": str(error) or type(error).__name__}


def serve() -> None:
    """A line of JSON for each request and then a line with the exit code of the process that wrote it."""
    for line in sys.stdin:
        process = os.fork()
        if process == 0:
            print(json.dumps(answer(json.loads(line))), flush=True)
            os._exit(0)
        _, status = os.waitpid(process, 0)
        print(f"\nexit {os.waitstatus_to_exitcode(status)}", flush=True)


if __name__ == "__main__":
    serve()
