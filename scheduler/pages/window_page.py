"""The page of agreed times: what each window means in words, and on a strip of seven days."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib.auth.models import User

from scheduler import windows
from scheduler.models import TimeWindow
from scheduler.people import Window
from scheduler.policy.calendar import coming, current, describe, moment, spans

WEEK = timedelta(days=7)
S = TimeWindow.State
# The strip's width, in units of its viewBox.
WIDTH = 1000


@dataclass(frozen=True, slots=True)
class Week:
    """Seven days from a midnight on; `now`: where this moment is in them."""

    since: datetime
    days: tuple[str, ...]
    now: float
    zone: str

    def x(self, at: datetime) -> float:
        until = self.since + WEEK
        inside = (min(max(at, self.since), until) - self.since).total_seconds()
        return round(WIDTH * inside / WEEK.total_seconds(), 1)


@dataclass(frozen=True, slots=True)
class Line:
    """A window. `now`: it goes on; `next_at`: when it comes next; `bars`: (x, width)."""

    row: TimeWindow
    holder: str
    words: str
    gpus: str
    now: bool
    next_at: str
    mine: bool
    bars: tuple[tuple[float, float], ...]


def context(person: User, now: datetime, zone: str) -> dict[str, Any]:
    this = week(now, zone)
    past = windows.seen_by(person, S.DECLINED, S.WITHDRAWN).order_by("-decided_at")[:10]
    return {
        "approved": lines(windows.seen_by(person, S.APPROVED), person, now, this),
        "asked": lines(windows.seen_by(person, S.ASKED), person, now, this),
        "past": lines(past, person, now, this),
        "week": this,
        "may_decide": person.has_perm("scheduler.change_timewindow"),
    }


def week(now: datetime, zone: str) -> Week:
    """The seven days that begin today."""
    today = now.astimezone(ZoneInfo(zone)).date()
    since = datetime.combine(today, time(0), ZoneInfo(zone))
    days = tuple(f"{today + timedelta(days=n):%a %d}" for n in range(7))
    found = Week(since.astimezone(UTC), days, 0.0, zone)
    return replace(found, now=found.x(now))


def lines(rows: Iterable[TimeWindow], person: User, now: datetime, this: Week) -> list[Line]:
    names = windows.gpu_names()
    return [_line(row, names, person, now, this) for row in rows]


def _line(row: TimeWindow, names: dict[str, str], person: User, now: datetime, this: Week) -> Line:
    fact = windows.fact(row)
    following = coming(fact, now)
    return Line(
        row=row,
        holder=windows.holder(row),
        words=describe(fact),
        gpus=windows.gpus(row, names),
        now=current(fact, now) is not None,
        next_at="" if following is None else moment(following.start, row.zone),
        mine=windows.may_withdraw(row, person),
        bars=tuple(bars(fact, this)),
    )


def bars(window: Window, this: Week) -> Iterable[tuple[float, float]]:
    for span in spans(window, this.since, this.since + WEEK):
        start, end = this.x(span.start), this.x(span.end)
        yield start, round(max(2.0, end - start), 1)
