"""The page of events."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from monitor.pages import event_page
from monitor.pages.event_page import Wanted
from monitor.pages.views import viewer_of


@require_safe
def events(request: HttpRequest) -> HttpResponse:
    """What happened, and to whom?"""
    wanted = Wanted.from_query(request.GET)
    zone = timezone.get_current_timezone()
    found = event_page.table(wanted, viewer_of(request), timezone.now(), zone)
    context = {"wanted": wanted, "table": found, **event_page.choices()}
    return render(request, "monitor/events.html", context)
