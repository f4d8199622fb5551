"""Policy: when time windows allow a job to start, for forecasts of the next weeks.

By the rules of windows.py, with all occurrences laid out once, as many jobs ask.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from scheduler.facts.jobs import QueuedJob, Requirement
from scheduler.facts.people import Window
from scheduler.limits.time_windows.policy.calendar import Span, spans
from scheduler.limits.time_windows.policy.rules import WindowPolicy

# Nothing is predicted beyond this time.
HORIZON, MONTH = timedelta(days=60), timedelta(days=30)


@dataclass(frozen=True, slots=True)
class _Times:
    """A window with all its occurrences, those joined that follow without a gap."""

    window: Window
    spans: Sequence[Span]
    starts: Sequence[datetime]

    def at(self, at: datetime) -> Span | None:
        """The occurrence at this time; None = there is none."""
        number = bisect_right(self.starts, at) - 1
        return self.spans[number] if number >= 0 and self.spans[number].end > at else None

    def after(self, at: datetime) -> Span | None:
        """The next one that begins later."""
        number = bisect_right(self.starts, at)
        return self.spans[number] if number < len(self.spans) else None


class WindowForecast:
    """`opens(job, gpu, total_bytes, at)`: the first allowed time from `at` on; None = unknown."""

    def __init__(self, windows: Sequence[Window], policy: WindowPolicy, now: datetime) -> None:
        self._until = now + HORIZON
        self._unknown = timedelta(hours=policy.unknown_hours)
        self._times = [_times(window, now, self._until) for window in windows]

    @property
    def is_any(self) -> bool:
        return bool(self._times)

    def opens(
        self, job: QueuedJob, gpu_uuid: str, total_bytes: int | None, at: datetime
    ) -> datetime | None:
        if not self._times:
            return at
        on_gpu = [
            t for t in self._times if not t.window.gpu_uuids or gpu_uuid in t.window.gpu_uuids
        ]
        own = [t for t in on_gpu if job.owner in t.window.members]
        others = [
            t
            for t in on_gpu
            if t.window.kept
            and job.owner not in t.window.members
            and not _leaves(job.requirement, t.window, total_bytes)
        ]
        while at < self._until:
            ends = at if job.preemptible else at + (job.lasts or self._unknown)
            closed = _own(own, at, ends) or _kept_until(others, at, ends)
            if closed is None:
                return at
            at = closed
        return None


_NEVER = datetime.max.replace(tzinfo=UTC)


def _own(own: Sequence[_Times], at: datetime, ends: datetime) -> datetime | None:
    """When to check again if the owner's own time windows prevent a start; None = they allow it."""
    over = _over(own, at, ends)
    if over is not None:
        return None if ends <= over else over
    if all(times.window.kept for times in own):
        return None
    following = [span.start for times in own if (span := times.after(at))]
    return min(following, default=_NEVER)


def _over(own: Sequence[_Times], at: datetime, reach: datetime) -> datetime | None:
    """The end of the current windows, joined with those that follow at once; None = no window."""
    end = None
    while at <= reach and (going := [span.end for times in own if (span := times.at(at))]):
        end = at = max(going)
    return end


def _kept_until(others: Sequence[_Times], at: datetime, ends: datetime) -> datetime | None:
    """The end of the other users' windows that the job would run into; None = there is none."""
    for times in others:
        span = times.at(at) or times.after(at)
        if span is not None and (span.start <= at or span.start < ends):
            return span.end
    return None


def _leaves(requirement: Requirement, window: Window, total_bytes: int | None) -> bool:
    """Whether the window's share stays free beside such a job."""
    wanted = requirement.memory_bytes
    if requirement.exclusive or wanted is None or total_bytes is None:
        return False
    return wanted <= total_bytes * (1 - window.share_pct / 100)


def _times(window: Window, now: datetime, until: datetime) -> _Times:
    times: list[Span] = []
    for span in spans(window, now, until + MONTH):
        if times and span.start <= times[-1].end:
            times[-1] = Span(times[-1].start, max(times[-1].end, span.end))
        else:
            times.append(span)
    return _Times(window, times, [span.start for span in times])
