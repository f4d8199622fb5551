"""Rows -> facts: usage of GPUs by processes and bookings, in steps of at most an hour."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from operator import itemgetter
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Max, Q, QuerySet, Sum
from django.db.models.functions import Coalesce
from django.urls import reverse
from msgspec import Struct

from monitor.facts import incidents as rule_facts
from monitor.models import (
    Claim,
    Event,
    Gpu,
    GpuHour,
    GpuMinute,
    Incident,
    Pattern,
    ProcessHour,
    ProcessMinute,
    ProcessUse,
)
from monitor.owners.policy import Viewer
from monitor.runtime.rows.item_isolation import ItemIsolation
from monitor.usage.rows.processes import SUMS
from reports.figures.facts import (
    FindingFact,
    Operation,
    PatternFact,
    Period,
    RuleCount,
    Scope,
    ScopeKind,
    Table,
)
from reports.figures.policy.jobs import JobWait, PastJob, Waiting
from reports.figures.policy.ledger import ClaimPart, GpuPart, Span, Step, UseFact, UsePart, covered
from scheduler.facts.jobs import CLASSES, JobState
from scheduler.models import Attempt, Batch, Job, ModelUse, YieldRequest
from scheduler.queue.planner import blockers as stored_blockers

HOUR_S = 3600
# A process is seen every few seconds; its row tells so a little later.
SLACK_S = 120
_USE = (
    "id",
    "gpu_id",
    "host",
    "user",
    "job_owner",
    "first_seen_at",
    "pid",
    "start_ticks",
    "program",
    "container",
    "uid",
    "job_ref",
)
Parts = Mapping[str, list[UsePart]]


def gpus(scope: Scope, period: Period) -> list[Gpu]:
    """GPUs of the scope that were there in the period, by host and index."""
    rows = Gpu.objects.filter(first_seen_at__lt=period.until, last_seen_at__gte=period.since)
    if scope.kind is ScopeKind.GPU:
        rows = rows.filter(uuid=scope.name)
    elif scope.kind is ScopeKind.HOST:
        rows = rows.filter(host=scope.name)
    return list(rows.order_by("host", "index", "uuid"))


def alive(gpus: Iterable[Gpu], since: float, until: float) -> QuerySet[ProcessUse]:
    """Processes on these GPUs in the time."""
    return ProcessUse.objects.filter(
        gpu_id__in=[gpu.uuid for gpu in gpus],
        last_seen_at__gte=datetime.fromtimestamp(since - SLACK_S, UTC),
        first_seen_at__lt=datetime.fromtimestamp(until, UTC),
    )


def uses(gpus: Iterable[Gpu], period: Period) -> dict[int, UseFact]:
    """By number. Processes of a job belong to the owner of the job."""
    rows = alive(gpus, period.since.timestamp(), period.until.timestamp())
    facts = {}
    for row in rows.values_list(*_USE).iterator(chunk_size=2000):
        id_, gpu, host, user, job_owner, first, pid, ticks, program, container, uid, ref = row
        facts[id_] = UseFact(
            id=id_,
            gpu=gpu,
            host=host,
            owner=job_owner or user or None,
            first_t=first.timestamp(),
            pid=pid,
            start_ticks=ticks,
            program=program,
            container=container,
            uid=uid,
            job_ref=ref,
            is_job=bool(ref or job_owner),
        )
    return facts


def steps(
    gpus: list[Gpu],
    uses: Mapping[int, UseFact],
    period: Period,
    waiting: Mapping[int, Waiting],
    now: datetime,
) -> Iterator[Step]:
    """The period in steps, oldest first: whole hours, and parts of an hour at its edges.

    waiting: waits by the begin of an hour.
    """
    since, until = int(period.since.timestamp()), int(period.until.timestamp())
    first, last = -(-since // HOUR_S) * HOUR_S, until // HOUR_S * HOUR_S
    claims = _claims(gpus, since, until, now)
    nothing: Mapping[str, list[ClaimPart]] = {}
    if first > last:
        yield _edge(gpus, uses, since, until, claims, waiting)
        return
    if since < first:
        yield _edge(gpus, uses, since, first, claims, waiting)
    readings = _gpu_hours(gpus, first, last)
    parts = _process_hours(uses, first, last)
    pending = next(parts, None)
    for begin in range(first, last, HOUR_S):
        its: Parts = {}
        if pending is not None and pending[0] == begin:
            its, pending = pending[1], next(parts, None)
        yield Step(
            begin,
            begin + HOUR_S,
            readings.get(begin, {}),
            its,
            claims.get(begin, nothing),
            waiting.get(begin, Waiting()),
        )
    if last < until:
        yield _edge(gpus, uses, last, until, claims, waiting)


def used_before(period: Period, scope_gpus: Iterable[Gpu]) -> dict[str | None, tuple[Any, ...]]:
    """{owner: (seconds used, held, known)} of whole hours: for the trend, cheaper than steps."""
    since, until = int(period.since.timestamp()), int(period.until.timestamp())
    rows: QuerySet[Any] = ProcessHour.objects.filter(
        t__gte=since // HOUR_S * HOUR_S, t__lt=until // HOUR_S * HOUR_S
    )
    grouped = rows.order_by().values("use__gpu_id", "use__job_owner", "use__user")
    wanted = {gpu.uuid for gpu in scope_gpus}
    sums_by_owner: dict[str | None, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for row in grouped.annotate(a=Sum("sm_s"), b=Sum("held_s"), c=Sum("known_s")):
        if row["use__gpu_id"] in wanted:
            sums = sums_by_owner[row["use__job_owner"] or row["use__user"] or None]
            for i, name in enumerate("abc"):
                sums[i] += row[name] or 0.0
    return {owner: tuple(sums) for owner, sums in sums_by_owner.items()}


def _gpu_hours(gpus: Iterable[Gpu], since: int, until: int) -> dict[int, dict[str, GpuPart]]:
    wanted = [gpu.uuid for gpu in gpus]
    rows = GpuHour.objects.filter(gpu_id__in=wanted, t__gte=since, t__lt=until).values_list(
        "t",
        "gpu_id",
        "seen_s",
        "utilization_pct_s",
        "utilization_known_s",
        "energy_j",
        "power_known_s",
    )
    hours: dict[int, dict[str, GpuPart]] = {}
    for t, gpu, seen_s, busy, known_s, energy, power in rows.iterator(chunk_size=2000):
        part = GpuPart(seen_s, busy / 100 if known_s else None, energy, power)
        hours.setdefault(t, {})[gpu] = part
    return hours


def _process_hours(
    uses: Mapping[int, UseFact], since: int, until: int
) -> Iterator[tuple[int, Parts]]:
    """(begin, parts by GPU) of each hour with any, oldest first."""
    rows = ProcessHour.objects.filter(t__gte=since, t__lt=until).order_by("t")
    columns = rows.values_list("use_id", *SUMS, "memory_known_s", "t")
    for t, group in groupby(columns.iterator(chunk_size=5000), key=itemgetter(-1)):
        yield t, _by_gpu(group, uses)


def _edge(
    gpus: list[Gpu],
    uses: Mapping[int, UseFact],
    since: int,
    until: int,
    claims: Mapping[int, Mapping[str, list[ClaimPart]]],
    waiting: Mapping[int, Waiting],
) -> Step:
    """A part of an hour, from minutes; without minutes the same part of the hour's sums."""
    hour = since // HOUR_S * HOUR_S
    readings = _gpu_minutes(gpus, since, until)
    rows: Iterable[Any] = _minutes(gpus, since, until)
    if not readings:
        factor = (until - since) / HOUR_S
        readings = {
            gpu: GpuPart(
                part.seen_s * factor,
                None if part.busy_s is None else part.busy_s * factor,
                part.energy_j * factor,
                part.power_known_s * factor,
            )
            for gpu, part in _gpu_hours(gpus, hour, hour + HOUR_S).get(hour, {}).items()
        }
        hours = ProcessHour.objects.filter(t=hour)
        columns = hours.values_list("use_id", *SUMS, "memory_known_s")
        rows = rows or [(row[0], *(_times(value, factor) for value in row[1:])) for row in columns]
    return Step(
        since,
        until,
        readings,
        _by_gpu(rows, uses),
        claims.get(hour, {}),
        waiting.get(hour, Waiting()),
    )


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _gpu_minutes(gpus: Iterable[Gpu], since: int, until: int) -> dict[str, GpuPart]:
    wanted = [gpu.uuid for gpu in gpus]
    rows: QuerySet[Any] = GpuMinute.objects.filter(gpu_id__in=wanted, t__gte=since, t__lt=until)
    grouped = rows.order_by().values("gpu_id")
    columns = ("seen_s", "utilization_pct_s", "utilization_known_s", "energy_j", "power_known_s")
    sums = grouped.annotate(**{f"{name}_": Sum(name) for name in columns})
    parts = {}
    for row in sums:
        seen_s, busy, known_s, energy, power = (row[f"{name}_"] for name in columns)
        parts[row["gpu_id"]] = GpuPart(
            float(seen_s), busy / 100 if known_s else None, energy, float(power)
        )
    return parts


