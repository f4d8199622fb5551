"""Builds a report: reads the period's rows, adds them up, judges, and hides what is not public."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from threading import BoundedSemaphore
from zoneinfo import ZoneInfo

from django.contrib.auth.models import Group, User
from django.db.models import Q
from msgspec.structs import replace

from monitor.facts.formats import in_zone, sig3
from monitor.incidents import rows as incident_rows
from monitor.incidents.policy.findings import GpuTimePolicy, exemptions_of_policy
from monitor.models import Gpu, ProcessUse
from monitor.owners.policy import Viewer
from monitor.thresholds import rows as thresholds
from reports.figures import rows
from reports.figures.facts import (
    GpuFigures,
    GpuHours,
    Period,
    Report,
    Scope,
    ScopeKind,
    TrendPoint,
    UserFigures,
    Violation,
)
from reports.figures.policy import advice, jobs, people, periods
from reports.figures.policy.advice import (
    COVERAGE_PCT,
    HIGH_PCT,
    SUSTAINED_PCT,
    ReportPolicy,
    Standards,
    judged,
)
from reports.figures.policy.ledger import Ledger, spans
from scheduler.fair_share import rows as fair_share

GROUP_PERMISSION = "reports.view_group_report"
TREND_PERIODS = 4
# At most so many bins of the timeline and the waits.
MOST_BINS, HOUR_S = 168, 3600
RECENT = timedelta(hours=1)
ON_SOME_GPUS = (ScopeKind.GPU, ScopeKind.HOST)
# Longer periods are made one after the other.
SHORT_HOURS, LONGEST_WAIT_S = 40 * 24, 20
_long_reports = BoundedSemaphore(1)
CLASSES = ("user-initiated", "normal", "background")
NO_SCOPE = {
    ScopeKind.USER: "There is no such user, and no process or job of that name.",
    ScopeKind.GROUP: "There is no such group.",
    ScopeKind.GPU: "There is no GPU with this UUID.",
    ScopeKind.HOST: "There is no such host.",
}


class NotAllowed(Exception):
    """The viewer may not see this scope; the text is a sentence."""


class ScopeNotFound(Exception):
    """There is no such user, group, GPU or host; the text is a sentence."""


class ReportBusy(Exception):
    """Too many reports are being made; the text is a sentence."""


def limited(period: Period, scope: Scope, viewer: Viewer, now: datetime) -> Report:
    """The same as `build`, in a process that serves others: long periods wait for each other.

    Raises ReportBusy after 20 s.
    """
    if period.hours <= SHORT_HOURS:
        return build(period, scope, viewer, now)
    if not _long_reports.acquire(timeout=LONGEST_WAIT_S):
        raise ReportBusy("Another long report is being made. Try again in a minute.")
    try:
        return build(period, scope, viewer, now)
    finally:
        _long_reports.release()


def build(period: Period, scope: Scope, viewer: Viewer, now: datetime) -> Report:
    """The report as this viewer may see it.

    Raises NotAllowed for a scope of others, ScopeNotFound for one that does not exist.
    """
    names, visible = authorise(scope, viewer)
    whole = _figures(period, scope, names, now)
    whole = replace(whole, sections=rows.tables(period, scope, viewer, now))
    return whole if viewer.operator else people.anonymised(whole, visible)


def authorise(scope: Scope, viewer: Viewer) -> tuple[frozenset[str] | None, frozenset[str]]:
    """(users in the report, None: all; users that the viewer may see by name)."""
    mine = frozenset({viewer.username})
    if scope.kind is ScopeKind.USER:
        if not viewer.operator and scope.name != viewer.username:
            raise NotAllowed("You may see your own report; operators may see those of all users.")
        if not _is_known(scope.name):
            raise ScopeNotFound(NO_SCOPE[scope.kind])
        return frozenset({scope.name}), mine
    if scope.kind is ScopeKind.GROUP:
        return _group(scope.name, viewer)
    if scope.kind is ScopeKind.GPU and not Gpu.objects.filter(uuid=scope.name).exists():
        raise ScopeNotFound(NO_SCOPE[scope.kind])
    if scope.kind is ScopeKind.HOST and not Gpu.objects.filter(host=scope.name).exists():
        raise ScopeNotFound(NO_SCOPE[scope.kind])
    return None, mine


def _group(name: str, viewer: Viewer) -> tuple[frozenset[str], frozenset[str]]:
    members = frozenset(User.objects.filter(groups__name=name).values_list("username", flat=True))
    if viewer.operator:
        if not members and not Group.objects.filter(name=name).exists():
            raise ScopeNotFound(NO_SCOPE[ScopeKind.GROUP])
        return members, members
    user = User.objects.filter(username=viewer.username).first()
    if user is None or viewer.username not in members or not user.has_perm(GROUP_PERMISSION):
        raise NotAllowed(
            "You may see the report of a group if you belong to it and have the permission"
            " “view group report”."
        )
    return members, members


def _is_known(name: str) -> bool:
    if User.objects.filter(username=name).exists():
        return True
    return ProcessUse.objects.filter(Q(user=name) | Q(job_owner=name)).exists()


Trend = dict[str | None, list[TrendPoint]]


class _Reading:
    """The rows of the period, added up: what every part of the report is made of."""

    def __init__(
        self, period: Period, scope: Scope, names: Collection[str] | None, now: datetime
    ) -> None:
        self.policy = thresholds.current(ReportPolicy)
        self.gpu_time = thresholds.current(GpuTimePolicy)
        self.gpus = rows.gpus(scope, period)
        self.labels = dict(zip((gpu.uuid for gpu in self.gpus), _labels(self.gpus), strict=True))
        self.waits = rows.waits(period, now)
        self.uses = rows.uses(self.gpus, period)
        owners = {use.owner for use in self.uses.values() if use.owner}
        self.rights = fair_share.Rights(now, owners | {wait.owner for wait in self.waits})
        whole = self.gpus if scope.kind not in ON_SOME_GPUS else rows.gpus(Scope(), period)
        self.machine_gpus = len(whole)
        self.ledger = self._ledger(period, now)
        self.incidents = rows.incidents(period, self.gpus, names)
        self.capacity_h = people.measured_capacity(
            self.ledger, people.totals(self.ledger, names, self.policy).gpu_hours
        )

    def _ledger(self, period: Period, now: datetime) -> Ledger:
        since, until = int(period.since.timestamp()), int(period.until.timestamp())
        ledger = Ledger(
            {gpu.uuid: gpu.memory_total_bytes or 0 for gpu in self.gpus},
            ZoneInfo(period.zone),
            bin_seconds(period),
            HIGH_PCT,
            SUSTAINED_PCT,
            lambda name: self.rights.entitlement(name) * self.machine_gpus,
        )
        waiting = jobs.by_hour(self.waits, since, until)
        for step in rows.steps(self.gpus, self.uses, period, waiting, now):
            ledger.add(step)
        return ledger

    def entitled_pct(self, name: str) -> float:
        return 100 * self.rights.entitlement(name)

    def excess_pct(self, name: str) -> float:
        """The part of the machine held over the period above the entitlement, in percent.

        In the report of some GPUs, only what was held there counts.
        """
        held = self.ledger.owners[name].split.held / HOUR_S if name in self.ledger.owners else 0.0
        machine_h = self.capacity_h * self.machine_gpus / max(1, len(self.gpus))
        return (100 * held / machine_h if machine_h else 0.0) - self.entitled_pct(name)


def _figures(period: Period, scope: Scope, names: Collection[str] | None, now: datetime) -> Report:
    read = _Reading(period, scope, names, now)
    totals = people.totals(read.ledger, names, read.policy)
    coverage = totals.gpu_hours.coverage_pct
    trend = _trend(period, read.gpus)
    totals = replace(totals, used_before=_used_before(period, read.gpus, trend, names))
    users = people.only(_users(read, period, now, trend), names)
    listed, heavy_use = _heavy_use(read, period, names, now)
    recurring = tuple(
        p for p in rows.patterns(read.gpus, period.zone) if names is None or p.user in names
    )
    least = COVERAGE_PCT
    waits = [wait for wait in read.waits if names is None or wait.owner in names]
    return Report(
        period=period,
        scope=scope,
        made_at=now,
        totals=totals,
        coverage_pct=coverage,
        least_coverage_pct=least,
        users=users,
        violations=listed,
        heavy_use=heavy_use,
        open_incidents=read.incidents.open,
        recommendations=advice.recommendations(listed, users, recurring, totals),
        queue=jobs.queue(waits, CLASSES),
        blockers=jobs.blockers(waits),
        incidents=read.incidents.rules,
        operation=rows.operation(
            period,
            {gpu.host for gpu in read.gpus},
            all_hosts=scope.kind is ScopeKind.ALL,
        ),
        patterns=recurring,
        gpus=_gpus(read, period),
        heat=people.heat(read.ledger),
        waits=people.waits(read.ledger, names),
        notes=_notes(period, read.gpus, totals.gpu_hours, least),
    )


def _users(read: _Reading, period: Period, now: datetime, trend: Trend) -> tuple[UserFigures, ...]:
    targets = _targets(read, period, now)
    past = rows.past_jobs(period, read.gpus, COVERAGE_PCT / 100)
    return people.users(
        read.ledger,
        read.capacity_h,
        lambda name: (read.entitled_pct(name), targets(name)),
        overuse_s=read.incidents.overuse_s,
        sizes=jobs.right_sizes(past),
        findings=read.incidents.findings,
        further=read.incidents.further,
        trend=trend,
    )


def _heavy_use(
    read: _Reading, period: Period, names: Collection[str] | None, now: datetime
) -> tuple[tuple[Violation, ...], tuple[Violation, ...]]:
    """(violations, other heavy use) of these users."""
    standards = Standards(
        gpu_time=read.gpu_time,
        exemptions=(*exemptions_of_policy(read.gpu_time), *incident_rows.exemptions(now)),
        entitled=read.entitled_pct,
        excess_pct=read.excess_pct,
        period_s=period.seconds,
    )
    lists = judged(read.ledger.processes.values(), read.labels, standards)
    listed, heavy_use = (
        tuple(v for v in lines if names is None or v.user in names) for lines in lists
    )
    return listed, heavy_use


def _gpus(read: _Reading, period: Period) -> tuple[GpuFigures, ...]:
    bin_s, marks = bin_seconds(period), read.incidents.marks
    known = COVERAGE_PCT / 100
    return tuple(
        people.gpu_figures(
            uuid, read.labels[uuid], sums, spans(sums, bin_s, known), marks.get(uuid, ())
        )
        for uuid, sums in read.ledger.gpus.items()
    )


def bin_seconds(period: Period) -> int:
    """The width of a bin of the timeline: whole hours."""
    hours = -(-int(period.seconds) // HOUR_S)
    return HOUR_S * max(1, -(-hours // MOST_BINS))


def _targets(read: _Reading, period: Period, now: datetime) -> Callable[[str], float | None]:
    """Percent, at the end of the period: as it is, or from the ledger of the days before."""
    if now - period.until > RECENT:
        of: Callable[[str], float | None] = fair_share.past_targets(period.until).get
    else:
        of = read.rights.target_share
    return lambda name: None if (part := of(name)) is None else 100 * part


def _used_before(
    period: Period, gpus: Sequence[Gpu], trend: Trend, names: Collection[str] | None
) -> float | None:
    """GPU-hours of the period before; None: it was not recorded as a whole."""
    since = periods.previous(period).since
    if not gpus or min(gpu.first_seen_at for gpu in gpus) > since:
        return None
    of_users = [points for name, points in trend.items() if names is None or name in names]
    return sum(point.used for points in of_users for point in points if point.since == since)


def _trend(period: Period, gpus: Sequence[Gpu]) -> Trend:
    """The periods before, oldest first; those before the first reading are left out."""
    points: Trend = {}
    first = min((gpu.first_seen_at for gpu in gpus), default=None)
    before = [period]
    while first is not None and len(before) <= TREND_PERIODS and before[-1].since > first:
        before.append(periods.previous(before[-1]))
    for earlier in reversed(before[1:]):
        for owner, (used, _, known_s) in rows.used_before(earlier, gpus).items():
            point = TrendPoint(
                since=earlier.since,
                used=used / HOUR_S,
                efficiency=min(1.0, used / known_s) if known_s else None,
            )
            points.setdefault(owner, []).append(point)
    return points


def _labels(gpus: Sequence[Gpu]) -> list[str]:
    """ "GPU 2", with the host where there are several."""
    several = len({gpu.host for gpu in gpus}) > 1
    return [f"{gpu.host} GPU {gpu.index}" if several else f"GPU {gpu.index}" for gpu in gpus]


def _notes(period: Period, gpus: Sequence[Gpu], hours: GpuHours, least: float) -> tuple[str, ...]:
    notes, coverage = [], hours.coverage_pct
    if any(gpu.simulated for gpu in gpus):
        notes.append("Simulated: the GPUs, users and figures of this report are invented.")
    first = min((gpu.first_seen_at for gpu in gpus), default=None)
    if not gpus or not coverage:
        notes.append("gpucoord has no readings of this period. Choose a period in which it ran.")
    elif coverage < least:
        begun = (
            f" The first readings are of {in_zone(first, period.zone)}."
            if first and first > period.since
            else ""
        )
        measured = sig3(period.hours * coverage / 100)
        notes.append(
            f"{measured} of {sig3(period.hours)} h measured ({coverage:.0f} %). The figures are"
            f" those of the measured time.{begun}"
        )
    return tuple(notes)
