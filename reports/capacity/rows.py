"""Rows -> facts: the recorded work of a host. The newest result as a row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

from django.conf import settings
from django.db.models import Q, Sum
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.readings import Health
from monitor.gpus.policy import capability
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import GpuHour, ProcessHour
from monitor.thresholds import rows as thresholds
from reports.capacity.policy.demand import (
    AccountInput,
    CapacityGpu,
    GpuHourFigures,
    RecordedJob,
    Spans,
)
from reports.models import CapacityResult
from scheduler.facts.blockers import BlockerCode
from scheduler.facts.jobs import CLASSES, Dependency, DependencyKind, JobState, PriorityClass
from scheduler.jobs.rows.durations import REQUIREMENT_COLUMNS, Durations, requirement
from scheduler.limits.quotas import rows as quota_rows
from scheduler.limits.quotas.policy import charging
from scheduler.limits.quotas.policy.quotas import QuotaPolicy
from scheduler.limits.quotas.rows import Quotas
from scheduler.models import Attempt, DailyGpuUsage, Job, JobDependency
from scheduler.queue.planner import blockers as stored_blockers
from scheduler.queue.planner.matching import version

HOUR_S = 3600
# Main blockers of a job that is held, and of one that the load holds back.
HOLDS = frozenset({BlockerCode.HELD.value, BlockerCode.TOO_MANY_REQUEUES.value})
LOAD = BlockerCode.PRESSURE.value
Span = tuple[float, float]
# Memory of others below this is the driver's own.
LEAST_FOREIGN = 512 * 1024**2
_JOB_COLUMNS = (
    "id", "owner__username", "priority", "name", "submitted_at", "begin_at", "array", "array_limit",
    "preemptible", "depends", "time_limit_s", "estimate_s", "blocker_log", *REQUIREMENT_COLUMNS,
)  # fmt: skip


class RecordedWork(Struct, frozen=True, kw_only=True):
    """The jobs of a host since `since`. left_out: jobs that never ran, so no run time is known.

    without_run_time: those of them that still wait. ends: when each job ended that has.
    """

    since: datetime
    jobs: tuple[RecordedJob, ...]
    ends: Mapping[int, datetime]
    left_out: int
    without_run_time: tuple[RecordedJob, ...] = ()


def gpus(host: str) -> list[CapacityGpu]:
    """The GPUs of the newest snapshot that answer, by index."""
    snapshot = snapshots.newest(host)
    readings = snapshot.gpus if snapshot is not None else ()
    return [
        CapacityGpu(
            uuid=gpu.uuid,
            host=host,
            index=gpu.index,
            model=gpu.name or "",
            memory_bytes=gpu.memory_total_bytes,
            capability=version(gpu.compute_capability),
            power=capability.of(gpu, settings.CONFIG.gpu_power).power,
        )
        for gpu in sorted(readings, key=lambda gpu: gpu.index)
        if gpu.health is Health.OK
    ]


def gpu_hours(uuids: Sequence[str], since: datetime) -> dict[str, list[GpuHourFigures]]:
    """The recorded hours of each GPU."""
    hours: dict[str, list[GpuHourFigures]] = {uuid: [] for uuid in uuids}
    rows = GpuHour.objects.filter(gpu_id__in=uuids, t__gte=int(since.timestamp())).values_list(
        "gpu_id", "t", "utilization_pct_s", "utilization_known_s", "memory_byte_s",
        "memory_known_s", "energy_j", "power_known_s",
    )  # fmt: skip
    for uuid, t, used, known_s, memory, memory_known, joules, power_known in rows.iterator():
        hours[uuid].append(
            GpuHourFigures(
                gpu_uuid=uuid,
                t=t,
                utilisation_pct=used / known_s if known_s else None,
                memory_bytes=memory / memory_known if memory_known else None,
                joules=joules if power_known else None,
            )
        )
    return hours


def outside(host: str, since: datetime) -> tuple[dict[int, float], dict[int, dict[str, int]]]:
    """Use by processes outside jobs, by hour: (GPUs used, memory held on each GPU)."""
    rows = (
        ProcessHour.objects.filter(t__gte=int(since.timestamp()), use__host=host, use__job_ref="")
        .order_by()
        .values_list("t", "use__gpu_id")
        .annotate(used=Sum("sm_s"), memory=Sum("memory_byte_s"))
    )
    used: dict[int, float] = defaultdict(float)
    held: dict[int, dict[str, int]] = defaultdict(dict)
    for t, uuid, sm_s, byte_s in rows:
        used[t] += (sm_s or 0.0) / HOUR_S
        if (memory := int((byte_s or 0.0) / HOUR_S)) >= LEAST_FOREIGN:
            held[t][uuid] = memory
    return dict(used), dict(held)


def foreign_memory(
    held: Mapping[int, Mapping[str, int]],
) -> list[tuple[datetime, Mapping[str, int]]]:
    """The changes, in order; it ends where nothing is recorded."""
    changes: list[tuple[datetime, Mapping[str, int]]] = []
    hours = sorted(held)
    for t, following in [*pairwise(hours), *([(hours[-1], None)] if hours else [])]:
        changes.append((datetime.fromtimestamp(t, UTC), held[t]))
        if following != t + HOUR_S:
            changes.append((datetime.fromtimestamp(t + HOUR_S, UTC), {}))
    return changes


def recorded_work(host: str, since: datetime, now: datetime, most: int) -> RecordedWork:
    """At most the newest `most` jobs that ran on this host or wait; then it begins later."""
    durations = Durations()
    durations.refresh(now)
    attempts = _attempts(host, since)
    waiting = Job.objects.filter(state=JobState.QUEUED.value).values_list("id", flat=True)
    ids = sorted({*attempts, *waiting[: most + 1]})
    if len(ids) > most:
        ids = ids[-most:]
    rows = {row[0]: row for row in _job_rows(ids)}
    if len(rows) >= most:
        since = max(since, min(row[4] for row in rows.values()))
    after = _dependencies(row[0] for row in rows.values() if row[9])
    jobs, without_run_time, ends = [], [], {}
    for id_ in ids:
        if id_ not in rows:
            continue
        job = _recorded(rows[id_], attempts.get(id_, []), since, now, durations)
        if not job.run_time and not attempts.get(id_):
            without_run_time.append(job)
            continue
        jobs.append(replace(job, after=tuple(after.get(id_, ()))))
        last = max((end for _, end in attempts.get(id_, [])), default=None, key=_or_far)
        if last is not None:
            ends[id_] = last
    never_ran = Job.objects.filter(
        submitted_at__gte=since, started_at=None, state=JobState.FINISHED.value
    ).count()
    return RecordedWork(
        since=since,
        jobs=tuple(jobs),
        ends=ends,
        left_out=never_ran + len(without_run_time),
        without_run_time=tuple(without_run_time),
    )


def _or_far(end: datetime | None) -> datetime:
    return datetime.max.replace(tzinfo=UTC) if end is None else end


def _attempts(host: str, since: datetime) -> dict[int, list[tuple[datetime, datetime | None]]]:
    """(begin, end) of each attempt that ran on the host, by job."""
    rows = (
        Attempt.objects.filter(Q(ended_at__isnull=True) | Q(ended_at__gt=since), host=host)
        .exclude(ended_at__isnull=False, outcome="")
        .order_by("id")
        .values_list("job_id", "placed_at", "ended_at")
    )
    attempts: dict[int, list[tuple[datetime, datetime | None]]] = defaultdict(list)
    for job, begin, end in rows.iterator():
        attempts[job].append((begin, end))
    return attempts


def _job_rows(ids: Sequence[int]) -> Iterable[tuple[Any, ...]]:
    for first in range(0, len(ids), 500):
        part = ids[first : first + 500]
        yield from Job.objects.filter(pk__in=part).values_list(*_JOB_COLUMNS)


def _dependencies(ids: Iterable[int]) -> dict[int, list[Dependency]]:
    chosen = list(ids)
    dependencies: dict[int, list[Dependency]] = defaultdict(list)
    for first in range(0, len(chosen), 500):
        rows = JobDependency.objects.filter(job__in=chosen[first : first + 500])
        for job, on, kind in rows.values_list("job_id", "on_id", "after"):
            dependencies[job].append(Dependency(on=on, after=DependencyKind(kind)))
    return dependencies


def _recorded(
    row: tuple[Any, ...],
    attempts: Sequence[tuple[datetime, datetime | None]],
    since: datetime,
    now: datetime,
    durations: Durations,
) -> RecordedJob:
    """run_time is 0 where nothing says how long the job runs."""
    (
        id_,
        owner,
        priority,
        name,
        submitted_at,
        begin_at,
        array,
        array_limit,
        preemptible,
        _,
        *rest,
    ) = row
    limit_s, estimate_s, log, *requirement_values = rest
    usual = durations(owner, name)
    estimate = _seconds(estimate_s)
    expected = usual.p50 if usual else estimate
    # Of what began before, the rest counts.
    spans = [(max(since, begin), min(now, end or now)) for begin, end in attempts]
    ran = sum((max(timedelta(), end - begin) for begin, end in spans), timedelta())
    is_open = not attempts or any(end is None for _, end in attempts)
    run_time = max(ran, expected or timedelta()) if is_open else ran
    is_early = submitted_at < since
    if is_early:
        begin_at = max(begin_at or since, since)
    started_at = min((begin for begin, _ in attempts), default=None)
    return RecordedJob(
        id=id_,
        owner=owner,
        priority=priority,
        submitted_at=submitted_at,
        requirement=requirement(*requirement_values),
        run_time=run_time,
        lasts=_seconds(limit_s) or (usual.p90 if usual else None) or estimate,
        started_at=started_at,
        begin_at=begin_at,
        array=array,
        array_limit=array_limit,
        preemptible=preemptible,
        is_assumed=is_open,
        is_counted=not is_early and started_at is not None,
        holds=_spans(log, HOLDS, started_at or now),
    )


def _seconds(value: int | None) -> timedelta | None:
    return None if value is None else timedelta(seconds=value)


def _spans(log: str, codes: Collection[str], until: datetime) -> Spans:
    return tuple(
        (datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(end, UTC))
        for begin, end in stored_blockers.log_spans(log, codes, until.timestamp())
    )


def held_back(since: datetime, now: datetime) -> dict[PriorityClass, Spans]:
    """When the load held back jobs of each class, as recorded with the jobs that waited then."""
    rows = Job.objects.filter(
        submitted_at__lt=now, blocker_log__contains=stored_blockers.log_ending(LOAD)
    )
    rows = rows.exclude(ended_at__lte=since)
    spans_by_class: dict[PriorityClass, list[Span]] = defaultdict(list)
    for priority, log in rows.values_list("priority", "blocker_log").iterator():
        spans_by_class[CLASSES[priority]] += stored_blockers.log_spans(log, {LOAD}, now.timestamp())
    return {
        kind: tuple(
            (datetime.fromtimestamp(begin, UTC), datetime.fromtimestamp(end, UTC))
            for begin, end in _merged(times)
            if end > since.timestamp()
        )
        for kind, times in spans_by_class.items()
    }


def _merged(spans: Iterable[Span]) -> list[Span]:
    merged: list[Span] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def accounts(host: str, owners: Iterable[str], since: datetime, gpus: int) -> AccountInput:
    """Today's limits; usage before `since`, and use outside jobs since then, from the ledger."""
    quotas, zone = Quotas(), settings.TIME_ZONE
    half_life_s = thresholds.current(QuotaPolicy).half_life_hours * 3600
    usage = quota_rows.decayed_usage_at(since, gpus, half_life_s, zone, host)
    rows = DailyGpuUsage.objects.filter(host=host, from_at__gt=since - timedelta(days=1, hours=1))
    rates: dict[datetime, dict[str, float]] = defaultdict(dict)
    for owner, from_at, outside_s in rows.values_list("owner", "from_at", "outside_s"):
        day = charging.day(from_at, zone)
        rates[from_at][owner] = outside_s / (day.until_at - day.from_at).total_seconds()
    return AccountInput(
        quotas={owner: quotas.of(owner) for owner in owners},
        usage=usage or {},
        outside=sorted(rates.items()),
        zone=zone,
    )


def store(host: str, body: Mapping[str, Any], seconds: float, now: datetime) -> None:
    """Replace the host's figures."""
    CapacityResult.objects.update_or_create(
        host=host,
        defaults={
            "at": now, "body": dict(body), "seconds": seconds, "requested_at": None, "problem": "",
        },
    )  # fmt: skip


def store_problem(host: str, problem: str) -> None:
    """Keep the old figures, and say why there are no new ones."""
    CapacityResult.objects.update_or_create(
        host=host, defaults={"requested_at": None, "problem": problem[:300]}
    )


def request(host: str, now: datetime) -> None:
    """New figures are on their way."""
    CapacityResult.objects.update_or_create(host=host, defaults={"requested_at": now})


def newest(host: str) -> CapacityResult | None:
    return CapacityResult.objects.filter(pk=host).first()


def hosts() -> list[str]:
    """The hosts with figures."""
    return list(CapacityResult.objects.order_by("host").values_list("host", flat=True))
