"""What a node of a Ray cluster does for --engine ray: train one launch, or go on with it."""

import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from c4rl.core.errors import InputError, Interrupted
from c4rl.core.files import InUse, read_json, write_json
from c4rl.jobs.config_file import from_json
from c4rl.training.checkpoint import load_progress
from c4rl.training.loop import resume, train
from c4rl.training.parts import place_file
from c4rl.training.run_directory import was_begun
from c4rl.training.summary import versions

LOCK_SECONDS = 120.0  # how long a launch waits for the lock of a process that may have died with its node
TOKEN = "cluster"  # in the folder of the parts: a word that workers must find there


def train_part(
    stored: dict[str, Any], changes: dict[str, Any], token: str, expected: dict[str, str]
) -> tuple[str, str]:
    """The task: ("done", "refused" or "interrupted", a sentence). Whatever else is raised is not retried either."""
    config = from_json(stored, "the launch's config")
    folder, node = config.output, _node()
    try:
        _check_node(folder, token, expected)
        if (folder / "summary.json").exists() and not changes:
            return "done", ""
        before = place_file(folder)
        last: dict[str, Any] = {"attempt": 0, "node": "another node"}
        if before.exists():
            last |= read_json(before, "the place of a launch")
        checkpoint = folder / "checkpoint.safetensors"
        update = load_progress(checkpoint).update if checkpoint.exists() else 0
        place = {"node": node, "pid": os.getpid(), "attempt": last["attempt"] + 1, "resumed_from": update}
        write_json(before, place | {"token": token})
        console, until = Console(quiet=True), time.monotonic() + LOCK_SECONDS
        while True:
            try:
                if was_begun(folder):
                    resume(folder, console, allow_import=True, **changes)  # the driver has asked for it
                else:
                    train(config, console)
                return "done", ""
            except InUse as error:  # of a worker that is dying, or whose node's locks outlive it
                if time.monotonic() > until:
                    raise InputError(f"{error}; last trained on {last['node']}, process {last.get('pid')}") from None
                time.sleep(1)
    except InputError as error:
        return "refused", f"{node}: {error}"
    except Interrupted as stop:
        return "interrupted", str(stop)


def _node() -> str:
    import ray

    return f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:6]}"


def _check_node(folder: Path, token: str, expected: dict[str, str]) -> None:
    path = folder.with_name(TOKEN)
    if not path.is_file() or path.read_text() != token:
        output = folder.parent.parent
        raise InputError(f"{output}: not the driver's folder on this node, expected storage that all nodes share")
    for name, version in expected.items():
        if (own := versions().get(name)) != version:
            raise InputError(f"found {name} {own} on this node, expected {version} as on the driver's")
