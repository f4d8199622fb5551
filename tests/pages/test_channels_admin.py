from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.urls import reverse
from django_q.models import OrmQ

from monitor.incidents.alerts.steps import decrypt
from monitor.journal.rows import events
from monitor.models import AuditEntry, Channel, Event, Message
from tests.builders import NOW
from tests.monitor.alerts_made import channel

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
ADDRESS = "json://hooker:s3cretpass@hooks.example.org:9/in"
MAIL = "mailto://u:s3cretpass@mail.example.org?from=g@example.org"
ADD = "/admin/monitor/channel/add/"


@pytest.fixture
def browser(root: User, as_user: Callable[[User], Client]) -> Client:
    return as_user(root)


def fields(**changes: Any) -> dict[str, Any]:
    return {"name": "ops", "address": ADDRESS, "enabled": "on", "least": "warning", **changes}


def page(row: Channel) -> str:
    return reverse("admin:monitor_channel_change", args=[row.pk])


def problems(browser: Client, **changes: Any) -> dict[str, list[str]]:
    response = browser.post(ADD, fields(**changes))
    assert response.status_code == 200
    errors: dict[str, list[str]] = response.context["adminform"].form.errors
    return errors


def test_a_channel_is_made_and_its_address_is_never_shown_again(browser: Client) -> None:
    events.add("GPU_LOST", "long ago", now=NOW)
    saved = browser.post(ADD, fields(kinds=["GPUs"]))
    assert "Send a test" in browser.get(saved["Location"]).content.decode()
    row = Channel.objects.get()

    seen = browser.get(page(row)).content.decode()
    seen += browser.get("/admin/monitor/channel/").content.decode()
    seen += str(list(AuditEntry.objects.values())) + str(browser.get("/api/openapi.json").content)

    assert decrypt(row.encrypted_address) == ADDRESS
    assert (row.service, row.kinds, row.from_event) == ("JSON", ["GPUs"], Event.objects.get().pk)
    for secret in ("s3cretpass", "hooker", row.encrypted_address):
        assert secret not in seen


def test_a_change_keeps_the_address_unless_another_is_given(browser: Client) -> None:
    row = channel(failing_since=NOW, problem="Failed.")

    browser.post(page(row), fields(name="renamed", address=""))
    row.refresh_from_db()
    assert (row.name, "s3cret" in (decrypt(row.encrypted_address) or ""), row.problem) == (
        "renamed",
        True,
        "Failed.",
    )
    browser.post(page(row), fields(address="json://other.example/in"))
    row.refresh_from_db()
    assert (decrypt(row.encrypted_address), row.failing_since) == ("json://other.example/in", None)


def test_every_change_is_audited_by_name(browser: Client) -> None:
    row = channel()
    browser.post(page(row), fields(least="error", address=""))
    browser.post(reverse("admin:monitor_channel_delete", args=[row.pk]), {"post": "yes"})

    found = list(AuditEntry.objects.order_by("id").values_list("action", "by", "subject"))
    assert found == [
        ("CHANNEL_SAVED", "root", f"channel {row.pk}"),
        ("CHANNEL_DELETED", "root", f"channel {row.pk}"),
    ]
    first = AuditEntry.objects.order_by("id")[0]
    assert (first.before["least"], first.after["least"]) == ("warning", "error")


def test_an_address_that_leads_nowhere_is_refused_in_words(browser: Client) -> None:
    assert "no address of a service" in problems(browser, address="nonsense")["address"][0]
    assert "address" in problems(browser, address="")
    assert not Channel.objects.exists()


def test_only_a_mail_server_writes_to_owners(browser: Client) -> None:
    assert "to_owners" in problems(browser, to_owners="on")
    assert browser.post(ADD, fields(to_owners="on", address=MAIL)).status_code == 302


def test_quiet_hours_have_two_ends(browser: Client) -> None:
    assert "quiet_until" in problems(browser, quiet_from="22:00")


def test_the_button_puts_a_test_on_its_way(browser: Client) -> None:
    row = channel()
    html = browser.get(page(row)).content.decode()
    address = reverse("admin:monitor_channel_test", args=[row.pk])
    assert f'action="{address}"' in html

    browser.post(address)

    message = Message.objects.get()
    assert (message.channel, message.state) == (row, "waiting")
    assert [task.task["func"] for task in OrmQ.objects.all()] == ["monitor.tasks.send_alerts"]
    assert "Test message of gpucoord" in browser.get(page(row)).content.decode()
    assert browser.get(address).status_code == 405


def test_who_may_not_change_channels_sends_no_test(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    row = channel()
    User.objects.filter(pk=alice.pk).update(is_staff=True)
    alice.user_permissions.add(Permission.objects.get(codename="view_channel"))

    answer = as_user(alice).post(reverse("admin:monitor_channel_test", args=[row.pk]))

    assert (answer.status_code, Message.objects.count()) == (403, 0)


def test_a_message_that_failed_is_sent_again_on_request(browser: Client) -> None:
    row = channel()
    message = Message.objects.create(
        channel=row, about="event:1", severity="info", title="t", text="x",
        created_at=NOW, due_at=NOW, state="failed", attempts=9,
    )  # fmt: skip

    browser.post(
        "/admin/monitor/message/", {"action": "send_again", "_selected_action": [message.pk]}
    )

    message.refresh_from_db()
    assert (message.state, message.attempts) == ("waiting", 0)
