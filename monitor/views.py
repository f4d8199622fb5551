"""Pages of the monitor: the dashboard, one GPU, the processes."""

from __future__ import annotations

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from monitor import history, store
from monitor.rendering import DASHBOARD, Renderer


@require_safe
def dashboard(request: HttpRequest) -> HttpResponse:
    """Is everything fine, and who is on what?"""
    frame = Renderer(history.sparks.get).frame(store.newest_all(), [DASHBOARD], timezone.now())
    parts = list(frame.boards[DASHBOARD].parts)
    overview = [p for p in parts if not p.target.startswith("region-")]
    regions = [p for p in parts if p.target.startswith("region-")]
    return render(request, "monitor/dashboard.html", {"overview": overview, "regions": regions})


@require_safe
def gpu(request: HttpRequest, uuid: str) -> HttpResponse:
    raise Http404


@require_safe
def processes(request: HttpRequest) -> HttpResponse:
    return render(request, "monitor/processes.html")
