from __future__ import annotations

from copy import copy
from datetime import time

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from monitor import tasks
from monitor.incidents.alerts import steps
from monitor.incidents.alerts.policy import AlertPolicy
from monitor.incidents.alerts.steps import decrypt
from monitor.journal.rows import events
from monitor.models import Channel, Event, Incident, Message, PolicyValues
from monitor.runtime.rows import periodic_tasks
from tests.builders import NOW, gpu_uuid
from tests.monitor.alerts_made import Post, channel, incident, later

pytestmark = pytest.mark.django_db
MAIL = {"is_mail": True, "to_owners": True}


@pytest.fixture
def post() -> Post:
    return Post()


def send(post: Post, minutes: float = 0) -> int:
    return steps.send_due(post, later(minutes))


def write(minutes: float = 0) -> int:
    return steps.write(later(minutes))


def test_an_incident_is_sent_once_however_long_it_lasts(post: Post) -> None:
    channel()
    incident()

    for minutes in range(5):
        write(minutes)
        send(post, minutes)

    assert post.titles == ["Heavy use outside the queue: GPU 0 of gpubox"]


def test_an_incident_that_worsens_is_sent_again(post: Post) -> None:
    channel()
    incident()
    write()
    Incident.objects.update(severity="error")
    write(1)
    Incident.objects.update(severity="warning")
    write(2)

    assert list(Message.objects.order_by("id").values_list("severity", flat=True)) == [
        "warning",
        "error",
    ]


def test_an_incident_that_worsens_in_quiet_hours_is_sent_once_with_its_last_severity(
    post: Post,
) -> None:
    channel(quiet_from=time(11), quiet_until=time(13), errors_at_once=False)
    incident()
    write()
    Incident.objects.update(severity="error")
    write(1)

    assert send(post, 90) == 1
    states = Message.objects.order_by("id").values_list("severity", "state")
    assert list(states) == [("warning", "dropped"), ("error", "sent")]


def test_each_channel_gets_the_message() -> None:
    channel("one")
    channel("two")
    incident()

    assert write() == 2


def test_events_are_sent_and_repeated_only_after_a_while() -> None:
    channel()
    for minutes in (0, 10, 61):
        events.add("GPU_LOST", "GPU 1 fell", now=later(minutes), severity="error", host="gpubox")
        write(minutes)

    assert [m.created_at for m in Message.objects.order_by("id")] == [NOW, later(61)]


def test_a_new_channel_gets_no_past_events() -> None:
    events.add("GPU_LOST", "long ago", now=NOW, severity="error")
    new = Channel(name="new", encrypted_address="x")
    steps.switch_on(new)
    new.save()
    events.add("GPU_LOST", "GPU 1 fell", now=NOW, severity="error")

    assert (write(), Message.objects.get().title) == (1, "GPU 1 fell")


def test_incidents_are_not_sent_a_second_time_as_events() -> None:
    channel()
    incident()
    for kind in ("INCIDENT_OPENED", "IDLE_RESOURCE_DETECTED"):
        events.add(kind, "Detected GPU hog", now=NOW, severity="warning", owner="alice")
    events.add("IDLE_RESOURCE_DETECTED", "GPU 3 is idle", now=NOW, severity="warning")

    assert write() == 2


@pytest.mark.parametrize("count", [100, 450, 549, 600, 1200])
def test_events_of_incidents_never_stop_the_events_after_them(count: int) -> None:
    channel()
    rows = [Event(kind="INCIDENT_OPENED", text="x", at=NOW, severity="warning")] * count
    for gpu in (0, 1):
        Event.objects.bulk_create([copy(row) for row in rows])
        about = {"host": "gpubox", "gpu_uuid": gpu_uuid(gpu)}
        events.add("GPU_LOST", f"GPU {gpu} is lost", now=NOW, severity="error", **about)
        for _ in range(4):
            write()

    assert Message.objects.count() == 2
    assert Channel.objects.get().seen_event == Event.objects.latest("pk").pk


def test_a_channel_that_is_off_gets_nothing(post: Post) -> None:
    off = channel()
    incident()
    write()
    Channel.objects.update(enabled=False)

    assert send(post) == 0
    assert (off.messages.get().state, write(1)) == ("dropped", 0)


