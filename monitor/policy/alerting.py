"""Which alerts go where, and when: routes, quiet hours, working days, pauses between tries."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import date, datetime, time, timedelta, tzinfo

from monitor.event_kinds import EVENTS

SEVERITIES = ("info", "warning", "error")
DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
INCIDENT = "INCIDENT_OPENED"
# Longer than any row of holidays: then it is sent whatever the calendar says.
MOST_DAYS = 60


@dataclass(frozen=True, slots=True)
class AlertPolicy:
    """How alerts are sent; to whom is in the channels."""

    address: str = field(
        default="",
        metadata={
            "label": "Address of gpucoord",
            "help": "For links in messages, such as https://gpus.example.org. Empty: no links.",
        },
    )
    repeat_minutes: float = field(
        default=60,
        metadata={
            "label": "Same event again",
            "help": "The same kind of event of the same GPU, job or host is sent again after this.",
            "unit": "min",
            "least": 0,
            "most": 10_080,
        },
    )
    owner_days: float = field(
        default=7,
        metadata={
            "label": "Mails to owners",
            "help": "A person gets one mail for each rule in so many days. Warnings before gpucoord"
            " acts are not counted: nothing is done without them.",
            "unit": "d",
            "least": 0,
            "most": 365,
        },
    )
    retry_first_s: float = field(
        default=30,
        metadata={
            "label": "First retry",
            "help": "Pause after a first failure; it doubles each time.",
            "unit": "s",
            "least": 5,
            "most": 3600,
        },
    )
    retry_most_s: float = field(
        default=3600,
        metadata={
            "label": "Longest pause",
            "help": "Pauses between tries grow no longer than this.",
            "unit": "s",
            "least": 5,
            "most": 86_400,
        },
    )
    give_up_hours: float = field(
        default=24,
        metadata={
            "label": "Give up after",
            "help": "A message that could not be sent for so long is not tried again.",
            "unit": "h",
            "least": 0.1,
            "most": 720,
        },
    )
    working_days: tuple[str, ...] = field(
        default=("Mon", "Tue", "Wed", "Thu", "Fri"),
        metadata={"label": "Working days", "help": "Others are free.", "choices": DAYS},
    )
    holidays: tuple[str, ...] = field(
        default=(),
        metadata={
            "label": "Holidays",
            "help": "Days without work: 2026-12-25 in one year, 12-25 in each.",
        },
    )

    def conflicts(self) -> dict[str, str]:
        """Days that are none."""
        found = {}
        if strange := [day for day in self.holidays if not _is_day(day)]:
            found["holidays"] = f"{strange[0]} is no day such as 2026-12-25 or 12-25"
        return found


def _is_day(text: str) -> bool:
    whole = text if len(text) > 5 else f"2024-{text}"
    try:
        return date.fromisoformat(whole).isoformat() == whole
    except ValueError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """Something that may be told. `about` names it; rule is empty for what is no incident."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a channel takes, and when. Empty = all."""

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
    """Whether this goes there. Owners hear of incidents of theirs only."""
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
    """By name, or by the group that it is in."""
    return not kinds or kind in kinds or any(kind in EVENTS.get(group, ()) for group in kinds)


def _any_or_in(wanted: Collection[str], value: str) -> bool:
    return not wanted or value in wanted


def due_at(
    route: Route, severity: str, policy: AlertPolicy, now: datetime, zone: tzinfo
) -> datetime:
    """When it may be sent: now, or when quiet hours and free days are over."""
    if severity == "error" and route.errors_at_once:
        return now
    at = now.astimezone(zone)
    latest = now + timedelta(days=MOST_DAYS)
    while at < latest:
        if route.working_days_only and not is_working(at.date(), policy):
            at = _midnight_after(at, zone)
        elif (end := _end_of_quiet(route, at, zone)) is not None:
            at = end
        else:
            break
    return max(at.astimezone(now.tzinfo), now)


def is_working(day: date, policy: AlertPolicy) -> bool:
    free = (day.isoformat(), day.isoformat()[5:])
    return DAYS[day.weekday()] in policy.working_days and not set(free) & set(policy.holidays)


def _end_of_quiet(route: Route, at: datetime, zone: tzinfo) -> datetime | None:
    """When the quiet hours end that `at` is in; None when it is in none."""
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


def _midnight_after(at: datetime, zone: tzinfo) -> datetime:
    return datetime.combine(at.date() + timedelta(days=1), time(0), zone)


def pause(attempts: int, policy: AlertPolicy) -> timedelta:
    """How long to wait after that many tries."""
    doubled = policy.retry_first_s * 2.0 ** min(max(attempts - 1, 0), 30)
    return timedelta(seconds=min(doubled, policy.retry_most_s))


def gives_up(attempts: int, policy: AlertPolicy) -> bool:
    """Whether all the pauses so far are longer than anybody wants to wait."""
    waited = sum((pause(i, policy) for i in range(1, attempts)), timedelta())
    return waited >= timedelta(hours=policy.give_up_hours)
