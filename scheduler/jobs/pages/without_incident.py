"""The page of what would start earlier if an incident ended; the page of the incident shows it."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.utils import timezone
from django.views.decorators.http import require_safe

from monitor.incidents.actions import may_see_details
from monitor.models import Incident
from monitor.pages.live.pages import viewer_of
from scheduler.dispatch.steps.advice import AT_ONCE
from scheduler.dispatch.steps.without_incident import earlier_starts

MOST = 3


@require_safe
def without_incident(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer, now = get_object_or_404(Incident, pk=pk), viewer_of(request), timezone.now()
    if not may_see_details(row, viewer):
        return render(request, "monitor/incident_hidden.html", {"incident": row}, status=403)
    starts = None if row.closed_at else earlier_starts(row, now)
    context = {
        "incident": row,
        "starts": None if starts is None else starts[:MOST],
        "more": 0 if starts is None else max(0, len(starts) - MOST),
        "at_once": now + AT_ONCE,
    }
    return render(request, "scheduler/without_incident.html", context)
