"""--engine ray: the launches of jobs as tasks of a Ray cluster, each with a run folder on storage that all nodes share.

Ray places the tasks and starts them again elsewhere when a process or a node dies. All else is in the folders:
checkpoints to go on from, and the numbers that the table shows.
"""

import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import torch
from rich.console import Console

from c4rl.core.errors import InputError, Interrupted, WorkFailed
from c4rl.core.files import how_to_resume, read_json
from c4rl.jobs.config import RESUMABLE, TrainConfig
from c4rl.jobs.config_file import read_config, to_json
from c4rl.training.parts import LaunchesFailed, drop_parts, is_in_parts, join, parts_of
from c4rl.training.parts_display import Part, PartsDisplay
from c4rl.training.preparation import Preparation, in_any_folder, prepare_all
from c4rl.training.ray_worker import TOKEN, train_part
from c4rl.training.run_directory import RunDirectory, check_new_output, job_config
from c4rl.training.same_job import changed
from c4rl.training.stopping import StopRequests
from c4rl.training.summary import versions

POLL_SECONDS = 0.5
STOP_SECONDS = 300.0  # how long launches may take to save after Ctrl-C


class RayOptions(NamedTuple):
    address: str = "auto"
    num_gpus: float = 0.0
    retries: int = 3

    def how_to_resume(self, folder: Path) -> str:
        """The command that continues a job on this cluster, for a shell."""
        given = {"--address": self.address, "--num-gpus": f"{self.num_gpus:g}"}
        flags = "".join(f" {name} {value}" for name, value in given.items() if value not in ("auto", "0"))
        return f"{how_to_resume(folder)} --engine ray{flags}"


class Job:
    """A job in parts, its folder held by this process."""

    def __init__(
        self, config: TrainConfig, preparations: Sequence[Preparation], options: RayOptions, new: bool
    ) -> None:
        self.config, self.options, self.new, self.token = config, options, new, uuid4().hex
        self.directory = RunDirectory(config.output)
        configs = parts_of(config, preparations, torch.device(config.device))
        self.preparations = [preparation.without_rows() for preparation in preparations]
        self.total = config.total_updates
        if new:
            self.directory.create(config)
        else:
            self.directory.reopen(config)
        try:
            self.parts = [Part(own, {} if new else _changes(own), self.token) for own in configs]
        except BaseException:
            self.directory.close()
            raise
        configs[0].output.parent.mkdir(exist_ok=True)
        configs[0].output.with_name(TOKEN).write_text(self.token)

    def close(self) -> None:
        self.directory.close()

    def finished(self, check: Callable[[], None]) -> dict[str, Any]:
        """Its summary, once no part is under way; raises where a part did not end well. check: raises to end waits."""
        bad = [part for part in self.parts if part.state != "done"]
        if not bad:
            return join(self.directory, self.config, self.preparations, [part.config for part in self.parts], check)
        if self.new and not any(part.config.output.exists() for part in self.parts):
            shutil.rmtree(self.config.output)  # nothing was trained: nothing to resume
            if all(part.state in ("refused", "failed") for part in bad):
                raise InputError(bad[0].sentence)
            raise Interrupted("interrupted before any launch began")
        words = {state: sum(part.state == state for part in bad) for state in dict.fromkeys(p.state for p in bad)}
        counts = " and ".join(f"{count} {state}" for state, count in words.items())
        sentence = next((f": {part.sentence}" for part in bad if part.state != "interrupted" and part.sentence), "")
        advice = f"continue with: {self.options.how_to_resume(self.config.output)}"
        raise (Interrupted if words.keys() <= {"interrupted", "queued"} else LaunchesFailed)(
            f"{len(bad)} of {len(self.parts)} launches did not finish ({counts}){sentence}; {advice}"
        )


