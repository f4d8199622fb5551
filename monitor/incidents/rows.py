"""Rows <-> facts: incidents, exemptions, the use that the rules judge, and scarce resources."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Avg, Count, F, Max, Q, QuerySet, Sum
from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact
from monitor.facts.formats import duration, fact_from
from monitor.facts.incidents import CPU_HOG, HOG_RULES, IDLE_HELD, SEVERITIES, TITLES
from monitor.facts.readings import ProcessReading
from monitor.incidents.policy import constraints
from monitor.incidents.policy.constraints import (
    DATA_DISK,
    DISK,
    THROTTLED,
    Constraint,
    ConstraintEffect,
)
from monitor.incidents.policy.findings import (
    Booking,
    BookingPolicy,
    ExemptionRule,
    Finding,
    GpuTimePolicy,
    MemoryPolicy,
    group_name,
    key_of,
    subject_of,
)
from monitor.incidents.policy.lifecycle import (
    IncidentChange,
    OpenIncident,
    Verdict,
    milestones,
)
from monitor.incidents.policy.usage_series import (
    HORIZON_S,
    STEP_S,
    Key,
    UsageMinute,
    UsagePoint,
    UsageUntil,
    union_s,
)
from monitor.incidents.rules.evaluate import IncidentPolicies, log_figures
from monitor.incidents.rules.processes import IDLE_PCT
from monitor.incidents.wording import sentence
from monitor.journal.rows import audit, events
from monitor.models import Constraint as Row
from monitor.models import (
    CpuScanState,
    Exemption,
    Gpu,
    GpuMinute,
    HostSample,
    Incident,
    Pattern,
    ProcessMinute,
    ProcessUse,
    Sample,
)
from monitor.runtime.rows.database import compiled_for_times, compiled_once
from monitor.runtime.rows.item_isolation import Convert, ItemIsolation, convert_all
from monitor.thresholds import rows as thresholds
from monitor.usage.rows import processes as process_rows

# An open incident is written this often; the time between is added up.
WRITE_EVERY = timedelta(seconds=10)
LISTED = timedelta(seconds=60)
# Minutes are rolled up at most this much later.
NOT_ROLLED_S = 180.0
_ACCOUNT = (
    "gpu_id",
    "pid",
    "start_ticks",
    "last_seen_at",
    "ended_at",
    "held_s",
    "sm_s",
    "known_s",
    "memory_byte_s",
    "memory_known_s",
    "created_at",
    "uid",
    "user",
    "program",
    "container",
    "job_ref",
    "job_owner",
)
_GROUPED = (
    "pk",
    "gpu_id",
    "pid",
    "start_ticks",
    "user",
    "job_owner",
    "job_ref",
    "container",
    "last_seen_at",
)
_MINUTE = ("use_id", "t", "sm_s", "held_s", "known_s", "memory_byte_s", "memory_known_s")
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
    "hog_spans",
    "text",
    "pid",
    "start_ticks",
    "program",
    "over_at",
)
_RULES = tuple(TITLES)


def stored(host: str, convert: Convert = convert_all) -> list[OpenIncident]:
    """The open incidents of `host`, and those muted by an operator."""
    return [fact for _, fact in convert(list(_stored_rows(host)), _name, _fact)]


def _fact(row: Incident) -> OpenIncident:
    spans = tuple((begin, end) for begin, end in row.hog_spans)
    return fact_from(OpenIncident, row, waiting=tuple(row.waiting), hog_spans=spans, says_hog=False)


@compiled_once
def _stored_rows(host: str) -> QuerySet[Incident]:
    return Incident.objects.filter(Q(closed_at__isnull=True) | Q(is_muted=True), host=host)


def exemptions(now: datetime) -> tuple[ExemptionRule, ...]:
    rows = (row for row in _exemptions() if row.until_at is None or row.until_at > now)
    return tuple(ExemptionRule(row.scope, row.name, row.rule) for row in rows)


@compiled_once
def _exemptions() -> QuerySet[Exemption]:
    return Exemption.objects.order_by("id")


class RecentUsage(Struct, frozen=True):
    """Total use of each recent process of its GPU; `gone`: processes that have ended."""

    totals: dict[Key, UsageUntil]
    gone: list[ProcessReading]


def recent_usage(host: str, now: datetime) -> RecentUsage:
    """The rows of the host's processes that were seen in the last minute."""
    usage = RecentUsage({}, [])
    for row in _seen_since(host, now - LISTED):
        uuid, pid, start, seen_at, ended_at, held, sm, known_s, memory, memory_known, *identity = (
            row
        )
        # Processes with an unknown start have a negative number.
        ticks = start if start >= 0 else None
        at = (ended_at or seen_at).timestamp()
        used = UsagePoint(held, sm, held, known_s, memory, memory_known)
        usage.totals[uuid, pid, ticks] = UsageUntil(at, used)
        if ended_at is not None:
            usage.gone.append(_reading(uuid, pid, ticks, identity))
    return usage


