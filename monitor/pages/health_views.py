"""Does gpucoord itself work? A page for people, /healthz for machines."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from monitor import leases
from monitor.pages import status_page
from monitor.policy.loop_health import LoopFact, LoopState, complete, judge, worst

# What anybody may read of a fault without a login.
ERROR_LENGTH = 120


@login_not_required
@never_cache
@require_safe
def healthz(request: HttpRequest) -> HttpResponse:
    """200 when every loop of this host ticks, 503 when one is stale or the database is away."""
    now, host = timezone.now(), settings.CONFIG.node
    try:
        facts = complete(leases.facts(host), host)
    except DatabaseError:
        return JsonResponse({"status": "no database", "loops": {}}, status=503)
    state = worst(judge(fact, now) for fact in facts)
    body = {"status": state.value, "loops": {f.loop: _brief(f, now) for f in facts}}
    return JsonResponse(body, status=503 if state is LoopState.STALE else 200)


def _brief(fact: LoopFact, now: datetime) -> dict[str, Any]:
    age, lag = fact.age_s(now), fact.lateness_p99_ms
    return {
        "age_s": None if age is None else round(age, 3),
        "lag_ms": None if lag is None else round(lag, 3),
        "error": fact.error[:ERROR_LENGTH] if fact.error else None,
    }


@never_cache
@require_safe
def status(request: HttpRequest) -> HttpResponse:
    """The same in detail, for people who are logged in; it asks for itself anew each 2 s."""
    page = status_page.build(settings.CONFIG.node, timezone.now())
    return render(request, "monitor/status.html", {"page": page})
