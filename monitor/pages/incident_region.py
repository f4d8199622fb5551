"""The dashboard's region of open incidents: who harms whom, now."""

from __future__ import annotations

from datetime import datetime

from monitor import incidents
from monitor.pages import incident_badges
from monitor.pages.incident_page import is_quiet
from monitor.pages.regions import Context, Region

SHOWN = 6


def _load(now: datetime) -> Context:
    """What is snoozed is left out; the worst and longest come first."""
    found = sorted(incidents.not_snoozed(now), key=incident_badges.worst_first)
    return {
        "lines": [(incident, is_quiet(incident, now)) for incident in found[:SHOWN]],
        "more": max(0, len(found) - SHOWN),
        "badges": incident_badges.of(found),
    }


def _version(context: Context) -> object:
    lines = [(i.pk, i.text, i.severity, i.acknowledged_at, quiet) for i, quiet in context["lines"]]
    return lines, context["more"]


REGION = Region("incidents", "monitor/_incidents.html", _load, _version, place=10)
