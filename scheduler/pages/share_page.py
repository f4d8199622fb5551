"""What the page of the shares shows: all names with their shares, and limits to whom they concern.

Shares, use and factors are for all: whoever waits can see why. What somebody's limits are, and how
much of these is left, is for that person and for operators.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth.models import User

from scheduler.jobs import PRIORITIES
from scheduler.pages import quota_figures, share_table
from scheduler.pages.quota_figures import Figure
from scheduler.pages.share_table import Line

# More people who have and want nothing now are shown when asked for.
MOST_QUIET = 12
SORTS: dict[str, Callable[[Line], Any]] = {
    "name": lambda line: line.name.casefold(),
    "now": lambda line: line.now or 0.0,
    "target": lambda line: line.standing.target if line.wants else -1.0,
    "entitled": lambda line: line.entitled,
    "usage": lambda line: line.standing.usage or 0.0,
    "factor": lambda line: line.factor,
    "waiting": lambda line: line.waiting,
    "gpu_minutes": lambda line: line.spent_min,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Own:
    """A person's limits with what is used of them. left: GPU-minutes; None = no limit."""

    line: Line
    figures: tuple[Figure, ...]
    left: float | None
    resets_at: datetime
    zone: str
    priority: str | None

    @property
    def resets_text(self) -> str:
        """The instant in its own zone, as a calendar says it."""
        return f"{self.resets_at:%a %d %b %H:%M}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of the table. figures: {} for those whom they do not concern."""

    line: Line
    figures: dict[str, Figure]
    is_mine: bool


def whole(person: User, sort: str, everybody: bool, now: datetime) -> dict[str, Any]:
    """`everybody`: also all those who have and want nothing now, however many."""
    table = share_table.table(now, person.username)
    known = sort if sort.removeprefix("-") in SORTS else ""
    rows = [_row(line, person) for line in _sorted(table.lines, known)]
    quiet = [row for row in rows if row.line.is_quiet and not row.is_mine]
    folds = len(quiet) > MOST_QUIET
    return {
        "gpus": table.gpus,
        "rows": [row for row in rows if row not in quiet] if folds and not everybody else rows,
        "quiet": len(quiet) if folds else 0,
        "everybody": everybody,
        "sort": known,
        "own": own(table.line(person.username)),
        "half_life_hours": table.half_life_hours,
        "all_limits": person.is_staff,
    }


def own(line: Line) -> Own:
    """The block of one person, for any page that they and operators see."""
    budget, priority = line.standing.budget, line.quota.priority
    return Own(
        line=line,
        figures=quota_figures.figures(line),
        left=None if budget is None else budget.limit - budget.spent - budget.committed,
        resets_at=line.resets_at,
        zone=line.zone,
        priority=None if priority is None else f"{priority} ({PRIORITIES[priority]})",
    )


def own_of(name: str, now: datetime) -> Own:
    """The same by name."""
    return own(share_table.table(now, name).line(name))


def _row(line: Line, person: User) -> Row:
    is_mine = line.name == person.username
    shown = quota_figures.figures(line) if is_mine or person.is_staff else ()
    return Row(line=line, figures={figure.name: figure for figure in shown}, is_mine=is_mine)


def _sorted(lines: tuple[Line, ...], sort: str) -> list[Line]:
    key = SORTS.get(sort.removeprefix("-"))
    return sorted(lines, key=key, reverse=sort.startswith("-")) if key else list(lines)
