from __future__ import annotations

import pytest
from django.template import Context, Template
from django.test import RequestFactory

from monitor.incidents import pages
from monitor.models import Message, Response
from monitor.owners.policy import Viewer
from tests.builders import NOW
from tests.monitor.alerts_made import channel, incident, later

pytestmark = pytest.mark.django_db
ROOT, BOB = Viewer("root", operator=True), Viewer("bob")


def test_steps_and_mails_stand_in_the_order_of_time() -> None:
    found = incident()
    Response.objects.create(incident=found, step="renice", at=later(45), is_dry_run=False)
    Response.objects.create(incident=found, step="warn", at=NOW, state="done", text="Would warn")
    Message.objects.create(
        channel=channel(), incident=found, about="incident:1", severity="warning", number=1,
        person="alice", created_at=NOW, due_at=NOW, attempts=2, problem="No answer.",
        title="t", text="x",
    )  # fmt: skip

    seen = [(line.title, line.state, line.text) for line in pages.response_lines(found, ROOT)]

    assert seen == [
        ("Warning", "dry run", "Would warn"),
        ("Mail", "retrying", "To alice: No answer."),
        ("Lower priority", "planned", ""),
    ]
    assert pages.response_lines(found, BOB)[1].text == "To alice"


def test_the_card_is_there_only_when_something_was_done() -> None:
    found = incident()
    template = Template("{% load monitor_tags %}{% responses incident viewer %}")
    request = RequestFactory().get("/incidents/1/")
    context = Context({"incident": found, "viewer": BOB, "now": later(1), "request": request})
    assert "<section" not in template.render(context)

    Response.objects.create(
        incident=found, step="renice", at=NOW, is_dry_run=False, state="undone", undone_at=later(1)
    )
    assert "reverted" in template.render(context)
