"""The badge of the mode in the head of each page."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import DatabaseError
from django.db.models import QuerySet

from monitor.pages.live.regions import Context, Region
from monitor.runtime.rows.prepared import compiled_once
from scheduler.limits.throttle.policy.mode import Mode
from scheduler.models import ModeState


@dataclass(frozen=True, slots=True)
class ModeBadge:
    """`until`: the end of an operator's override."""

    word: str
    reason: str
    until: datetime | None = None


def badge(host: str) -> ModeBadge | None:
    """The mode of all hosts, if one host is defensive. None: cooperative, or unknown.

    A database error gives None, because error pages show the badge too.
    """
    try:
        rows = _modes()
    except DatabaseError:
        return None
    defensive = [row for row in rows if row[1] == Mode.DEFENSIVE]
    if not defensive:
        return None
    where = ", ".join(name for name, *_ in defensive if len(rows) > 1 or name != host)
    word = f"defensive ({where})" if where else "defensive"
    reasons = " ".join(reason for _, _, reason, _ in defensive)
    return ModeBadge(word, reasons, defensive[0][3])


@compiled_once
def _modes() -> QuerySet[Any, tuple[str, str, str, datetime | None]]:
    columns = ("host", "mode", "reason", "override_until")
    return ModeState.objects.order_by("host").values_list(*columns)


def _load(now: datetime) -> Context:
    return {"mode": badge(settings.CONFIG.node)}


REGION = Region("mode", "scheduler/_mode.html", _load, in_head=True)