def test_without_channels_nothing_is_read() -> None:
    assert write() == 0


def test_an_owner_gets_one_mail_for_a_rule_in_seven_days(alice: User) -> None:
    channel(**MAIL)
    week = 7 * 24 * 60
    for minutes in (0, 60, week + 1):
        incident(opened_at=later(minutes))
        write(minutes)
    incident(rule="leak")
    write(week + 2)

    rows = Message.objects.order_by("id").values_list("receiver", "rule")
    assert list(rows) == [
        ("alice@example.org", "sustained"),
        ("alice@example.org", "sustained"),
        ("alice@example.org", "leak"),
    ]


def test_an_owner_gets_advice_without_blame(alice: User, post: Post) -> None:
    PolicyValues.objects.create(name="alerts", values={"address": "https://gpus.example.org"})
    channel(**MAIL)
    row = incident(mean_pct=95.0, last_seen_at=later(30), waited_jobs=2)
    write()
    send(post)

    assert post.letters[0].text.split("\n") == [
        "python has kept GPU 0 95 % busy for 30 min. 2 jobs have waited for it.",
        "Process 4200001 on gpubox.",
        "",
        "Next time, submit it as a job: gpucoord submit -- your command.",
        "If you need it, explain it on the page of the incident, or contact an operator.",
        f"https://gpus.example.org/incidents/{row.pk}/",
    ]


def test_a_mail_that_never_arrived_is_none_of_them(alice: User) -> None:
    channel(**MAIL)
    incident()
    write()
    Message.objects.update(state="failed")
    incident(opened_at=later(60))

    assert write(60) == 1


def test_a_message_delayed_by_quiet_hours_has_the_current_state(post: Post) -> None:
    PolicyValues.objects.create(name="alerts", values={"address": "https://gpus.example.org"})
    channel(quiet_from=time(11), quiet_until=time(13))
    row = incident()
    write()
    Incident.objects.update(text="Detected GPU hog: python at 95 % for 9 h")

    assert send(post, 90) == 1
    page = f"https://gpus.example.org/incidents/{row.pk}/"
    assert post.letters[0].text == f"Detected GPU hog: python at 95 % for 9 h\n{page}"


def test_an_incident_snoozed_before_sending_is_sent_after_the_snooze(post: Post) -> None:
    channel()
    incident()
    write()
    Incident.objects.update(snoozed_until=later(60))

    assert [minutes for minutes in (0, 30, 59, 61) if send(post, minutes)] == [61]


def test_a_user_without_an_address_gets_no_mail(alice: User) -> None:
    User.objects.update(email="")
    channel(**MAIL)
    incident()
    incident(user="")
    incident(user="stranger")

    assert write() == 0


def test_what_waits_for_morning_is_dropped_when_it_is_over_by_then(post: Post) -> None:
    channel(quiet_from=time(11), quiet_until=time(13))
    incident()
    write()

    assert send(post, 30) == 0
    Incident.objects.update(closed_at=later(40))
    assert send(post, 90) == 0
    assert (post.letters, Message.objects.get().state) == ([], "dropped")


def test_a_failed_message_is_retried_with_growing_delays_and_reported_once(post: Post) -> None:
    ops = channel()
    incident()
    write()
    post.problem = "Failed: error=500."

    tried = [minutes for minutes in range(0, 9) if send(post, minutes)]

    assert tried == [0, 1, 2, 4, 8]
    ops.refresh_from_db()
    assert (ops.problem, ops.failing_since) == ("Failed: error=500.", NOW)
    assert [e.kind for e in events.recent()] == ["ALERT_FAILED"]


def test_recovery_of_a_channel_is_reported_too(post: Post) -> None:
    ops = channel()
    incident()
    write()
    post.problem = "Failed."
    send(post)
    post.problem = None
    send(post, 1)

    ops.refresh_from_db()
    assert (ops.failing_since, ops.problem, ops.worked_at) == (None, "", later(1))
    assert [e.kind for e in events.recent()] == ["ALERT_WORKS", "ALERT_FAILED"]
    assert Message.objects.get().state == "sent"


