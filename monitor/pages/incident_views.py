"""Pages of incidents, and what people do about them."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from monitor import incident_actions as actions
from monitor import patterns
from monitor.models import Exemption, Incident
from monitor.pages import incident_evidence, incident_page
from monitor.pages.incident_page import Wanted
from monitor.pages.views import viewer_of
from monitor.policy import hog_rules
from monitor.policy.incident_words import ADVICE
from monitor.policy.privacy import Viewer

SNOOZES = {"1": "1 h", "8": "8 h", "24": "1 day", "168": "7 days", "0": "end the snooze"}
EXEMPTIONS = {"1": "1 day", "7": "7 days", "30": "30 days", "": "for good"}


@require_safe
def incidents(request: HttpRequest) -> HttpResponse:
    """Who harms whom, and how sure are we?"""
    wanted, now = Wanted.from_query(request.GET), timezone.now()
    viewer = viewer_of(request)
    context = {
        "wanted": wanted,
        "table": incident_page.table(wanted, viewer, now),
        "patterns": patterns.known() if wanted.page == 1 else [],
        "exemptions": incident_page.exemptions(now) if viewer.operator else [],
        "operator": viewer.operator,
        "mine": wanted.person == viewer.username,
        "me": viewer.username,
        **incident_page.choices(),
    }
    return render(request, "monitor/incidents.html", context)


@require_safe
def incident(request: HttpRequest, pk: int) -> HttpResponse:
    """What happened, how is it known, and what has been said and done about it?"""
    row = get_object_or_404(Incident.objects.select_related("gpu", "use"), pk=pk)
    viewer, now = viewer_of(request), timezone.now()
    if not actions.may_open(row, viewer):
        return render(request, "monitor/incident_hidden.html", {"incident": row}, status=403)
    context = {
        **incident_evidence.evidence(row, request.GET, now),
        "incident": row,
        "line": incident_page.lines([row], viewer, now)[0],
        "advice": ADVICE.get(row.rule, ""),
        "trail": actions.trail(row),
        "viewer": viewer,
        "operator": viewer.operator,
        "is_hog": row.rule in hog_rules.HOG_RULES,
        "owner_name": row.job_owner or row.user or None,
        "scopes": actions.scopes(row),
        "snoozes": SNOOZES,
        "exempt_times": EXEMPTIONS,
    }
    return render(request, "monitor/incident.html", context)


@require_POST
def acknowledge(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _opened(request, pk)
    text = request.POST.get("explanation", "")
    actions.acknowledge(row, text, viewer.username, timezone.now())
    return redirect("incident", pk)


@require_POST
def snooze(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _operated(request, pk)
    hours = request.POST.get("hours", "")
    if hours not in SNOOZES:
        messages.error(request, "Choose for how long.")
    else:
        actions.snooze(row, float(hours), viewer.username, timezone.now())
    return redirect("incident", pk)


@require_POST
def exempt(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _operated(request, pk)
    scope, days = request.POST.get("scope", ""), request.POST.get("days", "")
    now = timezone.now()
    if scope not in actions.scopes(row) or days not in EXEMPTIONS:
        messages.error(request, "Choose whom to exempt, and for how long.")
    else:
        actions.exempt(
            row,
            scope,
            _until(days, now),
            viewer.username,
            now,
            reason=request.POST.get("reason", ""),
            all_rules=request.POST.get("rules") == "all",
        )
    return redirect("incident", pk)


@require_POST
def close(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _operated(request, pk)
    reason = request.POST.get("reason", "")
    if not actions.close(row, viewer.username, timezone.now(), reason):
        messages.info(request, "It was closed already.")
    return redirect("incident", pk)


@require_POST
def end_exemption(request: HttpRequest, pk: int) -> HttpResponse:
    viewer = viewer_of(request)
    if not viewer.operator:
        raise PermissionDenied
    row = get_object_or_404(Exemption, pk=pk)
    actions.end_exemption(row, viewer.username, timezone.now())
    return redirect("incidents")


def _until(days: str, now: datetime) -> datetime | None:
    return now + timedelta(days=int(days)) if days else None


def _opened(request: HttpRequest, pk: int) -> tuple[Incident, Viewer]:
    """For the owner and for operators."""
    row, viewer = get_object_or_404(Incident, pk=pk), viewer_of(request)
    if not actions.may_open(row, viewer):
        raise PermissionDenied
    return row, viewer


def _operated(request: HttpRequest, pk: int) -> tuple[Incident, Viewer]:
    viewer = viewer_of(request)
    if not viewer.operator:
        raise PermissionDenied
    return get_object_or_404(Incident, pk=pk), viewer
