"""What was done about an incident, for its page: steps and mails in the order of time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from monitor.models import Incident, Message, Response
from monitor.policy.enforcement import Step
from monitor.policy.enforcement_words import TITLES
from monitor.policy.privacy import Viewer

SHAPES = {
    Response.State.PLANNED: ("waiting", "at once"),
    Response.State.DONE: ("busy", "done"),
    Response.State.REFUSED: ("warning", "not possible"),
    Response.State.UNDONE: ("ok", "taken back"),
}
MAILS = {
    Message.State.WAITING: ("waiting", "on its way"),
    Message.State.SENT: ("busy", "arrived"),
    Message.State.FAILED: ("failing", "did not arrive"),
    Message.State.DROPPED: ("unknown", "not sent"),
}


@dataclass(frozen=True, slots=True)
class Line:
    """A step or a mail. `shape` and `state` are its badge; `until`: when it was taken back."""

    at: datetime
    title: str
    shape: str
    state: str
    text: str
    until: datetime | None = None


def lines(incident: Incident, viewer: Viewer) -> list[Line]:
    """Problems of mails name services: they are for operators."""
    steps = [_step(row) for row in Response.objects.filter(incident=incident)]
    mails = Message.objects.filter(incident=incident).exclude(person="")
    return sorted([*steps, *(_mail(row, viewer) for row in mails)], key=lambda line: line.at)


def _step(row: Response) -> Line:
    shape, state = SHAPES[Response.State(row.state)]
    title = TITLES[Step(row.step)]
    if row.is_dry_run:
        return Line(row.at, title, "idle", "dry run", row.text)
    until = row.undone_at if row.state == Response.State.UNDONE else None
    return Line(row.at, title, shape, state, row.text, until)


def _mail(row: Message, viewer: Viewer) -> Line:
    shape, state = MAILS[Message.State(row.state)]
    if row.state == Message.State.WAITING and row.attempts:
        shape, state = "warning", "is tried again"
    text = f"To {row.person}"
    if row.problem and viewer.operator:
        text = f"{text}: {row.problem}"
    return Line(row.sent_at or row.created_at, "Mail", shape, state, text)
