"""Files that are either whole or absent."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# asking for it sets it for a moment, for all threads: once, before there are any
_UMASK = os.umask(0)
os.umask(_UMASK)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success it takes the place of `path` in one step, on error it goes."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    temporary.unlink(missing_ok=True)
    temporary.touch(0o600, exist_ok=False)  # a new file, never one that a link of this name leads to
    try:
        yield temporary
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o666 & ~_UMASK)  # some writers make private files
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, data: Any) -> None:
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(data, indent=2, allow_nan=False) + "\n")
