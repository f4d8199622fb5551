"""The first steps on a new server, shown to operators on the dashboard until they are done."""

from __future__ import annotations

from dataclasses import dataclass

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.http import require_POST

from monitor.models import Channel
from scheduler.models import Job, Quota

COOKIE, YEAR_S = "setup", 31_536_000
# Without these first steps the server is not in use; the others are recommended.
NEEDED = 2


@dataclass(frozen=True, slots=True)
class SetupStep:
    """One step: its text, where to do it, and whether it is done."""

    text: str
    url: str
    is_done: bool


def steps(request: HttpRequest) -> list[SetupStep]:
    """All steps, while the server has no other users or no jobs; none for ordinary users.

    None either after an operator hid them.
    """
    if not request.user.is_staff or request.COOKIES.get(COOKIE) == "hidden":
        return []
    first_steps = [
        SetupStep(
            "Add the users of this server", reverse("admin:auth_user_add"), User.objects.count() > 1
        ),
        SetupStep("Submit a first job", reverse("job-new"), Job.objects.exists()),
        SetupStep(
            "Add an alert channel", reverse("admin:monitor_channel_add"), Channel.objects.exists()
        ),
        SetupStep("Set a quota", reverse("admin:scheduler_quota_add"), Quota.objects.exists()),
    ]
    return [] if all(step.is_done for step in first_steps[:NEEDED]) else first_steps


@require_POST
def hide(_request: HttpRequest) -> HttpResponse:
    """Hide the steps in this browser."""
    response = redirect("dashboard")
    response.set_cookie(COOKIE, "hidden", max_age=YEAR_S, samesite="Lax", httponly=True)
    return response
