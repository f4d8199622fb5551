"""Due reports are made, stored for good, and handed to the alert channels."""

from __future__ import annotations

import io
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone
from django_q.models import OrmQ
from pypdf import PdfReader

from monitor.incidents.alerts import steps
from monitor.incidents.alerts.senders import NOTHING
from monitor.models import Event, Message
from monitor.thresholds import rows as thresholds
from reports import tasks
from reports.models import ReportSchedule, ReportSubscription, StoredFile, StoredReport
from reports.render.actions import FORMATS
from reports.schedule import rows, step
from tests.builders import NOW
from tests.monitor import alerts_made
from tests.monitor.alerts_made import Post
from tests.reports import made

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
HOUR, DAY, WEEK = timedelta(hours=1), timedelta(days=1), timedelta(days=7)
SPAN = [[NOW.timestamp(), (NOW + HOUR).timestamp()]]
LATER = NOW + 2 * HOUR


def schedule(**changes: Any) -> ReportSchedule:
    """Each day, at once after midnight."""
    return ReportSchedule.objects.create(**({"name": "daily", "every": "day", "hour": 0} | changes))


def hog(**changes: Any) -> Any:
    return alerts_made.incident(**({"hog_spans": SPAN} | changes))


def use_of_alice(since: datetime = NOW + DAY) -> None:
    """Four hours at 95 % of a GPU."""
    gpu = made.watched_gpu(since - DAY, since + 3 * DAY)
    made.ran(gpu, since, 4)


def test_a_due_schedule_stores_a_report_in_every_format() -> None:
    row = schedule()
    assert step.make_due(NOW) == 1
    (stored,) = StoredReport.objects.all()
    assert (stored.kind, stored.schedule, stored.viewer) == ("scheduled", row, "")
    assert stored.title == "daily: GPU Utilization Report (Last day)"
    found = {*stored.files.values_list("format", flat=True), *stored.missing}
    assert found == {"json", "csv", "xlsx", "html", "pdf", "text", "mail"}


def test_each_period_is_reported_once() -> None:
    schedule()
    assert [step.make_due(NOW), step.make_due(NOW + HOUR), step.make_due(NOW + DAY)] == [1, 0, 1]


def test_nothing_is_due_while_a_schedule_is_off() -> None:
    schedule(enabled=False)
    assert not step.is_due(NOW)
    assert step.make_due(NOW) == 0


def test_the_report_reaches_its_channels_through_the_outbox() -> None:
    row = schedule()
    row.channels.add(alerts_made.channel("ops"), alerts_made.channel("off", enabled=False))
    alerts_made.channel("not a recipient")
    step.make_due(NOW)
    post = Post()
    steps.send_due(post, NOW)
    assert post.titles == ["daily: GPU Utilization Report (Last day)"]
    assert "Fair Share Violations:" in post.letters[0].text
    assert post.letters[0].enclosure.file is not None


def test_a_channel_that_fails_is_tried_again_and_says_so() -> None:
    channel = alerts_made.channel()
    schedule().channels.add(channel)
    step.make_due(NOW)
    post = Post()
    post.problem = "no answer"
    steps.send_due(post, NOW)
    channel.refresh_from_db()
    assert channel.problem == "no answer"
    assert Event.objects.filter(kind="ALERT_FAILED").exists()
    post.problem = None
    steps.send_due(post, NOW + HOUR)
    assert Message.objects.get().state == Message.State.SENT


def test_a_report_that_cannot_be_made_is_tried_again_and_keeps_no_other_from_being_made() -> None:
    broken = schedule(name="broken", scope="user:nobody-here")
    schedule(name="whole")
    assert step.make_due(NOW) == 1
    broken.refresh_from_db()
    assert (broken.failures, broken.reported_until) == (1, None)
    assert broken.problem == ("There is no such user, and no process or job of that name.")
    assert broken.retry_at == NOW + timedelta(seconds=30)
    assert Event.objects.get(kind="REPORT_FAILED").severity == "warning"
    assert step.make_due(NOW + timedelta(seconds=10)) == 0
    step.make_due(NOW + HOUR)
    broken.refresh_from_db()
    assert broken.failures == 2
    assert Event.objects.filter(kind="REPORT_FAILED").count() == 1
    User.objects.create_user("nobody-here")
    assert step.make_due(NOW + 2 * HOUR) == 1
    broken.refresh_from_db()
    assert (broken.failures, broken.problem) == (0, "")


def test_a_format_that_fails_keeps_no_other_from_being_stored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = step.render

    def render(report: Any, name: str, cover: Any = None) -> bytes:
        if name == "html":
            raise ArithmeticError("broken")
        return real(report, name, cover)

    monkeypatch.setattr(step, "render", render)
    schedule()
    step.make_due(NOW)
    stored = StoredReport.objects.get()
    assert stored.missing["html"] == "ArithmeticError: broken"
    assert stored.files.filter(format="json").exists()


