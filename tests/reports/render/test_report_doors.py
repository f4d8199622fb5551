"""The REST endpoint, the page and the commands of reports."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import time_machine
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import CommandError
from django.test import Client

from gpucoord_site.cli import verbs
from monitor.models import AuditEntry
from reports.figures import actions
from reports.render import actions as engines
from scheduler.models import Job
from scheduler.queue.planner import blockers as stored_blockers
from tests.builders import NOW
from tests.jobs_made import waiting
from tests.reports.made import contended, ran, share_of_all, watched_gpu

pytestmark = pytest.mark.django_db
BEGIN = NOW - timedelta(hours=24)
LINE = "python (PID 12345, alice): 8.0 hours at >90% (expected quota: 30%)"
URL = "/api/reports/usage/"
SignIn = Callable[[User], Client]


@pytest.fixture(autouse=True)
def _past(bob: User) -> Any:
    with time_machine.travel(NOW, tick=False):
        share_of_all(30)
        contended(bob, BEGIN)
        ran(watched_gpu(BEGIN, NOW), BEGIN + timedelta(hours=3), 8)
        yield


def test_the_api_answers_with_the_documented_names(root: User, as_user: SignIn) -> None:
    body = as_user(root).get(f"{URL}?last=24h").json()

    assert {"period", "coverage", "totals", "users", "violations", "recommendations"} <= set(body)
    assert set(body["totals"]["gpu_hours"]) == {
        "capacity", "used", "idle_held", "booked_empty", "free", "unknown",
    }  # fmt: skip
    assert body["period"]["from"].startswith("2026-03-01T12:00:00")
    assert body["violations"][0]["text"] == LINE
    assert body["coverage"] == 1


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("last=25", 422, "last"),
        ("format=doc", 422, "format"),
        ("scope=pod:1", 422, "scope"),
        ("scope=user:%00", 422, "scope"),
        ("from=2026-03-02&to=2026-03-01", 422, "to"),
        ("since=2026-03-02", 422, "since"),
        ("scope=user:zoe", 404, None),
    ],
)
def test_bad_input_gets_a_clear_answer(
    query: str, status: int, field: str | None, root: User, as_user: SignIn
) -> None:
    answer = as_user(root).get(f"{URL}?{query}")

    assert answer.status_code == status
    assert [e["field"] for e in answer.json().get("errors", [])] == ([field] if field else [])


def test_a_user_sees_others_without_their_names(bob: User, as_user: SignIn) -> None:
    answer = as_user(bob).get(URL)

    assert b"alice" not in answer.content
    assert answer.json()["users"][0]["is_anonymous"]


def test_a_user_may_not_ask_for_another_user(bob: User, as_user: SignIn) -> None:
    assert as_user(bob).get(f"{URL}?scope=user:alice").status_code == 403
    assert as_user(bob).get(f"{URL}?scope=user:bob").status_code == 200


def test_without_a_login_there_is_no_report() -> None:
    assert Client().get(URL).status_code == 401


@pytest.mark.parametrize(
    ("format", "content_type"),
    [
        ("csv", "text/csv; charset=utf-8"),
        ("html", "text/html; charset=utf-8"),
        ("pdf", "application/pdf"),
    ],
)
def test_a_download_is_a_file_and_is_audited(
    format: str, content_type: str, root: User, as_user: SignIn
) -> None:
    answer = as_user(root).get(f"{URL}?format={format}&scope=user:alice")

    assert answer["Content-Type"] == content_type
    assert f"gpu-report-24h-2026-03-02.{format}" in answer["Content-Disposition"]
    entry = AuditEntry.objects.get(action="REPORT_DOWNLOADED")
    assert (entry.by, entry.subject) == ("root", "report user:alice")


def test_without_typst_the_answer_says_how_to_get_it(
    root: User, as_user: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "typst", None)
    monkeypatch.setattr(engines, "is_available", lambda: False)

    answer = as_user(root).get(f"{URL}?format=pdf")

    assert answer.status_code == 501
    assert "gpucoord[pdf]" in answer.json()["detail"]
    assert b"gpucoord[pdf]" in as_user(root).get("/reports/").content


def test_long_reports_wait_for_each_other(
    root: User, as_user: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "LONGEST_WAIT_S", 0)
    with actions._long_reports:
        answer = as_user(root).get(f"{URL}?last=60d")

    assert answer.status_code == 429
    assert answer["Retry-After"] == "60"
    assert as_user(root).get(f"{URL}?last=60d").status_code == 200


def test_the_page_answers_whether_it_was_fair(root: User, as_user: SignIn) -> None:
    page = as_user(root).get("/reports/").content.decode()

    assert "Of 100 GPU-hours held" in page
    assert LINE.replace(">", "&gt;") in page
    assert "Recommendation: Contact owners or adjust quotas" in page
    # The first one twice: a phone shows a narrow one.
    assert page.count('class="report-chart"') == 6
    assert page.count('class="narrow-only"') == 1
    assert "style=" not in page


def test_the_page_shows_the_own_row_and_hides_the_names_of_others(
    bob: User, as_user: SignIn
) -> None:
    page = as_user(bob).get("/reports/").content.decode()

    assert "user 1" in page
    assert "alice" not in page


def test_the_page_has_its_times_in_utc_too_and_names_the_zone_of_its_days(
    root: User, as_user: SignIn
) -> None:
    browser = as_user(root)
    browser.cookies["timezone"] = "Asia/Tokyo"
    page = browser.get("/reports/?last=24h").content.decode()

    begin = f'title="{BEGIN:%Y-%m-%d %H:%M}:00 UTC" data-time="stamp">'
    here = f"{BEGIN.astimezone(ZoneInfo('Asia/Tokyo')):%Y-%m-%d %H:%M}</time>"
    assert begin + here in page
    assert "days and hours in Asia/Tokyo" in page
    assert "Times in Asia/Tokyo." in page
    occupied = page.split('id="picture-timeline"')[1].split("</section>")[0]
    assert occupied.count("<time ") == 2
    assert re.search(r"\d\d:\d\d<title>\d{4}-\d\d-\d\d \d\d:\d\d UTC</title></text>", occupied)


def test_the_page_of_a_chosen_period_names_its_zone_in_the_heading(
    root: User, as_user: SignIn
) -> None:
    browser = as_user(root)
    browser.cookies["timezone"] = "Asia/Tokyo"
    begin = f"{BEGIN:%Y-%m-%dT%H:%M}"
    page = browser.get(f"/reports/?from={begin}").content.decode()

    assert re.search(r"<h1>GPU Utilization Report \([^)]* Asia/Tokyo\)</h1>", page)


def test_the_page_words_the_reasons_for_which_jobs_waited(
    bob: User, root: User, as_user: SignIn
) -> None:
    at = NOW - timedelta(hours=5)
    job = waiting(bob, at)
    Job.objects.filter(pk=job.pk).update(blocker_log=stored_blockers.log_entry("GpuMemory", at))

    page = as_user(root).get("/reports/").content.decode()

    assert "<td" in page
    assert "Too little free GPU memory" in page
    assert "GpuMemory" not in page


def test_the_page_says_what_is_wrong_with_a_period(root: User, as_user: SignIn) -> None:
    answer = as_user(root).get("/reports/?from=2026-03-02T10:00&to=2026-03-01T10:00")

    assert answer.status_code == 422
    assert b"The end must be after the begin." in answer.content


def test_the_local_command_prints_the_text() -> None:
    out = io.StringIO()

    call_command("gpu_report", "--last", "24h", stdout=out)

    assert out.getvalue().startswith("GPU Utilization Report (Last 24 hours)\n")
    assert f"\n- {LINE}\n" in out.getvalue()


@pytest.mark.parametrize("option", ["--last=x", "--user=zoe", "--scope=pod:1", "--from=2027-01-01"])
def test_the_local_command_says_what_is_wrong(option: str) -> None:
    with pytest.raises(CommandError, match=r"\.$"):
        call_command("gpu_report", option)


def test_the_command_sends_what_was_given() -> None:
    options = verbs.report.parser().parse_args(["--last", "7d", "--user", "bob", "--format=csv"])

    assert verbs.query(options) == {"last": "7d", "scope": "user:bob", "format": "csv"}
