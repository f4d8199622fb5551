"""Pages of time windows: list, request, approve or decline, withdraw."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from monitor.api import posted_text
from monitor.facts.input_rules import is_number
from scheduler.limits.time_windows import rows as window_rows
from scheduler.limits.time_windows.pages import content as window_page
from scheduler.limits.time_windows.pages.forms import WindowForm, prefilled
from scheduler.limits.time_windows.policy.calendar import describe
from scheduler.models import TimeWindow

LONGEST_ANSWER = 500
DECISIONS = {"approve": TimeWindow.State.APPROVED, "decline": TimeWindow.State.DECLINED}


@require_safe
def all_windows(request: HttpRequest) -> HttpResponse:
    zone = timezone.get_current_timezone_name()
    text = request.GET.get("week", "0")
    week = min(int(text), window_page.LAST_WEEK) if is_number(text) else 0
    context = window_page.context(_person(request), timezone.now(), zone, week)
    return render(request, "scheduler/windows.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def ask(request: HttpRequest) -> HttpResponse:
    """The form for a window: a request, or of an operator the window itself."""
    person = _person(request)
    now = timezone.now()
    initial = prefilled(request.GET)
    form = WindowForm(request.POST or None, person=person, now=now, initial=initial)
    may_decide = window_rows.may_decide(person)
    if request.method == "POST" and form.is_valid():
        try:
            row = form.store(now)
        except window_rows.UnableToApprove as error:
            form.add_error(None, str(error))
        else:
            done = f"Approved: {describe(window_rows.fact(row))}."
            sent = "Request sent. This page shows the decision of the operator."
            messages.success(request, done if may_decide else sent)
            return redirect("windows")
    context = {"form": form, "may_decide": may_decide}
    return render(request, "scheduler/window_ask.html", context, status=422 if form.errors else 200)


@require_POST
def decide(request: HttpRequest, pk: int) -> HttpResponse:
    """Approve or decline a request, with an optional reason."""
    if not window_rows.may_decide(_person(request)):
        raise PermissionDenied
    state = DECISIONS.get(request.POST.get("decision", ""))
    if state is None:
        return HttpResponseBadRequest("The decision is approve or decline.")
    answer = posted_text(request, "answer", LONGEST_ANSWER)
    try:
        by = _person(request).username
        row = window_rows.decide(_row(request, pk).pk, state, by, timezone.now(), answer)
        if row is None:
            messages.info(request, "The request was already decided or withdrawn.")
        else:
            words = describe(window_rows.fact(row))
            messages.success(request, f"{row.get_state_display()}: {words}.")
    except window_rows.UnableToApprove as error:
        messages.error(request, str(error))
    return redirect("windows")


@require_POST
def withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    row, person = _row(request, pk), _person(request)
    if not window_rows.may_withdraw(row, person):
        raise PermissionDenied
    if window_rows.withdraw(row.pk, person, timezone.now()):
        messages.success(request, f"Withdrawn: {describe(window_rows.fact(row))}.")
    else:
        messages.info(request, "The time window was already declined or withdrawn.")
    return redirect("windows")


def _person(request: HttpRequest) -> User:
    # The middleware admits authenticated users only.
    return cast(User, request.user)


def _row(request: HttpRequest, pk: int) -> TimeWindow:
    visible = window_rows.seen_by(_person(request), *TimeWindow.State)
    window = visible.filter(pk=pk).first() if pk < 2**63 else None
    if window is None:
        raise Http404(f"There is no time window {pk}.")
    return window