@compiled_for_times
def _seen_since(host: str, at: datetime) -> QuerySet[Any, tuple[Any, ...]]:
    return ProcessUse.objects.filter(host=host, last_seen_at__gt=at).values_list(*_ACCOUNT)


def _reading(uuid: str, pid: int, ticks: int | None, identity: Sequence[Any]) -> ProcessReading:
    """A process that has ended. Its kinds are unknown; "G" exempts system programs."""
    created_at, uid, *names = identity
    user, program, container, job_ref, job_owner = (name or None for name in names)
    return ProcessReading(
        gpu_uuid=uuid,
        pid=pid,
        start_ticks=ticks,
        created_at=created_at,
        uid=uid,
        user=user,
        program=program,
        kinds="G",
        container=container,
        job_ref=job_ref,
        job_owner=job_owner,
    )


def usage_minutes(host: str, now: datetime) -> list[UsageMinute]:
    """Use in each of the last minutes, by process."""
    since = now - timedelta(seconds=HORIZON_S)
    uses = {}
    rows = ProcessUse.objects.filter(host=host, last_seen_at__gt=since)
    for pk, gpu, pid, start, user, owner, job_ref, container, seen_at in rows.values_list(
        *_GROUPED
    ):
        group = group_name(gpu, job_ref, owner or user, container, pid)
        uses[pk] = (gpu, pid, start if start >= 0 else None), group, seen_at.timestamp()
    minutes = ProcessMinute.objects.filter(use_id__in=uses, t__gte=int(since.timestamp()))
    past = []
    for pk, t, sm, held, known, memory, memory_known in minutes.values_list(*_MINUTE):
        key, group, seen_t = uses[pk]
        known_memory = held if memory_known is None else memory_known
        used = UsagePoint(held, sm, held, known, memory, known_memory)
        past.append(UsageMinute(key, group, min(t + 60.0, seen_t), used))
    return past


def utilization_steps(gpus: Collection[str], since: float) -> dict[str, dict[int, float]]:
    """{GPU: {number of the step since the epoch: sum of its utilisation}} from `since` on."""
    if not gpus:
        return {}
    by_gpu: dict[str, dict[int, float]] = {}
    rows = Sample.objects.filter(gpu_id__in=gpus, t__gte=int(since), utilization_pct__gt=0)
    steps = rows.order_by().values("gpu_id", step=F("t") / STEP_S)
    sums = steps.annotate(pct=Sum("utilization_pct")).values_list("gpu_id", "step", "pct")
    for gpu, step, pct in sums:
        by_gpu.setdefault(gpu, {})[step] = pct
    return by_gpu


def stored_cpu_scan(host: str) -> str:
    """The state of the CPU scan that the previous controller stored."""
    return CpuScanState.objects.filter(pk=host).values_list("body", flat=True).first() or ""


def store_cpu_scan(host: str, body: str, now: datetime) -> None:
    CpuScanState.objects.update_or_create(host=host, defaults={"at": now, "body": body})


def last_seen(claims: Mapping[Booking, ClaimFact]) -> dict[Booking, float]:
    """When a process of each job was last seen on each GPU that it has booked."""
    since = [claim.since for claim in claims.values() if claim.since is not None]
    if not since:
        return {}
    gpus = {gpu for _, gpu in claims}
    rows = ProcessUse.objects.filter(gpu_id__in=gpus, last_seen_at__gte=min(since))
    last = rows.exclude(job_ref="").order_by().values_list("job_ref", "gpu_id")
    seen_at = last.annotate(newest_at=Max("last_seen_at"))
    return {(ref, gpu): at.timestamp() for ref, gpu, at in seen_at if (ref, gpu) in claims}


