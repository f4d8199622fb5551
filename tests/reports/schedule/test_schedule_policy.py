"""Which period a schedule reports, and what a message with a report says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from reports.schedule import policy
from reports.schedule.policy import due

ZONE = "Europe/Berlin"
# Monday 2 March 2026, 06:30 in Berlin.
MONDAY = datetime(2026, 3, 2, 5, 30, tzinfo=UTC)
MIDNIGHT = datetime(2026, 3, 1, 23, tzinfo=UTC)


def test_the_last_week_is_due_on_monday_after_its_hour() -> None:
    assert due("week", 7, None, ZONE, MONDAY) is None
    period = due("week", 7, None, ZONE, MONDAY + timedelta(hours=1))
    assert period is not None
    assert (period.until, period.hours) == (MIDNIGHT, 168)


@pytest.mark.parametrize(("every", "hours"), [("day", 24), ("week", 168), ("month", 28 * 24)])
def test_days_weeks_and_months_are_those_of_the_calendar(every: str, hours: int) -> None:
    period = due(every, 0, None, ZONE, MONDAY)
    assert period is not None
    assert period.hours == hours


def test_a_reported_period_is_not_due_again() -> None:
    assert due("day", 0, MIDNIGHT, ZONE, MONDAY) is None
    assert due("day", 0, MIDNIGHT - timedelta(days=1), ZONE, MONDAY) is not None


def test_missed_periods_are_not_made_up_for() -> None:
    period = due("day", 0, MIDNIGHT - timedelta(days=30), ZONE, MONDAY)
    assert period is not None
    assert period.until == MIDNIGHT


def test_a_message_is_cut_after_a_line_and_names_the_stored_report() -> None:
    text = policy.shortened("a line\n" * 2000, "https://gpus/reports/stored/1/")
    assert len(text) < policy.LONGEST_TEXT + 200
    assert "a line\n…\nThe stored report has the rest." in text
    assert text.endswith("https://gpus/reports/stored/1/")
    assert policy.shortened("short\n", "") == "short"


def test_the_title_of_an_incident_report_names_only_a_known_user() -> None:
    known = policy.incident_title("alice", "python", "12", "GPU 2 of box", is_idle=False)
    assert known == "alice's job 12 violates the fair share on GPU 2 of box"
    unknown = policy.incident_title("", "python", "", "GPU 2 of box", is_idle=False)
    assert unknown == "Unfair use of GPU 2 of box: the owner of python is unknown"


def test_the_title_of_idle_memory_speaks_of_no_violation() -> None:
    known = policy.incident_title("erin", "python", "", "GPU 5 of box", is_idle=True)
    assert known == "erin's python holds memory idle on GPU 5 of box"
    unknown = policy.incident_title("", "python", "", "GPU 5 of box", is_idle=True)
    assert unknown == "Memory held idle on GPU 5 of box: the owner of python is unknown"
