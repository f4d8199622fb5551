"""Fair share of all users: one line each, for the page, the admin and REST."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from monitor.facts.formats import gib
from scheduler.facts.jobs import JobState
from scheduler.facts.people import Quota, UserAccount
from scheduler.facts.units import minutes_taken, size
from scheduler.fair_share.rows import Rights
from scheduler.limits.quotas.policy import charging
from scheduler.models import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFigure:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareLine:
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


@dataclass(frozen=True, slots=True)
class ShareTable:
    """All users, by current usage."""

    lines: tuple[ShareLine, ...]
    gpus: int
    half_life_hours: float

    def line(self, name: str) -> ShareLine:
        return next(line for line in self.lines if line.name == name)


def table(now: datetime, *names_included: str) -> ShareTable:
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
