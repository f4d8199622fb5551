"""The dashboard's region of recent events."""

from __future__ import annotations

from datetime import datetime

from monitor import events
from monitor.regions import Context, Region

SHOWN = 10


def _load(now: datetime) -> Context:
    return {"events": events.recent(SHOWN)}


def _version(context: Context) -> object:
    return [event.pk for event in context["events"]]


REGION = Region("events", "monitor/_events.html", _load, _version, place=90)
