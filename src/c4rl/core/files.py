"""Files that are written whole or not at all, and read with care."""

import errno
import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import IO, Any

from c4rl.core.errors import InputError

MOST_BYTES = 2**25  # of a file with JSON, which may take forty times as much memory
MOST_NESTED = 20

# reading the umask sets it for a moment, for all threads: do it once, before there are any
_UMASK = os.umask(0)
os.umask(_UMASK)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder. It replaces `path` atomically on success and is deleted on error."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        temporary.unlink(missing_ok=True)
        temporary.touch(0o600, exist_ok=False)  # a new file; never follow a link of this name
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_UMASK)  # some writers create private files
        os.replace(temporary, path)
    except OSError as error:  # that of a full disk names no file
        if error.filename is None and error.strerror is not None:
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


class InUse(InputError):
    """Another process holds the folder's lock, perhaps not for long."""


def locked(folder: Path) -> IO[bytes]:
    """The lock of a folder that no other process uses, held until it is closed; the system frees it on any death."""
    # never a link, never emptied
    lock = open(os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666), "rb")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise InUse(f"{folder}: in use by another c4rl process, expected a folder that none is using") from None
    except OSError as error:  # Lustre without -o flock
        lock.close()
        expected = "a file system with file locks"
        raise InputError(f"{folder}: cannot be locked ({error.strerror}), expected {expected}") from None
    return lock


def copy_file(source: Path, target: Path) -> None:
    with replacing(target) as temporary:
        shutil.copyfile(source, temporary)


def check_new_file(flag: str, path: Path | None) -> None:
    """Refuse a flag's path where no new file can be; None: the flag is not given."""
    if path is None:
        return
    if path.exists() or path.is_symlink():
        raise InputError(f"--{flag} {path}: exists already, expected a new file (nothing is overwritten)")
    if not path.parent.is_dir():
        raise InputError(f"--{flag} {path}: cannot be created, '{path.parent}' is not a folder")
    if not os.access(path.parent, os.W_OK):
        raise InputError(f"--{flag} {path}: cannot be created, '{path.parent}' is not a folder that can be written to")


def how_to_resume(folder: Path) -> str:
    """The command that continues a job, for a shell."""
    return f"c4rl train --resume {quote(str(folder))}"


def not_written(path: Path, error: Exception, folder: Path) -> OSError:
    """The error of a file of a job that could not be written: it says how to go on."""
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    number = error.errno if isinstance(error, OSError) and error.errno else errno.EIO
    advice = f"once that is fixed, continue with: {how_to_resume(folder)}"
    return OSError(number, f"could not be written ({reason}); {advice}", str(path))


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_json(path: Path, data: Any) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n")


def read_bytes(path: Path, what: str, most: float = MOST_BYTES) -> bytes:
    """The content of a regular file of at most so many bytes; what: the expected content, in words."""
    if not path.is_file():
        found = "not a regular file" if path.exists() else "no such file"
        raise InputError(f"{path}: {found}, expected {what}")
    if (size := path.stat().st_size) > most:
        raise InputError(f"{path}: found {size:,} bytes, expected {what} of at most {most:,}")
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}), expected {what}") from error


def read_json(path: Path, what: str) -> Any:
    return parse_json(read_bytes(path, what), str(path), what)


def parse_json(text: str | bytes, origin: str, what: str) -> Any:
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, no text, a number of thousands of digits
        raise InputError(f"{origin}: not JSON, expected {what}") from None
    if _nested(data, MOST_NESTED):
        raise InputError(f"{origin}: nested more than {MOST_NESTED} deep, expected {what}")
    return data


def _nested(value: Any, deep: int) -> bool:
    """Whether lists and objects stand in each other more than `deep` times."""
    if not isinstance(value, dict | list):
        return False
    parts = value.values() if isinstance(value, dict) else value
    return deep == 0 or any(_nested(part, deep - 1) for part in parts if isinstance(part, dict | list))
