"""How incidents open, go on and close: with hysteresis, so that none flaps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from monitor.demand import Demand
from monitor.policy.findings import Finding
from monitor.policy.hog_policies import HogPolicy
from monitor.policy.hog_rules import FAIR_SHARE, HARMLESS_RULES

# After a process has gone, in case it only was not listed.
GONE_AFTER = timedelta(seconds=30)
# What was not measured, as while gpucoord was down, ends no incident before.
UNSURE_FOR = timedelta(hours=2)
# What nobody looked at for longer is not added up.
MOST_BETWEEN_S = 120.0
MOST_WAITING = 200
INFO, WARNING, ERROR = "info", "warning", "error"
_WORSE = (INFO, WARNING, ERROR)

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """An incident as its row has it. is_muted: an operator closed it while it goes on."""

    id: int
    rule: str
    key: str
    since_at: datetime
    last_seen_at: datetime
    severity: str = INFO
    peak_pct: float | None = None
    mean_pct: float | None = None
    waiting: tuple[str, ...] = ()
    waited_jobs: int = 0
    waited_s: float = 0.0
    is_muted: bool = False

    @property
    def name(self) -> Key:
        return (self.rule, self.key)

    @property
    def lasts(self) -> timedelta:
        return self.last_seen_at - self.since_at


@dataclass(frozen=True, slots=True)
class Change:
    """An incident that opens or goes on, with what was found now."""

    incident: Standing
    finding: Finding


@dataclass(frozen=True, slots=True)
class Verdict:
    """opened have id 0. closed: with why; those that are muted only lose that mark."""

    opened: tuple[Change, ...] = ()
    extended: tuple[Change, ...] = ()
    closed: tuple[tuple[Standing, str], ...] = ()


def judge(
    findings: Iterable[Finding],
    known: Sequence[Standing],
    present: Collection[str],
    demand: Sequence[Demand],
    policy: HogPolicy,
    now: datetime,
    unsure: Collection[Key] = (),
) -> Verdict:
    """What changes. `present`: keys of whom there still are processes, or bookings.

    `unsure`: of whom nobody can tell now whether they have stopped.
    """
    found: dict[Key, Finding] = {(f.rule, f.key): f for f in findings}
    opened: list[Change] = []
    extended: list[Change] = []
    closed: list[tuple[Standing, str]] = []
    for incident in known:
        finding = found.pop(incident.name, None)
        if finding is not None:
            extended.append(Change(_extended(incident, finding, demand, policy, now), finding))
        elif why := _over(incident, present, unsure, policy, now):
            closed.append((incident, why))
    for finding in found.values():
        if finding.opens:
            opened.append(Change(_opened(finding, demand, policy, now), finding))
    return Verdict(tuple(opened), tuple(extended), tuple(closed))


def _over(
    incident: Standing,
    present: Collection[str],
    unsure: Collection[Key],
    policy: HogPolicy,
    now: datetime,
) -> str | None:
    """Why an incident that was not found again ends now; None = it may come back."""
    quiet = now - incident.last_seen_at
    is_there = incident.key in present or incident.key.partition("|")[0] in present
    if not is_there and quiet >= GONE_AFTER:
        return "it has ended"
    if incident.name in unsure:
        return "nobody can tell any more" if quiet >= UNSURE_FOR else None
    if quiet >= timedelta(minutes=policy.clear_minutes):
        return "it is quiet now"
    return None


def _opened(
    finding: Finding, demand: Sequence[Demand], policy: HogPolicy, now: datetime
) -> Standing:
    since = datetime.fromtimestamp(finding.since_t, now.tzinfo)
    # Who was there before did not wait for this.
    waiting = {d.job_ref: now - max(d.since, since) for d in _harmed(finding, demand)}
    waited_s = sum(max(0.0, lasted.total_seconds()) for lasted in waiting.values())
    refs = tuple(list(waiting)[:MOST_WAITING])
    made = Standing(
        id=0,
        rule=finding.rule,
        key=finding.key,
        since_at=min(since, now),
        last_seen_at=now,
        peak_pct=finding.peak_pct,
        mean_pct=finding.pct,
        waiting=refs,
        waited_jobs=len(waiting),
        waited_s=waited_s,
    )
    return replace(made, severity=_severity(made, finding, policy))


def _extended(
    incident: Standing,
    finding: Finding,
    demand: Sequence[Demand],
    policy: HogPolicy,
    now: datetime,
) -> Standing:
    passed = min(max(0.0, (now - incident.last_seen_at).total_seconds()), MOST_BETWEEN_S)
    harmed = _harmed(finding, demand)
    new = [d.job_ref for d in harmed if d.job_ref not in incident.waiting]
    grown = replace(
        incident,
        last_seen_at=max(now, incident.last_seen_at),
        peak_pct=_greater(incident.peak_pct, finding.peak_pct),
        mean_pct=_mean(incident, finding.pct, passed),
        waiting=(*incident.waiting, *new)[:MOST_WAITING],
        waited_jobs=incident.waited_jobs + len(new),
        waited_s=incident.waited_s + passed * len(harmed),
    )
    worse = max(_WORSE.index(incident.severity), _WORSE.index(_severity(grown, finding, policy)))
    return replace(grown, severity=_WORSE[worse])


def _harmed(finding: Finding, demand: Sequence[Demand]) -> list[Demand]:
    """Those who wait for what this one takes."""
    uuid = finding.gpu.uuid if finding.gpu and finding.rule != FAIR_SHARE else None
    return [
        d
        for d in demand
        if d.owner not in (finding.user, finding.job_owner)
        and (uuid is None or not d.gpu_uuids or uuid in d.gpu_uuids)
    ]


def _severity(incident: Standing, finding: Finding, policy: HogPolicy) -> str:
    """Harmless while nobody waits; serious when others have waited for long."""
    if incident.rule in HARMLESS_RULES:
        return INFO
    if incident.waited_s >= policy.severe_wait_minutes * 60:
        return ERROR
    return WARNING if incident.waited_s > 0 else INFO


def _mean(incident: Standing, pct: float | None, passed: float) -> float | None:
    """The mean since it began, carried on by what is measured now."""
    if pct is None or incident.mean_pct is None:
        return incident.mean_pct if pct is None else pct
    before = max(0.0, incident.lasts.total_seconds())
    whole = before + passed
    return (incident.mean_pct * before + pct * passed) / whole if whole else pct


def _greater(a: float | None, b: float | None) -> float | None:
    return max((value for value in (a, b) if value is not None), default=None)
