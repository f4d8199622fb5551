"""Policy: weekly time windows: which jobs they keep off a GPU, and when they override its load.

An exclusive window (`kept`) reserves a share of GPUs for its holder: no job of another user starts
there if it would run during the window. Any other window allows its holder to run only inside it.
No job starts inside a window if it would run past its end. Days and hours are in the window's own
zone, with clock changes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import groupby
from zoneinfo import ZoneInfo

from msgspec import Struct

from monitor.facts.formats import first_few
from monitor.facts.thresholds import threshold
from scheduler.facts.blockers import Blocker, BlockerCode, Tier, details
from scheduler.facts.jobs import Requirement
from scheduler.facts.people import Window
from scheduler.facts.plans import RunningJob, Slot, Yield
from scheduler.facts.units import size

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


class WindowRequest(Struct, frozen=True, kw_only=True):
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
    own = [window for window in windows if job.owner in window.members]
    others = [(window, span) for window in windows if (span := _of_others(job, window, now))]
    closed: dict[str, Blocker] = {}
    for gpu in gpus if own or others else ():
        blocker = own and _own(job, about(gpu.gpu_uuid, own), now)
        blocker = blocker or _others(job, others, gpu, running, now)
        if blocker:
            closed[gpu.gpu_uuid] = blocker
    return closed


def _own(job: WindowRequest, own: Sequence[Window], now: datetime) -> Blocker | None:
    """Blocked by the owner's own windows: outside them, or if it would run past their end."""
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


def _of_others(job: WindowRequest, window: Window, now: datetime) -> Span | None:
    """When the window keeps GPUs for other users before this job has ended."""
    if not window.kept or job.owner in window.members:
        return None
    active = current(window, now)
    span = active or coming(window, now)
    return None if span is None or (active is None and span.start >= job.ends) else span


def _others(
    job: WindowRequest,
    others: Iterable[tuple[Window, Span]],
    gpu: Slot,
    running: Sequence[RunningJob],
    now: datetime,
) -> Blocker | None:
    """The first window of others that leaves no room for the job on this GPU."""
    for window, span in others:
        if window.gpu_uuids and gpu.gpu_uuid not in window.gpu_uuids:
            continue
        if window.share_pct >= 100 or not _leaves(job.requirement, window, gpu, running):
            starts = None if span.start <= now else span.start
            return _kept(window, span.end, starts, gpu.index, gpu.total_bytes)
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