def test_a_channel_failure_is_sent_through_other_channels_only(post: Post) -> None:
    channel("broken", failing_since=NOW)
    channel("fine")
    events.add("ALERT_FAILED", "Alerts do not reach broken", now=NOW, severity="warning")
    write()

    assert [m.channel.name for m in Message.objects.all()] == ["fine"]


def test_a_dead_channel_costs_one_try_and_holds_up_no_other() -> None:
    channel("dead")
    for _ in range(3):
        incident()
    write()
    channel("alive")
    write()

    class Half(Post):
        def __call__(self, letters, limit_s):  # type: ignore[no-untyped-def]
            super().__call__(letters, limit_s)
            return {k: "No answer." if "dead" in v.address else None for k, v in letters.items()}

    half = Half()
    while send(half, 1):
        pass

    assert [("dead" in letter.address) for letter in half.letters].count(True) == 1
    assert Message.objects.filter(channel__name="alive", state="sent").count() == 3


def test_it_gives_up_after_a_day(post: Post) -> None:
    channel()
    incident()
    write()
    post.problem = "Failed."
    for minutes in range(0, 30 * 60, 10):
        send(post, minutes)

    assert Message.objects.get().state == "failed"


def test_only_one_sends_at_a_time(post: Post) -> None:
    channel()
    incident()
    write()
    assert steps.is_due(NOW)
    periodic_tasks.begin(steps.TASK, steps.BUSY, NOW)

    assert not steps.is_due(later(0.1))
    assert send(post, 0.1) == 0
    # The other one died.
    assert send(post, 1) == 1


def test_a_message_counts_as_tried_before_it_is_sent() -> None:
    channel()
    incident()
    write()

    def dies(letters: object, limit_s: float) -> dict[int, str | None]:
        raise SystemExit

    with pytest.raises(SystemExit):
        steps.send_due(dies, NOW)
    row = Message.objects.get()
    assert (row.attempts, row.state, row.due_at > NOW) == (1, "waiting", True)


def test_the_part_queues_a_task_when_something_is_due() -> None:
    queued: list[str] = []
    part = steps.AlertWriter(queued.append)
    part.judge(None, NOW)
    channel()
    incident()
    with transaction.atomic():
        part.judge(None, NOW)

    assert queued == ["send_alerts"]


def test_addresses_are_sealed_and_opened_under_the_same_key_only(post: Post) -> None:
    row = channel()
    assert "s3cret" not in row.encrypted_address
    assert "s3cret" in (decrypt(row.encrypted_address) or "")
    incident()
    write()
    with override_settings(SECRET_KEY="another"):
        send(post)

    assert (post.letters, Message.objects.get().problem) == ([], steps.LOCKED)


def test_messages_link_to_where_gpucoord_is() -> None:
    assert steps.link(AlertPolicy(address="https://g.example/"), "/x/") == "https://g.example/x/"
    assert steps.link(AlertPolicy(), "/x/") == ""


def test_a_gpu_s_events_are_routed_by_gpu() -> None:
    channel(gpus=[gpu_uuid(1)])
    for index in (0, 1):
        events.add("GPU_LOST", f"{index}", now=NOW, severity="error", gpu_uuid=gpu_uuid(index))
    write()

    assert [m.title for m in Message.objects.all()] == ["1"]
    assert Event.objects.count() == 2


def test_a_test_message_is_sent_before_older_messages(post: Post) -> None:
    ops = channel()
    incident()
    write()
    steps.write_test(ops, "root", "", later(1))
    send(post, 1)

    assert post.titles == ["Test message of gpucoord"]


def test_a_snoozed_incident_is_not_sent_until_the_snooze_ends() -> None:
    channel()
    incident(snoozed_until=later(60))

    assert [write(), write(59), write(61)] == [0, 0, 1]


def test_the_task_sends_what_is_due_and_stops_soon(
    post: Post, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "send_all", post)
    channel()
    for _ in range(3):
        incident()
    steps.write(timezone.now())
    monkeypatch.setattr(tasks, "monotonic", lambda: 0.0)
    assert (tasks.send_alerts(), len(post.letters)) == (3, 3)

    clock = iter([0.0, 2.0])
    monkeypatch.setattr(tasks, "monotonic", lambda: next(clock))
    incident()
    incident()
    steps.write(timezone.now())
    assert tasks.send_alerts() == 1
