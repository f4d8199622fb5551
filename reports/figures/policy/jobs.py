"""Policy: waits of jobs, and what they requested against what they used."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from math import ceil

from msgspec import Struct, field

from monitor.facts.formats import GIB
from reports.figures.facts import BlockerFigures, QueueFigures, RightSize
from scheduler.facts.blockers import GPUS_IN_USE

HOUR_S = 3600
# Above the peak; in steps that people use.
MEMORY_MARGIN, GPU_MARGIN, STEP_GIB = 1.2, 1.1, 4


class JobWait(Struct, frozen=True):
    """A GPU job in the queue, in epoch seconds. blocker: what it waited for longest, "" unknown.

    gpu: the only one that would do, "" = any. memory_bytes: that it requests on each GPU.
    """

    owner: str
    job_class: str
    begin: float
    end: float
    is_waiting: bool
    blocker: str = ""
    gpu: str = ""
    memory_bytes: int = 0


class Waiting(Struct):
    """Job-seconds of one hour: by owner; and while waiting for GPUs in use, by (owner, the only GPU
    that would do or "", bytes of memory)."""

    by_owner: dict[str, float] = field(default_factory=dict)
    for_gpus: dict[tuple[str, str, int], float] = field(default_factory=dict)

    def add(self, wait: JobWait, seconds: float) -> None:
        self.by_owner[wait.owner] = self.by_owner.get(wait.owner, 0.0) + seconds
        if wait.blocker in GPUS_IN_USE:
            key = (wait.owner, wait.gpu, wait.memory_bytes)
            self.for_gpus[key] = self.for_gpus.get(key, 0.0) + seconds


class PastJob(Struct, frozen=True):
    """A job that ended. gpus_used: mean; peak_bytes: of one GPU; None: not measured well."""

    owner: str
    gpus: int
    memory_bytes: int | None
    seconds: float
    gpus_used: float | None
    peak_bytes: int | None


def quantile(values: Sequence[float], part: float) -> float | None:
    """The nearest-rank quantile: the least value that `part` of them do not exceed."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, ceil(part * len(ordered)) - 1)]


def by_hour(waits: Iterable[JobWait], since: int, until: int) -> dict[int, Waiting]:
    """The waits of each hour within the period, by its begin."""
    hours: dict[int, Waiting] = defaultdict(Waiting)
    for wait in waits:
        begin, end = max(wait.begin, since), min(wait.end, until)
        hour = int(begin) // HOUR_S * HOUR_S
        while begin < end:
            following = min(end, hour + HOUR_S)
            hours[hour].add(wait, following - begin)
            begin, hour = following, hour + HOUR_S
    return hours


def queue(waits: Sequence[JobWait], classes: Iterable[str]) -> tuple[QueueFigures, ...]:
    """Waits by class, of jobs that started in the period or wait at its end."""
    figures = []
    for name in classes:
        mine = [wait for wait in waits if wait.job_class == name]
        lengths = [wait.end - wait.begin for wait in mine]
        reasons = _seconds_by_blocker(mine)
        figures.append(
            QueueFigures(
                job_class=name,
                jobs=len(mine),
                waiting=sum(wait.is_waiting for wait in mine),
                p50_s=quantile(lengths, 0.5),
                p90_s=quantile(lengths, 0.9),
                blocker=reasons.most_common(1)[0][0] if reasons else "",
            )
        )
    return tuple(figures)


def blockers(waits: Sequence[JobWait]) -> tuple[BlockerFigures, ...]:
    """Waits by main blocker, the one with most hours first; jobs that did not wait are left out."""
    groups: dict[str, list[float]] = defaultdict(list)
    for wait in waits:
        if wait.blocker:
            groups[wait.blocker].append(wait.end - wait.begin)
    figures = [
        BlockerFigures(
            blocker=code,
            jobs=len(lengths),
            p50_s=quantile(lengths, 0.5),
            p90_s=quantile(lengths, 0.9),
            waited_hours=sum(lengths) / HOUR_S,
        )
        for code, lengths in groups.items()
    ]
    return tuple(sorted(figures, key=lambda row: (-row.waited_hours, row.blocker)))


def _seconds_by_blocker(waits: Iterable[JobWait]) -> Counter[str]:
    seconds: Counter[str] = Counter()
    for wait in waits:
        if wait.blocker:
            seconds[wait.blocker] += int(wait.end - wait.begin)
    return seconds


def right_sizes(jobs: Iterable[PastJob]) -> dict[str, RightSize]:
    """By owner: the kind of request with the most GPU-hours that would do with less."""
    kinds: dict[str, dict[tuple[int, int | None], list[PastJob]]] = {}
    for job in jobs:
        if job.gpus_used is not None:
            kinds.setdefault(job.owner, {}).setdefault((job.gpus, job.memory_bytes), []).append(job)
    largest = {}
    for owner, its in kinds.items():
        sizes = [(size, _weight(group)) for group in its.values() if (size := right_size(group))]
        if sizes:
            largest[owner] = max(sizes, key=lambda pair: pair[1])[0]
    return largest


def right_size(jobs: Sequence[PastJob]) -> RightSize | None:
    """Of jobs with the same request; None if they need what they requested."""
    gpus, memory = jobs[0].gpus, jobs[0].memory_bytes
    used = max(job.gpus_used or 0.0 for job in jobs)
    peak = max((job.peak_bytes for job in jobs if job.peak_bytes is not None), default=None)
    enough = min(gpus, max(1, ceil(used * GPU_MARGIN - 0.1)))
    advised = None if peak is None or memory is None else min(memory, enough_memory(peak))
    if enough >= gpus and (advised is None or memory is None or advised >= memory):
        return None
    return RightSize(
        jobs=len(jobs),
        gpus=gpus,
        gpus_used=used,
        gpus_advised=enough,
        memory_bytes=memory,
        peak_bytes=peak,
        advised_bytes=advised,
        text=_text(gpus, used, enough, memory, peak, advised),
    )


def enough_memory(peak_bytes: int) -> int:
    """The peak and 20 %, rounded up to whole 4 GiB."""
    step = STEP_GIB * GIB
    return max(1, ceil(peak_bytes * MEMORY_MARGIN / step)) * step


def _text(
    gpus: int, used: float, enough: int, memory: int | None, peak: int | None, advised: int | None
) -> str:
    """Such as "requested 2 GPUs, used 1.0; 80 GiB, peak 11 GiB → 1 GPU, 16 GiB"."""
    request, advice = f"requested {_gpus(gpus)}, used {used:.1f}", _gpus(enough)
    if memory is None or peak is None or advised is None:
        return f"{request} → {advice}"
    sizes = f"{memory / GIB:.3g} GiB, peak {peak / GIB:.3g} GiB"
    return f"{request}; {sizes} → {advice}, {advised / GIB:.3g} GiB"


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _weight(jobs: Iterable[PastJob]) -> float:
    return sum(job.gpus * job.seconds for job in jobs)
