"""Routing of alerts: channels, quiet hours, working days, and delays between tries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo

from msgspec import Struct

from monitor.facts.incidents import SEVERITIES
from monitor.facts.thresholds import threshold
from monitor.journal.facts import EVENTS

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
INCIDENT = "INCIDENT_OPENED"
# Minimum time between mails about the same rule to the same owner. Warnings of enforcement are
# always sent.
OWNER_AGAIN_AFTER = timedelta(days=7)
# Seconds to the first retry, doubled after each failed attempt, and the longest ones.
RETRY_FIRST_S, RETRY_MOST_S = 30, 3600
# A message that cannot be sent for this time is dropped.
GIVE_UP_AFTER = timedelta(hours=24)
# Longer than any series of holidays; after this time the message is sent anyway.
MOST_DAYS = 60


@dataclass(frozen=True, slots=True)
class AlertPolicy:
    """Delivery of alerts. Recipients are set in the channels."""

    # fmt: off
    address: str = threshold("", "Public URL of gpucoord",
        "For links in messages, such as https://gpus.example.org. Empty = no links.")
    repeat_minutes: float = threshold(60, "Repeat an event after", unit="min", ge=0, le=10_080,
        help="Minimum time between messages about the same kind of event of the same GPU, job or "
             "host.")
    working_days: tuple[str, ...] = threshold(("Mon", "Tue", "Wed", "Thu", "Fri"), "Working days",
        choices=DAYS,
        help="All other days are free.")
    holidays: tuple[str, ...] = threshold((), "Holidays",
        "Free days: 2026-12-25 for one year, 12-25 for every year.")
    # fmt: on

    def conflicts(self) -> dict[str, str]:
        problems = {}
        if strange := [day for day in self.holidays if not _is_day(day)]:
            problems["holidays"] = f"{strange[0]} is not a date such as 2026-12-25 or 12-25"
        return problems


def _is_day(text: str) -> bool:
    whole = text if len(text) > 5 else f"2024-{text}"
    try:
        return date.fromisoformat(whole).isoformat() == whole
    except ValueError:
        return False


class Notice(Struct, frozen=True, kw_only=True):
    """An event or incident to report. `about` identifies it; `rule` is empty for events."""

    about: str
    at: datetime
    severity: str
    kind: str
    title: str
    text: str
    rule: str = ""
    host: str = ""
    gpu_uuid: str = ""
    person: str = ""
    repeat_key: str = ""


class Route(Struct, frozen=True, kw_only=True):
    """The filters and times of a channel. Empty = all."""

    least: str = "warning"
    kinds: Collection[str] = ()
    rules: Collection[str] = ()
    gpus: Collection[str] = ()
    hosts: Collection[str] = ()
    to_owners: bool = False
    quiet_from: time | None = None
    quiet_until: time | None = None
    working_days_only: bool = False
    errors_at_once: bool = True


def rank(severity: str) -> int:
    return SEVERITIES.index(severity)


def wants(route: Route, notice: Notice) -> bool:
    """Whether the notice matches the route. Owners get messages about their own incidents only."""
    if rank(notice.severity) < rank(route.least):
        return False
    if route.to_owners and not (notice.rule and notice.person):
        return False
    return (
        _takes(route.kinds, notice.kind)
        and (not notice.rule or _any_or_in(route.rules, notice.rule))
        and _any_or_in(route.gpus, notice.gpu_uuid)
        and _any_or_in(route.hosts, notice.host)
    )


def _takes(kinds: Collection[str], kind: str) -> bool:
    """By name, or by its group."""
    return not kinds or kind in kinds or any(kind in EVENTS.get(group, ()) for group in kinds)


def _any_or_in(choices: Collection[str], value: str) -> bool:
    return not choices or value in choices


def due_at(
    route: Route, severity: str, policy: AlertPolicy, now: datetime, zone: tzinfo
) -> datetime:
    """When the message may be sent: now, or after quiet hours and non-working days."""
    if severity == "error" and route.errors_at_once:
        return now
    at = now.astimezone(zone)
    latest = now + timedelta(days=MOST_DAYS)
    while at < latest:
        if route.working_days_only and not is_working(at.date(), policy):
            at = datetime.combine(at.date() + timedelta(days=1), time(0), zone)
        elif (end := _end_of_quiet(route, at, zone)) is not None:
            at = end
        else:
            break
    return max(at.astimezone(now.tzinfo), now)


def is_working(day: date, policy: AlertPolicy) -> bool:
    free = (day.isoformat(), day.isoformat()[5:])
    return DAYS[day.weekday()] in policy.working_days and not set(free) & set(policy.holidays)


def _end_of_quiet(route: Route, at: datetime, zone: tzinfo) -> datetime | None:
    """The end of the quiet hours around `at`; None if it is outside of them."""
    begin, end = route.quiet_from, route.quiet_until
    if begin is None or end is None or begin == end:
        return None
    clock = at.time()
    over_midnight = end < begin
    quiet = clock >= begin or clock < end if over_midnight else begin <= clock < end
    if not quiet:
        return None
    day = at.date() + timedelta(days=1 if over_midnight and clock >= begin else 0)
    return datetime.combine(day, end, zone)


def pause(attempts: int) -> timedelta:
    """The delay after this many tries."""
    doubled = RETRY_FIRST_S * 2.0 ** min(max(attempts - 1, 0), 30)
    return timedelta(seconds=min(doubled, RETRY_MOST_S))


def gives_up(attempts: int) -> bool:
    """Whether the sum of all delays so far exceeds the limit."""
    waited = sum((pause(i) for i in range(1, attempts)), timedelta())
    return waited >= GIVE_UP_AFTER
