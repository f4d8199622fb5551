"""Pages of hosts, and the buttons for operators on the pages of hosts and GPUs."""

from __future__ import annotations

from datetime import datetime

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST
from msgspec import Struct

from monitor.facts.readings import HostFact, HostState
from monitor.gpus.policy import hosts as host_policy
from monitor.gpus.rows import closures as gpu_closures
from monitor.gpus.rows import hosts as host_rows
from monitor.models import Gpu
from monitor.pages.requests import posted_text, viewer_of


@require_POST
def pause(request: HttpRequest, uuid: str) -> HttpResponse:
    gpu, by = _operated(request, uuid)
    reason = posted_text(request, "reason", gpu_closures.REASON_LIMIT)
    done = gpu_closures.pause(gpu, by, reason, timezone.now())
    return _back(request, gpu, done, "accepts no new jobs", "is paused already")


@require_POST
def resume(request: HttpRequest, uuid: str) -> HttpResponse:
    gpu, by = _operated(request, uuid)
    done = gpu_closures.resume(gpu, by, timezone.now())
    return _back(request, gpu, done, "accepts jobs again", "was not paused")


@require_POST
def release(request: HttpRequest, uuid: str) -> HttpResponse:
    gpu, by = _operated(request, uuid)
    done = gpu_closures.release(gpu, by, timezone.now())
    return _back(request, gpu, done, "is out of quarantine", "was in no quarantine")


def _operated(request: HttpRequest, uuid: str) -> tuple[Gpu, str]:
    viewer = viewer_of(request)
    if not viewer.operator:
        raise PermissionDenied
    return get_object_or_404(Gpu, uuid=uuid), viewer.username


def _back(request: HttpRequest, gpu: Gpu, done: bool, result: str, already: str) -> HttpResponse:
    if done:
        messages.success(request, f"GPU {gpu.index} {result}.")
    else:
        messages.info(request, f"GPU {gpu.index} {already}.")
    return redirect("gpu", gpu.uuid)


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
    silent = host_policy.silent_since(host, now)
    if host.down_at is not None:
        return HostRow(host, silent, "failing", "down")
    if silent is not None:
        return HostRow(host, silent, "failing", "contact lost")
    return HostRow(host, None, host_policy.SHAPES[host.state], host.state.value)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def hosts(request: HttpRequest) -> HttpResponse:
    if request.method == "POST":
        return _changed(request)
    return _page(request)


def _page(request: HttpRequest, token: str = "") -> HttpResponse:
    now = timezone.now()
    shown = [host_row(host, now) for host in host_rows.all_hosts()]
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
        return _page(request, host_rows.make_token(viewer.username, now))
    host = host_rows.find(request.POST.get("host", ""))
    if host is None:
        raise Http404("There is no such host.")
    if action in STATES:
        reason = posted_text(request, "reason", host_rows.REASON_LIMIT)
        if host_rows.change(host.name, STATES[action], viewer.username, reason, now):
            messages.success(request, f"{host.name} {DONE[action]}.")
        else:
            messages.info(request, f"{host.name} is {STATES[action].value} already.")
    elif action in ("down", "remove"):
        act = host_rows.confirm_down if action == "down" else host_rows.remove
        problem = act(host, viewer.username, now)
        if problem:
            messages.error(request, problem)
        else:
            word = "is confirmed down" if action == "down" else "is removed"
            messages.success(request, f"{host.name} {word}.")
    else:
        raise Http404("There is no such action.")
    return redirect("hosts")
