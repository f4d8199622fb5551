"""`/metrics` for Prometheus, and who may read it: owners of tokens, and allowed addresses.

Every figure comes from rows, so any process may answer.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, choose_encoder, generate_latest

from gpucoord_site import __version__
from gpucoord_site.http import clients
from gpucoord_site.http.clients import is_within
from monitor.owners import rows
from monitor.pages import metrics as monitor_metrics
from monitor.pages.metrics import Families
from monitor.runtime.rows.extensions import parts
from scheduler import metrics as scheduler_metrics

REFUSED = "This token is unknown, expired or revoked. `gpucoord token USER` makes a new one.\n"
UNAUTHENTICATED = (
    "Send a token: Authorization: Bearer TOKEN (`gpucoord token USER` makes one), "
    "or ask from an address that the setting metrics_allow names.\n"
)
# A request through a proxy has the proxy's address, which says nothing about its sender.
PROXIED = (
    "HTTP_FORWARDED",
    "HTTP_VIA",
    "HTTP_X_FORWARDED_FOR",
    "HTTP_X_FORWARDED_HOST",
    "HTTP_X_FORWARDED_PROTO",
    "HTTP_X_REAL_IP",
)


def refusal(request: HttpRequest, allowed: Sequence[str], now: datetime) -> str | None:
    """Why the client may not read the metrics; None = it may."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        if rows.authenticate(token.strip(), now):
            return None
        clients.token_refused(request)
        return REFUSED
    if any(name in request.META for name in PROXIED):
        return UNAUTHENTICATED
    return None if is_within(request.META.get("REMOTE_ADDR", ""), allowed) else UNAUTHENTICATED


PLAIN = "text/plain; charset=utf-8"


# A plain function: Django runs it in a thread, so that the event loop goes on meanwhile.
@login_not_required
@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """All metrics as text, for a token or an allowed address."""
    try:
        why_not = refusal(request, settings.CONFIG.metrics_networks, timezone.now())
        if why_not:
            headers = {"WWW-Authenticate": 'Bearer realm="gpucoord"'}
            return HttpResponse(why_not, status=401, content_type=PLAIN, headers=headers)
        families = gather()
    except DatabaseError:
        return HttpResponse("The database is away.\n", status=503, content_type=PLAIN)
    return _encoded(families, request.headers.get("Accept", ""))


def gather() -> Families:
    """Read the rows, and the time that this took."""
    began, into = time.perf_counter(), Families()
    into.gauge("gpucoord_build_info", "The version.", {"version": __version__}, 1)
    now = timezone.now()
    monitor_metrics.add_metrics(into, now)
    scheduler_metrics.add_metrics(into, now)
    for add_metrics in parts("reports.capacity.pages:add_metrics"):
        add_metrics(into, now)
    help_text = "Time that this answer took to put together."
    into.gauge("gpucoord_scrape_duration_seconds", help_text, {}, time.perf_counter() - began)
    return into


def _encoded(families: Families, accept: str) -> HttpResponse:
    try:
        encode, content_type = choose_encoder(accept)
    except (TypeError, ValueError):
        # The client asks for an invalid version.
        encode, content_type = generate_latest, CONTENT_TYPE_PLAIN_0_0_4
    return HttpResponse(encode(families), content_type=content_type)
