"""Rows <-> facts: incidents, exemptions, and what the windows are fed from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from django.db.models import Max, Q, QuerySet

from monitor import audit, events, idle_rows, policies
from monitor.models import CpuLook, Exemption, GpuMinute, Incident, ProcessMinute, ProcessUse
from monitor.policy.findings import Finding, key_of
from monitor.policy.hog_policies import MemoryPolicy
from monitor.policy.hog_rules import IDLE_HELD
from monitor.policy.hog_scene import Booking, group_name
from monitor.policy.incident_life import Change, Standing, Verdict
from monitor.policy.incident_words import sentence
from monitor.policy.sparing import Exempt
from monitor.policy.use_series import HORIZON_S, Used
from monitor.policy.use_windows import Key, Past, Total
from monitor.prepared import prepared
from monitor.readings import ClaimFact

# An incident that goes on is written this often: what was in between is added up then.
WRITE_EVERY = timedelta(seconds=10)
LISTED = timedelta(seconds=60)
# Minutes are written so much later at the most, while all is well.
NOT_ROLLED_S = 180.0
_TOTALS = (
    "gpu_id",
    "pid",
    "start_ticks",
    "last_seen_at",
    "sm_s",
    "held_s",
    "known_s",
    "memory_byte_s",
    "memory_known_s",
)
_MOVES = (
    "last_seen_at",
    "severity",
    "peak_pct",
    "mean_pct",
    "expected_pct",
    "measured_pct",
    "coverage",
    "memory_bytes",
    "waiting",
    "waited_jobs",
    "waited_s",
    "text",
    "pid",
    "start_ticks",
    "program",
)


def known(host: str) -> list[Standing]:
    """What is open on `host`, and what an operator closed while it goes on."""
    return [
        Standing(
            id=row.pk,
            rule=row.rule,
            key=row.key,
            since_at=row.since_at,
            last_seen_at=row.last_seen_at,
            severity=row.severity,
            peak_pct=row.peak_pct,
            mean_pct=row.mean_pct,
            waiting=tuple(row.waiting),
            waited_jobs=row.waited_jobs,
            waited_s=row.waited_s,
            is_muted=row.is_muted,
        )
        for row in _known_rows(host)
    ]


@prepared
def _known_rows(host: str) -> QuerySet[Incident]:
    return Incident.objects.filter(Q(closed_at__isnull=True) | Q(is_muted=True), host=host)


def exemptions(now: datetime) -> tuple[Exempt, ...]:
    rows = (row for row in _exemptions() if row.until_at is None or row.until_at > now)
    return tuple(Exempt(row.scope, row.name, row.rule) for row in rows)


@prepared
def _exemptions() -> QuerySet[Exemption]:
    return Exemption.objects.order_by("id")


def totals(host: str, now: datetime) -> dict[Key, Total]:
    """What each process that was seen of late used of its GPU in all."""
    rows = ProcessUse.objects.filter(
        host=host, ended_at__isnull=True, last_seen_at__gt=now - LISTED
    )
    return {
        # A process whose start is unknown has a number of the account's own there.
        (gpu, pid, ticks if ticks >= 0 else None): Total(
            seen.timestamp(), Used(held, sm, held, known_s, memory, memory_known)
        )
        for gpu, pid, ticks, seen, sm, held, known_s, memory, memory_known in rows.values_list(
            *_TOTALS
        )
    }


def past(host: str, now: datetime) -> list[Past]:
    """What was used in each of the last minutes, by process."""
    since = now - timedelta(seconds=HORIZON_S)
    uses = {row.pk: row for row in ProcessUse.objects.filter(host=host, last_seen_at__gt=since)}
    minutes = ProcessMinute.objects.filter(use_id__in=uses, t__gte=int(since.timestamp()))
    return [_past(minute, uses[minute.use_id]) for minute in minutes]


def cpu_look(host: str) -> str:
    """What the controller before left of its looks at all processes."""
    return CpuLook.objects.filter(pk=host).values_list("body", flat=True).first() or ""


def keep_cpu_look(host: str, body: str, now: datetime) -> None:
    CpuLook.objects.update_or_create(host=host, defaults={"at": now, "body": body})


def seen_on(claims: Mapping[Booking, ClaimFact]) -> dict[Booking, float]:
    """When a process of each job was last seen on each GPU that it has booked."""
    since = [claim.since for claim in claims.values() if claim.since is not None]
    if not since:
        return {}
    gpus = {gpu for _, gpu in claims}
    rows = ProcessUse.objects.filter(gpu_id__in=gpus, last_seen_at__gte=min(since))
    last = rows.exclude(job_ref="").order_by().values_list("job_ref", "gpu_id")
    found = last.annotate(seen=Max("last_seen_at"))
    return {(ref, gpu): at.timestamp() for ref, gpu, at in found if (ref, gpu) in claims}


def unwatched(begins: Mapping[Booking, float], now: datetime) -> dict[Booking, float]:
    """Of the time since `begins`, the seconds in which the GPU was not read.

    The newest minutes have no rows yet: these count as watched.
    """
    rolled = now.timestamp() - NOT_ROLLED_S
    read = Q(utilization_known_s__gt=0) | Q(memory_known_s__gt=0) | Q(power_known_s__gt=0)
    found = {}
    for (job_ref, uuid), begin in begins.items():
        if begin < rolled:
            rows = GpuMinute.objects.filter(read, gpu_id=uuid, t__gt=begin - 60, t__lt=rolled)
            found[job_ref, uuid] = max(0.0, rolled - begin - 60 * rows.count())
    return found


def _past(minute: ProcessMinute, use: ProcessUse) -> Past:
    ticks = use.start_ticks if use.start_ticks >= 0 else None
    who = use.job_owner or use.user
    group = group_name(use.gpu_id, use.job_ref, who, use.container, use.pid)
    held = minute.held_s
    used = Used(
        held,
        minute.sm_s,
        held,
        minute.known_s,
        minute.memory_byte_s,
        held if minute.memory_byte_s else 0.0,
    )
    at = min(minute.t + 60.0, use.last_seen_at.timestamp())
    return Past((use.gpu_id, use.pid, ticks), group, at, used)


def apply(verdict: Verdict, host: str, now: datetime) -> None:
    """Write a verdict down and tell it."""
    for change in verdict.opened:
        _open(change, host, now)
    _extend(verdict.extended, now)
    _close(verdict.closed, now)


def _open(change: Change, host: str, now: datetime) -> None:
    change = _reaching_back(change, host, now)
    finding, incident = change.finding, change.incident
    process = finding.process
    row = Incident(
        host=host,
        gpu_id=finding.gpu.uuid if finding.gpu else None,
        rule=finding.rule,
        key=finding.key,
        use_id=_use_id(finding, host),
        user=finding.user or "",
        container=finding.container or "",
        job_ref=finding.job_ref or (process.job_ref if process else "") or "",
        job_owner=finding.job_owner or (process.job_owner if process else "") or "",
        since_at=incident.since_at,
        opened_at=now,
    )
    _fill(row, change)
    row.save()
    _tell("INCIDENT_OPENED", row, row.text, now)


def _reaching_back(change: Change, host: str, now: datetime) -> Change:
    """What has been idle for longer than is remembered began when its rows say."""
    finding, incident = change.finding, change.incident
    use_id = _use_id(finding, host) if finding.rule == IDLE_HELD else None
    if use_id is None:
        return change
    pct = policies.current(MemoryPolicy).idle_pct
    uses = ProcessUse.objects.filter(pk=use_id)
    since = idle_rows.idle_since(uses, now, below_pct=pct, coverage=0.5).get(use_id)
    if since is None or since >= incident.since_at:
        return change
    return Change(replace(incident, since_at=since), finding)


def _use_id(finding: Finding, host: str) -> int | None:
    if finding.process is None:
        return None
    gpu, pid, ticks = key_of(finding.process)
    rows = ProcessUse.objects.filter(host=host, gpu_id=gpu, pid=pid)
    rows = rows.filter(start_ticks=ticks) if ticks is not None else rows.filter(ended_at=None)
    return rows.order_by("-id").values_list("id", flat=True).first()


def _fill(row: Incident, change: Change) -> None:
    finding, incident = change.finding, change.incident
    process = finding.process
    row.last_seen_at = incident.last_seen_at
    row.severity = incident.severity
    row.peak_pct, row.mean_pct = incident.peak_pct, incident.mean_pct
    row.expected_pct, row.measured_pct = finding.expected_pct, finding.measured_pct
    row.coverage = finding.coverage
    row.memory_bytes = finding.memory_bytes
    row.waiting = list(incident.waiting)
    row.waited_jobs, row.waited_s = incident.waited_jobs, incident.waited_s
    row.text = sentence(finding, incident)
    if process is not None:
        row.pid, row.start_ticks = process.pid, process.start_ticks
        row.program = (process.program or "")[:200]


def _extend(changes: Sequence[Change], now: datetime) -> None:
    due = {change.incident.id: change for change in changes}
    if not due:
        return
    rows = []
    for row in Incident.objects.filter(pk__in=due, last_seen_at__lte=now - WRITE_EVERY):
        _fill(row, due[row.pk])
        rows.append(row)
    Incident.objects.bulk_update(rows, _MOVES)


def _close(closed: Iterable[tuple[Standing, str]], now: datetime) -> None:
    reasons = {incident.id: (incident, why) for incident, why in closed}
    for row in Incident.objects.filter(pk__in=reasons) if reasons else ():
        incident, why = reasons[row.pk]
        if incident.is_muted:
            row.is_muted = False
            row.save(update_fields=["is_muted"])
            continue
        row.closed_at, row.closed_by = now, audit.GPUCOORD
        row.save(update_fields=["closed_at", "closed_by"])
        audit.note(
            "INCIDENT_CLOSED",
            f"gpucoord closed it: {why}",
            by=audit.GPUCOORD,
            now=now,
            subject=f"incident {row.pk}",
        )
        _tell("INCIDENT_CLOSED", row, f"Over, {why}: {row.text}", now)


def _tell(kind: str, row: Incident, text: str, now: datetime) -> None:
    events.add(
        kind,
        text,
        now=now,
        severity=row.severity if kind == "INCIDENT_OPENED" else "info",
        host=row.host,
        gpu_uuid=row.gpu_id or "",
        job_ref=row.job_ref,
        owner=row.job_owner or row.user,
    )
