"""Rows -> facts: jobs, incidents and events of a period."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db.models import Max, Q, QuerySet, Sum
from django.urls import reverse

from monitor.incidents import facts as rule_facts
from monitor.models import Event, Gpu, Incident, Pattern, ProcessUse
from monitor.owners.identity.policy import Viewer
from monitor.runtime.rows.item_isolation import ItemIsolation
from reports.figures.facts import FindingFact, Operation, PatternFact, RuleCount, Table
from reports.figures.policy.accounting import Span, covered
from reports.figures.policy.jobs import JobWait, PastJob
from reports.periods.facts import Period, Scope, ScopeKind
from scheduler.facts.jobs import CLASSES, JobState
from scheduler.models import Attempt, Batch, Job, ModelUse, YieldRequest
from scheduler.queue.blockers import policy as stored_blockers

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


@dataclass(slots=True)
class Incidents:
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


# Tables of reports about subjects that have figures of their own: models and batches.


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