def test_a_stored_report_never_changes() -> None:
    schedule()
    step.make_due(NOW)
    stored, file = StoredReport.objects.get(), StoredFile.objects.first()
    assert file is not None
    stored.title = file.sha256 = "other"
    for row in (stored, file):
        with pytest.raises(TypeError):
            row.save()


def test_reports_are_deleted_when_their_time_is_over() -> None:
    schedule(keep_days=10)
    step.make_due(NOW)
    ReportSchedule.objects.all().delete()
    assert not step.is_due(NOW + 9 * DAY)
    assert step.is_due(NOW + 10 * DAY)
    step.make_due(NOW + 10 * DAY)
    assert not StoredReport.objects.exists()
    assert not StoredFile.objects.exists()


def test_a_subscriber_gets_the_own_week_by_mail(alice: User, bob: User) -> None:
    alerts_made.channel("mail", to_owners=True, is_mail=True)
    rows.subscribe(alice, NOW, on=True)
    assert step.make_due(NOW) == 0
    use_of_alice()
    assert step.make_due(NOW + WEEK) == 1
    stored = StoredReport.objects.get()
    assert (stored.kind, stored.viewer, stored.scope) == ("own", "alice", "user:alice")
    message = Message.objects.get()
    assert (message.receiver, message.person) == ("alice@example.org", "alice")
    assert message.text.startswith("This week you used 3.8 GPU-hours.")


def test_after_a_week_without_use_there_is_no_own_report(alice: User) -> None:
    alerts_made.channel("mail", to_owners=True, is_mail=True)
    rows.subscribe(alice, NOW, on=True)
    step.make_due(NOW + WEEK)
    assert not StoredReport.objects.exists()
    assert not step.is_due(NOW + WEEK)


def test_users_with_a_mail_address_get_their_week_unless_they_turn_it_off(
    alice: User, bob: User
) -> None:
    assert step.make_due(NOW) == 0
    alerts_made.channel("mail", to_owners=True, is_mail=True)
    rows.subscribe(bob, NOW, on=False)
    User.objects.filter(pk=bob.pk).update(email="bob@example.org")
    assert step.is_due(NOW)
    step.make_due(NOW)
    assert [row.user for row in rows.subscriptions(NOW, by_default=True)] == [alice]
    assert not step.is_due(NOW)


def test_operators_turn_off_the_weekly_reports_that_no_user_has_chosen(
    alice: User, bob: User
) -> None:
    alerts_made.channel("mail", to_owners=True, is_mail=True)
    rows.subscribe(bob, NOW, on=True)
    step.make_due(NOW)
    assert rows.is_subscribed(alice, step.is_weekly())
    thresholds.change("delivery", {"own_weekly": False}, by="root", now=NOW)
    assert not rows.is_subscribed(alice, step.is_weekly())
    assert [row.user for row in rows.subscriptions(NOW, step.is_weekly())] == [bob]


def test_the_mail_shows_the_first_screen_of_the_report_and_its_chart() -> None:
    use_of_alice(NOW - DAY)
    schedule().channels.add(alerts_made.channel())
    step.make_due(NOW)
    post = Post()
    steps.send_due(post, NOW)
    enclosure = post.letters[0].enclosure
    assert "GPU-hours held were not used" in enclosure.html
    assert "largest: alice " in enclosure.html
    assert 'src="cid:chart.png"' in enclosure.html
    assert [file.content[:4] for file in enclosure.pictures] == [b"\x89PNG"]


def test_the_parts_of_the_mail_are_no_formats_of_the_report() -> None:
    use_of_alice(NOW - DAY)
    schedule()
    step.make_due(NOW)
    stored = StoredReport.objects.get()
    assert stored.files.filter(format__in=rows.MAIL).count() == 2
    assert set(rows.formats(stored)) <= set(FORMATS)


def test_without_a_mail_channel_the_own_report_is_still_stored(alice: User) -> None:
    rows.subscribe(alice, NOW, on=True)
    use_of_alice()
    step.make_due(NOW + WEEK)
    assert StoredReport.objects.get().viewer == "alice"
    assert not Message.objects.exists()


def test_who_ends_the_subscription_or_is_switched_off_gets_no_more(alice: User, bob: User) -> None:
    for user in (alice, bob):
        rows.subscribe(user, NOW, on=True)
    rows.subscribe(alice, NOW, on=False)
    User.objects.filter(pk=bob.pk).update(is_active=False)
    assert step.make_due(NOW + WEEK) == 0
    assert ReportSubscription.objects.filter(is_on=True).count() == 1


