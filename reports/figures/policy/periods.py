"""Policy: reads periods and scopes. Calendar days, weeks and months follow the time zone.

A day with a change of daylight saving time has 23 or 25 hours, and none is counted twice.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from monitor.facts.input_rules import LATEST, character_problem, possible_time
from reports.figures.facts import Period, ReportRefused, Scope, ScopeKind

DEFAULT = "24h"
LONGEST = timedelta(days=3 * 366)
SHORTEST = timedelta(minutes=1)
LONGEST_SCOPE = 200
CALENDAR = {"day": "Last day", "week": "Last week", "month": "Last month"}
UNITS = {"h": ("hour", 1), "d": ("day", 24), "w": ("week", 7 * 24)}
LAST = "Write a length such as 24h, 7d or 4w, or one of day, week and month."
MOMENT = "Write a date such as 2026-03-02, or a time such as 2026-03-02T12:00+01:00."
SCOPE = "Write all, user:NAME, group:NAME, gpu:UUID or host:NAME."
_LENGTH = re.compile(r"([1-9]\d{0,4})([hdw])", re.ASCII)


def parse(last: str, begin: str, end: str, zone: str, now: datetime) -> Period:
    """The period of a request; without any value the last 24 hours.

    `end` without `begin`, or `last` beside them, is refused. Raises ReportRefused.
    """
    if begin or end:
        if last:
            raise ReportRefused("last", "Write either last, or from and to.")
        return _custom(begin, end, zone, now)
    name = last or DEFAULT
    if name in CALENDAR:
        return calendar(name, zone, now)
    return rolling(name, zone, now)


def rolling(name: str, zone: str, now: datetime) -> Period:
    """A length up to now, such as "24h"."""
    match = _LENGTH.fullmatch(name)
    if match is None:
        raise ReportRefused("last", LAST)
    number, (word, hours) = int(match[1]), UNITS[match[2]]
    length = timedelta(hours=number * hours)
    if length > LONGEST:
        raise ReportRefused("last", f"A report covers at most {LONGEST.days} days.")
    until = _whole_minute(now)
    label = f"Last {number} {word}s" if number > 1 else f"Last {word}"
    return Period(name=name, label=label, since=until - length, until=until, zone=zone)


def calendar(name: str, zone: str, now: datetime) -> Period:
    """The last complete calendar day, week (from Monday) or month of the zone."""
    today = now.astimezone(ZoneInfo(zone)).date()
    end = _begin_of(name, today)
    return _of_dates(name, _before(name, end), end, zone)


def previous(period: Period) -> Period:
    """The period of the same kind that ends where this one begins."""
    if period.name in CALENDAR:
        end = period.since.astimezone(ZoneInfo(period.zone)).date()
        return _of_dates(period.name, _before(period.name, end), end, period.zone)
    length = period.until - period.since
    return replace(period, since=period.since - length, until=period.since)


def scope(text: str) -> Scope:
    """The scope of a request; "" means all. Raises ReportRefused."""
    if len(text) > LONGEST_SCOPE:
        raise ReportRefused("scope", f"It must have at most {LONGEST_SCOPE} characters.")
    if problem := character_problem(text):
        raise ReportRefused("scope", problem)
    kind, _, name = text.partition(":")
    if text in ("", "all"):
        return Scope()
    if kind not in set(ScopeKind) - {ScopeKind.ALL} or not name:
        raise ReportRefused("scope", SCOPE)
    return Scope(ScopeKind(kind), name)


def _custom(begin: str, end: str, zone: str, now: datetime) -> Period:
    if not begin:
        raise ReportRefused("from", "Write the begin of the period too.")
    since = _moment("from", begin, zone)
    until = _moment("to", end, zone) if end else now
    if since >= now:
        raise ReportRefused("from", "The period lies in the future.")
    if until <= since:
        raise ReportRefused("to", "The end must be after the begin.")
    since, until = _whole_minute(since), _whole_minute(min(until, now))
    if until - since < SHORTEST:
        raise ReportRefused("to", "A report covers at least one minute of the past.")
    if until - since > LONGEST:
        raise ReportRefused("from", f"A report covers at most {LONGEST.days} days.")
    local = [at.astimezone(ZoneInfo(zone)) for at in (since, until)]
    label = " to ".join(f"{at:%Y-%m-%d %H:%M}" for at in local) + f" {zone}"
    return Period(name="custom", label=label, since=since, until=until, zone=zone)


def _moment(field: str, text: str, zone: str) -> datetime:
    try:
        if len(text) > 40:
            raise ValueError
        moment = datetime.fromisoformat(text)
        return possible_time(moment if moment.tzinfo else moment.replace(tzinfo=ZoneInfo(zone)))
    except ValueError:
        raise ReportRefused(field, MOMENT) from None


def _begin_of(name: str, day: date) -> date:
    if name == "month":
        return day.replace(day=1)
    return day - timedelta(days=day.weekday()) if name == "week" else day


def _before(name: str, begin: date) -> date:
    """The begin of the calendar period before."""
    return _begin_of(name, begin - timedelta(days=1))


def _of_dates(name: str, begin: date, end: date, zone: str) -> Period:
    since, until = (
        datetime.combine(day, time(), ZoneInfo(zone)).astimezone(UTC) for day in (begin, end)
    )
    return Period(name=name, label=CALENDAR[name], since=since, until=until, zone=zone)


def _whole_minute(at: datetime) -> datetime:
    return min(at, LATEST).astimezone(UTC).replace(second=0, microsecond=0)
