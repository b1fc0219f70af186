"""A reader in a process of its own: a file that crashes or hangs the library that parses it does no more harm there."""

import faulthandler
import json
import os
import signal
import traceback
import warnings
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from c4rl.core.errors import InputError
from c4rl.data.assembly import Log
from c4rl.data.checks import reason

SECONDS = 3600  # for one file; the largest of D4RL takes ten


class Damage(Exception):
    """What a library said of the file. `__cause__`, if there is one, holds the other process's traceback."""


def read_apart(read: Callable[[], Log]) -> Log:
    """What `read` returns, or its InputError, or a Damage."""
    receiver, sender = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns of threads, which the child does without
        child = os.fork()
    if child == 0:
        try:
            faulthandler.disable()
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(SECONDS)
            with open(sender, "wb") as out:
                _send(out, read)
        finally:
            os._exit(0)
    os.close(sender)
    try:
        with open(receiver, "rb") as source:
            return _receive(source)
    finally:
        os.waitpid(child, 0)


def _send(out: Any, read: Callable[[], Log]) -> None:
    """One line of JSON, then the bytes of each array."""
    arrays: dict[str, np.ndarray] = {}
    try:
        values = vars(read())
        arrays = {name: np.ascontiguousarray(value) for name, value in values.items() if isinstance(value, np.ndarray)}
        facts = {name: value for name, value in values.items() if name not in arrays}
    except InputError as error:
        facts = {"refusal": str(error)}
    except Exception as error:
        facts = {"damage": reason(error), "trace": traceback.format_exc()}
    facts["arrays"] = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
    out.write(json.dumps(facts).encode() + b"\n")
    for array in arrays.values():
        out.write(array.reshape(-1).view(np.uint8))


def _receive(source: Any) -> Log:
    line = source.readline()
    if not line.endswith(b"\n"):
        raise Damage("the library that reads such files fails on it")
    facts = json.loads(line)
    if "refusal" in facts:
        raise InputError(facts["refusal"])
    if "damage" in facts:
        raise Damage(facts["damage"]) from Exception(facts["trace"])
    arrays: dict[str, Any] = {name: np.empty(shape, dtype) for name, (dtype, shape) in facts.pop("arrays").items()}
    for array in arrays.values():
        content = memoryview(array.reshape(-1).view(np.uint8))
        while len(content):
            count = source.readinto(content)
            if not count:
                raise Damage("the library that reads such files fails on it")
            content = content[count:]
    assert facts.keys() | arrays.keys() == {field.name for field in fields(Log)}
    return Log(**facts, **arrays)
