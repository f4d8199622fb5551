from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from monitor.facts.readings import CpuProcess
from monitor.gpus.sampling.probes.host import cpu_processes
from monitor.incidents.policy.findings import ExemptionRule, Finding, GpuTimePolicy
from monitor.incidents.rules.cpu import (
    LOOK_EVERY_S,
    CpuWindows,
    dumps,
    findings,
    is_scan_needed,
    loads,
    of_jobs,
    undecided,
)

CPUS = 64


def a_process(pid: int = 100, **changes: object) -> CpuProcess:
    facts = {"pid": pid, "start_ticks": 1, "cpu_s": 0.0, "uid": 1001, "user": "alice"}
    return CpuProcess(**(facts | {"program": "make"} | changes))  # type: ignore[arg-type]


def found(
    minutes: float,
    busy: Callable[[float], float],
    leaders: tuple[int, ...] = (),
    exempt: tuple[ExemptionRule, ...] = (),
    **who: object,
) -> list[Finding]:
    """After `minutes` in which a process takes `busy(minute)` percent of all CPUs."""
    windows, t, spent = CpuWindows(), 0.0, 0.0
    while t < minutes * 60:
        t += LOOK_EVERY_S
        spent += busy(t / 60) / 100 * CPUS * LOOK_EVERY_S
        windows.look(
            t, [a_process(cpu_s=spent, **who), a_process(1, user="root", uid=0)], CPUS, leaders
        )
    opened = findings(windows, t, GpuTimePolicy(), exempt)
    return [finding for finding in opened if finding.opens]


def test_a_user_who_takes_most_cpus_for_long_is_reported() -> None:
    (finding,) = found(12, lambda minute: 80.0)
    assert (finding.user, finding.process and finding.process.program) == ("alice", "make")
    assert finding.pct == 80


def test_a_short_build_is_not() -> None:
    assert found(30, lambda minute: 95.0 if 10 < minute < 17 else 2.0) == []


def test_half_of_the_time_needed_is_not_enough() -> None:
    assert found(5, lambda minute: 95.0) == []


def test_jobs_services_and_exempt_users_are_not_reported() -> None:
    assert found(12, lambda minute: 90.0, leaders=(100,)) == []
    assert found(12, lambda minute: 90.0, uid=999, user="ollama") == []
    assert found(12, lambda minute: 90.0, exempt=(ExemptionRule("program", "make"),)) == []


def test_a_process_belongs_to_a_job_by_its_session_or_a_parent() -> None:
    family = [
        a_process(10, parent=1),
        a_process(11, parent=10),
        a_process(12, parent=11, session=12),
        a_process(20, parent=1, session=10),
        a_process(30, parent=1),
    ]
    assert of_jobs(family, {10}) == {10, 11, 12, 20}


def test_an_idle_machine_is_not_looked_at() -> None:
    assert not is_scan_needed(20.0, GpuTimePolicy())
    assert not is_scan_needed(None, GpuTimePolicy())
    assert is_scan_needed(60.0, GpuTimePolicy())


def test_this_machines_processes_can_be_read() -> None:
    mine = next(p for p in cpu_processes() if p.pid == os.getpid())
    assert mine.cpu_s > 0
    assert mine.parent == os.getppid()
    assert mine.uid == os.getuid()


def test_the_next_controller_continues_from_the_stored_scans() -> None:
    windows, spent = CpuWindows(), 0.0
    for look in range(1, 26):
        spent += 0.8 * CPUS * LOOK_EVERY_S
        windows = loads(dumps(windows))
        windows.look(look * LOOK_EVERY_S, [a_process(cpu_s=spent)], CPUS, ())
    (finding,) = findings(windows, 25 * LOOK_EVERY_S, GpuTimePolicy(), ())
    assert finding.opens
    assert finding.pct == pytest.approx(80)


def test_what_can_not_be_read_is_forgotten() -> None:
    assert loads("") == loads("{}") == loads('{"people": 7}') == CpuWindows()


def test_who_has_been_idle_for_an_hour_is_forgotten() -> None:
    windows = CpuWindows()
    for look, spent in ((1, 0.0), (2, 900.0)):
        windows.look(look * LOOK_EVERY_S, [a_process(cpu_s=spent)], CPUS, ())
    assert set(windows.people) == {"alice"}
    for look in range(3, 130):
        windows.note_quiet(look * LOOK_EVERY_S)
    assert windows.people == {}


def test_no_cpu_incident_closes_without_scans() -> None:
    windows = CpuWindows()
    for look in range(1, 30):
        busy = a_process(cpu_s=look * 0.8 * CPUS * LOOK_EVERY_S)
        windows.look(look * LOOK_EVERY_S, [busy], CPUS, ())
    t = 29 * LOOK_EVERY_S
    assert undecided(windows, t) == set()
    assert undecided(windows, t + 300) == {("cpu_hog", "cpu|alice")}
