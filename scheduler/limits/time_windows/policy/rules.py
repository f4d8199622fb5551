"""Policy: weekly time windows: which jobs they keep off a GPU, and when they override its load.

An exclusive window (`kept`) reserves a share of GPUs for its holder: no job of another user starts
there if it would run during the window. Any other window allows its holder to run only inside it.
No job starts inside a window if it would run past its end. Days and hours are in the window's own
zone, with clock changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from monitor.facts.thresholds import threshold
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import Requirement
from scheduler.facts.people import Window
from scheduler.facts.plans import RunningJob, Slot, Yield
from scheduler.facts.units import size
from scheduler.limits.time_windows.policy.calendar import (
    Span,
    coming,
    current,
    describe,
    ends,
    moment,
)

# Run time of jobs without a time limit or history.
UNKNOWN_RUN_TIME = timedelta(hours=12)
# A GPU is saturated at this continuous use in %. After this time, a time window takes precedence
# over its measured use.
SATURATED_PCT, TRUSTED_AFTER_S = 95.0, 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPolicy:
    """Handling of recurring time windows."""

    # fmt: off
    yield_before_minutes: float = threshold(10.0, "Yield before a time window changes",
        unit="min", ge=0, le=240,
        help="Preemptible jobs receive their yield request this long before.")
    evict_all: bool = threshold(False, "Evict all jobs",
        "Also send yield requests to jobs that are not preemptible.")
    # fmt: on


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRequest:
    """The facts of a job that windows need. ends: the latest end, if `known`."""

    owner: str
    requirement: Requirement
    ends: datetime
    known: bool


def asking(
    owner: str,
    requirement: Requirement,
    lasts: timedelta | None,
    preemptible: bool,
    now: datetime,
) -> WindowRequest:
    """The request of a job. The end of a preemptible job does not matter: it can leave."""
    reach = lasts if lasts is not None else UNKNOWN_RUN_TIME
    ends = now if preemptible else now + reach
    return WindowRequest(owner=owner, requirement=requirement, ends=ends, known=lasts is not None)


def closed_for(
    job: WindowRequest,
    windows: Sequence[Window],
    gpus: Iterable[Slot],
    running: Sequence[RunningJob],
    now: datetime,
) -> Mapping[str, Blocker]:
    """The GPUs where time windows block this job now, each with its blocker."""
    closed: dict[str, Blocker] = {}
    for gpu in gpus:
        gpu_windows = about(gpu.gpu_uuid, windows)
        blocker = gpu_windows and (
            _own(job, gpu_windows, now) or _others(job, gpu_windows, gpu, running, now)
        )
        if blocker:
            closed[gpu.gpu_uuid] = blocker
    return closed


def _own(job: WindowRequest, windows: Sequence[Window], now: datetime) -> Blocker | None:
    """Blocked by the owner's own windows: outside them, or if it would run past their end."""
    own = [w for w in windows if job.owner in w.members]
    if (end := ends(own, now, job.ends)) is not None:
        return None if job.ends <= end[0] else _too_long(job, *end)
    if all(w.kept for w in own):
        return None
    following = [(span, w) for w in own if (span := coming(w, now)) is not None]
    if not following:
        return _outside(job, "over")
    span, window = min(following, key=lambda pair: pair[0].start)
    return _outside(job, "later", span.start, window.zone, requested=describe(window))


def _too_long(job: WindowRequest, end: datetime, zone: str) -> Blocker:
    case = "too long" if job.known else "unknown"
    return _outside(job, case, end, zone, available=moment(end, zone))


def _outside(
    job: WindowRequest,
    case: str,
    until: datetime | None = None,
    zone: str = "",
    requested: str | None = None,
    available: str | None = None,
) -> Blocker:
    return Blocker(
        code=BlockerCode.OUTSIDE_WINDOW,
        tier=Tier.NOT_YET,
        user=job.owner,
        requested=requested,
        available=available,
        until=until,
        details=details(case=case, zone=zone),
    )


def _others(
    job: WindowRequest,
    windows: Sequence[Window],
    gpu: Slot,
    running: Sequence[RunningJob],
    now: datetime,
) -> Blocker | None:
    """Blocked by windows of others that are active before this job has ended."""
    for window in windows:
        if not window.kept or job.owner in window.members:
            continue
        active = current(window, now)
        span = active or coming(window, now)
        if span is None or (active is None and span.start >= job.ends):
            continue
        if window.share_pct >= 100 or not _leaves(job.requirement, window, gpu, running):
            return _kept(window, span, gpu, now)
    return None


