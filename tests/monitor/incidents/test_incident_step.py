from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from monitor.facts.accounts import Demand
from monitor.facts.incidents import CLAIMED_EMPTY, IDLE_HELD, SUSTAINED
from monitor.facts.readings import ProcessReading
from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents import rows as incident_open
from monitor.incidents.step import IncidentStep
from monitor.journal.rows import audit, events
from monitor.models import (
    Event,
    Exemption,
    GpuMinute,
    Incident,
    PolicyValues,
    ProcessMinute,
    ProcessUse,
)
from tests.builders import GIB, NOW, claim, gpu_uuid, process, snapshot
from tests.monitor.hog_traces import waiting

pytestmark = pytest.mark.django_db


def at(minute: float) -> datetime:
    return NOW + timedelta(minutes=minute)


class Machine:
    """A host that is judged each half minute, by a step that may be replaced at any time."""

    def __init__(self) -> None:
        self.hogs = IncidentStep("gpubox", gap_s=60)
        self.seq = 0
        self.minute = 0.0
        snapshots.record(snapshot(2, at=NOW))

    def run(self, minutes: float, *there: ProcessReading, demand: Sequence[Demand] = ()) -> Machine:
        for _ in range(round(minutes * 2)):
            self.minute += 0.5
            self.seq += 1
            shot = snapshot(2, there, at=at(self.minute), seq=self.seq)
            self.hogs.judge(shot, demand, at(self.minute), shares={"alice": 70.0})
        return self


def hog(**changes: object) -> ProcessReading:
    return process(**{"sm_pct": 95.0} | changes)


def test_an_incident_carries_who_what_where_since_when_and_whom_it_harmed() -> None:
    Machine().run(12, hog()).run(10, hog(), demand=[waiting("bob", minutes_ago=-12)])
    row = Incident.objects.get(rule=SUSTAINED)
    assert (row.pid, row.start_ticks, row.program, row.user) == (
        4200001,
        4201001,
        "python",
        "alice",
    )
    assert (row.gpu_id, row.since_at, row.opened_at) == (gpu_uuid(0), at(0.5), at(10.5))
    assert row.last_seen_at == at(22)
    assert (row.peak_pct, row.mean_pct) == (pytest.approx(95), pytest.approx(95))
    assert (row.measured_pct, row.expected_pct) == (pytest.approx(47.5), 70)
    assert (row.coverage, row.memory_bytes) == (1, GIB)
    assert (row.waiting, row.waited_jobs, row.waited_s) == (["7"], 1, pytest.approx(600, abs=31))
    assert row.text == (
        "Heavy use outside the queue: python (PID 4200001, alice) at 95 % on GPU 0 for 21 min;"
        " 1 job waited 10 min"
    )


def test_its_begin_and_end_are_events() -> None:
    Machine().run(11, hog()).run(2)
    assert [e.kind for e in reversed(events.recent(5))] == ["INCIDENT_OPENED", "INCIDENT_CLOSED"]
    said = audit.about(f"incident {Incident.objects.get().pk}")
    assert [(entry.by, entry.text) for entry in said] == [
        ("gpucoord", "gpucoord closed the incident: ended")
    ]
    told = Event.objects.get(kind="INCIDENT_OPENED")
    assert (told.owner, told.gpu_uuid, told.host) == ("alice", gpu_uuid(0), "gpubox")
    assert incident_open.hogs_on("gpubox", at(13)) == set()


def test_open_incidents_continue_after_a_restart() -> None:
    machine = Machine().run(15, hog())
    machine.hogs = IncidentStep("gpubox", gap_s=60)
    machine.run(15, hog())
    row = Incident.objects.get()
    assert (row.closed_at, row.since_at) == (None, at(0.5))


