"""Pages of agreed times: see them, ask for one, decide, withdraw."""

from __future__ import annotations

from typing import cast

from django.conf import settings
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from scheduler import windows
from scheduler.models import TimeWindow
from scheduler.pages import window_page
from scheduler.pages.window_forms import WindowForm

LONGEST_ANSWER = 500
DECISIONS = {"approve": TimeWindow.State.APPROVED, "decline": TimeWindow.State.DECLINED}


@require_safe
def all_windows(request: HttpRequest) -> HttpResponse:
    """When is which GPU for whom?"""
    context = window_page.context(_person(request), timezone.now(), settings.TIME_ZONE)
    return render(request, "scheduler/windows.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def ask(request: HttpRequest) -> HttpResponse:
    """Ask for a window; an operator decides."""
    person = _person(request)
    now = timezone.now()
    form = WindowForm(request.POST or None, person=person, now=now)
    if request.method == "POST" and form.is_valid():
        windows.ask(form.asked(), person, now)
        messages.success(request, "Asked. An operator decides; you see the answer here.")
        return redirect("windows")
    status = 422 if form.errors else 200
    return render(request, "scheduler/window_ask.html", {"form": form}, status=status)


@require_POST
def decide(request: HttpRequest, pk: int) -> HttpResponse:
    """Approve or decline, with a word about why."""
    if not _person(request).has_perm("scheduler.change_timewindow"):
        raise PermissionDenied
    state = DECISIONS.get(request.POST.get("decision", ""))
    if state is None:
        return HttpResponseBadRequest("The decision is approve or decline.")
    answer = request.POST.get("answer", "").strip()[:LONGEST_ANSWER]
    try:
        by = _person(request).username
        if windows.decide(_row(request, pk).pk, state, by, timezone.now(), answer) is None:
            messages.info(request, "It had been decided or withdrawn already.")
    except windows.UnableToApprove as error:
        messages.error(request, str(error))
    return redirect("windows")


@require_POST
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    """Needed no more."""
    row, person = _row(request, pk), _person(request)
    if not windows.may_withdraw(row, person):
        raise PermissionDenied
    if not windows.withdraw(row.pk, person, timezone.now()):
        messages.info(request, "It had been declined or withdrawn already.")
    return redirect("windows")


def _person(request: HttpRequest) -> User:
    # The middleware lets nobody else in.
    return cast(User, request.user)


def _row(request: HttpRequest, pk: int) -> TimeWindow:
    every = tuple(TimeWindow.State)
    found = windows.seen_by(_person(request), *every).filter(pk=pk).first() if pk < 2**63 else None
    if found is None:
        raise Http404(f"There is no window {pk}.")
    return found