def _changes(part: TrainConfig) -> dict[str, Any]:
    """Resumable options whose values the job has changed since the part began."""
    if not (part.output / "config.json").exists():
        return {}
    began = read_config(part.output, allow_import=True)
    if began.only != part.only:
        raise InputError(f"{part.output}: found the runs {' '.join(began.only)}, expected {' '.join(part.only)}")
    return {name: getattr(part, name) for name in RESUMABLE if getattr(part, name) != getattr(began, name)}


def new_job(config: TrainConfig, options: RayOptions) -> Job:
    check_new_output(config.output)
    config = in_any_folder(_for_workers(config, options))
    return Job(replace(config, output=config.output.absolute()), prepare_all(config), options, new=True)


def begun_job(path: Path, options: RayOptions, allow_import: bool = False, **changes: Any) -> Job | dict[str, Any]:
    """A job to go on with, or the summary of one that is finished."""
    config = job_config(path, allow_import)
    if (path / "summary.json").exists():
        drop_parts(path)  # of a driver that died at its very end
        if changes:
            raise InputError(
                f"{path}: found a finished job, expected --resume without --engine ray to go beyond its end"
            )
        return read_json(path / "summary.json", "that of a finished job")
    if not is_in_parts(path) and (path / "checkpoint.safetensors").exists():
        raise InputError(f"{path}: found a job begun without --engine ray, expected --resume without it")
    if "device" in changes or config.device != ("cuda" if options.num_gpus else "cpu"):
        found = "--device" if "device" in changes else f"--num-gpus {options.num_gpus:g}"
        raise InputError(f"{found}: found with a job begun on {config.device}, expected the same kind of device")
    config = changed(config, changes) if changes else config
    job = Job(replace(config, output=path.absolute()), prepare_all(config), options, new=False)
    if changes:
        job.directory.change(**{name: to_json(config)[name] for name in changes})
    return job


def _for_workers(config: TrainConfig, options: RayOptions) -> TrainConfig:
    """The device and threads of every launch; a node may have more of both."""
    device = "cuda" if options.num_gpus else "cpu"
    if config.device not in ("auto", device):
        hint = "cuda or auto" if options.num_gpus else "cpu or auto, or --num-gpus 1"
        raise InputError(f"--device: found {config.device} with --num-gpus {options.num_gpus:g}, expected {hint}")
    return replace(config, device=device, threads=config.threads or 1)


