"""The page of reports: a usage report with its choice of period and scope."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.contrib.auth.models import Group, User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from monitor.models import Gpu
from monitor.owners import rows as looks
from monitor.pages.requests import viewer_of
from reports.figures.actions import (
    GROUP_PERMISSION,
    NotAllowed,
    ReportBusy,
    ScopeNotFound,
    limited,
)
from reports.figures.facts import Period, ReportRefused
from reports.figures.policy import periods
from reports.render import actions as rendering
from reports.render.actions import page_context

# A week shows who uses what; the command line and REST give the last 24 hours.
FIRST_SHOWN = "7d"
LASTS = (
    ("24h", "24 h"),
    ("7d", "7 d"),
    ("30d", "30 d"),
    ("day", "Last day"),
    ("week", "Last week"),
    ("month", "Last month"),
)
DOWNLOADS = (("csv", "CSV"), ("xlsx", "XLSX"), ("json", "JSON"), ("html", "HTML"), ("pdf", "PDF"))
STATUS = {ReportRefused: 422, ScopeNotFound: 404, NotAllowed: 403, ReportBusy: 429}
# Users in the choice of scopes; others by the address.
MOST_SCOPES = 200


@require_safe
def usage(request: HttpRequest) -> HttpResponse:
    """Was it fair? A request that can't be answered shows the reason and the choice again."""
    query, now = request.GET, timezone.now()
    looks.refresh(now)
    context = _choice(request, query)
    status = 200
    try:
        period = _period(query, now)
        scope = periods.scope(query.get("scope", "").replace("\0", ""))
        report = limited(period, scope, viewer_of(request), now)
        context |= page_context(report, mine=request.user.get_username()) | _times(period)
    except (ReportRefused, ScopeNotFound, NotAllowed, ReportBusy) as error:
        context["problem"] = str(error)
        status = STATUS[type(error)]
    return render(request, "reports/usage.html", context, status=status)


def _period(query: Mapping[str, str], now: datetime) -> Period:
    zone = timezone.get_current_timezone_name()
    begin, end = query.get("from", ""), query.get("to", "")
    # A form sends the length beside the times that replace it.
    last = "" if begin or end else query.get("last") or FIRST_SHOWN
    return periods.parse(last, begin, end, zone, now)


def _times(period: Period) -> dict[str, str]:
    """The period in the fields of the form."""
    zone = timezone.get_current_timezone()
    since, until = (at.astimezone(zone) for at in (period.since, period.until))
    return {"from_text": f"{since:%Y-%m-%dT%H:%M}", "to_text": f"{until:%Y-%m-%dT%H:%M}"}


def _choice(request: HttpRequest, query: Mapping[str, str]) -> dict[str, Any]:
    has_pdf = rendering.is_available()
    return {
        "lasts": LASTS,
        "last": "" if query.get("from") else query.get("last") or FIRST_SHOWN,
        "scope": query.get("scope") or "all",
        "scopes": _scopes(request),
        "zone": timezone.get_current_timezone_name(),
        "downloads": [d for d in DOWNLOADS if has_pdf or d[0] != "pdf"],
        "has_pdf": has_pdf,
    }


def _scopes(request: HttpRequest) -> list[tuple[str, str]]:
    """Subjects that this user may choose: everything, people, groups, hosts and GPUs."""
    user = request.user
    scopes = [("all", "All GPUs and users")]
    names = [user.get_username()]
    groups = user.groups.all() if user.has_perm(GROUP_PERMISSION) else Group.objects.none()
    if user.is_staff:
        names = list(User.objects.order_by("username").values_list("username", flat=True))
        groups = Group.objects.all()
    scopes += [(f"user:{name}", f"User {name}") for name in names[:MOST_SCOPES]]
    scopes += [
        (f"group:{g.name}", f"Group {g.name}") for g in groups.order_by("name")[:MOST_SCOPES]
    ]
    gpus = list(Gpu.objects.order_by("host", "index")[:MOST_SCOPES])
    hosts = sorted({gpu.host for gpu in gpus})
    scopes += [(f"host:{host}", f"Host {host}") for host in hosts]
    several = len(hosts) > 1
    scopes += [
        (f"gpu:{g.uuid}", f"{g.host} GPU {g.index}" if several else f"GPU {g.index}") for g in gpus
    ]
    return scopes
