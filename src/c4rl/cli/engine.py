"""--engine: where the launches of a job are trained."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.console import Console

from c4rl.core.declarations import Options, flag_of, option
from c4rl.core.errors import InputError, Interrupted

if TYPE_CHECKING:
    from c4rl.jobs.config import TrainConfig
    from c4rl.training.ray_engine import RayOptions


@dataclass(frozen=True)
class EngineFlags(Options):
    engine: Literal["local", "ray"] = "local"
    """local: train in this process. ray: train the job's launches on a Ray cluster whose nodes share the storage of
    --output and --dataset; --threads then sets the CPUs of each launch (default 1)."""
    address: str = "auto"
    """With --engine ray: HOST:PORT of the cluster, or auto for the one that this machine belongs to."""
    num_gpus: float = option(0.0, at_least=0, at_most=1)
    """With --engine ray: GPUs of each launch, 1 or a share of one; 0: launches train on CPUs."""
    retries: int = option(3, at_least=0, at_most=1000)
    """With --engine ray: how often a launch resumes elsewhere after its process or node has died."""

    def check(self) -> None:
        changed = [f for f in fields(EngineFlags) if f.name != "engine" and getattr(self, f.name) != f.default]
        if self.engine == "local" and changed:
            raise InputError(f"--{flag_of(changed[0].name)}: found without --engine ray, which it is for")

    def ray(self) -> "RayOptions | None":
        """None: this process trains."""
        if self.engine == "local":
            return None

        from c4rl.training.ray_engine import RayOptions

        return RayOptions(self.address, self.num_gpus, self.retries)


def on_ray(options: "RayOptions", job: "TrainConfig | Path", **how: Any) -> dict[str, Any]:
    """The summary of a new job, or of one to resume; raises what ended it."""
    from c4rl.training.ray_engine import begun_job, cluster, new_job, run_jobs

    console, folder = Console(), job if isinstance(job, Path) else job.output
    try:
        with cluster(options, console) as ray:
            begun = begun_job(job, options, **how) if isinstance(job, Path) else new_job(job, options)
            if isinstance(begun, dict):
                return begun
            ((_, end),) = run_jobs([begun], options, console, ray)
    except (SystemExit, BrokenPipeError):  # rich, where nobody reads its output
        advice = f"; continue with: {options.how_to_resume(folder)}" if folder.exists() else ""
        raise Interrupted(f"nobody reads the output any more: launches end at their last checkpoints{advice}") from None
    if isinstance(end, Exception):
        raise end
    return end
