"""The dashboard's region of recent events."""

from __future__ import annotations

from datetime import datetime

from django.db.models import QuerySet

from monitor.models import Event
from monitor.pages.regions import Context, Region
from monitor.policy.privacy import Viewer, event_text
from monitor.prepared import prepared

SHOWN = 10
# The region of open incidents shows these with the same words.
OPENED = "INCIDENT_OPENED"
# One rendering serves all: it holds what anybody who is logged in may read.
ANYBODY = Viewer("", operator=False)


def _load(now: datetime) -> Context:
    found = _newest()
    for event in found:
        event.text = event_text(event.kind, event.text, event.owner, ANYBODY)
    return {"events": found}


@prepared
def _newest() -> QuerySet[Event]:
    return Event.objects.exclude(kind=OPENED).order_by("-at", "-id")[:SHOWN]


def _version(context: Context) -> object:
    return [event.pk for event in context["events"]]


REGION = Region("events", "monitor/_events.html", _load, _version, place=90)
