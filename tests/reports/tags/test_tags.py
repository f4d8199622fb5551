"""GPU-hours by tag: only the time inside the period counts, and unknown use is not 0."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from gpucoord_site.cli import report
from reports.tags.policy import TaggedAttempt, sums
from scheduler.models import Attempt, AttemptUse
from tests import jobs_made
from tests.builders import NOW
from tests.cli_bridge import connect_as

HOUR = timedelta(hours=1)
DAY = (NOW, NOW + 24 * HOUR)


def attempt(
    begin_h: float, end_h: float | None, sm_h: float | None = None, **changes: Any
) -> TaggedAttempt:
    facts: dict[str, Any] = {
        "value": "vision", "owner": "alice", "job": 1, "gpus": 1,
        "began_at": NOW + begin_h * HOUR,
        "ended_at": None if end_h is None else NOW + end_h * HOUR,
        "sm_s": None if sm_h is None else sm_h * 3600,
    }  # fmt: skip
    return TaggedAttempt(**(facts | changes))


def test_only_the_time_inside_the_period_counts() -> None:
    (use,) = sums([attempt(-2, 2, sm_h=2.0), attempt(23, 30)], *DAY, NOW + 48 * HOUR)

    assert (use.held_s, use.known_s, use.used_s) == (3 * 3600, 2 * 3600, 3600)
    assert (use.efficiency, use.coverage) == (0.5, 2 / 3)


def test_a_running_job_counts_until_now_and_its_use_is_unknown() -> None:
    (use,) = sums([attempt(1, None, gpus=2)], *DAY, NOW + 3 * HOUR)

    assert (use.held_s, use.efficiency, use.coverage) == (4 * 3600, None, 0.0)


def test_attempts_outside_the_period_do_not_count() -> None:
    assert sums([attempt(-5, -1), attempt(25, 26)], *DAY, NOW + 48 * HOUR) == []


def test_jobs_and_users_of_a_value_count_once() -> None:
    uses = sums(
        [
            attempt(0, 1), attempt(1, 2), attempt(2, 3, job=2, owner="bob"),
            attempt(0, 9, value="speech", job=3),
        ],
        *DAY,
        NOW + 48 * HOUR,
    )  # fmt: skip

    assert [(use.value, len(use.jobs), len(use.users)) for use in uses] == [
        ("speech", 1, 1), ("vision", 2, 2)
    ]  # fmt: skip


@pytest.fixture
def vision(alice: User) -> None:
    """A job of this project ran for one hour until now, and used half of it."""
    job = jobs_made.running(alice, tags={"project": "vision"})
    jobs_made.end(job)
    # Periods end at whole minutes.
    now = timezone.now() - timedelta(minutes=5)
    Attempt.objects.update(placed_at=now - HOUR, started_at=now - HOUR, ended_at=now)
    AttemptUse.objects.create(
        attempt=job.attempts.get(), fingerprint="x", is_sample=True, gpu_s=3600.0, sm_s=1800.0
    )
    jobs_made.running(alice, on=(1,), tags={"other": "x"})


@pytest.mark.usefixtures("vision")
def test_the_command_prints_a_line_for_each_value(
    alice: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connect_as(alice, monkeypatch)

    assert report.main(["--tag", "project", "--last", "7d"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["PROJECT", "JOBS", "USERS", "GPU-HOURS", "USED", "MEASURED"]
    assert lines[1].split() == ["vision", "1", "1", "1.00", "50", "%", "100", "%"]
    assert len(lines) == 2


@pytest.mark.usefixtures("vision")
def test_rest_filters_by_user_and_refuses_wrong_values(
    alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = connect_as(alice, monkeypatch).report_by_tag({"tag": "project", "user": "me"})
    his = connect_as(bob, monkeypatch).report_by_tag({"tag": "project", "user": "me"})

    assert [value["value"] for value in mine["values"]] == ["vision"]
    assert (his["total"], his["values"]) == (0, [])


def test_formats_of_the_other_report_are_refused_with_a_tag(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report.main(["--tag", "project", "--format", "pdf"]) == 125
    assert "text or json" in capsys.readouterr().err
