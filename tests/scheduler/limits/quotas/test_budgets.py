from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.limits.quotas.policy import charging

BERLIN = "Europe/Berlin"
HOUR = timedelta(hours=1)
NOON = datetime(2026, 7, 1, 12, tzinfo=UTC)
ZONES = [BERLIN, "UTC", "America/Havana", "Africa/Cairo", "Asia/Kathmandu", "Pacific/Apia"]


@pytest.mark.parametrize(
    ("on", "hours"),
    [(date(2026, 3, 28), 24), (date(2026, 3, 29), 23), (date(2026, 10, 25), 25)],
)
def test_a_day_is_as_long_as_the_clocks_make_it(on: date, hours: int) -> None:
    noon = datetime(on.year, on.month, on.day, 12, tzinfo=ZoneInfo(BERLIN))
    day = charging.day(noon, BERLIN)

    assert day.until_at - day.from_at == hours * HOUR
    assert day.from_at.astimezone(ZoneInfo(BERLIN)).date() == on


def test_where_the_clocks_skip_midnight_the_day_begins_at_the_skip() -> None:
    first = charging.midnight(date(2026, 4, 24), "Africa/Cairo")

    assert first == datetime(2026, 4, 23, 22, tzinfo=UTC)
    assert first.astimezone(ZoneInfo("Africa/Cairo")).hour == 1


@settings(max_examples=50)
@given(
    st.integers(0, 25 * 366 * 86_400),
    st.sampled_from(ZONES),
    st.timedeltas(timedelta(0), timedelta(days=4)),
)
def test_every_second_is_in_exactly_one_day(second: int, zone: str, more: timedelta) -> None:
    at = datetime(2012, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    today = charging.day(at, zone)
    pieces = list(charging.days(at, at + more, zone))

    assert today.from_at <= at < today.until_at
    assert sum((end - start for _, start, end in pieces), timedelta(0)) == more
    assert all(day.from_at <= start < end <= day.until_at for day, start, end in pieces)


def test_the_reset_is_said_in_the_configured_zone() -> None:
    reset_at = charging.resets_at(datetime(2026, 7, 1, 23, tzinfo=UTC), BERLIN)

    assert reset_at.isoformat() == "2026-07-03T00:00:00+02:00"


def test_what_runs_counts_until_its_end() -> None:
    running = [(2.0, HOUR), (0.25, 2 * HOUR), (1.0, -HOUR)]
    budget = charging.budget(600, 30, running, NOON, "UTC")

    assert (budget.spent, budget.committed) == (30, 150)


def test_a_job_without_a_limit_takes_all_that_is_left_of_the_budget() -> None:
    assert charging.budget(600, 30, [(1.0, None)], NOON, "UTC").committed == 570
    assert charging.budget(600, 30, [(0.0, None)], NOON, "UTC").committed == 0
    assert charging.budget(600, 1000, [(1.0, None), (1.0, HOUR)], NOON, "UTC").committed == 60
