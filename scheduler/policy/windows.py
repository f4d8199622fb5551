"""Policy: agreed weekly times: whom they keep off a GPU, and what counts more than its use.

A window that keeps GPUs for its holder keeps all others off that share of them, from its start to
its end, and whatever would still run at its start. A window that allows (not `kept`) keeps its
holder off at all other times. Nothing starts inside a window that would run past its end.
Days and hours are those of the window's own zone, also when clocks change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from scheduler.blockers import Blocker, Tier
from scheduler.jobs import Requirement
from scheduler.people import Window
from scheduler.plans import RunningJob, Slot
from scheduler.policy.calendar import Span, coming, current, describe, ends, moment
from scheduler.units import size


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPolicy:
    """How agreed times are kept."""

    yield_before_minutes: float = field(
        default=10.0,
        metadata={
            "label": "Yield before a window's change",
            "help": "Jobs that may be interrupted are asked so long before to leave.",
            "unit": "min",
            "least": 0,
            "most": 240,
        },
    )
    unknown_hours: float = field(
        default=12.0,
        metadata={
            "label": "Reach of a job of unknown length",
            "help": "Without a limit or history it is taken to last so long.",
            "unit": "h",
            "least": 0.25,
            "most": 168,
        },
    )
    evict_all: bool = field(
        default=False,
        metadata={
            "label": "Ask every job to leave",
            "help": "Also those that did not say that they may be interrupted.",
        },
    )
    saturated_pct: float = field(
        default=95.0,
        metadata={
            "label": "A GPU is saturated at",
            "help": "Busy at least so much, all the time.",
            "unit": "%",
            "least": 50,
            "most": 100,
        },
    )
    trusted_after_minutes: float = field(
        default=60.0,
        metadata={
            "label": "Trust the window after",
            "help": "Once a GPU was saturated for so long, a window counts for more than its use.",
            "unit": "min",
            "least": 1,
            "most": 1440,
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What a window must know of a job. `ends`: when it has left at the latest, as far as known."""

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
    policy: WindowPolicy,
) -> Asking:
    """A job that may be interrupted leaves at any time, so its end is no matter."""
    reach = lasts if lasts is not None else timedelta(hours=policy.unknown_hours)
    ends = now if preemptible else now + reach
    return Asking(owner=owner, requirement=requirement, ends=ends, known=lasts is not None)


def closed_for(
    job: Asking,
    windows: Sequence[Window],
    gpus: Iterable[Slot],
    running: Sequence[RunningJob],
    now: datetime,
) -> Mapping[str, Blocker]:
    """Which GPUs agreed times keep this job off now, and why."""
    found: dict[str, Blocker] = {}
    for gpu in gpus:
        here = about(gpu.gpu_uuid, windows)
        why = here and (_own(job, here, now) or _others(job, here, gpu, running, now))
        if why:
            found[gpu.gpu_uuid] = why
    return found


def _own(job: Asking, windows: Sequence[Window], now: datetime) -> Blocker | None:
    """What the owner's own windows say: only then, and not past their end."""
    mine = [w for w in windows if job.owner in w.members]
    if (end := ends(mine, now, job.ends)) is not None:
        return None if job.ends <= end[0] else _too_long(job, *end)
    if all(w.kept for w in mine):
        return None
    following = [(span, w) for w in mine if (span := coming(w, now)) is not None]
    if not following:
        text = "Your agreed time is over; ask for a new one."
        return Blocker(code="OutsideWindow", tier=Tier.NOT_YET, text=text)
    span, window = min(following, key=lambda pair: pair[0].start)
    return Blocker(
        code="OutsideWindow",
        tier=Tier.NOT_YET,
        text=f"Your agreed time begins {moment(span.start, window.zone)}.",
        requested=describe(window),
        until=span.start,
    )


def _too_long(job: Asking, end: datetime, zone: str) -> Blocker:
    limit = moment(end, zone)
    text = (
        f"It would run past the end of your agreed time, {limit}."
        if job.known
        else f"How long it runs is not known, and your agreed time ends {limit}: give it a time "
        "limit, or let it be interrupted."
    )
    return Blocker(code="OutsideWindow", tier=Tier.NOT_YET, text=text, available=limit, until=end)


def _others(
    job: Asking, windows: Sequence[Window], gpu: Slot, running: Sequence[RunningJob], now: datetime
) -> Blocker | None:
    """What is kept for others now, or will be before this job has ended."""
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
    """Whether the window's share of the memory stays free beside such a job."""
    wanted, total, free = requirement.memory_bytes, gpu.total_bytes, gpu.free_bytes
    if requirement.exclusive or wanted is None or total is None or free is None:
        return False
    theirs = sum(
        other.requirement.memory_bytes or 0
        for other in running
        if gpu.gpu_uuid in other.gpu_uuids and other.owner in window.members
    )
    return free - wanted >= total * window.share_pct / 100 - theirs


def _kept(window: Window, span: Span, gpu: Slot, now: datetime) -> Blocker:
    part = ""
    if window.share_pct < 100 and gpu.total_bytes is not None:
        kept = size(round(gpu.total_bytes * window.share_pct / 100))
        part = f"{kept} ({window.share_pct:g} %) of "
    name = f"{part}GPU {gpu.index}"
    if span.start <= now:
        text = f"{name} is kept for {window.holder} until {moment(span.end, window.zone)}."
    else:
        begins = moment(span.start, window.zone)
        text = f"{name} is kept for {window.holder} from {begins}; it might still run then."
    return Blocker(
        code="ReservedFor",
        tier=Tier.NOT_YET,
        text=text,
        requested=describe(window),
        available=f"GPU {gpu.index}",
        holder=window.holder,
        until=span.end,
    )


def trusted(
    owner: str, windows: Sequence[Window], saturated: Collection[str], now: datetime
) -> frozenset[str]:
    """The saturated GPUs on which the owner's agreed time counts for more than their use."""
    active = [w for w in windows if owner in w.members and current(w, now) is not None]
    return frozenset(gpu for gpu in saturated if about(gpu, active))


def about(gpu: str, windows: Iterable[Window]) -> list[Window]:
    """Those that are about this GPU."""
    return [window for window in windows if not window.gpu_uuids or gpu in window.gpu_uuids]