def test_a_new_process_builds_the_last_hours_up_from_rows() -> None:
    machine = Machine()
    use = ProcessUse.objects.create(
        host="gpubox",
        gpu_id=gpu_uuid(0),
        pid=4200001,
        start_ticks=4201001,
        user="alice",
        program="python",
        first_seen_at=at(-30),
        last_seen_at=NOW,
        sm_s=1710,
        held_s=1800,
        known_s=1800,
    )
    for minute in range(-30, 0):
        t = int(at(minute).timestamp())
        ProcessMinute.objects.create(use=use, t=t, sm_s=57, held_s=60, known_s=60)
    machine.run(1, hog())
    row = Incident.objects.get()
    assert row.since_at == at(-30)
    assert row.use == use


def test_use_by_an_ended_job_accuses_no_user() -> None:
    machine = Machine()
    use = ProcessUse.objects.create(
        host="gpubox",
        gpu_id=gpu_uuid(0),
        pid=77,
        start_ticks=7,
        user="alice",
        job_ref="4",
        job_owner="alice",
        first_seen_at=at(-30),
        last_seen_at=NOW,
        ended_at=NOW,
    )
    for minute in range(-30, 0):
        t = int(at(minute).timestamp())
        ProcessMinute.objects.create(use=use, t=t, sm_s=59, held_s=60, known_s=60)
    machine.run(5, hog())
    assert not Incident.objects.exists()


def test_a_threshold_that_is_changed_counts_at_the_next_look() -> None:
    PolicyValues.objects.create(name="hogs", values={"sustained_minutes": 2.0})
    Machine().run(3, hog())
    assert Incident.objects.get().opened_at == at(2.5)


@pytest.mark.parametrize(
    ("scope", "name", "opens"),
    [("user", "alice", False), ("program", "pyth*", False), ("user", "bob", True)],
)
def test_an_exemption_holds_until_it_ends(scope: str, name: str, opens: bool) -> None:
    Exemption.objects.create(scope=scope, name=name, from_at=NOW, until_at=at(30))
    machine = Machine().run(15, hog())
    assert Incident.objects.exists() is opens
    machine.run(30, hog())
    assert Incident.objects.exists()


def test_an_incident_closed_by_an_operator_does_not_reopen_while_the_use_lasts() -> None:
    machine = Machine().run(12, hog())
    Incident.objects.update(closed_at=at(12), closed_by="root", is_muted=True)
    machine.run(20, hog())
    assert Incident.objects.count() == 1
    machine.run(20).run(15, hog())
    assert Incident.objects.count() == 2


def test_without_a_reading_nothing_is_judged() -> None:
    machine = Machine().run(12, hog())
    assert machine.hogs.judge(None, (), at(40)) is None
    assert Incident.objects.get().closed_at is None


def test_what_was_idle_before_it_is_remembered_began_when_the_rows_say() -> None:
    machine = Machine()
    use = ProcessUse.objects.create(
        host="gpubox",
        gpu_id=gpu_uuid(0),
        pid=4200001,
        start_ticks=4201001,
        user="alice",
        first_seen_at=at(-600),
        last_seen_at=NOW,
        sm_s=300,
        held_s=36000,
        known_s=36000,
    )
    for minute in range(-600, 0):
        # It last worked eight hours ago.
        sums = {"sm_s": 60 if minute < -480 else 0, "held_s": 60, "known_s": 60}
        t = int(at(minute).timestamp())
        ProcessMinute.objects.create(use=use, t=t, memory_byte_s=2400 * GIB, **sums)
    idle = process(sm_pct=0.0, memory_bytes=40 * GIB)
    machine.run(1, idle, demand=[waiting("bob")])
    row = Incident.objects.get(rule=IDLE_HELD)
    assert row.since_at == at(-480)
    assert "has not used the GPU for 8 h" in row.text


