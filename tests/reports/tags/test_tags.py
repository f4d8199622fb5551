"""GPU-hours by tag: only the time inside the period counts, and unknown use is not 0."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from gpucoord_site.cli import verbs
from reports.tags.pages import TaggedAttempt, sums
from scheduler.models import Attempt, AttemptUse
from tests import jobs_made
from tests.builders import NOW
from tests.cli_bridge import connect_as

HOUR = timedelta(hours=1)
AsUser = Callable[[User], Client]
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

    assert verbs.report(["--tag", "project", "--last", "7d"]) == 0
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
    assert verbs.report(["--tag", "project", "--format", "pdf"]) == 125
    assert "text, json or csv" in capsys.readouterr().err


@pytest.mark.usefixtures("vision")
def test_the_command_writes_a_csv_file(
    alice: User, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    connect_as(alice, monkeypatch)
    file = tmp_path / "hours.csv"

    words = ["--tag", "project", "--last", "7d", "--format", "csv", "--output", str(file)]
    assert verbs.report(words) == 0
    head, row = file.read_bytes().decode().splitlines()
    assert head == "value,jobs,users,gpu_hours_held,gpu_hours_used,efficiency,coverage"
    assert row == "vision,1,1,1.0,0.5,0.5,1.0"


def test_a_value_is_no_formula_of_a_spreadsheet(alice: User, as_user: AsUser) -> None:
    jobs_made.running(alice, tags={"project": "=1+1"})
    Attempt.objects.update(placed_at=timezone.now() - HOUR, started_at=timezone.now() - HOUR)

    answer = as_user(alice).get("/api/reports/tags/?tag=project&format=csv")
    assert answer["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.content.decode().splitlines()[1].startswith("'=1+1,")


def test_an_unknown_format_is_refused(alice: User, as_user: AsUser) -> None:
    answer = as_user(alice).get("/api/reports/tags/?tag=project&format=pdf")

    assert answer.status_code == 422
    assert "json, csv" in str(answer.json())


@pytest.mark.usefixtures("vision")
def test_the_page_shows_the_figures_and_offers_the_file(alice: User, as_user: AsUser) -> None:
    html = as_user(alice).get("/reports/tags/?tag=project&last=7d").content.decode()

    assert "<td>vision</td>" in html
    assert ("50 %" in html, "100 %" in html) == (True, True)
    assert "/api/reports/tags/?tag=project&amp;last=7d&amp;format=csv" in html


@pytest.mark.usefixtures("vision")
def test_the_page_shows_the_jobs_of_the_user_alone(bob: User, as_user: AsUser) -> None:
    html = as_user(bob).get("/reports/tags/?tag=project&last=7d&user=me").content.decode()

    assert "No job with this tag" in html


@pytest.mark.usefixtures("vision")
def test_the_page_offers_the_tags_in_use(alice: User, as_user: AsUser) -> None:
    page = as_user(alice).get("/reports/tags/")

    assert page.context["names"] == ["other", "project"]
    assert page.context["report"]["tag"] == "other"


def test_the_page_says_how_to_tag_a_job_when_there_is_no_tag(alice: User, as_user: AsUser) -> None:
    assert "No job has a tag yet" in as_user(alice).get("/reports/tags/").content.decode()


@pytest.mark.parametrize(
    "query", [f"tag={'x' * 41}", "tag=a%07", "tag=a&last=25", "tag=a&user=bob"]
)
def test_the_page_refuses_a_wrong_choice_with_its_reason(
    alice: User, as_user: AsUser, query: str
) -> None:
    page = as_user(alice).get(f"/reports/tags/?{query}")

    assert page.status_code == 422
    assert 'role="alert"' in page.content.decode()
