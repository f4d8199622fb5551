"""Plays traces through the rules of incidents, look by look, without rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from msgspec.structs import replace

from monitor.facts.accounts import ClaimFact, Demand
from monitor.facts.readings import GpuReading, ProcessReading, Snapshot
from monitor.incidents.policy import findings
from monitor.incidents.policy.findings import (
    BookingPolicy,
    EmptyBookingTracker,
    Finding,
    GpuTimePolicy,
    MemoryPolicy,
    exemptions_of_policy,
)
from monitor.incidents.policy.lifecycle import OpenIncident, Verdict, judge
from monitor.incidents.policy.usage_series import UsageBuffers
from monitor.incidents.rules import evaluate as evaluate_rules
from monitor.incidents.rules.evaluate import IncidentPolicies
from monitor.incidents.wording import sentence
from tests.builders import NOW, snapshot

Processes = Callable[[float], Iterable[ProcessReading]]
# (minutes since the start, opened or closed, rule)
Happening = tuple[float, str, str]


def policies(**changes: object) -> IncidentPolicies:
    """The defaults with some fields changed, of whichever policy has them."""
    made = [
        dataclasses.replace(
            kind(), **{k: v for k, v in changes.items() if k in kind.__dataclass_fields__}
        )
        for kind in (GpuTimePolicy, MemoryPolicy, BookingPolicy)
    ]
    hogs, memory, claims = made
    assert isinstance(hogs, GpuTimePolicy)
    assert isinstance(memory, MemoryPolicy)
    assert isinstance(claims, BookingPolicy)
    return IncidentPolicies(hogs, memory, claims, exemptions_of_policy(hogs))


@dataclass
class Trace:
    """A machine that is looked at every `every_s`; what opens and closes is written down."""

    policies: IncidentPolicies = field(default_factory=IncidentPolicies)
    gpus: Sequence[GpuReading] | int = 1
    every_s: float = 10.0
    claims: Sequence[ClaimFact] = ()
    demand: Sequence[Demand] = ()
    shares: Mapping[str, float] = field(default_factory=dict)
    windows: UsageBuffers = field(default_factory=lambda: UsageBuffers(gap_s=60))
    empty_bookings: EmptyBookingTracker = field(
        default_factory=lambda: EmptyBookingTracker(gap_s=60)
    )
    at: datetime = NOW
    known: list[OpenIncident] = field(default_factory=list)
    told: list[Happening] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    found: list[Finding] = field(default_factory=list)

    def play(self, minutes: float, processes: Processes) -> Trace:
        """Go on for `minutes`; `processes(minute)` are those that are there then."""
        for _ in range(round(minutes * 60 / self.every_s)):
            self.at += timedelta(seconds=self.every_s)
            self.look(snapshot(self.gpus, tuple(processes(self.minute)), at=self.at))
        return self

    @property
    def minute(self) -> float:
        return (self.at - NOW).total_seconds() / 60

    @property
    def opened(self) -> list[str]:
        return [rule for _, what, rule in self.told if what == "opened"]

    @property
    def closed(self) -> list[str]:
        return [rule for _, what, rule in self.told if what == "closed"]

    def look(self, seen: Snapshot) -> None:
        p = self.policies
        claims = findings.bookings(self.claims)
        groups = findings.group_processes(seen.processes, claims, p.hogs, p.exempt)
        self.windows.feed(
            seen.at.timestamp(), findings.presences(groups), {}, findings.readable_gpus(seen)
        )
        self.empty_bookings.look(seen, claims)
        inputs = findings.build(
            seen, groups, self.windows, self.empty_bookings, self.demand, self.shares
        )
        going_on = {incident.name for incident in self.known}
        self.found, _ = evaluate_rules.findings(inputs, p, going_on)
        present, unsure = (
            evaluate_rules.present_keys(inputs),
            evaluate_rules.undecided(inputs, p, going_on),
        )
        self._note(judge(self.found, self.known, present, self.demand, self.at, unsure))

    def _note(self, verdict: Verdict) -> None:
        gone = {incident.id for incident, _ in verdict.closed}
        grown = {change.incident.id: change.incident for change in verdict.extended}
        self.known = [grown.get(i.id, i) for i in self.known if i.id not in gone]
        for change in verdict.opened:
            self.known.append(replace(change.incident, id=len(self.told) + 1))
            self.told.append((round(self.minute, 2), "opened", change.finding.rule))
        for change in (*verdict.opened, *verdict.extended):
            self.texts[change.finding.rule] = sentence(change.finding, change.incident)
        for incident, _ in verdict.closed:
            self.told.append((round(self.minute, 2), "closed", incident.rule))


def waiting(
    owner: str = "bob", job_ref: str = "7", minutes_ago: float = 0, **more: object
) -> Demand:
    since = NOW - timedelta(minutes=minutes_ago)
    return replace(Demand(owner=owner, since=since, job_ref=job_ref), **more)  # type: ignore[arg-type]
