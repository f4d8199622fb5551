"""Pages of incidents, and the actions of users and operators."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from monitor.api import posted_text
from monitor.facts.incidents import INCIDENT_ANSWERS
from monitor.facts.input_rules import is_number
from monitor.incidents import actions
from monitor.incidents import facts as incident_facts
from monitor.incidents.alerts.policy import AlertPolicy
from monitor.incidents.alerts.rows import message_text
from monitor.incidents.alerts.steps import owner_warnings
from monitor.incidents.pages import evidence as incident_evidence
from monitor.incidents.pages import listing as incident_listing
from monitor.incidents.pages.listing import IncidentFilters
from monitor.incidents.rows import patterns as pattern_rows
from monitor.incidents.wording import ADVICE
from monitor.models import Exemption, Incident
from monitor.owners.identity.policy import Viewer
from monitor.pages.live.pages import viewer_of
from monitor.thresholds import rows as thresholds

SNOOZES = {"1": "1 h", "8": "8 h", "24": "1 day", "168": "7 days", "0": "unmute"}
EXEMPTIONS = {"1": "1 day", "7": "7 days", "30": "30 days", "": "no expiry"}


@require_safe
def incidents(request: HttpRequest) -> HttpResponse:
    filters, now = IncidentFilters.from_query(request.GET), timezone.now()
    viewer = viewer_of(request)
    context = {
        "filters": filters,
        "table": incident_listing.table(filters, viewer, now),
        "patterns": pattern_rows.stored() if filters.page == 1 else [],
        "exemptions": incident_listing.exemptions(now) if viewer.operator else [],
        "operator": viewer.operator,
        "mine": filters.person == viewer.username,
        "me": viewer.username,
        **incident_listing.choices(),
    }
    return render(request, "monitor/incidents.html", context)


@require_safe
def incident(request: HttpRequest, pk: int) -> HttpResponse:
    row = get_object_or_404(Incident.objects.select_related("gpu", "use"), pk=pk)
    viewer, now = viewer_of(request), timezone.now()
    if not actions.may_see_details(row, viewer):
        return render(request, "monitor/incident_hidden.html", {"incident": row}, status=403)
    context = {
        **incident_evidence.evidence(row, request.GET, now),
        "incident": row,
        "line": incident_listing.lines([row], viewer, now)[0],
        "advice": ADVICE.get(row.rule, ""),
        "trail": actions.trail(row),
        "viewer": viewer,
        "operator": viewer.operator,
        "figures": [
            (field, text)
            for field in INCIDENT_ANSWERS
            if field.title and (text := field.text(field.of(row)))
        ],
        "is_hog": row.rule in incident_facts.HOG_RULES,
        "owner_name": row.job_owner or row.user or None,
        "scopes": actions.scopes(row),
        "snoozes": SNOOZES,
        "exempt_times": EXEMPTIONS,
        "ending_problem": actions.ending_problem(row),
        "end_question": f"End {row.program or 'process'} {row.pid} of {row.user or 'unknown'}?",
        "was_terminated": actions.was_terminated(row),
        "mail": owner_warnings.mail_to_owner(row),
        "mail_text": message_text(row, thresholds.current(AlertPolicy), is_owner=True),
    }
    return render(request, "monitor/incident.html", context)


@require_POST
def acknowledge(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _opened(request, pk)
    text = posted_text(request, "explanation", actions.LONGEST_TEXT)
    actions.acknowledge(row, text, viewer.username, timezone.now())
    messages.success(request, f"Incident {pk} is acknowledged.")
    return redirect("incident", pk)


@require_POST
def snooze(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _operated(request, pk)
    hours = request.POST.get("hours", "")
    if hours not in SNOOZES:
        messages.error(request, "Choose a duration.")
    else:
        actions.snooze(row, float(hours), viewer.username, timezone.now())
        muted = "no longer muted" if hours == "0" else f"muted for {SNOOZES[hours]}"
        messages.success(request, f"Incident {pk} is {muted}.")
    return redirect("incident", pk)


@require_POST
def write(request: HttpRequest, pk: int) -> HttpResponse:
    """Mail a text to the user of the incident."""
    row, viewer = _operated(request, pk)
    to = owner_warnings.mail_to_owner(row)
    text = posted_text(request, "text", actions.LONGEST_TEXT).strip()
    if to.problem or not text:
        messages.error(request, f"{to.problem or 'The message is empty'}. Nothing was sent.")
    else:
        actions.write_to_owner(row, to, text, viewer.username, timezone.now())
        messages.success(request, f"The message to {to.person} is on its way.")
    return redirect("incident", pk)


@require_POST
def end(request: HttpRequest, pk: int) -> HttpResponse:
    """End the process that the page has shown."""
    row, viewer = _operated(request, pk)
    shown = [request.POST.get(name, "") for name in ("pid", "start_ticks")]
    pid, start_ticks = (int(text) if is_number(text) else 0 for text in shown)
    kill = request.POST.get("signal") == "kill"
    now = timezone.now()
    problem = actions.end_process(row, (pid, start_ticks), viewer.username, now, kill=kill)
    if problem:
        messages.error(request, f"{problem} No signal was sent.")
    else:
        name = "SIGKILL" if kill else "SIGTERM"
        messages.success(request, f"{row.host} sends {name} to {row.program} {row.pid} now.")
    return redirect("incident", pk)


@require_POST
def exempt(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _operated(request, pk)
    scope, days = request.POST.get("scope", ""), request.POST.get("days", "")
    now = timezone.now()
    if scope not in actions.scopes(row) or days not in EXEMPTIONS:
        messages.error(request, "Choose what to exempt and a duration.")
    else:
        actions.exempt(
            row,
            scope,
            _until(days, now),
            viewer.username,
            now,
            reason=posted_text(request, "reason", actions.LONGEST_TEXT),
            all_rules=request.POST.get("rules") == "all",
        )
        name = actions.scopes(row)[scope]
        messages.success(request, f"The {scope} {name} is exempt, and incident {pk} is closed.")
    return redirect("incident", pk)


@require_POST
def close(request: HttpRequest, pk: int) -> HttpResponse:
    row, viewer = _operated(request, pk)
    reason = posted_text(request, "reason", actions.LONGEST_TEXT)
    if actions.close(row, viewer.username, timezone.now(), reason):
        messages.success(request, f"Incident {pk} is closed.")
    else:
        messages.info(request, "The incident is already closed.")
    return redirect("incident", pk)


@require_POST
def end_exemption(request: HttpRequest, pk: int) -> HttpResponse:
    viewer = viewer_of(request)
    if not viewer.operator:
        raise PermissionDenied
    row = get_object_or_404(Exemption, pk=pk)
    actions.end_exemption(row, viewer.username, timezone.now())
    messages.success(request, f"The exemption of the {row.scope} {row.name} has ended.")
    return redirect("incidents")


def _until(days: str, now: datetime) -> datetime | None:
    return now + timedelta(days=int(days)) if days else None


def _opened(request: HttpRequest, pk: int) -> tuple[Incident, Viewer]:
    """The incident, if the user may open it: the owner and operators."""
    row, viewer = get_object_or_404(Incident, pk=pk), viewer_of(request)
    if not actions.may_see_details(row, viewer):
        raise PermissionDenied
    return row, viewer


def _operated(request: HttpRequest, pk: int) -> tuple[Incident, Viewer]:
    viewer = viewer_of(request)
    if not viewer.operator:
        raise PermissionDenied
    return get_object_or_404(Incident, pk=pk), viewer
