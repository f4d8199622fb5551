"""The first pages of a user: a first job for each user, a checklist for operators."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from gpucoord_site.models import WelcomeHidden
from gpucoord_site.welcome import checklist, first_job
from scheduler.jobs.pages import starting_points
from scheduler.models import Job
from scheduler.submission.intake.policy import UnableToSubmit


@require_safe
def start(request: HttpRequest) -> HttpResponse:
    """The page after a login: what is to do first, or the dashboard."""
    user = _user(request)
    if _has_hidden(user):
        return redirect("dashboard")
    if user.is_staff:
        is_complete = checklist.is_complete(checklist.steps(user))
        return redirect("dashboard" if is_complete else "setup")
    return redirect("dashboard" if Job.objects.filter(owner=user).exists() else "welcome")


@require_safe
def welcome(request: HttpRequest) -> HttpResponse:
    """The line that submits a first job, and the job as soon as it has arrived."""
    user = _user(request)
    context = {
        "command": starting_points.example().command,
        "terminal_line": first_job.line(),
        "account": first_job.terminal_account(user),
        "job": first_job.newest(user),
    }
    return render(request, "welcome/first_job.html", context)


@require_POST
def submit(request: HttpRequest) -> HttpResponse:
    """Submit the first job from the page."""
    try:
        first_job.submit(_user(request), timezone.now())
    except UnableToSubmit as error:
        for refusal in error.refusals:
            messages.error(request, refusal.text)
    return redirect("welcome")


@require_safe
def setup(request: HttpRequest) -> HttpResponse:
    """The checklist of operators."""
    user = _user(request)
    if not user.is_staff:
        raise PermissionDenied
    steps = checklist.steps(user)
    context = {"steps": steps, "done": checklist.done(steps), "is_hidden": _has_hidden(user)}
    return render(request, "welcome/setup.html", context)


@require_POST
def hide(request: HttpRequest) -> HttpResponse:
    """Open the dashboard after each later login of this user."""
    WelcomeHidden.objects.get_or_create(user=_user(request), defaults={"hidden_at": timezone.now()})
    return redirect("dashboard")


def progress(request: HttpRequest) -> str:
    """The state of the checklist for the dashboard of an operator, such as "3 of 6".

    "" for other users, and once it is complete or hidden.
    """
    if not request.user.is_staff or _has_hidden(_user(request)):
        return ""
    steps = checklist.steps(_user(request))
    return "" if checklist.is_complete(steps) else f"{checklist.done(steps)} of {len(steps)}"


def _has_hidden(user: User) -> bool:
    return WelcomeHidden.objects.filter(user=user).exists()


def _user(request: HttpRequest) -> User:
    return cast("User", request.user)