def unwatched_seconds(begins: Mapping[Booking, float], now: datetime) -> dict[Booking, float]:
    """The seconds since `begins` in which the GPU was not read.

    The newest minutes have no rows yet and count as watched.
    """
    rolled = now.timestamp() - NOT_ROLLED_S
    read = Q(utilization_known_s__gt=0) | Q(memory_known_s__gt=0) | Q(power_known_s__gt=0)
    seconds_by_key = {}
    for (job_ref, uuid), begin in begins.items():
        if begin < rolled:
            rows = GpuMinute.objects.filter(read, gpu_id=uuid, t__gt=begin - 60, t__lt=rolled)
            seconds_by_key[job_ref, uuid] = max(0.0, rolled - begin - 60 * rows.count())
    return seconds_by_key


def apply(verdict: Verdict, host: str, now: datetime, isolation: ItemIsolation) -> None:
    """Store a verdict and report it in events."""
    isolation.each(
        sorted(verdict.opened, key=lambda change: _RULES.index(change.finding.rule)),
        lambda change: f"new incident {change.finding.rule} {change.finding.key}",
        lambda change: _open(change, host, now),
        now,
    )
    _extend(verdict.extended, now, isolation)
    _close(verdict.closed, now, isolation)


def _open(change: IncidentChange, host: str, now: datetime) -> None:
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
        subject=subject_of(finding)[:400],
    )
    _fill(row, change)
    row.lead = _lead_of(row)
    if row.lead is not None:
        row.snoozed_until = row.lead.snoozed_until
    row.save()
    if row.lead is None:
        _add_event("INCIDENT_OPENED", row, row.text, now)
    _raise_leads([row])


def _lead_of(row: Incident) -> Incident | None:
    """The open incident of the same subject."""
    rows = Incident.objects.filter(host=row.host, subject=row.subject)
    return rows.filter(closed_at__isnull=True, lead__isnull=True).order_by("id").first()


def _raise_leads(rows: Iterable[Incident]) -> None:
    """An incident is as severe as its worst facet."""
    for severity in SEVERITIES[1:]:
        leads = {row.lead_id for row in rows if row.lead_id and row.severity == severity}
        milder = SEVERITIES[: SEVERITIES.index(severity)]
        if leads:
            Incident.objects.filter(pk__in=leads, severity__in=milder).update(severity=severity)


def _reaching_back(change: IncidentChange, host: str, now: datetime) -> IncidentChange:
    """Use the stored rows for the begin of idle time that is older than the buffers."""
    finding, incident = change.finding, change.incident
    use_id = _use_id(finding, host) if finding.rule == IDLE_HELD else None
    if use_id is None:
        return change
    uses = ProcessUse.objects.filter(pk=use_id)
    since = process_rows.idle_since(uses, now, below_pct=IDLE_PCT, coverage=0.5).get(use_id)
    if since is None or since >= incident.since_at:
        return change
    mean_pct = process_rows.mean_pct(use_id, since)
    return IncidentChange(replace(incident, since_at=since, mean_pct=mean_pct), finding)


def _use_id(finding: Finding, host: str) -> int | None:
    if finding.process is None:
        return None
    gpu, pid, ticks = key_of(finding.process)
    rows = ProcessUse.objects.filter(host=host, gpu_id=gpu, pid=pid)
    rows = rows.filter(start_ticks=ticks) if ticks is not None else rows.filter(ended_at=None)
    return rows.order_by("-id").values_list("id", flat=True).first()


def _fill(row: Incident, change: IncidentChange) -> None:
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
    row.hog_spans = [list(span) for span in incident.hog_spans]
    row.text = sentence(finding, incident)
    row.over_at = None
    if process is not None:
        row.pid, row.start_ticks = process.pid, process.start_ticks
        row.program = (process.program or "")[:200]


def _extend(changes: Sequence[IncidentChange], now: datetime, isolation: ItemIsolation) -> None:
    due = {change.incident.id: change for change in changes}
    if not due:
        return
    rows = list(Incident.objects.filter(pk__in=due, last_seen_at__lte=now - WRITE_EVERY))

    def passed_by(row: Incident) -> int:
        return milestones(row.lasts, hourly=due[row.pk].incident.says_hog)

    before = {row.pk: passed_by(row) for row in rows}
    filled = isolation.convert(rows, _name, lambda row: _fill(row, due[row.pk]), now)
    good = [row for row, _ in filled]
    passed = [row for row in good if passed_by(row) > before[row.pk]]
    if not isolation.attempt("going on", lambda: Incident.objects.bulk_update(good, _MOVES), now):
        isolation.each(good, _name, lambda row: row.save(update_fields=_MOVES), now)
    _raise_leads(good)
    isolation.each(passed, _name, lambda row: _report_ongoing(row, now), now)


