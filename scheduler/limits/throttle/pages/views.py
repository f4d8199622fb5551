"""The page of the mode: the current mode, its reason, and the operator's override."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from monitor.incidents.policy.lifecycle import union_s
from monitor.incidents.rows import open as open_incidents
from monitor.journal.rows import events
from monitor.thresholds import rows as thresholds
from scheduler.limits.throttle import charts
from scheduler.limits.throttle import rows as throttle_rows
from scheduler.limits.throttle.pages import region
from scheduler.limits.throttle.policy.mode import LOOK_BACK_H, Mode, ModePolicy
from scheduler.limits.throttle.policy.tiers import HOG_MULTIPLIER, LEAST_MULTIPLIER, AdaptivePolicy
from scheduler.models import ModeState

AUTOMATIC = "automatic"
CHOICES = [
    (AUTOMATIC, "Automatic"),
    (Mode.COOPERATIVE.value, "Cooperative"),
    (Mode.DEFENSIVE.value, "Defensive"),
]
HOURS = [(1, "1 h"), (4, "4 h"), (12, "12 h"), (24, "1 day"), (168, "7 days")]


class ModeForm(forms.Form):
    """`hours` applies to modes other than automatic."""

    host = forms.CharField(required=False, max_length=100, widget=forms.HiddenInput)
    mode = forms.ChoiceField(choices=CHOICES, label="Mode")
    hours = forms.TypedChoiceField(
        choices=HOURS, coerce=int, initial=4, label="For", required=False, empty_value="4"
    )

    def clean_host(self) -> str:
        host: str = self.cleaned_data["host"]
        if host and not ModeState.objects.filter(host=host).exists():
            raise forms.ValidationError("This host does not exist.")
        return host

    def chosen(self) -> Mode | None:
        mode = self.cleaned_data["mode"]
        return None if mode == AUTOMATIC else Mode(mode)

    def until(self, now: datetime) -> datetime | None:
        if self.chosen() is None:
            return None
        return now + timedelta(hours=int(self.cleaned_data["hours"]))


SHOWN = 10


@require_http_methods(["GET", "HEAD", "POST"])
def mode(request: HttpRequest) -> HttpResponse:
    form = ModeForm(request.POST or None)
    if request.method == "POST":
        if not request.user.is_staff:
            raise PermissionDenied
        if form.is_valid():
            chosen, host = form.chosen(), form.cleaned_data["host"] or settings.CONFIG.node
            now = timezone.now()
            by = request.user.get_username()
            throttle_rows.override(host, chosen, form.until(now), by=by, now=now)
            messages.success(request, f"{host}: the mode is {chosen or 'automatic'}.")
            return redirect("mode")
    policy, adaptive = thresholds.current(ModePolicy), thresholds.current(AdaptivePolicy)
    now = timezone.now()
    modes = throttle_rows.shown_modes(settings.CONFIG.node)
    context = {
        "form": form,
        "rows": [(row, _overuse(row.host, now)) for row in modes],
        "policy": policy,
        "look_back_h": LOOK_BACK_H,
        "multipliers": {"hog": HOG_MULTIPLIER, "least": LEAST_MULTIPLIER},
        "steps": charts.tier_steps(adaptive),
        "changes": events.recent(SHOWN, kind="MODE_CHANGED"),
        **region.load(now),
    }
    return render(request, "scheduler/mode.html", context, status=422 if form.errors else 200)


def _overuse(host: str, now: datetime) -> dict[str, Any]:
    """Overuse in the look-back time: the part of it in percent, and by hour."""
    spans = open_incidents.hog_spans(host, LOOK_BACK_H, now)
    return {
        "pct": 100 * union_s(spans) / (LOOK_BACK_H * 3600),
        "hours": charts.overuse_hours(spans, LOOK_BACK_H, now),
        "since": now - timedelta(hours=LOOK_BACK_H),
    }
