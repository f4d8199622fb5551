"""Fair share of all users: one line each, for the page, the admin and REST."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, cast

from django.contrib.auth.models import User
from django.db.models import Count
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_safe
from msgspec import Struct

from monitor.facts.formats import gib
from monitor.models import Agent
from monitor.runtime.rows.extensions import parts
from scheduler.facts.jobs import PRIORITIES, JobState
from scheduler.facts.people import Quota, UserAccount
from scheduler.facts.units import minutes_left, minutes_taken, size
from scheduler.fair_share.rows import Rights
from scheduler.limits.quotas import rows
from scheduler.limits.quotas.policy import charging
from scheduler.models import Job


class QuotaFigure(Struct, frozen=True, kw_only=True):
    """One limit. `used` and `most` are in `unit`; `most` None: no limit.

    `name` is the quota's field. `committed` is reserved for running jobs in addition to `used`.
    """

    name: str
    label: str
    used: float
    most: float | None
    unit: str = ""
    committed: float = 0.0

    @property
    def used_text(self) -> str:
        return self._text(self.used)

    @property
    def most_text(self) -> str:
        """The limit in words."""
        if self.most is None:
            return "no limit"
        return size(int(self.most)) if self.unit == "bytes" else self._text(self.most)

    @property
    def pct(self) -> float | None:
        """Use in percent of the limit, at most 100. None: no limit."""
        return None if self.most is None else _pct(self.used, self.most)

    @property
    def committed_pct(self) -> float:
        """The part of the bar for `committed`, in percent of the limit."""
        if self.most is None:
            return 0.0
        return _pct(self.used + self.committed, self.most) - _pct(self.used, self.most)

    @property
    def is_full(self) -> bool:
        return self.most is not None and self.used + self.committed >= self.most

    def _text(self, value: float) -> str:
        if self.unit == "bytes":
            return gib(int(value))
        if self.unit == "%":
            return f"{value:.3g} %"
        if self.unit == "min":
            return f"{minutes_taken(value):g}"
        # Without an exponent.
        return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def figures(line: ShareLine) -> tuple[QuotaFigure, ...]:
    """GPU-minutes first, then the limits on concurrent use."""
    account, quota = line.account, line.quota
    budget = account.budget
    return (
        QuotaFigure(
            name="gpu_minutes",
            label="GPU-minutes today",
            used=budget.spent if budget else line.spent_min,
            most=quota.gpu_minutes,
            unit="min",
            committed=budget.committed if budget else 0.0,
        ),
        QuotaFigure(name="gpus", label="GPUs", used=account.gpus, most=quota.gpus),
        QuotaFigure(name="jobs", label="Running jobs", used=account.jobs, most=quota.jobs),
        QuotaFigure(
            name="memory_bytes",
            label="GPU memory",
            used=account.memory_bytes,
            most=quota.memory_bytes,
            unit="bytes",
        ),
        QuotaFigure(name="queued", label="Waiting jobs", used=line.waiting, most=quota.queued),
    )


def share(line: ShareLine) -> QuotaFigure:
    """Current use of all GPUs in percent, and the entitled share."""
    now = 100 * (line.account.use or 0.0)
    return QuotaFigure(
        name="share_pct", label="Share", used=now, most=line.quota.share_pct, unit="%"
    )


def _pct(used: float, most: float) -> float:
    return min(100.0, 100 * used / most) if most > 0 else 100.0


class ShareLine(Struct, frozen=True, kw_only=True):
    """The fair share of one user.

    wants: has waiting or running jobs; otherwise weight and target assume waiting jobs.
    entitled: what quotas grant, 0 to 1.
    factor: the fair-share factor; 0.5 means that usage equals the entitlement.
    waiting: number of waiting jobs. coverage: measured part of the time on GPUs; None: no usage.
    spent_min: GPU-minutes of today, which ends at `resets_at`.
    outside: GPUs used now by processes outside jobs.
    """

    account: UserAccount
    wants: bool
    entitled: float
    factor: float
    waiting: int
    coverage: float | None
    spent_min: float
    outside: float
    resets_at: datetime
    zone: str

    @property
    def name(self) -> str:
        return self.account.owner

    @property
    def quota(self) -> Quota:
        return self.account.quota

    @property
    def gpus(self) -> int:
        """Number of GPUs that shares refer to."""
        return len(self.account.capacity.gpu_uuids)

    @property
    def is_quiet(self) -> bool:
        """Whether the user has neither usage nor jobs now."""
        return not self.wants and not self.account.charge


class ShareTable(Struct, frozen=True):
    """All users, by current usage."""

    lines: tuple[ShareLine, ...]
    gpus: int
    half_life_hours: float

    def line(self, name: str) -> ShareLine:
        return next(line for line in self.lines if line.name == name)


def share_table(now: datetime, *names_included: str) -> ShareTable:
    """All users with usage, jobs or a quota, and `names_included`."""
    rights, waiting = Rights(now), _waiting()
    lines = [
        _line(rights, name, waiting.get(name, 0))
        for name in sorted({*rights.users, *names_included})
    ]
    lines.sort(key=lambda line: (-line.account.charge, -(line.account.usage or 0.0), line.name))
    snapshot = rights.snapshot
    return ShareTable(
        tuple(lines), len(snapshot.capacity.gpu_uuids), snapshot.policy.half_life_hours
    )


def _line(rights: Rights, name: str, waiting: int) -> ShareLine:
    snapshot, entitled = rights.snapshot, rights.entitlement(name)
    used = snapshot.used.get(name)
    return ShareLine(
        account=rights.account(name),
        wants=name in rights.wanting,
        entitled=entitled,
        factor=charging.factor(used.usage if used else 0.0, entitled),
        waiting=waiting,
        coverage=used.coverage if used else None,
        spent_min=snapshot.spent_min(name),
        outside=used.outside if used else 0.0,
        resets_at=snapshot.resets_at,
        zone=snapshot.zone,
    )


def _waiting() -> dict[str, int]:
    rows = Job.objects.filter(state=JobState.QUEUED.value).order_by()
    counted = rows.values_list("owner__username").annotate(count=Count("id"))
    return dict(counted)


# Content of the page Shares: the shares of all users, and limits.
#
# All users see shares, usage and factors. Only the user and operators see the user's limits.

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


class OwnShare(Struct, frozen=True, kw_only=True):
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


class ShareRow(Struct, frozen=True, kw_only=True):
    """A line of the table. `figures`: {} if the viewer may not see this user's limits."""

    line: ShareLine
    figures: dict[str, QuotaFigure]
    is_mine: bool


