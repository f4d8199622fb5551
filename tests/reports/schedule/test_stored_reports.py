"""Stored reports are listed, made and fetched by REST and pages, by those who may see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.models import AuditEntry
from reports.models import ReportSchedule, ReportSubscription, StoredReport
from reports.schedule import rows, step
from tests.builders import NOW
from tests.monitor import alerts_made
from tests.scheduler.jobs.test_job_api import Api, fields

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
AsUser = Callable[[User], Client]
PATH = "/reports/stored/"


def made(user: User, **body: str) -> int:
    status, answer = Api(user).post(PATH, {"last": "24h"} | body)
    assert status == 201, answer
    return int(answer["id"])


def test_an_operator_makes_lists_and_fetches_a_report(root: User) -> None:
    pk = made(root)
    (listed,) = Api(root).get(PATH)[1]["reports"]
    assert (listed["id"], listed["kind"], listed["made_by"]) == (pk, "requested", "root")
    assert Api(root).get(f"{PATH}{pk}/")[1] == listed
    for format in listed["formats"]:
        answer = Api(root).raw(f"{PATH}{pk}/{format}/")
        assert answer.status_code == 200
        assert answer.content


def test_downloads_and_new_reports_are_audited(root: User) -> None:
    pk = made(root)
    Api(root).raw(f"{PATH}{pk}/csv/")
    found = list(AuditEntry.objects.order_by("pk").values_list("action", "by"))
    assert ("REPORT_STORED", "root") in found
    assert found[-1] == ("REPORT_DOWNLOADED", "root")


def test_a_file_is_the_same_each_time(root: User) -> None:
    pk = made(root)
    first, second = (Api(root).raw(f"{PATH}{pk}/json/").content for _ in range(2))
    assert first == second


def test_users_see_their_own_reports_only(alice: User, bob: User, root: User) -> None:
    mine, roots = made(alice), made(root)
    assert [one["id"] for one in Api(alice).get(PATH)[1]["reports"]] == [mine]
    assert Api(bob).get(PATH)[1] == {"reports": [], "total": 0}
    assert Api(root).get(PATH)[1]["total"] == 2
    for pk, user in ((roots, alice), (mine, bob)):
        assert Api(user).get(f"{PATH}{pk}/")[0] == 404
        assert Api(user).get(f"{PATH}{pk}/csv/")[0] == 404


def test_a_scope_of_others_is_refused(alice: User, bob: User) -> None:
    assert Api(alice).post(PATH, {"scope": "user:bob"})[0] == 403


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"last": "soon"}, "last"),
        ({"from": "2026-03-02", "to": "2026-03-01"}, "to"),
        ({"scope": "planet:mars"}, "scope"),
        ({"scope": "gpu:none"}, "scope"),
        ({"scope": "a\0b"}, "scope"),
        ({"period": "24h"}, "period"),
    ],
)
def test_bad_input_gets_a_clear_answer(root: User, body: dict[str, str], field: str) -> None:
    status, answer = Api(root).post(PATH, body)
    assert status == 422
    assert field in fields(answer)


def test_an_unknown_format_names_the_known_ones(root: User) -> None:
    status, answer = Api(root).get(f"{PATH}{made(root)}/docx/")
    assert status == 422
    assert "xlsx" in fields(answer)["format"]


def test_a_user_stores_a_limited_number_a_day(
    alice: User, root: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "MOST_A_DAY", 1)
    made(alice)
    assert Api(alice).post(PATH, {"last": "24h"})[0] == 429
    made(root)
    made(root)


def test_an_unknown_number_is_not_found(root: User) -> None:
    assert Api(root).get(f"{PATH}999/")[0] == 404
    assert Api(root).get(f"{PATH}{10**30}/")[0] in (404, 422)


def test_the_list_is_empty_at_first_and_then_leads_to_each_report(
    alice: User, as_user: AsUser
) -> None:
    browser = as_user(alice)
    assert "No stored reports yet" in browser.get("/reports/stored/").content.decode()
    pk = made(alice)
    assert f"/reports/stored/{pk}/csv/" in browser.get("/reports/stored/").content.decode()
    assert "Fair Share Violations:" in browser.get(f"/reports/stored/{pk}/").content.decode()
    assert browser.get(f"/reports/stored/{pk}/csv/").status_code == 200
    assert browser.get(f"/reports/stored/{pk}/docx/").status_code == 404


def test_pages_hide_reports_of_others(alice: User, bob: User, as_user: AsUser) -> None:
    pk = made(alice)
    for path in (f"/reports/stored/{pk}/", f"/reports/stored/{pk}/csv/"):
        assert as_user(bob).get(path).status_code == 404


def test_a_user_turns_the_weekly_report_on_and_off(alice: User, as_user: AsUser) -> None:
    browser = as_user(alice)
    browser.post("/reports/stored/", {"weekly": "on"})
    assert ReportSubscription.objects.get().user == alice
    assert "Turn off" in browser.get("/reports/stored/").content.decode()
    browser.post("/reports/stored/", {})
    assert not ReportSubscription.objects.get().is_on
    assert "Turn on" in browser.get("/reports/stored/").content.decode()


def test_operators_see_failing_schedules_and_channels(root: User, as_user: AsUser) -> None:
    row = ReportSchedule.objects.create(name="broken", every="day", hour=0, scope="user:gone")
    row.channels.add(alerts_made.channel("chat", failing_since=NOW))
    step.make_due(NOW)
    page = as_user(root).get("/reports/stored/").content.decode()
    assert "There is no such user" in page
    assert page.count("failing") >= 2


def test_the_admin_edits_schedules_and_checks_the_scope(root: User, as_user: AsUser) -> None:
    browser = as_user(root)
    path = "/admin/reports/reportschedule/add/"
    body = {"name": "weekly", "enabled": "on", "every": "week", "hour": 7, "keep_days": 30}
    answer = browser.post(path, body | {"scope": "planet:mars"})
    assert "user:NAME" in answer.content.decode()
    browser.post(path, body | {"scope": "all"})
    assert ReportSchedule.objects.get().hour == 7
    assert AuditEntry.objects.filter(action="REPORT_SCHEDULE_CHANGED").exists()


def test_the_admin_lists_stored_reports_but_changes_none(root: User, as_user: AsUser) -> None:
    pk = made(root)
    browser = as_user(root)
    assert browser.get("/admin/reports/storedreport/").status_code == 200
    browser.post(f"/admin/reports/storedreport/{pk}/change/", {"title": "other"})
    assert StoredReport.objects.get().title != "other"
