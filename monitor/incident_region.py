"""The dashboard's region of open incidents: who harms whom, now."""

from __future__ import annotations

from datetime import datetime

from monitor import incident_page, incidents
from monitor.incident_page import WORST_FIRST
from monitor.policy.privacy import Viewer
from monitor.regions import Context, Region

SHOWN = 6
ANYBODY = Viewer("", operator=False)


def _load(now: datetime) -> Context:
    """What is snoozed is left out; the worst and longest come first."""
    rows = incidents.going_on().exclude(snoozed_until__gt=now).select_related("gpu")
    found = list(rows.order_by(WORST_FIRST, "since_at", "id"))
    return {
        "lines": incident_page.lines(found[:SHOWN], ANYBODY, now) if found else [],
        "more": max(0, len(found) - SHOWN),
    }


def _version(context: Context) -> object:
    facts = [(i.incident.pk, i.incident.text, i.incident.severity) for i in context["lines"]]
    marks = [(i.is_quiet, i.incident.acknowledged_at is not None) for i in context["lines"]]
    return facts, marks, context["more"]


REGION = Region("incidents", "monitor/_incidents.html", _load, _version, place=10)
