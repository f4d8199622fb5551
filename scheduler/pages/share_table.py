"""Who has how much: one line for each person, as the page, the admin and REST show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from django.db.models import Count

from scheduler.jobs import JobState
from scheduler.models import Job
from scheduler.people import Quota, Standing
from scheduler.policy import shares
from scheduler.standing import NONE, Known, Running, running_jobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A person. wants: has jobs that wait or run; else weight and target are as if they came now.

    entitled: the share agreed with them, else an equal part of what others leave. factor: 0.5 =
    exactly at their share. waiting: how many of their jobs. coverage: of the time on GPUs, for how
    much the use is known; None = never there. spent_min: GPU-minutes of today, which ends at
    `resets_at`. outside: GPUs that processes without a job take now.
    """

    standing: Standing
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
        return self.standing.owner

    @property
    def quota(self) -> Quota:
        return self.standing.quota

    @property
    def gpus(self) -> int:
        """How many GPUs shares are shares of."""
        return len(self.standing.capacity.gpu_uuids)

    @property
    def now(self) -> float | None:
        """The part of all that they take now."""
        return min(1.0, self.standing.charge / self.gpus) if self.gpus else None

    @property
    def is_quiet(self) -> bool:
        """Neither has anything now nor wants it."""
        return not self.wants and not self.standing.charge


@dataclass(frozen=True, slots=True)
class Table:
    """All people; whoever takes most now comes first."""

    lines: tuple[Line, ...]
    gpus: int
    half_life_hours: float

    def line(self, name: str) -> Line:
        """Of somebody who is there."""
        return next(line for line in self.lines if line.name == name)


def table(now: datetime, *asked: str) -> Table:
    """Everybody who used, wants or was allotted something, and whoever is asked for."""
    known = Known(now)
    running = running_jobs(known, now)
    waiting = _waiting()
    wanting = {*running, *waiting}
    names = {*wanting, *known.used, *known.spent, *known.quotas.agreed(), *asked}
    parts = _Parts(known, wanting)
    lines = [_line(known, name, parts, running, waiting) for name in sorted(names)]
    lines.sort(key=lambda line: (-line.standing.charge, -(line.standing.usage or 0.0), line.name))
    return Table(tuple(lines), len(known.capacity.gpu_uuids), known.policy.half_life_hours)


class _Parts:
    """Weights and targets of those who want something; of another, as if they came now."""

    def __init__(self, known: Known, wanting: set[str]) -> None:
        self._known = known
        self._usage = {name: used.usage for name, used in known.used.items()}
        self.wanting = wanting
        self._of_all = self._among(wanting)

    def of(self, name: str) -> tuple[float, float]:
        weights, targets = (
            self._of_all if name in self.wanting else self._among({*self.wanting, name})
        )
        return weights[name], targets[name]

    def _among(self, names: set[str]) -> tuple[dict[str, float], dict[str, float]]:
        known = self._known
        weights = shares.weights({name: known.quotas.of(name).share_pct for name in sorted(names)})
        return weights, shares.targets(weights, self._usage, known.policy.catch_up)


def _line(
    known: Known,
    name: str,
    parts: _Parts,
    running: Mapping[str, Running],
    waiting: Mapping[str, int],
) -> Line:
    weight, target = parts.of(name)
    used, share = known.used.get(name), known.quotas.of(name).share_pct
    entitled = weight if share is None else share / 100
    return Line(
        standing=known.standing(name, running.get(name, NONE), weight, target),
        wants=name in parts.wanting,
        entitled=entitled,
        factor=shares.factor(used.usage if used else 0.0, entitled),
        waiting=waiting.get(name, 0),
        coverage=used.coverage if used else None,
        spent_min=known.spent_min(name),
        outside=used.outside if used else 0.0,
        resets_at=known.resets_at,
        zone=known.zone,
    )


def _waiting() -> dict[str, int]:
    rows = Job.objects.filter(state=JobState.QUEUED.value).order_by()
    counted = rows.values_list("owner__username").annotate(count=Count("id"))
    return dict(counted)
