"""Pages of history: a person, a process, a host."""

from __future__ import annotations

from django.contrib.auth.models import User
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.http import require_safe

from monitor import store, usage
from monitor.models import Gpu, HostHour, HostMinute, ProcessUse
from monitor.pages import history_pages, host_strips, incident_badges, own_page
from monitor.pages.views import viewer_of
from monitor.usage import Usage


@require_safe
def person(request: HttpRequest, name: str) -> HttpResponse:
    """How much has this person used? Sums are for all, single processes for some."""
    if not (User.objects.filter(username=name).exists() or usage.uses_of(name).exists()):
        raise Http404
    viewer = viewer_of(request)
    details = viewer.operator or viewer.username == name
    now = timezone.now()
    context = {
        **history_pages.person(name, request.GET, now, details),
        **(own_page.context(name, now) if details else {}),
        "name": name,
        "details": details,
        "own": viewer.username == name,
    }
    return render(request, "monitor/person.html", context)


@require_safe
def me(request: HttpRequest) -> HttpResponse:
    """What do I use, hold idle, and what am I asked to change?"""
    return redirect("person", request.user.get_username())


@require_safe
def process(request: HttpRequest, pk: int) -> HttpResponse:
    """What did this process do?"""
    use = get_object_or_404(ProcessUse.objects.select_related("gpu"), pk=pk)
    viewer = viewer_of(request)
    if not viewer.operator and viewer.username not in (use.job_owner, use.user):
        return render(request, "monitor/process_hidden.html", {"use": use}, status=403)
    now = timezone.now()
    context = history_pages.process(use, request.GET, now)
    badges = incident_badges.current(now).processes if use.ended_at is None else {}
    mine = Usage(
        use.sm_s,
        use.held_s,
        use.known_s,
        use.memory_byte_s,
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
    """What happened on this machine?"""
    newest = store.newest(name)
    known = newest is not None or any(
        model._default_manager.filter(host=name).exists() for model in (Gpu, HostMinute, HostHour)
    )
    if not known:
        raise Http404
    total = newest.host.memory_total_bytes if newest else None
    context = history_pages.host(name, total, request.GET, timezone.now())
    strips = host_strips.strips([newest]) if newest else []
    return render(request, "monitor/host.html", {**context, "name": name, "hosts": strips})
