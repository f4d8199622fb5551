"""Rule on the CPUs of a GPU host: a user who takes most of them outside jobs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence

from msgspec import Struct, field
from msgspec.structs import asdict

from monitor.facts.accounts import is_person
from monitor.facts.incidents import CPU_HOG
from monitor.facts.readings import CpuProcess, ProcessReading
from monitor.incidents.policy.findings import (
    COVERAGE_PCT,
    ExemptionRule,
    Finding,
    GpuTimePolicy,
    is_exempt_from,
)
from monitor.incidents.policy.usage_series import Series, UsagePoint, above_since

# A user's share of all CPUs outside jobs, in %, and the time over which it is measured.
CPU_PCT, CPU_MINUTES = 50.0, 10.0
# Interval of the scans of all processes while the machine is busy.
LOOK_EVERY_S = 30.0
# How long the use of each user is kept.
KEPT_S = 3600.0
# An open incident stays open above this part of the threshold.
KEEPS = 0.75
Id = tuple[int, int]


def is_scan_needed(cpu_pct: float | None, policy: GpuTimePolicy) -> bool:
    """Whether the total use is high enough that one user may exceed the threshold."""
    return policy.cpu_on and cpu_pct is not None and cpu_pct >= CPU_PCT * KEEPS


class CpuWindows(Struct):
    """CPU use of each user, from scans of all processes."""

    people: dict[str, Series] = field(default_factory=dict)
    most: dict[str, CpuProcess] = field(default_factory=dict)
    looked_t: float | None = None
    spent: dict[Id, float] = field(default_factory=dict)

    def look(
        self, t: float, processes: Sequence[CpuProcess], cpus: int, leaders: Collection[int]
    ) -> None:
        """Add one scan; `leaders`: the first processes of jobs, which this rule ignores."""
        passed = 0.0 if self.looked_t is None else t - self.looked_t
        spent = {(p.pid, p.start_ticks): p.cpu_s for p in processes if is_person(p.uid)}
        used_by_user: dict[str, list[tuple[float, CpuProcess]]] = {}
        if 0 < passed <= 4 * LOOK_EVERY_S and self.spent:
            inside = of_jobs(processes, leaders)
            for process in processes:
                key = (process.pid, process.start_ticks)
                more = process.cpu_s - self.spent.get(key, 0.0)
                is_own = is_person(process.uid) and process.user
                if is_own and more > 0 and process.pid not in inside:
                    used_by_user.setdefault(process.user or "", []).append((more, process))
            self._add(t, passed, used_by_user, cpus)
        self.looked_t, self.spent = t, spent

    def note_quiet(self, t: float) -> None:
        """Record that total use is too low for any user to exceed the threshold."""
        passed = 0.0 if self.looked_t is None else t - self.looked_t
        if 0 < passed <= 4 * LOOK_EVERY_S:
            self._add(t, passed, {}, 1)
        self.looked_t = t
        self.spent = {}

    def _add(
        self,
        t: float,
        passed: float,
        used_by_user: Mapping[str, list[tuple[float, CpuProcess]]],
        cpus: int,
    ) -> None:
        for person in used_by_user.keys() | self.people.keys():
            used = used_by_user.get(person, [])
            share = min(passed, sum(more for more, _ in used) / max(1, cpus))
            series = self.people.setdefault(person, Series())
            series.add(t, passed, UsagePoint(passed, share, passed, passed, 0.0, 0.0))
            if not used and series.over(t - KEPT_S).sm_s == 0:
                del self.people[person]
                self.most.pop(person, None)
            elif used:
                self.most[person] = max(used, key=lambda entry: entry[0])[1]


def dumps(windows: CpuWindows) -> str:
    """The state for the next controller, as JSON."""
    since = (windows.looked_t or 0.0) - KEPT_S
    body = {
        "looked_t": windows.looked_t,
        "spent": [[*key, cpu_s] for key, cpu_s in windows.spent.items()],
        "people": {
            person: [point for point in series.points if point[0] >= since]
            for person, series in windows.people.items()
        },
        "most": {person: asdict(process) for person, process in windows.most.items()},
    }
    return json.dumps(body, separators=(",", ":"))


def loads(text: str) -> CpuWindows:
    """The state that `dumps` wrote; empty if the text cannot be read."""
    try:
        body = json.loads(text)
        people = {
            person: Series([(p[0], p[1], p[2], p[3], p[4], p[5]) for p in points])
            for person, points in body["people"].items()
        }
        most = {person: CpuProcess(**facts) for person, facts in body["most"].items()}
        spent = {(pid, ticks): cpu_s for pid, ticks, cpu_s in body["spent"]}
        return CpuWindows(people, most, body["looked_t"], spent)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return CpuWindows()


def of_jobs(processes: Sequence[CpuProcess], leaders: Collection[int]) -> set[int]:
    """The pids that belong to a job, by their session or by one of their ancestors."""
    parents = {p.pid: p.parent for p in processes}
    inside: set[int] = set()
    for process in processes:
        pid, steps = process.pid, 0
        while pid and steps < 64 and pid not in leaders:
            pid, steps = parents.get(pid, 0), steps + 1
        if process.session in leaders or pid in leaders:
            inside.add(process.pid)
    return inside


def findings(
    windows: CpuWindows, t: float, policy: GpuTimePolicy, exempt: Sequence[ExemptionRule]
) -> Iterator[Finding]:
    """Users above the threshold for long enough."""
    if not policy.cpu_on:
        return
    seconds = CPU_MINUTES * 60
    for person, series in windows.people.items():
        recent = series.last(seconds)
        process = windows.most.get(person)
        if process is None or recent.pct is None or t - series.end > 2 * LOOK_EVERY_S:
            continue
        is_exempt = is_exempt_from(CPU_HOG, person, process.program, None, exempt)
        if is_exempt or recent.pct <= CPU_PCT * KEEPS:
            continue
        coverage = COVERAGE_PCT / 100
        above = above_since(series, CPU_PCT, CPU_PCT * KEEPS, coverage)
        begin = above[0] if above else series.end - seconds
        yield Finding(
            rule=CPU_HOG,
            key=f"cpu|{person}",
            since_t=begin,
            opens=above is not None and recent.pct > CPU_PCT and series.end - begin >= seconds,
            process=ProcessReading(
                gpu_uuid="",
                pid=process.pid,
                start_ticks=process.start_ticks,
                uid=process.uid,
                user=person,
                program=process.program,
            ),
            user=person,
            pct=recent.pct,
            peak_pct=recent.pct,
            coverage=recent.coverage,
        )


def undecided(windows: CpuWindows, t: float) -> set[tuple[str, str]]:
    """The keys of users whose use is too little known to close their incident."""
    seconds, keys = CPU_MINUTES * 60, set()
    for person, series in windows.people.items():
        since = max(t - seconds, series.begin)
        if 100 * series.over(since).known_s < COVERAGE_PCT * (t - since):
            keys.add((CPU_HOG, f"cpu|{person}"))
    return keys
