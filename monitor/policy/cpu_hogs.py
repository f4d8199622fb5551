"""The rule on the CPUs of a GPU host: a person who takes most of them, outside of jobs."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from monitor.cpu_facts import CpuProcess
from monitor.policy.findings import Finding
from monitor.policy.hog_policies import HogPolicy
from monitor.policy.hog_rules import CPU_HOG
from monitor.policy.owners import FIRST_PERSON
from monitor.policy.sparing import Exempt, spared_from
from monitor.policy.use_series import Series, Used, stretch
from monitor.readings import ProcessReading

# How often all processes are looked at, while the machine is busy.
LOOK_EVERY_S = 30.0
# For so long it is remembered who took how much.
KEPT_S = 3600.0
# Of the threshold that opens, what keeps it open.
KEEPS = 0.75
Id = tuple[int, int]


def must_look(cpu_pct: float | None, policy: HogPolicy) -> bool:
    """Whether somebody may take that much: nobody takes more than all together."""
    return policy.cpu_on and cpu_pct is not None and cpu_pct >= policy.cpu_pct * KEEPS


@dataclass(slots=True)
class CpuWindows:
    """What each person took of all CPUs, by looks at all processes."""

    people: dict[str, Series] = field(default_factory=dict)
    most: dict[str, CpuProcess] = field(default_factory=dict)
    looked_t: float | None = None
    spent: dict[Id, float] = field(default_factory=dict)

    def look(
        self, t: float, processes: Sequence[CpuProcess], cpus: int, leaders: Collection[int]
    ) -> None:
        """One look; `leaders`: the first processes of jobs, which are no matter of this rule."""
        passed = 0.0 if self.looked_t is None else t - self.looked_t
        spent = {(p.pid, p.start_ticks): p.cpu_s for p in processes if p.uid >= FIRST_PERSON}
        taken: dict[str, list[tuple[float, CpuProcess]]] = {}
        if 0 < passed <= 4 * LOOK_EVERY_S and self.spent:
            inside = of_jobs(processes, leaders)
            for process in processes:
                key = (process.pid, process.start_ticks)
                more = process.cpu_s - self.spent.get(key, 0.0)
                is_own = process.uid >= FIRST_PERSON and process.user
                if is_own and more > 0 and process.pid not in inside:
                    taken.setdefault(process.user or "", []).append((more, process))
            self._add(t, passed, taken, cpus)
        self.looked_t, self.spent = t, spent

    def note_quiet(self, t: float) -> None:
        """The machine is so idle that nobody can take much."""
        passed = 0.0 if self.looked_t is None else t - self.looked_t
        if 0 < passed <= 4 * LOOK_EVERY_S:
            self._add(t, passed, {}, 1)
        self.looked_t = t
        self.spent = {}

    def _add(
        self,
        t: float,
        passed: float,
        taken: Mapping[str, list[tuple[float, CpuProcess]]],
        cpus: int,
    ) -> None:
        for person in taken.keys() | self.people.keys():
            found = taken.get(person, [])
            share = min(passed, sum(more for more, _ in found) / max(1, cpus))
            series = self.people.setdefault(person, Series())
            series.add(t, passed, Used(passed, share, passed, passed, 0.0, 0.0))
            if not found and series.over(t - KEPT_S).sm_s == 0:
                del self.people[person]
                self.most.pop(person, None)
            elif found:
                self.most[person] = max(found, key=lambda entry: entry[0])[1]


def dumps(windows: CpuWindows) -> str:
    """What the next controller needs."""
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
    """What `dumps` wrote; nothing where that can't be read."""
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
    """The pids that belong to a job: by their session, or by one of their parents."""
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
    windows: CpuWindows, t: float, policy: HogPolicy, exempt: Sequence[Exempt]
) -> Iterator[Finding]:
    """Who takes more than the threshold, for long."""
    if not policy.cpu_on:
        return
    seconds = policy.cpu_minutes * 60
    for person, series in windows.people.items():
        recent = series.last(seconds)
        process = windows.most.get(person)
        if process is None or recent.pct is None or t - series.end > 2 * LOOK_EVERY_S:
            continue
        spared = spared_from(CPU_HOG, person, process.program, None, exempt)
        if spared or recent.pct <= policy.cpu_pct * KEEPS:
            continue
        coverage = policy.coverage_pct / 100
        found = stretch(series, policy.cpu_pct, policy.cpu_pct * KEEPS, coverage)
        begin = found[0] if found else series.end - seconds
        yield Finding(
            rule=CPU_HOG,
            key=f"cpu|{person}",
            since_t=begin,
            opens=found is not None
            and recent.pct > policy.cpu_pct
            and series.end - begin >= seconds,
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


def unsure(windows: CpuWindows, t: float, policy: HogPolicy) -> set[tuple[str, str]]:
    """Of whom too little is known now to say that they have stopped."""
    seconds, found = policy.cpu_minutes * 60, set()
    for person, series in windows.people.items():
        since = max(t - seconds, series.begin)
        if 100 * series.over(since).known_s < policy.coverage_pct * (t - since):
            found.add((CPU_HOG, f"cpu|{person}"))
    return found
