"""The page of all hosts, and its buttons for operators."""

from __future__ import annotations

from datetime import datetime

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods
from msgspec import Struct

from monitor.api import posted_text, viewer_of
from monitor.facts.hosts import HostFact, HostState
from monitor.gpus.hosts import actions, policy, rows

STATES = {"enable": HostState.ACTIVE, "drain": HostState.DRAINED, "disable": HostState.DISABLED}
DONE = {
    "enable": "takes jobs again",
    "drain": "starts no new jobs; running jobs continue",
    "disable": "starts no new jobs, and gpucoord does not start there again",
}


class HostRow(Struct, frozen=True):
    """A host on the page; silent_since None: it is in contact, or has never been."""

    host: HostFact
    silent_since: datetime | None
    shape: str
    word: str


def host_row(host: HostFact, now: datetime) -> HostRow:
    silent = policy.silent_since(host, now)
    if host.down_at is not None:
        return HostRow(host, silent, "failing", "down")
    if silent is not None:
        return HostRow(host, silent, "failing", "contact lost")
    return HostRow(host, None, policy.SHAPES[host.state], host.state.value)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def hosts(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        return _changed(request)
    return _page(request)


def _page(request: HttpRequest, token: str = "") -> HttpResponse:
    now = timezone.now()
    shown = [host_row(host, now) for host in rows.all_hosts()]
    lost = [row for row in shown if row.silent_since or row.host.down_at]
    context = {"rows": shown, "lost": lost, "token": token}
    return render(request, "monitor/hosts.html", context)


def _changed(request: HttpRequest) -> HttpResponse:
    viewer = viewer_of(request)
    if not viewer.operator:
        raise PermissionDenied
    now, action = timezone.now(), request.POST.get("do", "")
    if action == "token":
        if not request.user.is_superuser:
            raise PermissionDenied
        # Shown now: not by a message, which would travel in a cookie.
        return _page(request, actions.make_token(viewer.username, now))
    host = rows.find(request.POST.get("host", ""))
    if host is None:
        raise Http404("There is no such host.")
    if action in STATES:
        reason = posted_text(request, "reason", actions.REASON_LIMIT)
        if actions.change(host.name, STATES[action], viewer.username, reason, now):
            messages.success(request, f"{host.name} {DONE[action]}.")
        else:
            messages.info(request, f"{host.name} is {STATES[action].value} already.")
    elif action in ("down", "remove"):
        act = actions.confirm_down if action == "down" else actions.remove
        problem = act(host, viewer.username, now)
        if problem:
            messages.error(request, problem)
        else:
            word = "is confirmed down" if action == "down" else "is removed"
            messages.success(request, f"{host.name} {word}.")
    else:
        raise Http404("There is no such action.")
    return redirect("hosts")
