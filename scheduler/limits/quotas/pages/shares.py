"""Content of the page Shares: the shares of all users, and limits.

All users see shares, usage and factors. Only the user and operators see the user's limits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from django.contrib.auth.models import User
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe

from scheduler.facts.jobs import PRIORITIES
from scheduler.facts.units import minutes_left, minutes_taken
from scheduler.limits.quotas.pages import table as quota_figures
from scheduler.limits.quotas.pages import table as share_table
from scheduler.limits.quotas.pages.table import QuotaFigure, ShareLine

# More inactive users than this are hidden until requested.
MOST_QUIET = 12
SORTS: dict[str, Callable[[ShareLine], Any]] = {
    "name": lambda line: line.name.casefold(),
    "now": lambda line: line.account.use or 0.0,
    "target": lambda line: line.account.target if line.wants else -1.0,
    "entitled": lambda line: line.entitled,
    "usage": lambda line: line.account.usage or 0.0,
    "factor": lambda line: line.factor,
    "waiting": lambda line: line.waiting,
    "gpu_minutes": lambda line: line.spent_min,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnShare:
    """A user's limits and their use. `left`: GPU-minutes; None: no limit."""

    line: ShareLine
    figures: tuple[QuotaFigure, ...]
    left: float | None
    resets_at: datetime
    zone: str
    priority: str | None

    @property
    def left_text(self) -> str:
        """The GPU-minutes that are left; "" = none."""
        return f"{shown:g}" if (shown := minutes_left(self.left or 0.0)) else ""

    @property
    def committed_text(self) -> str:
        """The GPU-minutes that running jobs may still take; "" = none."""
        budget = self.line.account.budget
        return f"{shown:g}" if budget and (shown := minutes_taken(budget.committed)) else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareRow:
    """A line of the table. `figures`: {} if the viewer may not see this user's limits."""

    line: ShareLine
    figures: dict[str, QuotaFigure]
    is_mine: bool


def whole(person: User, sort: str, shows_inactive: bool, now: datetime) -> dict[str, Any]:
    """Template variables. `shows_inactive`: whether the rows of inactive users are included."""
    table = share_table.table(now, person.username)
    valid_sort = sort if sort.removeprefix("-") in SORTS else ""
    rows = [_row(line, person) for line in _sorted(table.lines, valid_sort)]
    quiet = [row for row in rows if row.line.is_quiet and not row.is_mine]
    is_folded = len(quiet) > MOST_QUIET
    return {
        "gpus": table.gpus,
        "rows": rows if shows_inactive or not is_folded else [r for r in rows if r not in quiet],
        "quiet": len(quiet) if is_folded else 0,
        "shows_inactive": shows_inactive,
        "sort": valid_sort,
        "own": own(table.line(person.username)),
        "half_life_hours": table.half_life_hours,
        "all_limits": person.is_staff,
    }


def own(line: ShareLine) -> OwnShare:
    """The quota of one user, for pages that only the user and operators see."""
    budget, priority = line.account.budget, line.quota.priority
    return OwnShare(
        line=line,
        figures=quota_figures.figures(line),
        left=None if budget is None else budget.limit - budget.spent - budget.committed,
        resets_at=line.resets_at,
        zone=line.zone,
        priority=None if priority is None else f"{priority} ({PRIORITIES[priority]})",
    )


def own_of(name: str, now: datetime) -> OwnShare:
    """The quota of a user by name."""
    return own(share_table.table(now, name).line(name))


def _row(line: ShareLine, person: User) -> ShareRow:
    is_mine = line.name == person.username
    shown = quota_figures.figures(line) if is_mine or person.is_staff else ()
    return ShareRow(line=line, figures={figure.name: figure for figure in shown}, is_mine=is_mine)


def _sorted(lines: tuple[ShareLine, ...], sort: str) -> list[ShareLine]:
    key = SORTS.get(sort.removeprefix("-"))
    return sorted(lines, key=key, reverse=sort.startswith("-")) if key else list(lines)


@require_safe
def shares(request: HttpRequest) -> HttpResponse:
    """The page of shares."""
    # The middleware admits only users who are logged in.
    person = cast(User, request.user)
    sort, shows_inactive = request.GET.get("sort", ""), "all" in request.GET
    context = whole(person, sort, shows_inactive, timezone.now())
    return render(request, "scheduler/shares.html", context)
