"""How long the jobs of `c4rl bench table` may take, by the speeds that are known, and which of them come first."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from c4rl.results.bench_tables import Job, device_of
from c4rl.results.speed_tables import Rate
from c4rl.results.store import Entry, Store


class Speed(NamedTuple):
    """Run-updates per second that were reached, with what."""

    algorithm: str
    plugins: list[str]
    precision: str
    device: str
    rate: float
    networks: tuple[int, int] | None = None  # layers and their width; None: of a usual size


def known_speeds(job: Job, entries: Iterable[Entry], measured: Iterable[Rate]) -> list[Speed]:
    """Of runs in the store, and measured, on the job's kind of device: a GPU's say nothing of a CPU."""
    found = []
    for entry in entries:
        run, made = entry.data["run"], entry.data["made"]
        networks = run["options"]["hidden_layers"], run["options"]["hidden_width"]
        rate = made["timing"]["run_updates_per_second"]
        found.append(Speed(run["algorithm"], run["plugins"], entry.precision, made["device"], rate, networks))
    stages = {stage.name: stage.updates for stage in job.config.stages}
    for one in measured:
        shares = {name: stages.get(name, 0) / rate for name, rate in one.stages.items()}
        seconds = sum(shares.values()) if one.algorithm == job.config.algorithm else 0
        rate = job.config.total_updates / seconds if seconds else min(one.stages.values())
        found.append(Speed(one.algorithm, one.plugins, one.precision, one.device, rate))
    return [speed for speed in found if speed.device == device_of(job.config).type]


class Minutes(NamedTuple):
    least: float
    most: float
    guessed_from: str = ""  # nothing: known


def minutes_of(job: Job, entries: Iterable[Entry], measured: Iterable[Rate]) -> Minutes | None:
    """How long: by the best speed known of the algorithm with these plug-ins in this precision, else between those of
    the fastest and the slowest runs of the algorithm, else of all, which may be wrong tenfold; of networks of the job's
    size, where there are any; None without any."""
    config = job.config
    wanted = config.algorithm, config.active_plugins, config.precision
    similar, others = config.algorithm, "others"
    kinds = "", similar, others, f"{similar} with other networks", f"{others} with other networks"
    networks = config.options.hidden_layers, config.options.hidden_width
    speeds: dict[str, list[float]] = {}
    for speed in known_speeds(job, entries, measured):
        kind = "" if speed[:3] == wanted else similar if speed.algorithm == config.algorithm else others
        if speed.networks not in (None, networks):
            kind = f"{kind or similar} with other networks"
        speeds.setdefault(kind, []).append(speed.rate)
    for kind in kinds:
        if kind in speeds:
            slowest, fastest = (pick(speeds[kind]) for pick in (min if kind else max, max))
            return Minutes(job.run_updates / fastest / 60, job.run_updates / slowest / 60, kind)
    return None


def cheap_first(jobs: Sequence[Job], store: Store, measured: Sequence[Rate]) -> list[Job]:
    """Jobs that were begun, then those that take the least time; so a stop leaves the fewest gaps."""
    entries = list(store)

    def order(job: Job) -> tuple[bool, float]:
        begun = (job.config.output / "config.json").exists()  # --dry must not clean up, as was_begun does
        return not begun, (minutes_of(job, entries, measured) or Minutes(math.inf, math.inf)).most

    return sorted(jobs, key=order)


def list_jobs(jobs: Sequence[Job], store: Store, measured: Sequence[Rate]) -> str:
    """A line per job, and the sum."""
    lines, entries = [], list(store)
    found = [minutes_of(job, entries, measured) for job in jobs]
    for job, minutes in zip(jobs, found, strict=True):
        how = f" (guessed from {minutes.guessed_from})" if minutes is not None and minutes.guessed_from else ""
        what = f"{job.runs} runs in {_launches([job])}, {job.run_updates:,} updates in all"
        lines.append(f"{job.config.output.name}: {what}, {_duration([minutes])}{how}")
    if not jobs:
        return "nothing is missing"
    return "\n".join([*lines, f"{len(jobs)} jobs in {_launches(jobs)}: {_duration(found)}"])


def _launches(jobs: Sequence[Job]) -> str:
    count = sum(job.launches for job in jobs)
    return f"{count} launch{'' if count == 1 else 'es'}"


def _duration(found: Sequence[Minutes | None]) -> str:
    known = [minutes for minutes in found if minutes is not None]
    if len(known) < len(found):  # of a device, all speeds are guessed or none
        return "speed not known"
    ends = sum(one.least for one in known), sum(one.most for one in known)
    least, most = (f"{end:,.0f}" if end >= 10 else f"{end:.1f}" for end in ends)
    return f"about {least if least == most else f'{least} to {most}'} minutes"
