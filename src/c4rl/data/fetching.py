"""Where D4RL's published files are. Nothing is downloaded unless the user says so, and then by name and checksum."""

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from http.client import HTTPException
from importlib.resources import files
from pathlib import Path

from c4rl.core.errors import InputError
from c4rl.core.files import sha256_of
from c4rl.data.checks import reason
from c4rl.environments.tasks import Task

CHUNK = 1 << 20
TIMEOUT = 60.0  # seconds without a byte
ULTRA = "https://github.com/ZhengyaoJiang/d4rl"


@dataclass(frozen=True)
class PublishedFile:
    """A file of D4RL; size and checksum are None where no public list has them."""

    url: str
    size: int | None
    sha256: str | None

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]


def published_file(task: Task) -> PublishedFile:
    """The published file of a task, or one sentence on where to look."""
    table = json.loads(files("c4rl.data").joinpath("published_files.json").read_text())
    found = table["files"].get(task.name)
    if found is None:
        where = f"; its data belong to {ULTRA}" if task.environment == "ultra" else ""
        raise InputError(f"task '{task.name}': no published file of D4RL is known{where}")
    return PublishedFile(table["host"] + found["path"], found["bytes"], found["sha256"])


def check_file(file: PublishedFile, path: Path) -> None:
    """Refuse a file that is not the published one."""
    size = path.stat().st_size
    if file.size is not None and size != file.size:
        raise InputError(f"{path}: found {size:,} bytes, expected the {file.size:,} of {file.name}")
    digest = sha256_of(path)
    if file.sha256 is not None and digest != file.sha256:
        raise InputError(f"{path}: found sha256 {digest}, expected {file.sha256}, that of {file.name}")


def download(file: PublishedFile, path: Path, progress: Callable[[int, int], None] = lambda done, size: None) -> None:
    """Download to a new path, checked; what was interrupted goes on from the bytes in PATH.part."""
    if file.size is None or file.sha256 is None:
        raise InputError(f"{file.url}: no size and checksum are known, so it is not downloaded; fetch it yourself")
    if path.exists():
        raise InputError(f"{path} exists already and is not overwritten; choose another name")
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    done = part.stat().st_size if part.exists() else 0
    if done < file.size:
        _append(file, part, done, progress)
    try:
        check_file(file, part)
    except InputError:
        part.unlink()  # nothing to go on with
        raise
    part.rename(path)


def _append(file: PublishedFile, part: Path, done: int, progress: Callable[[int, int], None]) -> None:
    assert file.size is not None
    request = urllib.request.Request(file.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as reply:
            if reply.status != 206:  # the server sends all of it
                done = 0
            if reply.length is not None and done + reply.length != file.size:  # keep what is there
                raise InputError(f"{file.url}: found {done + reply.length:,} bytes, expected {file.size:,}")
            with part.open("ab" if done else "wb") as output:
                while done <= file.size and (chunk := reply.read(CHUNK)):
                    output.write(chunk)
                    done += len(chunk)
                    progress(done, file.size)
        if done < file.size:
            raise ConnectionError(f"the server stopped after {done:,} of {file.size:,} bytes")
    except (urllib.error.URLError, TimeoutError, ConnectionError, HTTPException) as error:
        raise InputError(
            f"{file.url}: cannot be downloaded now ({reason(error)}); run the command again to resume {part}"
        ) from error