# A forecast asks for the same again and again.
@lru_cache(maxsize=1024)
def _kept(
    window: Window, until: datetime, starts: datetime | None, gpu: int, total_bytes: int | None
) -> Blocker:
    """starts: None = it has begun."""
    part = ""
    if window.share_pct < 100 and total_bytes is not None:
        reserved = size(round(total_bytes * window.share_pct / 100))
        part = f"{reserved} ({window.share_pct:g} %) of "
    return Blocker(
        code=BlockerCode.RESERVED_FOR,
        tier=Tier.NOT_YET,
        gpu=gpu,
        requested=describe(window),
        holder=window.holder,
        until=until,
        details=details(
            case="window",
            part=part,
            starts=None if starts is None else starts.isoformat(),
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


# The occurrences of weekly time windows in their own zone, with clock changes.

DAY = timedelta(days=1)
# A period with two clock changes.
SEASONS = timedelta(days=400)
SHORT = timedelta(days=31)
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class Span(Struct, frozen=True):
    """One occurrence of a window."""

    start: datetime
    end: datetime


def spans(window: Window, since: datetime, until: datetime) -> Iterator[Span]:
    """The occurrences that overlap since..until, in order. Each lasts at most a week."""
    zone = ZoneInfo(window.zone)
    day = since.astimezone(zone).date() - DAY
    while (span := _span(window, day, zone)) is None or span.start < until:
        if span is not None and span.end > since:
            yield span
        day += DAY
        if day > until.astimezone(zone).date():
            return


def _span(window: Window, day: date, zone: ZoneInfo) -> Span | None:
    """The occurrence that begins on that day of the zone; None = there is none."""
    if day.weekday() not in window.days or not _is_valid(window, day):
        return None
    last = day if window.end > window.start else day + DAY
    start = datetime.combine(day, window.start, zone)
    end = datetime.combine(last, window.end, zone)
    # Convert to UTC and back, because arithmetic inside a zone ignores clock changes.
    begins, ends = (at.astimezone(UTC) for at in (start, end))
    # A start and an end within the skipped hour leave an empty span.
    return Span(begins, ends) if begins < ends else None


def skipped_time(window: Window, now: datetime) -> datetime | None:
    """A start or end that does not exist because clocks go forward; None: there is none.

    It counts where an occurrence has no time left because of it, within SEASONS. It counts at each
    occurrence of a window of at most SHORT days; a longer one begins or ends later on that day.
    """
    zone = ZoneInfo(window.zone)
    first = max(now.astimezone(zone).date() - DAY, window.first_day or date.min)
    last = min(window.last_day or date.max, first + SEASONS)
    is_short = last - first < SHORT
    for offset in range((last - first).days + 1):
        day = first + offset * DAY
        if day.weekday() not in window.days:
            continue
        for at in _skipped(window, day, zone):
            if is_short or _span(window, day, zone) is None:
                return at
    return None


def _skipped(window: Window, day: date, zone: ZoneInfo) -> Iterator[datetime]:
    last = day if window.end > window.start else day + DAY
    for at in (datetime.combine(day, window.start), datetime.combine(last, window.end)):
        local = at.replace(tzinfo=zone)
        if local.astimezone(UTC).astimezone(zone).replace(tzinfo=None) != at:
            yield local


def _is_valid(window: Window, day: date) -> bool:
    begins, ends = window.first_day, window.last_day
    return (begins is None or day >= begins) and (ends is None or day <= ends)


@lru_cache(maxsize=4096)
def current(window: Window, now: datetime) -> Span | None:
    """The current occurrence, joined with those that follow without a gap."""
    joined: Span | None = None
    for span in spans(window, now, now + 8 * DAY):
        if joined is None and span.start <= now:
            joined = span
        elif joined is not None and span.start <= joined.end:
            joined = Span(joined.start, max(joined.end, span.end))
        elif joined is not None or span.start > now:
            break
    return joined


@lru_cache(maxsize=4096)
def coming(window: Window, now: datetime) -> Span | None:
    """The next occurrence that has not begun. It can be far away if the first day is."""
    since = _begins(window, now)
    return next((s for s in spans(window, since, since + 9 * DAY) if s.start > now), None)


def ends(windows: Sequence[Window], now: datetime, reach: datetime) -> tuple[datetime, str] | None:
    """The end of one holder's current windows and of those that follow without a gap; its zone.

    Ends beyond `reach` are not computed. None = no window is current.
    """
    latest, at = None, now
    while at <= reach:
        going = [(span.end, w.zone) for w in windows if (span := current(w, at)) is not None]
        if not going:
            break
        latest = max(going)
        at = latest[0]
    return latest


def clashes(window: Window, others: Iterable[Window], now: datetime) -> list[Window]:
    """The windows that, together with this one, would reserve more than a whole GPU at some time.

    All weeks are alike, so only the weeks in which a window begins to count are checked.
    """
    if not window.kept:
        return []
    rivals = [o for o in others if o.kept and o.id != window.id]
    gpus = {"", *window.gpu_uuids, *(gpu for rival in rivals for gpu in rival.gpu_uuids)}
    weeks = {_begins(other, now) for other in (window, *rivals)}
    clashing: dict[int, Window] = {}
    for gpu in gpus:
        same_gpu = [
            other for other in (window, *rivals) if not other.gpu_uuids or gpu in other.gpu_uuids
        ]
        for since in weeks if window in same_gpu else ():
            clashing |= {other.id: other for other in _too_many(window, same_gpu, since)}
    return [rival for rival in rivals if rival.id in clashing]


def _begins(window: Window, now: datetime) -> datetime:
    """The later of now and the first day of the window."""
    if window.first_day is None:
        return now
    first = datetime.combine(window.first_day, time(), ZoneInfo(window.zone))
    return max(now, first.astimezone(UTC))


def _too_many(window: Window, others: Sequence[Window], since: datetime) -> Iterator[Window]:
    """The windows active at the same time in that week, if they exceed a whole GPU together."""
    times = [(other, list(spans(other, since, since + 8 * DAY))) for other in others]
    for at in {max(span.start, since) for _, its_spans in times for span in its_spans}:
        active = [
            other for other, its_spans in times if any(s.start <= at < s.end for s in its_spans)
        ]
        if window in active and sum(other.share_pct for other in active) > 100:
            yield from (other for other in active if other is not window)


@lru_cache(maxsize=1024)
def describe(window: Window) -> str:
    """The days and hours in words: "Mon–Fri 20:00–06:00 (Europe/Berlin)"."""
    return f"{days(window.days)} {window.start:%H:%M}–{window.end:%H:%M} ({window.zone})"


def named(windows: Sequence[Window]) -> str:
    """The first few windows with their holders, in words."""
    return first_few([f"{each.holder}, {describe(each)}" for each in windows], separator="; ")


def days(numbers: Sequence[int]) -> str:
    """Days in words, runs of three and more as a range: "Mon–Fri", "Sat, Sun", "every day"."""
    if len(set(numbers)) == len(DAYS):
        return "every day"
    runs = [
        [day for _, day in run]
        for _, run in groupby(enumerate(sorted(set(numbers))), key=lambda pair: pair[1] - pair[0])
    ]
    words = []
    for run in runs:
        names = [DAYS[day] for day in run]
        words.append(f"{names[0]}–{names[-1]}" if len(run) > 2 else ", ".join(names))
    return ", ".join(words)


def moment(at: datetime, zone: str) -> str:
    """An instant for a sentence, with its day and zone: it reads the same at any time."""
    local = at.astimezone(ZoneInfo(zone))
    return f"{local:%a} {local.day} {local:%b %H:%M} ({zone})"