def test_unfair_use_of_more_than_an_hour_adds_a_report_to_the_alert(alice: User) -> None:
    alerts_made.channel()
    alerts_made.channel("memory only", rules=["idle_held"])
    row = hog()
    assert step.make_due(NOW + HOUR - timedelta(minutes=1)) == 0
    assert step.make_due(LATER) == 1
    stored = StoredReport.objects.get()
    assert (stored.kind, stored.incident, stored.scope) == ("incident", row, "user:alice")
    assert stored.title == "alice's python violates the fair share on GPU 0 of gpubox"
    message = Message.objects.get()
    assert (message.channel.name, message.severity) == ("ops", "warning")
    assert message.text.startswith("Detected GPU hog: python (PID 4200001, alice)")
    assert step.make_due(LATER + HOUR) == 0


def test_the_page_of_an_incident_is_attached_to_its_message(alice: User) -> None:
    alerts_made.channel()
    hog()
    step.make_due(LATER)
    post = Post()
    steps.send_due(post, LATER)
    (letter,) = post.letters
    assert letter.enclosure.file is not None
    stored = StoredReport.objects.get()
    assert letter.enclosure.file.name == f"gpu-report-{stored.pk}-2026-03-02.pdf"
    pdf = PdfReader(io.BytesIO(letter.enclosure.file.content))
    assert len(pdf.pages) == 1
    assert "alice's python violates the fair share" in pdf.pages[0].extract_text()


def test_an_alert_that_waits_for_the_morning_gets_the_page_itself(alice: User) -> None:
    channel = alerts_made.channel()
    row = hog()
    alert = Message.objects.create(
        channel=channel, about=f"incident:{row.pk}", incident=row, severity="warning",
        title="Hog", text="Hog.", created_at=NOW, due_at=LATER + 8 * HOUR,
    )  # fmt: skip
    step.make_due(LATER)
    alert.refresh_from_db()
    assert Message.objects.count() == 1
    assert alert.attachment == f"report:{StoredReport.objects.get().pk}"


def test_an_alert_that_is_about_to_be_sent_is_followed_by_the_page(alice: User) -> None:
    channel = alerts_made.channel()
    row = hog()
    Message.objects.create(
        channel=channel, about=f"incident:{row.pk}", incident=row, severity="warning",
        title="Hog", text="Hog.", created_at=NOW, due_at=LATER,
    )  # fmt: skip
    step.make_due(LATER)
    first, second = Message.objects.order_by("pk")
    assert (first.about, first.attachment) == (second.about, "")
    assert second.attachment.startswith("report:")


def test_a_deleted_report_does_not_keep_its_message_from_being_sent(alice: User) -> None:
    alerts_made.channel()
    hog()
    step.make_due(LATER)
    StoredReport.objects.all().delete()
    post = Post()
    steps.send_due(post, LATER)
    assert [letter.enclosure for letter in post.letters] == [NOTHING]


def test_an_unknown_owner_is_not_named() -> None:
    alerts_made.channel()
    hog(user="")
    step.make_due(LATER)
    stored = StoredReport.objects.get()
    assert stored.scope.startswith("gpu:")
    assert "unknown" in stored.title


@pytest.mark.parametrize(
    "changes",
    [
        {"hog_spans": []},
        {"closed_at": NOW + HOUR},
        {"snoozed_until": NOW + DAY},
        {"exempt_until": NOW + DAY},
    ],
)
def test_harmless_ended_muted_and_exempt_incidents_get_no_report(changes: Any, alice: User) -> None:
    hog(**changes)
    assert step.make_due(LATER) == 0


def test_the_controller_queues_the_task_only_when_something_is_due(settings: Any) -> None:
    now = timezone.now()
    assert "make_reports" not in tasks.queue_due(now)
    schedule()
    assert "make_reports" not in tasks.queue_due(now + timedelta(seconds=30))
    assert "make_reports" in tasks.queue_due(now + timedelta(minutes=1))
    assert {row.key for row in OrmQ.objects.all()} == {settings.REPORT_CLUSTER["cluster_name"]}


def test_the_task_makes_what_is_due_once_at_a_time() -> None:
    schedule()
    assert tasks.make_reports() == 1
    assert tasks.make_reports() == 0


def test_a_later_day_has_a_report_of_its_own() -> None:
    schedule()
    for days in range(3):
        step.make_due(NOW + days * DAY)
    ends: list[datetime] = list(
        StoredReport.objects.order_by("pk").values_list("until_at", flat=True)
    )
    assert [later - end for end, later in pairwise(ends)] == [DAY, DAY]


def test_a_chart_that_cannot_be_made_does_not_keep_the_report_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(report: Any) -> bytes:
        raise RuntimeError("unknown font")

    monkeypatch.setattr(step, "mail_picture", fails)
    schedule().channels.add(alerts_made.channel())
    assert step.make_due(NOW) == 1
    stored = StoredReport.objects.get()

    assert stored.missing["chart"] == "RuntimeError: unknown font"
    html = bytes(stored.files.get(format="mail").content).decode()
    assert "The chart of this mail could not be made." in html
    assert Message.objects.count() == 1
