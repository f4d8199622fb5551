"""Rows -> facts: waiting and placed jobs, as the planner sees them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from scheduler import waiting
from scheduler.durations import Usual
from scheduler.jobs import JobState, QueuedJob, Requirement
from scheduler.models import Attempt, Job
from scheduler.plans import RunningJob
from scheduler.policy.suiting import version

# How long the owner's jobs of this name take; None = nobody knows.
UsualOf = Callable[[str, str], Usual | None]
ASKED = (
    "gpus", "gpu_memory_bytes", "exclusive", "capability", "gpu_model", "power", "gpu_uuid",
    "share_pct",
)  # fmt: skip
LENGTH = ("time_limit_s", "estimate_s")
# Made once, as making such a query takes longer than answering it.
_WAITING = Job.objects.filter(state=JobState.QUEUED.value).values_list(
    "id", "owner__username", "priority", "submitted_at", "name", "preemptible",
    "may_preempt_at", *LENGTH, *ASKED,
)  # fmt: skip
_PLACED = Attempt.objects.filter(ended_at=None).values_list(
    "host", "job_id", "job__owner__username", "job__priority", "job__name", "job__preemptible",
    "job__state", "yield_request__id", "yield_request__withdrawn_at",
    "placed_at", "started_at", "gpu_uuids",
    *(f"job__{column}" for column in (*LENGTH, *ASKED)),
)  # fmt: skip


@lru_cache(maxsize=4096)
def requirement(
    gpus: int,
    memory_bytes: int | None,
    exclusive: bool,
    capability: str,
    model: str,
    power: float | None,
    gpu_uuid: str,
    share_pct: int | None,
) -> Requirement:
    """What the columns ASKED say; equal ones are one object, which the planner likes."""
    return Requirement(
        gpus=gpus,
        memory_bytes=memory_bytes,
        exclusive=exclusive,
        capability=version(capability),
        model=model,
        power=power,
        gpu_uuid=gpu_uuid,
        share_pct=share_pct,
    )


def queue(usual: UsualOf, ids: Collection[int] | None = None) -> list[QueuedJob]:
    """Every waiting job, or those of `ids`, without what keeps this very one; in any order."""
    found = []
    rows = _WAITING.all() if ids is None else _WAITING.filter(pk__in=ids)
    for id_, owner, priority, submitted_at, name, preemptible, preempts_at, *rest in rows:
        limit, estimate, *asked = rest
        history = usual(owner, name)
        found.append(
            QueuedJob(
                id=id_,
                owner=owner,
                priority=priority,
                submitted_at=submitted_at,
                requirement=requirement(*asked),
                time_limit=_seconds(limit),
                estimate=_seconds(estimate),
                usual=None if history is None else history.p90,
                typical=None if history is None else history.p50,
                preemptible=preemptible,
                may_preempt_at=preempts_at,
            )
        )
    return found


def with_waits(jobs: list[QueuedJob], now: datetime) -> list[QueuedJob]:
    """The same with what keeps single ones, as it is now."""
    waits = waiting.load(now)
    if not waits:
        return jobs
    return [replace(job, waits=waits[job.id]) if job.id in waits else job for job in jobs]


def placed(usual: UsualOf) -> dict[str, list[RunningJob]]:
    """By host, the jobs that have a place, those without a GPU too."""
    found: dict[str, list[RunningJob]] = {}
    for host, *row in _PLACED.all():
        found.setdefault(host, []).append(_running(row, usual))
    return found


def running(host: str, usual: UsualOf) -> list[RunningJob]:
    """The jobs that have a place on `host`."""
    return [_running(row, usual) for _, *row in _PLACED.filter(host=host)]


def _running(row: list[Any], usual: UsualOf) -> RunningJob:
    id_, owner, priority, name, preemptible, state, asked_to, may_stay, *rest = row
    placed_at, started_at, uuids, limit, estimate, *asked = rest
    history = usual(owner, name)
    p50, p90 = (None, None) if history is None else (history.p50, history.p90)
    return RunningJob(
        id=id_,
        owner=owner,
        priority=priority,
        requirement=requirement(*asked),
        gpu_uuids=tuple(uuids),
        started_at=started_at or placed_at,
        lasts=_seconds(limit) or p90 or _seconds(estimate),
        typical=p50 or _seconds(estimate),
        preemptible=preemptible,
        yields=(asked_to is not None and may_stay is None) or state == JobState.STOPPING.value,
    )


def _seconds(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)