def test_idle_memory_that_was_used_hours_ago_is_not_called_unused() -> None:
    machine = Machine()
    facts = {"host": "gpubox", "gpu_id": gpu_uuid(0), "pid": 4200001, "start_ticks": 4201001}
    use = ProcessUse.objects.create(
        **facts, user="alice", first_seen_at=at(-600), last_seen_at=NOW, held_s=36000, known_s=36000
    )
    for minute in range(-600, 0):
        sums = {"sm_s": 0.8 if minute < -300 else 0, "held_s": 60, "known_s": 60}
        t = int(at(minute).timestamp())
        ProcessMinute.objects.create(use=use, t=t, memory_byte_s=2400 * GIB, **sums)
    idle = process(sm_pct=0.0, memory_bytes=40 * GIB)
    machine.run(1, idle, demand=[waiting("bob")])
    assert "has used 0.7 % of the GPU in the last 10 h" in Incident.objects.get(rule=IDLE_HELD).text


def test_unwatched_time_before_a_restart_does_not_count_as_empty() -> None:
    machine = Machine()
    snapshots.open_claim(claim("4"), "gpubox", at(-60))
    machine.run(2)
    assert not Incident.objects.exists()
    gpu_minutes(-59, 0)
    machine.hogs = IncidentStep("gpubox", gap_s=60)
    machine.run(1)
    row = Incident.objects.get(rule=CLAIMED_EMPTY)
    assert (row.since_at, row.coverage) == (at(-60), pytest.approx(1, abs=0.02))


def gpu_minutes(first: int, last: int) -> None:
    nothing = dict.fromkeys(
        ("utilization_pct_s", "memory_byte_s", "energy_j", "utilization_known_s", "power_known_s"),
        0,
    )
    for minute in range(first, last):
        t = int(at(minute).timestamp())
        GpuMinute.objects.create(gpu_id=gpu_uuid(0), t=t, seen_s=60, memory_known_s=60, **nothing)


def test_a_new_process_knows_when_a_job_was_last_on_its_gpu() -> None:
    machine = Machine()
    snapshots.open_claim(claim("4"), "gpubox", at(-60))
    ProcessUse.objects.create(
        host="gpubox",
        gpu_id=gpu_uuid(0),
        pid=77,
        start_ticks=7,
        job_ref="4",
        job_owner="alice",
        first_seen_at=at(-50),
        last_seen_at=at(-3),
    )
    machine.run(11)
    assert not Incident.objects.exists()
    machine.run(2)
    row = Incident.objects.get(rule=CLAIMED_EMPTY)
    assert row.since_at == at(-3)


