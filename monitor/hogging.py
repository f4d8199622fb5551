"""Step: judge who takes too much, with what is remembered of the last two hours.

What is remembered comes from the rows of uses; a new process builds it up from there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from monitor import incident_rows, policies, store
from monitor.cpu_facts import CpuProcess
from monitor.demand import Demand
from monitor.policy import cpu_hogs, hog_scene, judging
from monitor.policy.cpu_hogs import CpuWindows
from monitor.policy.findings import Finding
from monitor.policy.hog_policies import ClaimPolicy, HogPolicy, MemoryPolicy
from monitor.policy.hog_scene import Booking, Emptiness
from monitor.policy.incident_life import Verdict, judge
from monitor.policy.judging import Policies
from monitor.policy.sparing import exempt_by
from monitor.policy.use_windows import Windows
from monitor.readings import ClaimFact, Snapshot


class Hogs:
    """One host's. `gap_s`: looks further apart tell nothing of the time between."""

    def __init__(
        self,
        host: str,
        gap_s: float = 15.0,
        look_at_cpus: Callable[[], Sequence[CpuProcess]] | None = None,
    ) -> None:
        self._host = host
        self._look_at_cpus = look_at_cpus
        self._cpus = CpuWindows()
        self._windows = Windows(gap_s=gap_s)
        self._emptiness = Emptiness(gap_s)
        self._seq: int | None = None

    def judge(
        self,
        snapshot: Snapshot | None,
        demand: Sequence[Demand],
        now: datetime,
        leaders: Collection[int] = (),
    ) -> Verdict | None:
        """Judge the newest snapshot, once; the caller's transaction.

        `demand`: who waits. `leaders`: the first processes of all jobs here.
        """
        if snapshot is None or (snapshot.problem and not snapshot.gpus):
            return None
        found = self._policies(now)
        claims = hog_scene.bookings(store.open_claims(self._host))
        if self._seq is None:
            self._recall(claims, now)
        groups = hog_scene.sort(snapshot, claims, found.hogs, found.exempt)
        if snapshot.seq != self._seq:
            totals = incident_rows.totals(self._host, now)
            t = snapshot.at.timestamp()
            self._windows.feed(t, hog_scene.present(groups), totals, hog_scene.readable(snapshot))
            self._emptiness.look(snapshot, claims)
        self._seq = snapshot.seq
        scene = hog_scene.scene(snapshot, groups, self._windows, self._emptiness, demand)
        known = incident_rows.known(self._host)
        going_on = {incident.name for incident in known}
        findings = judging.findings(scene, found, going_on)
        findings += self._cpu_hogs(snapshot, found, leaders, now)
        present = judging.present(scene) | {f"cpu|{name}" for name in self._cpus.people}
        unsure = judging.unsure(scene, found, going_on)
        unsure |= cpu_hogs.unsure(self._cpus, scene.t, found.hogs)
        verdict = judge(findings, known, present, demand, found.hogs, now, unsure)
        incident_rows.apply(verdict, self._host, now)
        return verdict

    def _cpu_hogs(
        self, snapshot: Snapshot, found: Policies, leaders: Collection[int], now: datetime
    ) -> list[Finding]:
        """All processes are read while the machine is busy, and not at each look."""
        if self._look_at_cpus is None or snapshot.probe == "simulated":
            return []
        t, last = snapshot.at.timestamp(), self._cpus.looked_t
        if last is None or t - last >= cpu_hogs.LOOK_EVERY_S:
            if cpu_hogs.must_look(snapshot.host.cpu_pct, found.hogs):
                count = snapshot.host.cpu_count or 1
                self._cpus.look(t, self._look_at_cpus(), count, leaders)
            else:
                self._cpus.note_quiet(t)
            incident_rows.keep_cpu_look(self._host, cpu_hogs.dumps(self._cpus), now)
        return list(cpu_hogs.findings(self._cpus, t, found.hogs, found.exempt))

    def _policies(self, now: datetime) -> Policies:
        force = policies.InForce()
        hogs = force.of(HogPolicy)
        return Policies(
            hogs=hogs,
            memory=force.of(MemoryPolicy),
            claims=force.of(ClaimPolicy),
            exempt=(*exempt_by(hogs), *incident_rows.exemptions(now)),
        )

    def _recall(self, claims: Mapping[Booking, ClaimFact], now: datetime) -> None:
        """What a job used stays the job's, even when its booking has ended since."""
        emptiness, t = self._emptiness, now.timestamp()
        emptiness.seen_t.update(incident_rows.seen_on(claims))
        begins = {b: emptiness.begin_of(b, claim, t) for b, claim in claims.items()}
        emptiness.blind_s.update(incident_rows.unwatched(begins, now))
        self._cpus = cpu_hogs.loads(incident_rows.cpu_look(self._host))
        past = incident_rows.past(self._host, now)
        self._windows.recall(past, incident_rows.totals(self._host, now))
