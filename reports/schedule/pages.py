"""Pages of stored reports: the list with the own subscription, one report, its files."""

from __future__ import annotations

from typing import cast

from django.contrib import messages
from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_safe

from monitor.pages.live.pages import viewer_of
from reports.models import ReportSchedule, StoredFile
from reports.render.actions import MEDIA
from reports.schedule import actions, rows
from scheduler.jobs.notifications import rows as notifications

SHOWN = 100


@require_http_methods(["GET", "HEAD", "POST"])
def stored(request: HttpRequest) -> HttpResponse:
    """Which reports were made? The form subscribes to the own weekly report."""
    user = cast(User, request.user)
    if request.method == "POST":
        on = request.POST.get("weekly") == "on"
        rows.subscribe(user, timezone.now(), on=on)
        messages.success(
            request, "Your weekly report is on." if on else "Your weekly report is off."
        )
        return redirect("stored-reports")
    viewer = viewer_of(request)
    reports = rows.visible_to(viewer).prefetch_related(rows.without_content())
    context = {
        "reports": reports[:SHOWN],
        "is_subscribed": rows.is_subscribed(user),
        "mail_problem": notifications.mail_problem(user),
        "has_own_service": notifications.settings_of(user).channel is not None,
        "schedules": ReportSchedule.objects.prefetch_related("channels") if viewer.operator else [],
    }
    return render(request, "reports/stored.html", context)


@require_safe
def report(request: HttpRequest, pk: int) -> HttpResponse:
    """One stored report as text, and its files."""
    row = actions.visible(pk, viewer_of(request))
    text = StoredFile.objects.filter(report=row, format="text").first()
    context = {
        "report": row,
        "files": StoredFile.objects.filter(report=row).defer("content").order_by("format"),
        "text": bytes(text.content).decode() if text else "",
    }
    return render(request, "reports/stored_report.html", context)


@require_safe
def file(request: HttpRequest, pk: int, format: str) -> HttpResponse:
    """A stored file; the download is audited."""
    viewer = viewer_of(request)
    row = actions.visible(pk, viewer)
    known_format = format if format in MEDIA else ""
    return actions.download(row, known_format, viewer.username, timezone.now())
