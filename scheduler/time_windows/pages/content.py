"""Content of the page Time windows: each window in words and on a strip of seven days."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib.auth.models import User

from scheduler.facts.people import Window
from scheduler.models import TimeWindow
from scheduler.time_windows import rows as window_rows
from scheduler.time_windows.policy.calendar import coming, current, describe, spans

WEEK = timedelta(days=7)
S = TimeWindow.State
# The strip's width, in units of its viewBox.
WIDTH = 1000


@dataclass(frozen=True, slots=True)
class WeekStrip:
    """Seven days from a midnight on. `now` is the position of the current time on the strip."""

    since: datetime
    days: tuple[str, ...]
    now: float
    zone: str

    def x(self, at: datetime) -> float:
        until = self.since + WEEK
        inside = (min(max(at, self.since), until) - self.since).total_seconds()
        return round(WIDTH * inside / WEEK.total_seconds(), 1)


@dataclass(frozen=True, slots=True)
class WindowLine:
    """A time window as one user sees it.

    now: it is current; next_at: its next start; bars: (x, width) on the strip.
    """

    row: TimeWindow
    holder: str
    words: str
    gpus: str
    now: bool
    next_at: datetime | None
    mine: bool
    reason: str
    bars: tuple[tuple[float, float], ...]


def context(person: User, now: datetime, zone: str) -> dict[str, Any]:
    strip = week(now, zone)
    past = window_rows.seen_by(person, S.DECLINED, S.WITHDRAWN).order_by("-decided_at")[:10]
    return {
        "approved": lines(window_rows.seen_by(person, S.APPROVED), person, now, strip),
        "asked": lines(window_rows.seen_by(person, S.ASKED), person, now, strip),
        "past": lines(past, person, now, strip),
        "week": strip,
        "may_decide": person.has_perm("scheduler.change_timewindow"),
    }


def week(now: datetime, zone: str) -> WeekStrip:
    """The strip of the seven days that begin today."""
    today = now.astimezone(ZoneInfo(zone)).date()
    since = datetime.combine(today, time(0), ZoneInfo(zone))
    days = tuple(f"{today + timedelta(days=n):%a %d}" for n in range(7))
    strip = WeekStrip(since.astimezone(UTC), days, 0.0, zone)
    return replace(strip, now=strip.x(now))


def lines(
    rows: Iterable[TimeWindow], person: User, now: datetime, strip: WeekStrip
) -> list[WindowLine]:
    names = window_rows.gpu_names()
    return [_line(row, names, person, now, strip) for row in rows]


def _line(
    row: TimeWindow, names: dict[str, str], person: User, now: datetime, strip: WeekStrip
) -> WindowLine:
    fact = window_rows.fact(row)
    following = coming(fact, now)
    return WindowLine(
        row=row,
        holder=window_rows.holder(row),
        words=describe(fact),
        gpus=window_rows.gpus(row, names),
        now=current(fact, now) is not None,
        next_at=None if following is None else following.start,
        mine=window_rows.may_withdraw(row, person),
        reason=row.reason if window_rows.sees_reason(row, person) else "",
        bars=tuple(bars(fact, strip)),
    )


def bars(window: Window, strip: WeekStrip) -> Iterable[tuple[float, float]]:
    for span in spans(window, strip.since, strip.since + WEEK):
        start, end = strip.x(span.start), strip.x(span.end)
        yield start, round(max(2.0, end - start), 1)
