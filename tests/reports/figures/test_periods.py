from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.figures.facts import ReportRefused, Scope, ScopeKind
from reports.figures.policy import periods

NOW = datetime(2026, 3, 30, 12, 34, 56, tzinfo=UTC)
ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")
FIRST, LAST = datetime(2001, 1, 1), datetime(2099, 1, 1)  # noqa: DTZ001 - hypothesis adds the zone
MOMENTS = st.datetimes(FIRST, LAST, timezones=st.just(UTC))


def test_without_a_choice_it_is_the_last_24_hours_up_to_the_minute() -> None:
    period = periods.parse("", "", "", "UTC", NOW)

    assert period.label == "Last 24 hours"
    assert period.until == datetime(2026, 3, 30, 12, 34, tzinfo=UTC)
    assert period.hours == 24


def test_a_day_in_which_clocks_go_forward_has_23_hours() -> None:
    period = periods.parse("day", "", "", "Europe/Berlin", NOW)

    assert period.since == datetime(2026, 3, 28, 23, tzinfo=UTC)
    assert period.hours == 23


def test_a_week_begins_on_monday() -> None:
    period = periods.parse("week", "", "", "UTC", NOW)

    assert (period.since.day, period.until.day) == (23, 30)


def test_last_month_is_the_calendar_month_before() -> None:
    period = periods.parse("month", "", "", "UTC", NOW)

    assert (period.since.month, period.until.month, period.hours) == (2, 3, 28 * 24)


@given(MOMENTS, st.sampled_from(ZONES), st.sampled_from(sorted(periods.CALENDAR)))
def test_calendar_periods_follow_each_other_without_gap_or_overlap(
    now: datetime, zone: str, name: str
) -> None:
    period = periods.calendar(name, zone, now)
    before = periods.previous(period)

    assert before.until == period.since < period.until <= now
    local = period.since.astimezone(ZoneInfo(zone))
    assert (local.hour, local.minute) == (0, 0)


@given(MOMENTS, st.sampled_from(ZONES))
def test_a_day_has_23_to_25_hours(now: datetime, zone: str) -> None:
    assert timedelta(hours=23) <= _length("day", now, zone) <= timedelta(hours=25)


def _length(name: str, now: datetime, zone: str) -> timedelta:
    period = periods.calendar(name, zone, now)
    return period.until - period.since


def test_a_time_without_a_zone_is_in_the_zone_of_the_report() -> None:
    period = periods.parse("", "2026-03-02", "2026-03-03T06:00", "Asia/Kolkata", NOW)

    assert period.since == datetime(2026, 3, 1, 18, 30, tzinfo=UTC)
    assert period.until == datetime(2026, 3, 3, 0, 30, tzinfo=UTC)


def test_a_period_ends_now_at_the_latest() -> None:
    period = periods.parse("", "2026-03-30", "2026-04-30", "UTC", NOW)

    assert period.until == datetime(2026, 3, 30, 12, 34, tzinfo=UTC)


@pytest.mark.parametrize(
    ("last", "begin", "end", "field"),
    [
        ("25", "", "", "last"),
        ("0h", "", "", "last"),
        ("99999d", "", "", "last"),
        ("fortnight", "", "", "last"),
        ("24h", "2026-03-02", "", "last"),
        ("", "", "2026-03-02", "from"),
        ("", "yesterday", "", "from"),
        ("", "2026-03-03", "2026-03-02", "to"),
        ("", "2026-03-03", "2026-03-03", "to"),
        ("", "2027-01-01", "2027-02-01", "from"),
        ("", "1970-01-02", "2026-01-01", "from"),
        ("", "2026-03-30T12:34:10", "", "to"),
        ("", "9" * 50, "", "from"),
    ],
)
def test_an_impossible_period_is_refused_with_a_sentence(
    last: str, begin: str, end: str, field: str
) -> None:
    with pytest.raises(ReportRefused) as refused:
        periods.parse(last, begin, end, "UTC", NOW)

    assert refused.value.field == field
    assert refused.value.text.endswith(".")


def test_a_period_in_the_future_is_named_so() -> None:
    with pytest.raises(ReportRefused, match="lies in the future"):
        periods.parse("", "2027-01-01", "", "UTC", NOW)


def test_a_scope_names_its_kind() -> None:
    assert periods.scope("") == periods.scope("all") == Scope()
    assert periods.scope("user:a:b") == Scope(ScopeKind.USER, "a:b")
    assert periods.scope("gpu:GPU-1").text == "gpu:GPU-1"


@pytest.mark.parametrize(
    "text", ["alice", "user:", "all:x", "pod:1", "user:a\x00", "user:" + "a" * 300]
)
def test_an_impossible_scope_is_refused(text: str) -> None:
    with pytest.raises(ReportRefused):
        periods.scope(text)
