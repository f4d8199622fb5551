"""The page for who typed wrong passwords too often."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def locked(request: HttpRequest, *_: object) -> HttpResponse:
    """Says so, and for how long; in place of the answer to the login."""
    pause = timedelta(hours=settings.AXES_COOLOFF_TIME)
    context = {"pause": pause, "tries": settings.AXES_FAILURE_LIMIT}
    response = render(request, "registration/locked.html", context, status=429)
    response["Retry-After"] = str(int(pause.total_seconds()))
    return response