def _report_ongoing(row: Incident, now: datetime) -> None:
    """Report an open incident again, at growing intervals."""
    is_snoozed = row.snoozed_until is not None and row.snoozed_until > now
    if row.lead_id is None and not is_snoozed and row.rule in (*HOG_RULES, CPU_HOG):
        _add_event("INCIDENT_ONGOING", row, row.text, now)


def _close(
    closed: Iterable[tuple[OpenIncident, str]], now: datetime, isolation: ItemIsolation
) -> None:
    reasons = {incident.id: (incident, why) for incident, why in closed}
    rows = Incident.objects.filter(pk__in=reasons) if reasons else ()
    isolation.each(rows, _name, lambda row: _close_one(row, *reasons[row.pk], now), now)


def _name(row: Incident) -> str:
    return f"incident {row.pk}"


def _close_one(row: Incident, incident: OpenIncident, why: str, now: datetime) -> None:
    if incident.is_muted:
        row.is_muted = False
        row.save(update_fields=["is_muted"])
        return
    if row.facets.filter(closed_at__isnull=True).exists():
        Incident.objects.filter(pk=row.pk, over_at__isnull=True).update(over_at=now)
        return
    row.closed_at, row.closed_by = now, audit.GPUCOORD
    row.save(update_fields=["closed_at", "closed_by"])
    if row.lead_id is not None:
        return
    audit.note(
        "INCIDENT_CLOSED",
        f"gpucoord closed the incident: {why}",
        by=audit.GPUCOORD,
        now=now,
        subject=f"incident {row.pk}",
    )
    _add_event("INCIDENT_CLOSED", row, f"Resolved ({why}): {row.text}", now)


def _add_event(kind: str, row: Incident, text: str, now: datetime) -> None:
    events.add(
        kind,
        text,
        now=now,
        severity="info" if kind == "INCIDENT_CLOSED" else row.severity,
        host=row.host,
        gpu_uuid=row.gpu_id or "",
        job_ref=row.job_ref,
        owner=row.job_owner or row.user,
        figures=_figures(row),
    )


def _figures(row: Incident) -> dict[str, float]:
    """For log lines: the mean of what the rule measures, and the threshold of the rule."""
    force = thresholds.ThresholdsInForce()
    policies = IncidentPolicies(
        hogs=force.of(GpuTimePolicy), memory=force.of(MemoryPolicy), claims=force.of(BookingPolicy)
    )
    return log_figures(row.rule, row.mean_pct, row.expected_pct, policies)


# Open incidents, and the share of time with a hog.


def open_rows(host: str | None = None) -> QuerySet[Incident]:
    """The open rows, on `host` or anywhere: incidents and their facets."""
    rows = Incident.objects.filter(closed_at__isnull=True)
    return rows if host is None else rows.filter(host=host)


@compiled_once
def all_open_rows() -> QuerySet[Incident]:
    """The open rows of all hosts, by a compiled query."""
    return open_rows()


def open_incidents() -> QuerySet[Incident]:
    """The open incidents, each once: without their facets."""
    return open_rows().filter(lead__isnull=True)


def not_snoozed(now: datetime) -> list[Incident]:
    """The open rows of all hosts that are not muted."""
    return [row for row in all_open_rows() if row.snoozed_until is None or row.snoozed_until <= now]


def count(rows: Iterable[Incident]) -> int:
    """How many incidents these rows are: an incident and its facets count once."""
    return len({row.lead_id or row.pk for row in rows})


def hogs_on(host: str, now: datetime | None = None) -> set[str]:
    """The GPUs (by UUID) of `host` with a hog; with `now` without snoozed incidents."""
    rows = all_open_rows() if now is None else not_snoozed(now)
    mine = (row for row in rows if row.host == host and row.over_at is None and row.is_hog)
    return {row.gpu_id for row in mine if row.gpu_id is not None and row.rule in HOG_RULES}


def hog_share(host: str, hours: float, now: datetime) -> float | None:
    """The part (0..1) of the last `hours` in which a hog was on a GPU of `host`.

    Use of idle capacity while no job waited does not count. None = nothing is known of this host.
    """
    spans = hog_spans(host, hours, now)
    if not spans and not _any_gpu(host):
        return None
    return union_s(spans) / (hours * 3600)