def play_fork_pool(program: str = "python") -> None:
    """Four processes of 24 % at a time, each for 20 s; rows are written as the sampler does."""
    PolicyValues.objects.create(name="hogs", values={"sustained_minutes": 2.0})
    machine = Machine()
    machine.hogs = IncidentStep("gpubox", gap_s=15)
    for look in range(5, 300, 5):
        running = []
        for number in range(look // 5 + 1):
            start, end = 5 * number - 3, 5 * number + 17
            seen_s = min(end, look - 2)
            if seen_s > start and seen_s > look - 60:
                ProcessUse.objects.update_or_create(
                    host="gpubox",
                    gpu_id=gpu_uuid(0),
                    pid=100 + number,
                    start_ticks=number,
                    user="fay",
                    program=program,
                    defaults={
                        "first_seen_at": NOW + timedelta(seconds=start),
                        "last_seen_at": NOW + timedelta(seconds=seen_s),
                        "ended_at": NOW + timedelta(seconds=end) if end <= look - 2 else None,
                        "held_s": seen_s - start,
                        "known_s": seen_s - start,
                        "sm_s": 0.24 * (seen_s - start),
                    },
                )
            if start <= look < end:
                facts = {"pid": 100 + number, "start_ticks": number, "user": "fay"}
                running.append(process(sm_pct=24.0, program=program, **facts))
        now = NOW + timedelta(seconds=look)
        machine.hogs.judge(snapshot(2, running, at=now, seq=look), (), now)


def test_a_pool_of_short_processes_is_sustained_use() -> None:
    play_fork_pool()
    row = Incident.objects.get()
    assert (row.rule, row.user, row.coverage) == (SUSTAINED, "fay", pytest.approx(1, abs=0.05))
    assert row.mean_pct == pytest.approx(96, abs=3)
    assert row.peak_pct is not None
    assert row.peak_pct <= 100


def test_ended_processes_of_an_exempt_program_count_for_no_one() -> None:
    Exemption.objects.create(scope="program", name="pyth*", from_at=NOW)
    play_fork_pool()
    assert not Incident.objects.exists()


def two_workers() -> list[ProcessReading]:
    """Bob's training on two GPUs: each 97 % busy, with most of the memory."""
    facts = {"user": "bob", "program": "torchrun", "memory_bytes": 75 * GIB, "sm_pct": 97.0}
    return [process(pid=70 + on, on=on, **facts) for on in (0, 1)]


def test_one_training_on_two_gpus_is_one_incident() -> None:
    PolicyValues.objects.create(name="hogs", values={"sustained_minutes": 11.0})
    machine = Machine().run(12, *two_workers())
    (lead,) = incident_open.open_incidents()
    assert {row.gpu_id for row in lead.parts} == {gpu_uuid(0), gpu_uuid(1)}
    assert {row.rule for row in lead.parts} == {"sustained", "memory_hog"}
    assert Event.objects.filter(kind="INCIDENT_OPENED").count() == 1
    machine.run(3)
    assert not incident_open.open_rows().exists()
    assert Event.objects.filter(kind="INCIDENT_CLOSED").count() == 1


def test_an_incident_lasts_while_one_of_its_facets_does() -> None:
    machine = Machine().run(12, *two_workers())
    lead = incident_open.open_incidents().get()
    machine.run(4, *(p for p in two_workers() if p.gpu_uuid != lead.gpu_id))
    lead.refresh_from_db()
    assert (lead.closed_at, lead.over_at is None) == (None, False)
    machine.run(12, *two_workers(), demand=[waiting("carol", minutes_ago=-16)])
    lead.refresh_from_db()
    assert lead.over_at is None
    assert incident_open.open_incidents().get().severity == "warning"
    assert incident_open.hogs_on("gpubox") == {gpu_uuid(0), gpu_uuid(1)}


def test_processes_of_two_people_are_two_incidents() -> None:
    Machine().run(12, hog(), hog(pid=9, on=1, user="bob"))
    assert {row.user for row in incident_open.open_incidents()} == {"alice", "bob"}


def test_an_ongoing_hog_is_reported_again_at_growing_intervals() -> None:
    machine = Machine().run(70, hog())
    told = Event.objects.filter(kind="INCIDENT_ONGOING").order_by("pk")
    assert [(e.severity, e.text.split(" for ")[1]) for e in told] == [
        ("info", "30 min; no job waits"),
        ("info", "1 h; no job waits"),
    ]
    machine.run(60, hog(), demand=[waiting("bob", minutes_ago=-70)])
    last = told.last()
    assert last is not None
    assert last.severity == "warning"
    assert "for 2 h; 1 job waited" in last.text


def test_operators_may_have_a_hog_beside_an_empty_queue_told_as_a_warning_each_hour() -> None:
    PolicyValues.objects.create(name="hogs", values={"alert_on_hog": True})
    Machine().run(132, hog())

    opened = Event.objects.get(kind="INCIDENT_OPENED")
    told = Event.objects.filter(kind="INCIDENT_ONGOING").order_by("pk")
    assert opened.text.startswith("Detected GPU hog: python (PID 4200001, alice) at 95 %")
    assert [(e.severity, e.text.split(" for ")[1]) for e in (opened, *told)] == [
        ("warning", "10 min; no job waits"),
        ("warning", "1 h; no job waits"),
        ("warning", "2 h; no job waits"),
    ]
    # It delays no one, so the defensive mode and enforcement leave it alone.
    assert not Incident.objects.get().is_hog
