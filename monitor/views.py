"""Pages of the monitor: dashboard, a GPU, the processes."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe


@require_safe
def dashboard(request: HttpRequest) -> HttpResponse:
    return render(request, "monitor/dashboard.html")


@require_safe
def gpu(request: HttpRequest, uuid: str) -> HttpResponse:
    return render(request, "monitor/gpu.html", {"uuid": uuid})


@require_safe
def processes(request: HttpRequest) -> HttpResponse:
    return render(request, "monitor/processes.html")