def whole(person: User, sort: str, shows_inactive: bool, now: datetime) -> dict[str, Any]:
    """Template variables. `shows_inactive`: whether the rows of inactive users are included."""
    table = share_table(now, person.username)
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
        figures=figures(line),
        left=None if budget is None else budget.limit - budget.spent - budget.committed,
        resets_at=line.resets_at,
        zone=line.zone,
        priority=None if priority is None else f"{priority} ({PRIORITIES[priority]})",
    )


def own_of(name: str, now: datetime) -> OwnShare:
    """The quota of a user by name."""
    return own(share_table(now, name).line(name))


def _row(line: ShareLine, person: User) -> ShareRow:
    is_mine = line.name == person.username
    shown = figures(line) if is_mine or person.is_staff else ()
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


def decided_elsewhere() -> list[str]:
    """Sentences about decisions that gpucoord does not take."""
    of_engines = parts("scheduler.dispatch.steps.engine_answers:decided_elsewhere")
    return [sentence for decided in of_engines for sentence in decided()]


# The agents of a user, as the page of the account lists them.


class AgentLine(Struct, frozen=True):
    """A row of the page. minutes: GPU-minutes of today."""

    agent: Agent
    running: int
    minutes: float
    expires_at: datetime | None


def agent_lines(user: User, now: datetime) -> Sequence[AgentLine]:
    agents = list(Agent.objects.filter(user=user).prefetch_related("tokens").order_by("name"))
    uses = rows.agent_uses([agent.pk for agent in agents], now)
    return [
        AgentLine(
            agent,
            uses[agent.pk].running,
            uses[agent.pk].spent,
            max(
                (token.expires_at for token in agent.tokens.all() if token.expires_at), default=None
            ),
        )
        for agent in agents
    ]
