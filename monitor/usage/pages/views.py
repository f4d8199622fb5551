"""Pages of history: a user, a process, a host, and the user's own page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe
from msgspec import Struct

from monitor.facts.incidents import IDLE_HELD
from monitor.facts.readings import Snapshot
from monitor.gpus.pages import host_row
from monitor.gpus.rows import hosts as host_rows
from monitor.gpus.rows import snapshot as snapshot_rows
from monitor.incidents import pages as incident_badges
from monitor.incidents import rows as incident_rows
from monitor.incidents.alerts.steps import owner_summary
from monitor.incidents.rules.processes import IDLE_PCT
from monitor.incidents.wording import IncidentSummary
from monitor.models import Gpu, HostHour, HostMinute, Incident, ProcessUse
from monitor.pages import cards
from monitor.pages.cards import ProcessRow
from monitor.pages.requests import viewer_of
from monitor.usage.pages import content as history_content
from monitor.usage.rows import processes as usage_sums
from monitor.usage.rows.processes import UsageTotals


class CurrentUse(Struct, frozen=True):
    """A process of the user; `idle_since`: since when its memory has been idle."""

    row: ProcessRow
    gpu_uuid: str
    gpu: str
    idle_since: datetime | None
    host: str
    index: int
    command: list[str] | None


class Recommendation(Struct, frozen=True):
    """An open incident, worded for its owner."""

    incident: Incident
    summary: IncidentSummary


def own_context(name: str, now: datetime) -> dict[str, Any]:
    """Template variables of the part that only the user and operators see.

    `idle`: processes that hold memory idle without an open incident.
    """
    open_incidents = incident_badges.open_of(name)
    mine = own_processes(snapshot_rows.newest_all(), name, now)
    reported = {(row.gpu_id, row.pid) for row in open_incidents if row.rule == IDLE_HELD}
    idle = [p for p in mine if p.idle_since and (p.gpu_uuid, p.row.pid) not in reported]
    return {
        "recommendations": [
            Recommendation(incident, owner_summary(incident)) for incident in open_incidents
        ],
        "mine": mine,
        "idle": idle,
        "idle_pct": IDLE_PCT,
        "idle_bytes": sum(process.row.memory_bytes or 0 for process in idle),
        "patterns": incident_rows.patterns(name),
    }


def own_processes(snapshots: Sequence[Snapshot], name: str, now: datetime) -> list[CurrentUse]:
    badges = incident_badges.current(now)
    several = len(snapshots) > 1
    current: list[CurrentUse] = []
    for snapshot in snapshots:
        gpus = {gpu.uuid: gpu.index for gpu in snapshot.gpus}
        own = [p for p in snapshot.processes if (p.job_owner or p.user) == name]
        idle = history_content.idle_processes(snapshot.host.name, own, now) if own else {}
        current += [
            CurrentUse(
                cards.process_row(p, badges),
                p.gpu_uuid,
                f"{snapshot.host.name} GPU {gpus[p.gpu_uuid]}"
                if several
                else f"GPU {gpus[p.gpu_uuid]}",
                idle.get((p.gpu_uuid, p.pid)),
                snapshot.host.name,
                gpus[p.gpu_uuid],
                list(p.command) if p.command else None,
            )
            for p in own
            if p.gpu_uuid in gpus
        ]
    return sorted(current, key=lambda n: (n.idle_since is None, -(n.row.memory_bytes or 0)))


@require_safe
def person(request: HttpRequest, name: str) -> HttpResponse:
    """The usage of a user. Sums are visible to all users, single processes only to some."""
    user = User.objects.filter(username=name).first()
    if user is None and not usage_sums.uses_of(name).exists():
        raise Http404
    viewer = viewer_of(request)
    details = viewer.operator or viewer.username == name
    now = timezone.now()
    context = {
        **history_content.person(name, request.GET, now, details),
        **(own_context(name, now) if details else {}),
        "name": name,
        "details": details,
        "own": viewer.username == name,
        "manage_url": reverse("people-person", args=[user.pk]) if user and viewer.operator else "",
    }
    return render(request, "monitor/person.html", context)


@require_safe
def me(request: HttpRequest) -> HttpResponse:
    """The user's own usage, idle memory and recommendations."""
    return redirect("person", request.user.get_username())


@require_safe
def process(request: HttpRequest, pk: int) -> HttpResponse:
    """The history of a process."""
    use = get_object_or_404(ProcessUse.objects.select_related("gpu"), pk=pk)
    viewer = viewer_of(request)
    if not viewer.operator and viewer.username not in (use.job_owner, use.user):
        return render(request, "monitor/process_hidden.html", {"use": use}, status=403)
    now = timezone.now()
    context = history_content.process(use, request.GET, now)
    badges = incident_badges.current(now).processes if use.ended_at is None else {}
    mine = UsageTotals(
        use.sm_s,
        use.held_s,
        use.known_s,
        use.memory_byte_s,
        use.memory_known_s,
        use.joules,
        use.peak_memory_bytes,
    )
    return render(
        request,
        "monitor/process.html",
        {
            **context,
            "use": use,
            "usage": mine,
            "owner_name": use.job_owner or use.user or None,
            "badge": badges.get((use.gpu_id, use.pid)),
        },
    )


@require_safe
def host(request: HttpRequest, name: str) -> HttpResponse:
    """The history of a host."""
    newest = snapshot_rows.newest(name)
    exists = newest is not None or any(
        model._default_manager.filter(host=name).exists() for model in (Gpu, HostMinute, HostHour)
    )
    if not exists:
        raise Http404
    total = newest.host.memory_total_bytes if newest else None
    now, fact = timezone.now(), host_rows.find(name)
    context = history_content.host(name, total, request.GET, now)
    state = host_row(fact, now) if fact else None
    silent = [name] if state and state.silent_since else []
    strips = cards.strips([newest], silent) if newest else []
    context |= {"name": name, "hosts": strips, "state": state}
    return render(request, "monitor/host.html", context)
