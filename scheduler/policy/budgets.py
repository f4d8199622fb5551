"""Policy: GPU-minutes of a day: from local midnight to local midnight, whatever the clocks do.

They never fade. What runs counts until its end: who has no limit counts as all that is left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

from scheduler.people import Budget


@dataclass(frozen=True, slots=True)
class Day:
    """A day of the ledger; both instants are in UTC."""

    from_at: datetime
    until_at: datetime


def day(at: datetime, zone: str) -> Day:
    """The day in which `at` is: 23, 24 or 25 hours of it."""
    today = at.astimezone(ZoneInfo(zone)).date()
    return Day(midnight(today, zone), midnight(today + timedelta(days=1), zone))


def resets_at(at: datetime, zone: str) -> datetime:
    """When the day of `at` ends, in its zone."""
    return day(at, zone).until_at.astimezone(ZoneInfo(zone))


def midnight(of: date, zone: str) -> datetime:
    """The instant at which a date begins. Where clocks skip midnight it is what they skip to."""
    return datetime.combine(of, time(), ZoneInfo(zone)).astimezone(UTC)


def days(since: datetime, until: datetime, zone: str) -> Iterator[tuple[Day, datetime, datetime]]:
    """The days that such a time touches, each with the part of the time that is in it."""
    start = since
    while start < until:
        found = day(start, zone)
        end = min(until, found.until_at)
        yield found, start, end
        start = end


def budget(
    limit: float,
    spent: float,
    running: Iterable[tuple[float, timedelta | None]],
    until: datetime,
    zone: str,
) -> Budget:
    """Where a person stands on a day that ends at `until`, said in `zone`.

    `running`: what each of their jobs holds, and how long it goes on.

    A job of which nobody knows counts as all that is left: until it ends, nothing else starts.
    """
    committed, endless = 0.0, False
    for held, remaining in running:
        if remaining is None:
            endless = endless or held > 0
        else:
            committed += held * max(0.0, remaining.total_seconds()) / 60
    if endless:
        committed = max(committed, limit - spent)
    return Budget(
        limit=limit,
        spent=spent,
        committed=committed,
        resets_at=until,
        zone=zone,
    )
