"""An operator sees the mail of a schedule before it is sent, and sends it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.incidents.alerts import steps
from monitor.models import AuditEntry, Message
from reports.models import ReportSchedule, StoredReport
from reports.schedule import rows
from reports.schedule import step as actions
from tests.monitor import alerts_made
from tests.monitor.alerts_made import Post
from tests.scheduler.jobs.test_job_api import Api

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
AsUser = Callable[[User], Client]


@pytest.fixture
def weekly() -> ReportSchedule:
    return ReportSchedule.objects.create(name="weekly", every="week", hour=7)


def address(row: ReportSchedule) -> str:
    return f"/reports/schedules/{row.pk}/"


def test_the_preview_is_the_mail_and_stores_nothing(
    weekly: ReportSchedule, root: User, as_user: AsUser
) -> None:
    answer = as_user(root).get(f"{address(weekly)}mail/")
    assert "weekly: GPU Utilization Report (Last week)" in answer.content.decode()
    assert not StoredReport.objects.exists()


def test_the_frame_of_the_preview_runs_no_script_and_loads_nothing(
    weekly: ReportSchedule, root: User, as_user: AsUser
) -> None:
    policy = as_user(root).get(f"{address(weekly)}mail/")["Content-Security-Policy"]
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert (rules["script-src"], rules["img-src"]) == ("'none'", "data:")
    assert rules["frame-ancestors"] == "'self'"


def test_send_now_reaches_the_channels_and_the_period_is_not_repeated(
    weekly: ReportSchedule, root: User, as_user: AsUser
) -> None:
    weekly.channels.add(alerts_made.channel())
    answer = as_user(root).post(address(weekly))
    stored = StoredReport.objects.get()
    assert answer["Location"] == f"/reports/stored/{stored.pk}/"
    assert (stored.kind, stored.made_by) == ("scheduled", "root")
    post = Post()
    steps.send_due(post, timezone.now())
    assert post.titles == [stored.title]
    assert actions.make_due(timezone.now()) == 0
    assert AuditEntry.objects.filter(action="REPORT_SENT", by="root").exists()


def test_without_a_channel_nothing_is_made(
    weekly: ReportSchedule, root: User, as_user: AsUser
) -> None:
    weekly.channels.add(alerts_made.channel(enabled=False))
    answer = as_user(root).post(address(weekly), follow=True)
    assert "has no enabled alert channel" in answer.content.decode()
    assert not StoredReport.objects.exists()


def test_only_operators_see_and_send_reports_of_schedules(
    weekly: ReportSchedule, alice: User, as_user: AsUser
) -> None:
    weekly.channels.add(alerts_made.channel())
    browser = as_user(alice)
    answers = [
        browser.get(address(weekly)),
        browser.get(f"{address(weekly)}mail/"),
        browser.post(address(weekly)),
    ]
    assert [answer.status_code for answer in answers] == [403, 403, 403]
    assert not Message.objects.exists()


def test_rest_sends_the_report_and_says_when_no_channel_gets_it(
    weekly: ReportSchedule, root: User
) -> None:
    path = f"/reports/schedules/{weekly.pk}/send/"
    assert Api(root).post(path, {})[0] == 409
    weekly.channels.add(alerts_made.channel())
    status, body = Api(root).post(path, {})
    assert (status, body["kind"]) == (201, "scheduled")


def test_two_operators_who_send_at_a_time_send_one_report(
    weekly: ReportSchedule, root: User, as_user: AsUser
) -> None:
    weekly.channels.add(alerts_made.channel())
    # The second request has read the schedule before the first one has sent it.
    seen = ReportSchedule.objects.get()
    actions.send_now(weekly, "root", timezone.now())
    with pytest.raises(actions.NotSent, match="less than a minute ago"):
        actions.send_now(seen, "admin", timezone.now())

    assert StoredReport.objects.count() == Message.objects.count() == 1


def test_an_operator_may_send_a_report_again_a_minute_later(weekly: ReportSchedule) -> None:
    weekly.channels.add(alerts_made.channel())
    now = timezone.now()
    for sent_at in (now, now + timedelta(seconds=61)):
        actions.send_now(weekly, "root", sent_at)

    assert Message.objects.count() == 2


def test_the_schedule_sends_nothing_that_an_operator_has_sent_meanwhile(
    weekly: ReportSchedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    weekly.channels.add(alerts_made.channel())
    now, seen = timezone.now(), rows.schedules(timezone.now())
    actions.send_now(weekly, "root", now)
    monkeypatch.setattr(rows, "schedules", lambda now: seen)

    assert actions.make_due(now) == 0
    assert Message.objects.count() == 1
