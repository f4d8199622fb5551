"""How incidents open, continue and close, with hysteresis against flapping."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from math import log2

from msgspec import Struct
from msgspec.structs import replace

from monitor.facts.accounts import Demand
from monitor.facts.incidents import (
    CPU_HOG,
    ERROR,
    FAIR_SHARE,
    HARMLESS_RULES,
    HOG_RULES,
    IDLE_HELD,
    INFO,
    SEVERITIES,
    SUSTAINED,
    WARNING,
)
from monitor.incidents.policy.findings import Finding

# A process may be missing from one list only, so its incident stays open this long.
GONE_AFTER = timedelta(seconds=30)
# Missing data, as while gpucoord was down, closes no incident before.
UNSURE_FOR = timedelta(hours=2)
# The condition must be absent this long; otherwise the incident continues.
CLEAR_AFTER = timedelta(minutes=5)
# Other users' waiting time, summed, from which an incident is serious.
SEVERE_WAIT_S = 3600.0
# At most this much time between two judgements is added up.
MOST_BETWEEN_S = 120.0
MOST_WAITING = 200
# The most hog spans kept for one incident.
MOST_SPANS = 50

Key = tuple[str, str]


class OpenIncident(Struct, frozen=True, kw_only=True):
    """An incident as stored. is_muted: an operator closed it while the rule still held.

    hog_spans: (begin, end) in epoch seconds of the times in which it was a hog's: above the own
    share while others waited, or memory held idle. says_hog: it is told as a hog although no job
    waits, as `alert_on_hog` wants.
    """

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
    hog_spans: tuple[tuple[float, float], ...] = ()
    says_hog: bool = False

    @property
    def is_hog(self) -> bool:
        return bool(self.hog_spans)

    @property
    def name(self) -> Key:
        return (self.rule, self.key)

    @property
    def lasts(self) -> timedelta:
        return self.last_seen_at - self.since_at


class IncidentChange(Struct, frozen=True):
    """An incident that opens or continues, with its current finding."""

    incident: OpenIncident
    finding: Finding


class Verdict(Struct, frozen=True):
    """New incidents have id 0. closed: with the reason; muted incidents are only unmuted."""

    opened: tuple[IncidentChange, ...] = ()
    extended: tuple[IncidentChange, ...] = ()
    closed: tuple[tuple[OpenIncident, str], ...] = ()


def judge(
    findings: Iterable[Finding],
    open_incidents: Sequence[OpenIncident],
    present: Collection[str],
    demand: Sequence[Demand],
    now: datetime,
    unsure: Collection[Key] = (),
    *,
    alert_on_hog: bool = False,
) -> Verdict:
    """Return the changes of the stored incidents.

    `present`: keys with processes or bookings. `unsure`: incidents that lack data to be closed.
    alert_on_hog: sustained use is told as a hog also while no job waits.
    """
    alerted = (SUSTAINED,) if alert_on_hog else ()
    open_incidents = [replace(each, says_hog=each.rule in alerted) for each in open_incidents]
    findings_by_key: dict[Key, Finding] = {(f.rule, f.key): f for f in findings}
    opened: list[IncidentChange] = []
    extended: list[IncidentChange] = []
    closed: list[tuple[OpenIncident, str]] = []
    for incident in open_incidents:
        finding = findings_by_key.pop(incident.name, None)
        if finding is not None:
            extended.append(IncidentChange(_extended(incident, finding, demand, now), finding))
        elif why := _reason_to_close(incident, present, unsure, now):
            closed.append((incident, why))
    for finding in findings_by_key.values():
        if finding.opens:
            incident = _opened(finding, demand, now, says_hog=finding.rule in alerted)
            opened.append(IncidentChange(incident, finding))
    return Verdict(tuple(opened), tuple(extended), tuple(closed))


def _reason_to_close(
    incident: OpenIncident,
    present: Collection[str],
    unsure: Collection[Key],
    now: datetime,
) -> str | None:
    """Why an incident without a finding closes now; None = it stays open."""
    quiet = now - incident.last_seen_at
    is_there = incident.key in present or incident.key.partition("|")[0] in present
    if not is_there and quiet >= GONE_AFTER:
        return "ended"
    if incident.name in unsure:
        return "no data for 2 h" if quiet >= UNSURE_FOR else None
    if quiet >= CLEAR_AFTER:
        return "no longer detected"
    return None


def _opened(
    finding: Finding, demand: Sequence[Demand], now: datetime, *, says_hog: bool
) -> OpenIncident:
    since = datetime.fromtimestamp(finding.since_t, now.tzinfo)
    # Waiting before the incident began is not counted.
    harmed = _delayed_by(finding, demand)
    waiting = {d.job_ref: now - max(d.since, since) for d in harmed}
    waited_s = sum(max(0.0, lasted.total_seconds()) for lasted in waiting.values())
    refs = tuple(list(waiting)[:MOST_WAITING])
    incident = OpenIncident(
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
        says_hog=says_hog,
    )
    if _takes_from_others(finding, harmed):
        begin = min((max(d.since, since) for d in harmed), default=since)
        incident = replace(incident, hog_spans=((min(begin, now).timestamp(), now.timestamp()),))
    return replace(incident, severity=_severity(incident))


def _takes_from_others(finding: Finding, harmed: Sequence[Demand]) -> bool:
    """Whether the use takes from others now; it does not while no job waits."""
    if finding.rule == IDLE_HELD:
        return True
    if finding.rule not in (*HOG_RULES, CPU_HOG) or not harmed:
        return False
    expected, measured = finding.expected_pct, finding.measured_pct
    return expected is None or measured is None or measured > expected


def _grown_spans(incident: OpenIncident, now: datetime) -> tuple[tuple[float, float], ...]:
    """Extend the last span if it reached the last judgement; else begin a new one."""
    spans, t, last_t = incident.hog_spans, now.timestamp(), incident.last_seen_at.timestamp()
    if spans and spans[-1][1] >= last_t and now - incident.last_seen_at < UNSURE_FOR:
        return (*spans[:-1], (spans[-1][0], max(t, spans[-1][1])))
    return (*spans, (t, t))[-MOST_SPANS:]


def _extended(
    incident: OpenIncident,
    finding: Finding,
    demand: Sequence[Demand],
    now: datetime,
) -> OpenIncident:
    passed = min(max(0.0, (now - incident.last_seen_at).total_seconds()), MOST_BETWEEN_S)
    harmed = _delayed_by(finding, demand)
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
    if _takes_from_others(finding, harmed):
        grown = replace(grown, hog_spans=_grown_spans(incident, now))
    worse = max(incident.severity, _severity(grown), key=SEVERITIES.index)
    return replace(grown, severity=worse)


def _delayed_by(finding: Finding, demand: Sequence[Demand]) -> list[Demand]:
    """The waiting jobs of other users that could use the GPU."""
    uuid = finding.gpu.uuid if finding.gpu and finding.rule != FAIR_SHARE else None
    return [
        d
        for d in demand
        if d.owner not in (finding.user, finding.job_owner)
        and (uuid is None or not d.gpu_uuids or uuid in d.gpu_uuids)
    ]


def _severity(incident: OpenIncident) -> str:
    """Info while no job waits, unless it is told as a hog; error after others waited for long."""
    if incident.rule in HARMLESS_RULES:
        return INFO
    if incident.waited_s >= SEVERE_WAIT_S:
        return ERROR
    return WARNING if incident.waited_s > 0 or incident.says_hog else INFO


def milestones(lasts: timedelta, *, hourly: bool = False) -> int:
    """How many of 30 min, 1 h, 2 h, 4 h and so on have passed. hourly: how many hours."""
    if hourly:
        return lasts // timedelta(hours=1)
    halves = lasts / timedelta(minutes=30)
    return 0 if halves < 1 else int(log2(halves)) + 1


def _mean(incident: OpenIncident, pct: float | None, passed: float) -> float | None:
    """The mean since the begin, updated with the current value."""
    if pct is None or incident.mean_pct is None:
        return incident.mean_pct if pct is None else pct
    before = max(0.0, incident.lasts.total_seconds())
    whole = before + passed
    return (incident.mean_pct * before + pct * passed) / whole if whole else pct


def _greater(a: float | None, b: float | None) -> float | None:
    return max((value for value in (a, b) if value is not None), default=None)
