from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from monitor.incidents.alerts.policy import (
    AlertPolicy,
    Notice,
    Route,
    due_at,
    gives_up,
    pause,
    wants,
)
from tests.builders import NOW

BERLIN = ZoneInfo("Europe/Berlin")
POLICY = AlertPolicy(holidays=("2026-12-24", "05-01"))


def notice(**changes: Any) -> Notice:
    facts: dict[str, Any] = {
        "about": "incident:1",
        "at": NOW,
        "severity": "warning",
        "kind": "INCIDENT_OPENED",
        "rule": "sustained",
        "host": "gpubox",
        "gpu_uuid": "GPU-1",
        "person": "alice",
        "title": "t",
        "text": "x",
    }
    return Notice(**(facts | changes))


@pytest.mark.parametrize(
    ("route", "seen", "taken"),
    [
        ({}, {}, True),
        ({"least": "error"}, {}, False),
        ({"least": "error"}, {"severity": "error"}, True),
        ({"rules": ["leak"]}, {}, False),
        ({"rules": ["leak"]}, {"rule": "", "kind": "GPU_LOST"}, True),
        ({"kinds": ["GPUs"]}, {"rule": "", "kind": "GPU_LOST"}, True),
        ({"kinds": ["GPU_LOST"]}, {"rule": "", "kind": "GPU_XID"}, False),
        ({"gpus": ["GPU-2"]}, {}, False),
        ({"hosts": ["gpubox"]}, {}, True),
        ({"hosts": ["other"]}, {}, False),
        ({"to_owners": True}, {}, True),
        ({"to_owners": True}, {"person": ""}, False),
        ({"to_owners": True}, {"rule": "", "kind": "GPU_LOST"}, False),
    ],
)
def test_a_channel_takes_what_its_filters_name(
    route: dict[str, Any], seen: dict[str, Any], taken: bool
) -> None:
    assert wants(Route(**route), notice(**seen)) is taken


def berlin(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=BERLIN)


NIGHTS = Route(quiet_from=time(22), quiet_until=time(7))
WEEK = Route(working_days_only=True)


@pytest.mark.parametrize(
    ("route", "now", "due"),
    [
        (NIGHTS, "2026-03-02 12:00", "2026-03-02 12:00"),
        (NIGHTS, "2026-03-02 22:00", "2026-03-03 07:00"),
        (NIGHTS, "2026-03-03 06:59", "2026-03-03 07:00"),
        (NIGHTS, "2026-03-03 07:00", "2026-03-03 07:00"),
        # The clocks go forward in this night: seven o'clock is seven o'clock.
        (NIGHTS, "2026-03-28 23:00", "2026-03-29 07:00"),
        (Route(quiet_from=time(12), quiet_until=time(13)), "2026-03-02 12:30", "2026-03-02 13:00"),
        (WEEK, "2026-03-06 18:00", "2026-03-06 18:00"),
        (WEEK, "2026-03-07 09:00", "2026-03-09 00:00"),
        (WEEK, "2026-12-24 09:00", "2026-12-25 00:00"),
        (WEEK, "2026-05-01 09:00", "2026-05-04 00:00"),
        (
            Route(working_days_only=True, quiet_from=time(22), quiet_until=time(7)),
            "2026-03-06 23:00",
            "2026-03-09 07:00",
        ),
    ],
)
def test_it_waits_for_the_end_of_quiet_hours_and_free_days(
    route: Route, now: str, due: str
) -> None:
    assert due_at(route, "warning", POLICY, berlin(now), BERLIN) == berlin(due)


def test_errors_wake_people_unless_the_channel_says_not() -> None:
    night = berlin("2026-03-02 23:00")
    asleep = Route(quiet_from=time(22), quiet_until=time(7), errors_at_once=False)

    assert due_at(NIGHTS, "error", POLICY, night, BERLIN) == night
    assert due_at(asleep, "error", POLICY, night, BERLIN) == berlin("2026-03-03 07:00")


def test_a_calendar_without_a_working_day_holds_nothing_back_for_ever() -> None:
    free = AlertPolicy(working_days=())
    due = due_at(WEEK, "warning", free, NOW, UTC)

    assert timedelta(0) < due - NOW < timedelta(days=70)


@settings(max_examples=50)
@given(
    st.integers(0, 365 * 24 * 60),
    st.times(),
    st.times(),
    st.booleans(),
)
def test_what_is_due_is_due_then_and_never_before_now(
    minute: int, begin: time, end: time, working: bool
) -> None:
    now = NOW + timedelta(minutes=minute)
    quiet = {"quiet_from": begin, "quiet_until": end}
    route = Route(working_days_only=working, **quiet)
    due = due_at(route, "warning", AlertPolicy(), now, BERLIN)

    assert due >= now
    assert due_at(route, "warning", AlertPolicy(), due, BERLIN) == due


def test_pauses_double_up_to_the_longest() -> None:
    assert [pause(i).total_seconds() for i in (1, 2, 3, 9)] == [30, 60, 120, 3600]


def test_it_gives_up_when_the_pauses_have_added_up() -> None:
    assert [gives_up(i) for i in (1, 30, 31)] == [False, False, True]


def test_days_that_are_none_are_refused() -> None:
    assert POLICY.conflicts() == {}
    assert set(AlertPolicy(holidays=("02-29", "2026-13-01")).conflicts()) == {"holidays"}
