"""Hours of defensive mode and throttling, and their effects, in a report."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User

from monitor.journal.rows import events
from monitor.models import Pattern
from monitor.owners.policy import Viewer
from reports.figures.actions import build
from reports.figures.facts import Report
from reports.figures.policy import periods
from scheduler.models import YieldRequest
from tests.builders import NOW
from tests.jobs_made import running
from tests.reports.made import watched_gpu

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def machines() -> None:
    """Two hosts with a GPU each."""
    watched_gpu(NOW - 24 * HOUR, NOW, host="gpubox")
    watched_gpu(NOW - 24 * HOUR, NOW, 1, host="far")


def report(scope: str = "all") -> Report:
    period = periods.parse("24h", "", "", "UTC", NOW)
    return build(period, periods.scope(scope), Viewer("root", operator=True), NOW)


def happened(kind: str, hours_ago: float, severity: str = "info", host: str = "gpubox") -> None:
    events.add(kind, kind, now=NOW - hours_ago * HOUR, severity=severity, host=host)


def test_defensive_and_throttled_hours_lie_between_their_events(machines: None) -> None:
    happened("MODE_CHANGED", 6, "warning")
    happened("MODE_CHANGED", 2)
    happened("BACKPRESSURE_ACTIVATED", 5, "warning")
    happened("BACKPRESSURE_RELEASED", 4.5)

    made = report().operation

    assert (made.defensive_hours, made.throttled_hours) == (4, 0.5)


def test_a_mode_from_before_the_period_counts_from_its_begin(machines: None) -> None:
    happened("MODE_CHANGED", 30, "warning")
    happened("MODE_CHANGED", 21)

    assert report().operation.defensive_hours == 3


def test_a_mode_that_has_not_ended_counts_until_the_end(machines: None) -> None:
    happened("MODE_CHANGED", 1.5, "warning")

    assert report().operation.defensive_hours == 1.5


def test_hours_are_those_of_the_host_with_most(machines: None) -> None:
    happened("MODE_CHANGED", 2, "warning")
    happened("MODE_CHANGED", 7, "warning", host="far")

    assert report().operation.defensive_hours == 7
    assert report("host:gpubox").operation.defensive_hours == 2


def test_deferrals_preemptions_and_evictions_are_those_of_the_host(
    machines: None, alice: User
) -> None:
    attempt = running(alice).attempts.get()
    kind, ago = YieldRequest.Kind.EVICTION, NOW - HOUR
    YieldRequest.objects.create(attempt=attempt, kind=kind, code="x", asked_at=ago, deadline=NOW)
    happened("JOB_DEFERRED", 3)
    happened("JOB_DEFERRED", 3, host="far")

    counts = {
        scope: (made.deferrals, made.preemptions, made.evictions)
        for scope in ("all", "host:gpubox", "host:far")
        for made in [report(scope).operation]
    }

    assert counts == {"all": (2, 0, 1), "host:gpubox": (1, 0, 1), "host:far": (1, 0, 0)}


def test_recurring_patterns_are_those_of_the_users_of_the_report(machines: None) -> None:
    gpu = watched_gpu(NOW - 24 * HOUR, NOW, 2, host="gpubox")
    for name in ("alice", "bob"):
        Pattern.objects.create(
            host="gpubox", gpu=gpu, user=name, start_minute=1200, end_minute=360, zone="UTC",
            hits=12, chances=13, mean_pct=95, text=f"python ({name}) every night", found_at=NOW,
        )  # fmt: skip

    assert [row.user for row in report().patterns] == ["alice", "bob"]
    assert report("host:far").patterns == ()


def test_the_hours_of_a_pattern_name_their_zone_where_the_report_has_another(
    machines: None,
) -> None:
    gpu = watched_gpu(NOW - 24 * HOUR, NOW, 2, host="gpubox")
    for zone in ("UTC", "Asia/Tokyo"):
        Pattern.objects.create(
            host="gpubox", gpu=gpu, user="alice", start_minute=1200, end_minute=360, zone=zone,
            hits=12, chances=13, mean_pct=95, text="every night 20:00–06:00", found_at=NOW,
        )  # fmt: skip

    assert [row.text for row in report().patterns] == [
        "every night 20:00–06:00",
        "every night 20:00–06:00, hours in Asia/Tokyo",
    ]
