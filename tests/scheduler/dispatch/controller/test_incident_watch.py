from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client
from msgspec.structs import replace

from monitor.facts.incidents import CPU_HOG, FAIR_SHARE, SUSTAINED
from monitor.facts.readings import CpuProcess
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling.probes.host import HostProbe
from monitor.gpus.sampling.probes.simulated import SimulatedProbe
from monitor.gpus.sampling.step import Sampler
from monitor.models import Incident, PolicyValues
from scheduler.dispatch.steps.controller import Controller, IncidentWatch
from scheduler.models import Job, Quota
from tests import jobs_made
from tests.builders import NOW, host, process, snapshot

pytestmark = pytest.mark.django_db
TAKEN = {"code": "GpuTaken", "tier": 5, "text": "python (alice) holds memory on GPU 0."}
SHARE = {"code": "ShareExceeded", "tier": 3, "text": "Your share is 30 %."}
HELD_BACK = {"code": "BudgetDay", "tier": 3, "text": "Your minutes of today are spent."}


def at(second: float) -> datetime:
    return NOW + timedelta(seconds=second)


def play(until: float, since: float = 0, every: float = 5) -> IncidentWatch:
    """Alice's program keeps the only GPU 95 % busy; the controller looks at it as it does."""
    watch = IncidentWatch("gpubox")
    running = Controller(transaction.atomic, "gpubox", lambda chore: None, (watch,))
    seconds = since
    while seconds <= until:
        shot = snapshot(1, [process(sm_pct=95.0)], at=at(seconds), seq=int(seconds) + 1)
        snapshots.record(shot)
        findings = running.step(at(seconds)).results["hogs"]
        assert not isinstance(findings, Exception), findings
        seconds += every
    return watch


def waits(bob: User, *blockers: dict[str, object]) -> Job:
    job = jobs_made.waiting(bob)
    Job.objects.filter(pk=job.pk).update(blockers=list(blockers))
    return job


def test_a_hog_is_there_to_see_after_the_rule_time_and_one_look_of_the_controller() -> None:
    PolicyValues.objects.create(name="hogs", values={"sustained_minutes": 1.0})
    play(60)
    assert Incident.objects.get(rule=SUSTAINED).opened_at == at(60)


def test_the_loops_of_a_host_use_the_values_for_it_alone(settings: Any) -> None:
    hosts = {settings.CONFIG.node: {"sustained_minutes": 1.0}, "far": {"sustained_minutes": 9.0}}
    PolicyValues.objects.create(name="hogs", values={"sustained_minutes": 5.0}, hosts=hosts)
    play(60)
    assert Incident.objects.get(rule=SUSTAINED).opened_at == at(60)


def test_a_job_that_waits_only_for_what_others_take_counts_as_harmed(bob: User) -> None:
    waits(bob, TAKEN)
    waits(bob, TAKEN, HELD_BACK)
    play(660, every=15)
    row = Incident.objects.get(rule=SUSTAINED)
    assert (row.waited_jobs, row.severity) == (1, "warning")
    assert row.waited_s == pytest.approx(660, abs=11)


def test_a_job_whose_share_is_worth_less_by_others_load_counts_as_harmed(bob: User) -> None:
    waits(bob, TAKEN, {"code": "ShareReduced", "tier": 4})
    waits(bob, TAKEN, SHARE)
    play(660, every=15)
    assert Incident.objects.get(rule=SUSTAINED).waited_jobs == 1


def test_more_than_the_half_of_two_users_is_a_violation_while_the_other_waits(bob: User) -> None:
    waits(bob, TAKEN)
    play(660, every=15)
    row = Incident.objects.get(rule=FAIR_SHARE)
    assert (row.expected_pct, row.measured_pct) == (50, pytest.approx(95, abs=1))


def test_the_simulated_hog_is_there_to_see_in_the_time_of_the_rule() -> None:
    PolicyValues.objects.create(name="hogs", values={"sustained_minutes": 2.0})
    sampler = Sampler(transaction.atomic, SimulatedProbe(5), HostProbe("gpubox"))
    sampler.open()
    for second in range(135):
        # Each minute another process goes on with the loop.
        if second % 60 == 0:
            parts = (IncidentWatch("gpubox"),)
            running = Controller(transaction.atomic, "gpubox", lambda chore: None, parts)
        sampler.step(at(second))
        if second % 5 == 4:
            running.step(at(second))
    row = Incident.objects.get(rule=SUSTAINED, user="dana")
    assert 115 <= (row.opened_at - NOW).total_seconds() <= 120 + 5 + 5
    assert row.use is not None


def test_a_cpu_hog_is_found_though_the_controller_changes_each_minute(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = CpuProcess(pid=100, start_ticks=1, cpu_s=0.0, uid=1001, user="alice", program="make")
    for look in range(24):
        seconds = look * 30.0
        now = replace(busy, cpu_s=0.9 * 64 * seconds)
        monkeypatch.setattr(
            "scheduler.dispatch.steps.controller.cpu_processes",
            lambda now=now: (now,),
        )
        shot = snapshot(1, at=at(seconds), seq=look + 1, probe="nvml", host=host(cpu_pct=92.0))
        IncidentWatch("gpubox").judge(shot, at(seconds))
    row = Incident.objects.get(rule=CPU_HOG)
    assert row.text.startswith("Heavy CPU use: make (PID 100, alice) has used 90 % of all CPUs for")


@pytest.mark.parametrize("share_pct", [10, 40])
def test_an_incident_is_judged_by_the_entitlement_that_the_page_of_shares_has(
    alice: User, bob: User, as_user: Callable[[User], Client], share_pct: int
) -> None:
    Quota.objects.create(user=alice, share_pct=share_pct)
    Quota.objects.create(user=bob, share_pct=90)
    waits(bob, TAKEN)
    play(660, every=15)

    body = as_user(bob).get("/api/shares/").json()
    (line,) = (each for each in body["people"] if each["name"] == "alice")
    expected = Incident.objects.get(rule=FAIR_SHARE).expected_pct
    assert expected == pytest.approx(line["entitlement_pct"])
    assert expected <= share_pct


def test_a_job_with_unreadable_blockers_keeps_no_other_from_counting(bob: User) -> None:
    broken = jobs_made.waiting(bob)
    Job.objects.filter(pk=broken.pk).update(blockers=["odd"])
    waits(bob, TAKEN)
    play(660, every=15)
    assert Incident.objects.get(rule=SUSTAINED).waited_jobs == 1