def _leaves(
    requirement: Requirement, window: Window, gpu: Slot, running: Sequence[RunningJob]
) -> bool:
    """Whether the window's share of the memory stays free beside the job."""
    requested, total, free = requirement.memory_bytes, gpu.total_bytes, gpu.free_bytes
    if requirement.exclusive or requested is None or total is None or free is None:
        return False
    members_need = sum(
        other.requirement.memory_bytes or 0
        for other in running
        if gpu.gpu_uuid in other.gpu_uuids and other.owner in window.members
    )
    return free - requested >= total * window.share_pct / 100 - members_need


def _kept(window: Window, span: Span, gpu: Slot, now: datetime) -> Blocker:
    part = ""
    if window.share_pct < 100 and gpu.total_bytes is not None:
        reserved = size(round(gpu.total_bytes * window.share_pct / 100))
        part = f"{reserved} ({window.share_pct:g} %) of "
    return Blocker(
        code=BlockerCode.RESERVED_FOR,
        tier=Tier.NOT_YET,
        gpu=gpu.index,
        requested=describe(window),
        holder=window.holder,
        until=span.end,
        details=details(
            case="window",
            part=part,
            starts=None if span.start <= now else span.start.isoformat(),
            zone=window.zone,
        ),
    )


def trusted(
    owner: str, windows: Sequence[Window], saturated: Collection[str], now: datetime
) -> frozenset[str]:
    """The saturated GPUs where a time window of the owner overrides the load."""
    active = [w for w in windows if owner in w.members and current(w, now) is not None]
    return frozenset(gpu for gpu in saturated if about(gpu, active))


def about(gpu: str, windows: Iterable[Window]) -> list[Window]:
    """The windows that apply to this GPU."""
    return [window for window in windows if not window.gpu_uuids or gpu in window.gpu_uuids]


def yields(
    running: Sequence[RunningJob],
    windows: Sequence[Window],
    gpus: Iterable[Slot],
    policy: WindowPolicy,
    now: datetime,
) -> tuple[Yield, ...]:
    """One yield request for each job that must leave within `yield_before_minutes`."""
    if not windows:
        return ()
    horizon = now + timedelta(minutes=policy.yield_before_minutes)
    sizes = {gpu.gpu_uuid: gpu.total_bytes for gpu in gpus}
    displaced = _displaced(running, windows, sizes, now, horizon)
    requests = []
    for job in running:
        if job.yields or not (job.preemptible or policy.evict_all):
            continue
        reason = _own_end(job, windows, now, horizon) or displaced.get(job.id)
        if reason is not None:
            text, at = reason
            deadline = max(at, now + timedelta(seconds=1))
            requests.append(
                Yield(job_id=job.id, code="WindowEnds", text=text, counts=False, deadline=deadline)
            )
    return tuple(requests)


def _own_end(
    job: RunningJob, windows: Sequence[Window], now: datetime, horizon: datetime
) -> tuple[str, datetime] | None:
    """Why the job must leave when the time window of its owner ends, and when."""
    for gpu in job.gpu_uuids:
        own = [w for w in about(gpu, windows) if job.owner in w.members]
        end = ends(own, now, horizon)
        if end is None and any(not w.kept for w in own):
            return "Your time window is over.", now
        if end is not None and end[0] <= horizon:
            return f"Your time window ends {moment(*end)}.", end[0]
    return None


def _displaced(
    running: Sequence[RunningJob],
    windows: Sequence[Window],
    sizes: Mapping[str, int | None],
    now: datetime,
    horizon: datetime,
) -> dict[int, tuple[str, datetime]]:
    """By job: why it must leave for the time window of another user, and when."""
    reasons: dict[int, tuple[str, datetime]] = {}
    for window in windows:
        span = current(window, now) or coming(window, now)
        if not window.kept or span is None or span.start > horizon:
            continue
        text = f"kept for {window.holder} from {moment(span.start, window.zone)}."
        share = "The GPU is" if window.share_pct >= 100 else f"{window.share_pct:g} % of the GPU is"
        others = [job for job in running if job.owner not in window.members]
        for gpu in {gpu for job in others for gpu in job.gpu_uuids}:
            if window in about(gpu, [window]):
                on_gpu = [job for job in others if gpu in job.gpu_uuids]
                for job in _not_fitting(on_gpu, window, sizes.get(gpu)):
                    reasons.setdefault(job.id, (f"{share} {text}", span.start))
    return reasons


def _not_fitting(
    jobs: Sequence[RunningJob], window: Window, total: int | None
) -> Iterable[RunningJob]:
    """The jobs that do not fit beside the window's share; important and older jobs stay."""
    if window.share_pct >= 100:
        yield from jobs
    elif total is not None:
        room = total * (1 - window.share_pct / 100)
        for job in sorted(jobs, key=lambda job: (-job.priority, job.started_at, job.id)):
            requirement = job.requirement
            is_alone = requirement.exclusive or requirement.memory_bytes is None
            needs = total if is_alone else requirement.memory_bytes or 0
            if needs > room:
                yield job
            else:
                room -= needs