@contextmanager
def cluster(options: RayOptions, console: Console) -> Iterator[Any]:
    """Ray, connected to a cluster that is running; none is started, and nothing is reported to anyone."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "[\\s\\S]")  # pages of a dead node's log; the table tells it
    import ray

    if options.address == "local" or "://" in options.address:
        raise InputError(f"--address: found '{options.address}', expected auto or HOST:PORT of a running Ray cluster")
    ours = not ray.is_initialized()
    if ours:
        try:
            _knock(options.address)
            ray.init(options.address, log_to_driver=False, logging_level="error")
        except (OSError, RuntimeError, ValueError) as error:
            if "AuthenticationError" in f"{error} {error.__cause__}":  # `ray start` asks for a token where one is saved
                found = "found a Ray cluster that wants a token, expected RAY_AUTH_MODE=token, and the token where Ray"
                raise InputError(f"--address {options.address}: {found} looks for it (ray get-auth-token)") from None
            reason = str(error).partition("\n")[0][:200]
            raise InputError(
                f"--address {options.address}: found no Ray cluster ({reason}), expected a running one; none is started"
            ) from None
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        sums = [f"{kind}s {sum(node.get(kind, 0) for node in nodes):g}" for kind in ("CPU", "GPU")]
        console.print(f"Ray cluster: nodes {len(nodes)}, {', '.join(sums)}", highlight=False)
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _knock(address: str) -> None:
    """Ray itself would try an address where nobody listens for many minutes."""
    if address == "auto":
        known = Path(os.environ.get("RAY_TMPDIR", "/tmp"), "ray", "ray_current_cluster")
        address = os.environ.get("RAY_ADDRESS") or (known.read_text().strip() if known.is_file() else "")
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host, int(port)), timeout=10).close()


def run_jobs(
    jobs: Sequence[Job], options: RayOptions, console: Console, ray: Any, deadline: float = float("inf")
) -> Iterator[tuple[Job, dict[str, Any] | Exception]]:
    """Train all launches of all jobs at once; each job with its summary, or with what went wrong, as it ends."""
    resources = {"num_cpus": jobs[0].config.threads, "num_gpus": options.num_gpus}
    fits = [node for node in ray.nodes() if node["Alive"] and _fits(node["Resources"], resources)]
    if not fits:
        words = f"{resources['num_cpus']} CPUs and {options.num_gpus:g} GPUs (--threads, --num-gpus)"
        console.print(f"warning: no node has {words}: launches wait until one does", highlight=False, soft_wrap=True)
    task = ray.remote(max_retries=options.retries, retry_exceptions=False, **resources)(train_part)
    expected = {name: version for name, version in versions().items() if name in ("c4rl", "torch", "numpy")}
    pending = {
        task.remote(to_json(part.config), part.changes, job.token, expected): (job, part)
        for job in jobs
        for part in job.parts
    }
    rows = [(_name(part, job, jobs), part, job.total) for job in jobs for part in job.parts]
    view, requests, open_jobs = PartsDisplay(rows, console), StopRequests(), list(jobs)
    try:
        with requests.heeded(), view:
            asked, asked_at = 0, float("inf")
            while pending:
                done, _ = ray.wait(list(pending), num_returns=1, timeout=POLL_SECONDS)
                for ref in done:
                    _, part = pending.pop(ref)
                    part.state, part.sentence = _outcome(ray, ref)
                    if asked > 1 and part.state == "failed":  # killed at the second request
                        part.state = "interrupted"
                view.draw()
                now = time.monotonic()
                wanted = max(requests.count, int(now > deadline), 2 * int(now > asked_at + STOP_SECONDS))
                if wanted > asked:
                    for ref in pending:  # once: save and stop; twice: stop
                        ray.cancel(ref, force=wanted > 1)
                    asked, asked_at, requests.obeyed = wanted, min(asked_at, now), requests.count > 0
                for job in [job for job in open_jobs if job not in (own for own, _ in pending.values())]:
                    open_jobs.remove(job)
                    yield job, _end(job, requests.hurry)
    finally:
        for job in jobs:
            job.close()


def _name(part: Part, job: Job, jobs: Sequence[Job]) -> str:
    folder = part.config.output.name if len(jobs) == 1 else f"{job.config.output.name}/{part.config.output.name}"
    runs = len(part.config.only)
    return f"launch {folder}, {runs} run{'s' if runs > 1 else ''}"


def _fits(node: dict[str, float], wanted: dict[str, Any]) -> bool:
    return node.get("CPU", 0) >= wanted["num_cpus"] and node.get("GPU", 0) >= wanted["num_gpus"]


def _outcome(ray: Any, ref: Any) -> tuple[str, str]:
    try:
        return ray.get(ref)
    except ray.exceptions.TaskCancelledError:
        return "interrupted", ""
    except ray.exceptions.RayTaskError as error:  # of our code, its traceback from the worker within
        cause = error.cause if isinstance(error.cause, BaseException) else error
        stopped = isinstance(cause, KeyboardInterrupt)
        words = [type(cause).__name__, *str(cause).strip().splitlines()[-1:]]  # some have none, as MemoryError
        return "interrupted" if stopped else "failed", ": ".join(words)
    except ray.exceptions.RayError as error:
        return "failed", f"{type(error).__name__} after all retries"


def _end(job: Job, check: Callable[[], None]) -> dict[str, Any] | Exception:
    try:
        return job.finished(check)
    except (InputError, Interrupted, WorkFailed, OSError) as error:
        return error
    except KeyboardInterrupt:
        advice = f"continue with: {job.options.how_to_resume(job.config.output)}"
        return Interrupted(f"interrupted while ensembles were scored; {advice}")
    finally:
        job.close()
