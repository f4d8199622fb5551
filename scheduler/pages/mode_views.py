"""The page of the mode: which one holds, why, and what an operator wants instead."""

from __future__ import annotations

from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from monitor import events, policies
from scheduler import modes
from scheduler.pages.mode_forms import ModeForm
from scheduler.policy.mode import ModePolicy

SHOWN = 10


@require_http_methods(["GET", "HEAD", "POST"])
def mode(request: HttpRequest) -> HttpResponse:
    """Is gpucoord cooperative or defensive, and why?"""
    form = ModeForm(request.POST or None)
    if request.method == "POST":
        if not request.user.is_staff:
            raise PermissionDenied
        if form.is_valid():
            chosen, host = form.chosen(), form.cleaned_data["host"] or settings.CONFIG.node
            now = timezone.now()
            by = request.user.get_username()
            modes.override(host, chosen, form.until(now), by=by, now=now)
            messages.success(request, f"{host} is {chosen or 'judged by the hogs again'}.")
            return redirect("mode")
    context = {
        "form": form,
        "rows": modes.shown(settings.CONFIG.node),
        "policy": policies.current(ModePolicy),
        "changes": events.recent(SHOWN, kind="MODE_CHANGED"),
    }
    return render(request, "scheduler/mode.html", context, status=422 if form.errors else 200)