@compiled_once
def _any_gpu(host: str) -> QuerySet[Any, str]:
    return Gpu.objects.filter(host=host).order_by().values_list("pk", flat=True)[:1]


def hog_spans(host: str, hours: float, now: datetime) -> list[tuple[float, float]]:
    """Begin and end of the times with overuse in the last `hours`; they may overlap."""
    since = now - timedelta(hours=hours)
    first, last = since.timestamp(), now.timestamp()
    return [
        (max(begin, first), min(end, last))
        for spans in _spans_since(host, since)
        for begin, end in spans
    ]


@compiled_for_times
def _spans_since(host: str, at: datetime) -> QuerySet[Any, list[list[float]]]:
    rows = Incident.objects.filter(host=host, rule__in=HOG_RULES, last_seen_at__gt=at)
    return rows.values_list("hog_spans", flat=True)


def of_person(name: str) -> Q:
    """Incidents of the processes and jobs of a user."""
    return Q(job_owner=name) | Q(job_owner="", user=name)


def patterns(user: str = "") -> list[Pattern]:
    """The stored patterns of recurring use, most certain first; of one user, or of all."""
    rows = Pattern.objects.select_related("gpu").order_by("id")
    return list(rows.filter(user=user) if user else rows)


# Scarce resources of hosts, and the events when they begin and end.


# The window of the mean CPU use, and how much of it must be known.
CPU_WINDOW, CPU_KNOWN = timedelta(seconds=30), 0.5
# GPU health reports these events.
UNTOLD = {THROTTLED}


def constraint_keys(host: str) -> list[tuple[str, str]]:
    """(kind, subject) of all open constraints of `host`."""
    return [(row.kind, row.subject) for row in open_constraints(host)]


def open_constraints(host: str | None = None) -> list[Row]:
    """All open constraints of `host` (None = any), oldest first."""
    return [row for row in _open_constraints() if host in (None, row.host)]


@compiled_once
def _open_constraints() -> QuerySet[Row]:
    return Row.objects.filter(until_at__isnull=True).order_by("from_at", "id")


def cpu_pct(host: str, now: datetime) -> float | None:
    """Mean CPU use of the last half minute; None = too little is known."""
    since = int((now - CPU_WINDOW).timestamp())
    rows = HostSample.objects.filter(host=host, t__gt=since, t__lte=int(now.timestamp()))
    totals = rows.aggregate(mean=Avg("cpu_pct"), samples=Count("cpu_pct"))
    if totals["samples"] < CPU_KNOWN * CPU_WINDOW.total_seconds():
        return None
    return float(totals["mean"])


def apply_constraints(
    verdict: constraints.Verdict, host: str, now: datetime, isolation: ItemIsolation
) -> None:
    """Store a verdict and record its events."""
    isolation.each(
        verdict.opened,
        lambda constraint: f"{constraint.kind} {constraint.subject}",
        lambda constraint: _open_one(constraint, host, now),
        now,
    )
    isolation.each(verdict.closed, " ".join, lambda key: _close_constraint(host, *key, now), now)


def _open_one(constraint: Constraint, host: str, now: datetime) -> None:
    Row.objects.create(
        host=host,
        kind=constraint.kind,
        subject=constraint.subject,
        text=constraint.text,
        from_at=now,
    )
    _tell(constraint, host, now)


def _close_constraint(host: str, kind: str, subject: str, now: datetime) -> None:
    rows = Row.objects.filter(host=host, kind=kind, subject=subject, until_at__isnull=True)
    for row in rows:
        row.until_at = now
        row.save(update_fields=["until_at"])
        _tell_end(row, now)


def _tell(constraint: Constraint, host: str, now: datetime) -> None:
    if constraint.kind in UNTOLD:
        return
    events.add(
        "DISK_SPACE_LOW" if constraint.kind in (DISK, DATA_DISK) else "RESOURCE_CONSTRAINT",
        constraint.text,
        now=now,
        severity="info" if constraint.effect is ConstraintEffect.SOFT else "warning",
        host=host,
    )


def _tell_end(row: Row, now: datetime) -> None:
    if row.kind in UNTOLD:
        return
    events.add(
        "DISK_SPACE_OK" if row.kind in (DISK, DATA_DISK) else "RESOURCE_CONSTRAINT_OVER",
        f"Resolved after {duration(now - row.from_at)}. It began with: {row.text}",
        now=now,
        host=row.host,
    )