def _minutes(gpus: Iterable[Gpu], since: int, until: int) -> list[tuple[Any, ...]]:
    rows: QuerySet[Any] = ProcessMinute.objects.filter(
        use_id__in=alive(gpus, since, until).values("pk"), t__gte=since, t__lt=until
    )
    grouped = rows.order_by().values("use_id")
    columns = {f"{name}_": Sum(name) for name in SUMS}
    sums = grouped.annotate(**columns, memory_=Sum(Coalesce("memory_known_s", "held_s")))
    names = (*(f"{name}_" for name in SUMS), "memory_")
    return [(row["use_id"], *(row[name] for name in names)) for row in sums]


def _by_gpu(
    rows: Iterable[tuple[Any, ...]], uses: Mapping[int, UseFact]
) -> dict[str, list[UsePart]]:
    parts: dict[str, list[UsePart]] = {}
    for use_id, sm, held, known_s, memory, joules, memory_known, *_ in rows:
        use = uses.get(use_id)
        if use is not None:
            # Rows of older versions do not say for how long the memory was known.
            measured = held if memory_known is None else memory_known
            part = UsePart(use, sm, held, known_s, memory, measured, joules)
            parts.setdefault(use.gpu, []).append(part)
    return parts


def _claims(
    gpus: Iterable[Gpu], since: int, until: int, now: datetime
) -> dict[int, dict[str, list[ClaimPart]]]:
    """Bookings by the begin of each hour that they touch."""
    begin, end = (datetime.fromtimestamp(t, UTC) for t in (since, until))
    rows = Claim.objects.filter(
        Q(until_at__isnull=True) | Q(until_at__gt=begin),
        Q(gpu_uuid__in=[gpu.uuid for gpu in gpus]),
        from_at__lt=end,
    )
    claims: dict[int, dict[str, list[ClaimPart]]] = {}
    for gpu, owner, from_at, until_at in rows.values_list(
        "gpu_uuid", "owner", "from_at", "until_at"
    ):
        start, stop = from_at.timestamp(), min(until, (until_at or now).timestamp())
        part = ClaimPart(owner, start, stop)
        for hour in range(int(max(start, since)) // HOUR_S * HOUR_S, int(stop) + 1, HOUR_S):
            claims.setdefault(hour, {}).setdefault(gpu, []).append(part)
    return claims


# Jobs, incidents and events of a period.

MOST_FINDINGS = 5
# A state that has not ended lasts until the end of the period.
STARTS = {"BACKPRESSURE_ACTIVATED": "BACKPRESSURE_RELEASED"}


def waits(period: Period, now: datetime) -> list[JobWait]:
    """GPU jobs that waited in the period for their first start."""
    until = min(period.until, now)
    started = Attempt.objects.filter(
        number=1, placed_at__gt=period.since, job__gpus__gte=1, job__submitted_at__lt=period.until
    ).values_list(
        *(f"job__{name}" for name in _WAIT), "placed_at"
    )  # fmt: skip
    waits = [
        _wait(job, min(placed, until), placed > until)
        for *job, placed in started.iterator(chunk_size=2000)
    ]
    never = Job.objects.filter(gpus__gte=1, submitted_at__lt=period.until, attempts__isnull=True)
    never = never.filter(Q(state=JobState.QUEUED.value, held="") | Q(ended_at__gt=period.since))
    for *job, ended in never.values_list(*_WAIT, "ended_at"):
        waits.append(_wait(job, min(ended or until, until), ended is None))
    return [wait for wait in waits if wait.end > wait.begin or not wait.is_waiting]


_WAIT = (
    "owner__username",
    "priority",
    "submitted_at",
    "begin_at",
    "blocker_log",
    "gpu_uuid",
    "gpu_memory_bytes",
)


def _wait(job: Sequence[Any], end: datetime, is_waiting: bool) -> JobWait:
    owner, priority, submitted, begin, log, gpu, memory = job
    since = max(submitted, begin or submitted).timestamp()
    until = max(since, end.timestamp())
    blocker = stored_blockers.longest_blocker(log, since, until)
    job_class = CLASSES[priority].value
    return JobWait(owner, job_class, since, until, is_waiting, blocker, gpu, memory or 0)


def past_jobs(period: Period, gpus: Sequence[Gpu], least_coverage: float) -> list[PastJob]:
    """GPU jobs whose last attempt ended in the period, on these GPUs, with what they used."""
    attempts = Attempt.objects.filter(
        ended_at__gt=period.since, ended_at__lte=period.until, started_at__isnull=False
    ).exclude(outcome="")
    rows = attempts.filter(job__gpus__gte=1).values_list(
        "job_id",
        "job__owner__username",
        "job__gpus",
        "job__gpu_memory_bytes",
        "started_at",
        "ended_at",
    )
    used = _used_by_jobs(period, gpus)
    whole = max((gpu.memory_total_bytes or 0 for gpu in gpus), default=0) or None
    past = []
    for job, owner, count, memory, started, ended in rows.iterator(chunk_size=2000):
        seconds = (ended - started).total_seconds() if ended and started else 0.0
        if seconds <= 0 or str(job) not in used:
            continue
        sm, held, known_s, peak = used[str(job)]
        good = held > 0 and known_s >= least_coverage * held
        mean = min(float(count), sm / seconds) if good else None
        past.append(PastJob(owner, count, memory or whole, seconds, mean, peak))
    return past


def _used_by_jobs(
    period: Period, gpus: Iterable[Gpu]
) -> dict[str, tuple[float, float, float, int | None]]:
    rows = ProcessUse.objects.filter(
        gpu_id__in=[gpu.uuid for gpu in gpus], last_seen_at__gte=period.since
    ).exclude(job_ref="")
    grouped = rows.order_by().values("job_ref", "gpu_id")
    sums = grouped.annotate(
        a=Sum("sm_s"), b=Sum("held_s"), c=Sum("known_s"), d=Max("peak_memory_bytes")
    )
    used: dict[str, tuple[float, float, float, int | None]] = {}
    for row in sums:
        sm, held, known_s, peak = used.get(row["job_ref"], (0.0, 0.0, 0.0, None))
        peaks = [value for value in (peak, row["d"]) if value is not None]
        used[row["job_ref"]] = (
            sm + row["a"],
            held + row["b"],
            known_s + row["c"],
            max(peaks, default=None),
        )
    return used


class Incidents(Struct):
    """Incidents of the period: the longest findings and over-use by user, counts by rule.

    further: how many findings of a user are left out. open: those that go on at the end.
    """

    findings: dict[str, list[FindingFact]]
    overuse_s: dict[str, float]
    rules: tuple[RuleCount, ...]
    marks: dict[str, list[tuple[int, str]]]
    further: dict[str, int]
    open: tuple[FindingFact, ...]


def incidents(
    period: Period, gpus: Sequence[Gpu], names: Collection[str] | None = None
) -> Incidents:
    """An incident that goes on beyond the period counts with the part inside.

    names: the users whose incidents are counted by rule; None = all.
    """
    rows = _incident_rows(period, gpus)
    incidents = Incidents(defaultdict(list), {}, (), defaultdict(list), {}, ())
    hogs: dict[str, list[Span]] = defaultdict(list)
    counts: dict[str, list[float]] = {}
    for row in rows:
        part, hours = _inside(row, period)
        owner = row.job_owner or row.user
        finding = _finding(row, hours)
        if row.gpu_id:
            incidents.marks[row.gpu_id].append((int(row.since_at.timestamp()), finding.title))
        hogs[owner] += list(_clipped(row.hog_spans, period))
        if row.lead_id is None:
            if names is None or owner in names:
                sums = counts.setdefault(row.rule, [0, 0.0, 0.0])
                sums[0], sums[1] = sums[0] + 1, sums[1] + hours
                sums[2] += row.waited_s * part / 3600
            incidents.findings[owner].append(finding)
            if (names is None or owner in names) and (
                row.closed_at or period.until
            ) >= period.until:
                incidents.open += (finding,)
    incidents.overuse_s = {owner: covered(spans) for owner, spans in hogs.items()}
    incidents.rules = tuple(
        RuleCount(
            rule=rule,
            title=rule_facts.title(rule, is_hog=False),
            incidents=int(count),
            hours=hours,
            waited_hours=waited,
        )
        for rule, (count, hours, waited) in sorted(counts.items(), key=lambda i: -i[1][0])
    )
    for owner, findings in incidents.findings.items():
        findings.sort(key=lambda finding: -finding.hours)
        incidents.further[owner] = max(0, len(findings) - MOST_FINDINGS)
        del findings[MOST_FINDINGS:]
    return incidents


def _incident_rows(period: Period, gpus: Sequence[Gpu]) -> QuerySet[Incident]:
    on = Q(gpu_id__in=[gpu.uuid for gpu in gpus])
    hosts = Q(gpu_id__isnull=True, host__in={gpu.host for gpu in gpus})
    rows = Incident.objects.filter(on | hosts, since_at__lt=period.until)
    rows = rows.filter(last_seen_at__gt=period.since).order_by("since_at", "id")
    return rows.prefetch_related("facets")


def _inside(row: Incident, period: Period) -> tuple[float, float]:
    """The part of the incident inside the period, 0 to 1, and its hours there."""
    begin, end = max(row.since_at, period.since), min(row.last_seen_at, period.until)
    inside = max(0.0, (end - begin).total_seconds())
    whole = row.lasts.total_seconds()
    return (inside / whole if whole > 0 else 1.0), inside / 3600


def _clipped(spans: Iterable[Sequence[float]], period: Period) -> Iterator[Span]:
    since, until = period.since.timestamp(), period.until.timestamp()
    for begin, end in spans:
        if end > since and begin < until:
            yield max(begin, since), min(end, until)


def _finding(row: Incident, hours: float) -> FindingFact:
    return FindingFact(
        incident=row.pk,
        rule=row.rule,
        title=rule_facts.title(row.rule, is_hog=row.is_hog),
        text=row.headline if row.closed_at is None and row.lead_id is None else row.text,
        since=row.since_at,
        hours=hours,
        severity=row.severity,
        url=reverse("incident", args=[row.lead_id or row.pk]),
        user=row.job_owner or row.user or None,
    )


def operation(period: Period, hosts: Iterable[str], *, all_hosts: bool) -> Operation:
    """From events: an event of severity "warning" begins a defensive or throttled time.

    all_hosts: events are counted on hosts without GPUs too.
    """
    kinds = ("MODE_CHANGED", *STARTS, *STARTS.values())
    since, until = period.since.timestamp(), period.until.timestamp()
    inside = Event.objects.filter(at__gte=period.since, at__lt=period.until)
    wanted = set(hosts)
    changes: dict[tuple[str, str], list[tuple[float, bool]]] = defaultdict(list)
    for kind, host, severity, at in (
        inside.filter(kind__in=kinds)
        .order_by("at", "id")
        .values_list("kind", "host", "severity", "at")
    ):
        if host in wanted:
            name = "MODE_CHANGED" if kind == "MODE_CHANGED" else "BACKPRESSURE_ACTIVATED"
            active = severity == "warning" if kind == "MODE_CHANGED" else kind in STARTS
            changes[name, host].append((at.timestamp(), active))
    hours = {
        name: max(
            (_active_s(name, host, changes[name, host], since, until, period) for host in wanted),
            default=0.0,
        )
        / 3600
        for name in ("MODE_CHANGED", "BACKPRESSURE_ACTIVATED")
    }
    yields = YieldRequest.objects.filter(asked_at__gte=period.since, asked_at__lt=period.until)
    deferred = inside.filter(kind="JOB_DEFERRED")
    if not all_hosts:
        yields = yields.filter(attempt__host__in=wanted)
        deferred = deferred.filter(host__in=wanted)
    kinds_of = list(yields.filter(withdrawn_at=None).values_list("kind", flat=True))
    return Operation(
        defensive_hours=hours["MODE_CHANGED"],
        throttled_hours=hours["BACKPRESSURE_ACTIVATED"],
        deferrals=deferred.count(),
        preemptions=kinds_of.count(YieldRequest.Kind.PREEMPTION),
        evictions=kinds_of.count(YieldRequest.Kind.EVICTION),
    )


def _active_s(
    name: str,
    host: str,
    changes: Sequence[tuple[float, bool]],
    since: float,
    until: float,
    period: Period,
) -> float:
    """Seconds in which the state was on; the last event before the period says how it began."""
    kinds = (name, STARTS.get(name, name))
    before = Event.objects.filter(kind__in=kinds, host=host, at__lt=period.since)
    last = before.order_by("-at", "-id").values_list("kind", "severity").first()
    is_on = last is not None and (
        last[0] in STARTS or (name == "MODE_CHANGED" and last[1] == "warning")
    )
    total, at = 0.0, since
    for t, turns_on in [*changes, (until, False)]:
        if is_on:
            total += t - at
        at, is_on = t, turns_on
    return total


def patterns(gpus: Sequence[Gpu], zone: str) -> tuple[PatternFact, ...]:
    """The patterns of the GPUs; a text says so if its hours are of another zone than `zone`."""
    rows = Pattern.objects.filter(gpu_id__in=[gpu.uuid for gpu in gpus]).order_by("user", "id")
    return tuple(
        PatternFact(
            user=row.user or None,
            text=row.text if row.zone == zone else f"{row.text}, hours in {row.zone}",
        )
        for row in rows
    )


# Tables of subjects that have figures of their own: models and batches.


MOST_BATCHES = 50
# Requests and batches belong to users, not to GPUs or hosts.
_OF_PLACES = (ScopeKind.GPU, ScopeKind.HOST)


def tables(period: Period, scope: Scope, viewer: Viewer, now: datetime) -> tuple[Table, ...]:
    """The tables that have rows. A section that fails is reported and left out."""
    sections: dict[str, Callable[[], Table | None]] = {
        "models": lambda: models(period, scope),
        "batches": lambda: batches(period, scope, viewer),
    }
    isolation = ItemIsolation(settings.CONFIG.node, "report sections")
    made = isolation.each(sections, str, lambda name: sections[name](), now)
    return tuple(table for _, table in made if table is not None)


def models(period: Period, scope: Scope) -> Table | None:
    """Requests to each model, by prompts and by the endpoint; sums over the users of the scope."""
    if scope.kind in _OF_PLACES:
        return None
    uses = ModelUse.objects.filter(hour_at__gte=period.since, hour_at__lt=period.until)
    fields = ("requests", "failed", "cold", "prompt_tokens", "completion_tokens")
    sums = _owned(uses, scope, "owner").values("model").order_by("model")
    rows = sums.annotate(**{f"sum_{name}": Sum(name) for name in fields})
    return _table(
        "models",
        "Requests to models",
        (
            "Model",
            "Requests",
            "Failed",
            "Waited for a boot",
            "Tokens of prompts",
            "Tokens of answers",
        ),
        [(row["model"], *(row[f"sum_{name}"] for name in fields)) for row in rows],
        "Requests are counted by whole hours.",
    )


def batches(period: Period, scope: Scope, viewer: Viewer) -> Table | None:
    """The newest batches of the period: of all users for operators, else the viewer's own."""
    if scope.kind in _OF_PLACES:
        return None
    rows = Batch.objects.filter(created_at__lt=period.until).filter(
        Q(ended_at=None) | Q(ended_at__gt=period.since)
    )
    rows = _owned(rows, scope, "owner__username").select_related("owner")
    if not viewer.operator:
        rows = rows.filter(owner__username=viewer.username)
    return _table(
        "batches",
        "Batches",
        ("Batch", "User", "State", "Items", "Completed", "Failed", "Run time (h)"),
        [
            (
                f"{row.pk} {row.name}",
                row.owner.username,
                row.state,
                row.total_items,
                row.completed,
                row.failed,
                row.work_s / 3600,
            )
            for row in rows.order_by("-id")[:MOST_BATCHES]
        ],
        "Run time: of ended items, over the whole life of the batch.",
    )


def _owned(rows: QuerySet[Any], scope: Scope, owner: str) -> QuerySet[Any]:
    """Those of the scope's users."""
    if scope.kind is ScopeKind.USER:
        return rows.filter(**{owner: scope.name})
    if scope.kind is ScopeKind.GROUP:
        members = User.objects.filter(groups__name=scope.name).values("username")
        return rows.filter(**{f"{owner}__in": members})
    return rows


def _table(
    key: str, title: str, head: tuple[str, ...], rows: list[tuple[Any, ...]], note: str
) -> Table | None:
    return Table(key=key, title=title, head=head, rows=tuple(rows), note=note) if rows else None
