"""The demo's agreed times: one in force in two days, one that waits for a decision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.contrib.auth.models import User

from scheduler import windows
from scheduler.models import TimeWindow

DAY = timedelta(days=1)


def seed_windows(
    users: Mapping[str, User], uuids: Sequence[str], admin: str, now: datetime, zone: str
) -> None:
    """None of them touches what runs and waits in the next hours."""
    today = now.astimezone(ZoneInfo(zone)).weekday()
    nights = TimeWindow(
        user=users["alice"],
        days=sorted((today + n) % 7 for n in (2, 3, 4)),
        start=time(20),
        end=time(6),
        zone=zone,
        gpu_uuids=list(uuids[-2:]),
        reason="Nightly training of the vision models, until the paper is out.",
    )
    course = TimeWindow(
        user=users["dana"],
        days=[(today + 3) % 7],
        start=time(14),
        end=time(16),
        zone=zone,
        gpu_uuids=list(uuids[:1]),
        share_pct=50,
        reason="The students' exercises: they need half of a GPU for two hours.",
    )
    asked = windows.ask(nights, users["alice"], now - 2 * DAY)
    windows.decide(
        asked.pk, TimeWindow.State.APPROVED, admin, now - DAY, "Fine. Tell me when it is out."
    )
    windows.ask(course, users["dana"], now - timedelta(minutes=40))
