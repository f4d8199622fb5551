"""Pages of stored reports: the list with the own subscription, one report, its files."""

from __future__ import annotations

from typing import cast

from csp.constants import NONE, SELF, UNSAFE_INLINE
from csp.decorators import csp_replace, csp_update
from django.contrib import messages
from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.clickjacking import xframe_options_sameorigin
from django.views.decorators.http import require_http_methods, require_safe

from monitor.pages.requests import viewer_of
from reports.figures.actions import NotAllowed, ReportBusy, ScopeNotFound
from reports.figures.facts import ReportRefused
from reports.models import ReportSchedule, StoredFile
from reports.render import actions as rendering
from reports.render.actions import MEDIA
from reports.schedule import rows
from reports.schedule import step as delivery
from scheduler.jobs.notifications import step as notifications

SHOWN = 100
REFUSALS = (ReportRefused, ScopeNotFound, NotAllowed, ReportBusy)


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
        "is_subscribed": rows.is_subscribed(user, delivery.is_weekly()),
        "mail_problem": notifications.mail_problem(user),
        "has_own_service": notifications.settings_of(user).channel is not None,
        "schedules": ReportSchedule.objects.prefetch_related("channels") if viewer.operator else [],
    }
    return render(request, "reports/stored.html", context)


@csp_update({"frame-src": [SELF]})  # type: ignore[arg-type]
@require_http_methods(["GET", "HEAD", "POST"])
def send(request: HttpRequest, pk: int) -> HttpResponse:
    """Operators see the mail of a schedule, and send it. The preview is a page in a frame."""
    schedule, now = _schedule(request, pk), timezone.now()
    if request.method == "POST":
        try:
            row = delivery.send_now(schedule, request.user.get_username(), now)
        except (delivery.NotSent, *REFUSALS) as error:
            messages.error(request, str(error))
            return redirect("send-report", pk)
        messages.success(request, "The report is stored and on its way.")
        return redirect("stored-report", row.pk)
    context = {
        "schedule": schedule,
        "period": delivery.last_period(schedule, now),
        "receivers": delivery.receivers(schedule),
        "has_chart": rendering.is_available(),
    }
    return render(request, "reports/send.html", context)


# Mails have their styles at their elements. The page runs no script and loads nothing.
@csp_replace(  # type: ignore[arg-type]
    {
        "script-src": [NONE],
        "style-src": [UNSAFE_INLINE],
        "img-src": ["data:"],
        "frame-ancestors": [SELF],
    }
)
@xframe_options_sameorigin
@require_safe
def preview(request: HttpRequest, pk: int) -> HttpResponse:
    """The mail itself."""
    schedule = _schedule(request, pk)
    try:
        return HttpResponse(delivery.preview(schedule, timezone.now()))
    except REFUSALS as error:
        return HttpResponse(str(error), content_type="text/plain; charset=utf-8", status=409)


def _schedule(request: HttpRequest, pk: int) -> ReportSchedule:
    if not viewer_of(request).operator:
        raise PermissionDenied
    return get_object_or_404(ReportSchedule, pk=pk)


@require_safe
def report(request: HttpRequest, pk: int) -> HttpResponse:
    """One stored report as text, and its files."""
    row = delivery.visible(pk, viewer_of(request))
    text = StoredFile.objects.filter(report=row, format="text").first()
    context = {
        "report": row,
        "files": rows.documents(StoredFile.objects.filter(report=row)).order_by("format"),
        "text": bytes(text.content).decode() if text else "",
    }
    return render(request, "reports/stored_report.html", context)


@require_safe
def file(request: HttpRequest, pk: int, format: str) -> HttpResponse:
    """A stored file; the download is audited."""
    viewer = viewer_of(request)
    row = delivery.visible(pk, viewer)
    known_format = format if format in MEDIA else ""
    return delivery.download(row, known_format, viewer.username, timezone.now())
