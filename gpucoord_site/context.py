"""What every page knows: the time, the theme, and whether the figures are simulated."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone


def site(request: HttpRequest) -> dict[str, object]:
    theme = request.COOKIES.get("theme", "")
    return {
        "theme": theme if theme in ("light", "dark") else "auto",
        "simulated": settings.CONFIG.probe == "simulated",
        "node": settings.CONFIG.node,
        "now": timezone.now(),
    }
