"""What every page knows: the time, the theme, and whether the figures are simulated."""

from __future__ import annotations

from functools import partial

from django.conf import settings
from django.http import HttpRequest
from django.utils import timezone

from scheduler.pages.mode_badge import badge


def site(request: HttpRequest) -> dict[str, object]:
    theme = request.COOKIES.get("theme", "")
    return {
        "theme": theme if theme in ("light", "dark") else "auto",
        "simulated": settings.CONFIG.probe == "simulated",
        "node": settings.CONFIG.node,
        "now": timezone.now(),
        # Asked for by the head of pages alone, so other answers cost nothing.
        "mode_badge": partial(badge, settings.CONFIG.node),
    }
