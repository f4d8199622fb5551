"""What Prometheus reads: every figure comes from rows, so any process may answer."""

from __future__ import annotations

import time

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest

from gpucoord_site import __version__
from gpucoord_site.metrics_access import refusal
from monitor import metrics as monitor_metrics
from monitor.metric_families import Families
from scheduler import metrics as scheduler_metrics

PLAIN = "text/plain; charset=utf-8"


# A plain function: Django runs it in a thread, so that the event loop goes on meanwhile.
@login_not_required
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """All metrics as text, for a token or an allowed address."""
    try:
        why_not = refusal(request, settings.CONFIG.metrics_allow, timezone.now())
        if why_not:
            headers = {"WWW-Authenticate": 'Bearer realm="gpucoord"'}
            return HttpResponse(why_not, status=401, content_type=PLAIN, headers=headers)
        found = gather()
    except DatabaseError:
        return HttpResponse("The database is away.\n", status=503, content_type=PLAIN)
    return _encoded(found, request.headers.get("Accept", ""))


def gather() -> Families:
    """Read the rows, and how long that took."""
    began, into = time.perf_counter(), Families()
    into.gauge("gpucoord_build_info", "The version.", {"version": __version__}, 1)
    now = timezone.now()
    monitor_metrics.add_metrics(into, now)
    scheduler_metrics.add_metrics(into, now)
    what = "Time that this answer took to put together."
    into.gauge("gpucoord_scrape_duration_seconds", what, {}, time.perf_counter() - began)
    return into


def _encoded(found: Families, accept: str) -> HttpResponse:
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # What asks for a version that is no version.
        encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    return HttpResponse(encode(found), content_type=content_type)
