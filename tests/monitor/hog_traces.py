"""Plays traces through the rules of incidents, look by look, without rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from monitor.demand import Demand
from monitor.policy import hog_scene, judging
from monitor.policy.findings import Finding
from monitor.policy.hog_policies import ClaimPolicy, HogPolicy, MemoryPolicy
from monitor.policy.hog_scene import Emptiness
from monitor.policy.incident_life import Standing, Verdict, judge
from monitor.policy.incident_words import sentence
from monitor.policy.judging import Policies
from monitor.policy.sparing import exempt_by
from monitor.policy.use_windows import Windows
from monitor.readings import ClaimFact, GpuReading, ProcessReading, Snapshot
from tests.builders import NOW, snapshot

Processes = Callable[[float], Iterable[ProcessReading]]
# (minutes since the start, opened or closed, rule)
Happening = tuple[float, str, str]


def policies(**changes: object) -> Policies:
    """The defaults with some fields changed, of whichever policy has them."""
    made = [
        replace(kind(), **{k: v for k, v in changes.items() if k in kind.__dataclass_fields__})
        for kind in (HogPolicy, MemoryPolicy, ClaimPolicy)
    ]
    hogs, memory, claims = made
    assert isinstance(hogs, HogPolicy)
    assert isinstance(memory, MemoryPolicy)
    assert isinstance(claims, ClaimPolicy)
    return Policies(hogs, memory, claims, exempt_by(hogs))


@dataclass
class Trace:
    """A machine that is looked at every `every_s`; what opens and closes is written down."""

    policies: Policies = field(default_factory=Policies)
    gpus: Sequence[GpuReading] | int = 1
    every_s: float = 10.0
    claims: Sequence[ClaimFact] = ()
    demand: Sequence[Demand] = ()
    windows: Windows = field(default_factory=lambda: Windows(gap_s=60))
    emptiness: Emptiness = field(default_factory=lambda: Emptiness(gap_s=60))
    at: datetime = NOW
    known: list[Standing] = field(default_factory=list)
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
        claims = hog_scene.bookings(self.claims)
        groups = hog_scene.sort(seen, claims, p.hogs, p.exempt)
        self.windows.feed(
            seen.at.timestamp(), hog_scene.present(groups), {}, hog_scene.readable(seen)
        )
        self.emptiness.look(seen, claims)
        scene = hog_scene.scene(seen, groups, self.windows, self.emptiness, self.demand)
        going_on = {incident.name for incident in self.known}
        self.found = judging.findings(scene, p, going_on)
        present, unsure = judging.present(scene), judging.unsure(scene, p, going_on)
        self._note(judge(self.found, self.known, present, self.demand, p.hogs, self.at, unsure))

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
