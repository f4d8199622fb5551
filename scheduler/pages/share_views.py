"""Page of the shares: who has how much, and what one's own limits leave."""

from __future__ import annotations

from typing import cast

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from scheduler.pages import share_page


@require_safe
def shares(request: HttpRequest) -> HttpResponse:
    """Who has how much?"""
    # The middleware lets nobody else in.
    person = cast(User, request.user)
    sort, everybody = request.GET.get("sort", ""), "all" in request.GET
    context = share_page.whole(person, sort, everybody, timezone.now())
    return render(request, "scheduler/shares.html", context)
