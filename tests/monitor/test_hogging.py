from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import pytest

from monitor import audit, events, incidents, store
from monitor.demand import Demand
from monitor.hogging import Hogs
from monitor.models import (
    Event,
    Exemption,
    GpuMinute,
    Incident,
    PolicyValues,
    ProcessMinute,
    ProcessUse,
)
from monitor.policy.hog_rules import CLAIMED_EMPTY, IDLE_HELD, SUSTAINED
from monitor.readings import ProcessReading
from tests.builders import GIB, NOW, claim, gpu_uuid, process, snapshot
from tests.monitor.hog_traces import waiting

pytestmark = pytest.mark.django_db


def at(minute: float) -> datetime:
    return NOW + timedelta(minutes=minute)


class Machine:
    """A host that is judged each half minute, by a step that may be replaced at any time."""

    def __init__(self) -> None:
        self.hogs = Hogs("gpubox", gap_s=60)
        self.seq = 0
        self.minute = 0.0
        store.record(snapshot(2, at=NOW))

    def run(self, minutes: float, *there: ProcessReading, demand: Sequence[Demand] = ()) -> Machine:
        for _ in range(round(minutes * 2)):
            self.minute += 0.5
            self.seq += 1
            shot = snapshot(2, there, at=at(self.minute), seq=self.seq)
            self.hogs.judge(shot, demand, at(self.minute))
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
        "Detected GPU hog: python (PID 4200001, alice) at 95 % on GPU 0 for 21 min;"
        " 1 job waited 10 min"
    )


def test_it_is_told_when_it_opens_and_when_it_is_over() -> None:
    Machine().run(11, hog()).run(2)
    assert [e.kind for e in reversed(events.recent(5))] == ["INCIDENT_OPENED", "INCIDENT_CLOSED"]
    said = audit.about(f"incident {Incident.objects.get().pk}")
    assert [(entry.by, entry.text) for entry in said] == [
        ("gpucoord", "gpucoord closed it: it has ended")
    ]
    told = Event.objects.get(kind="INCIDENT_OPENED")
    assert (told.owner, told.gpu_uuid, told.host) == ("alice", gpu_uuid(0), "gpubox")
    assert incidents.hogs_on("gpubox", at(13)) == set()


def test_a_restart_goes_on_with_what_is_open() -> None:
    machine = Machine().run(15, hog())
    machine.hogs = Hogs("gpubox", gap_s=60)
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


def test_what_a_job_used_before_accuses_nobody_after_it() -> None:
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


def test_what_an_operator_closed_is_not_opened_again_while_it_goes_on() -> None:
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
    assert "that nothing has used for 8 h" in row.text


def test_what_nobody_watched_before_a_restart_is_not_called_empty() -> None:
    machine = Machine()
    store.open_claim(claim("4"), "gpubox", at(-60))
    machine.run(2)
    assert not Incident.objects.exists()
    gpu_minutes(-59, 0)
    machine.hogs = Hogs("gpubox", gap_s=60)
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
    store.open_claim(claim("4"), "gpubox", at(-60))
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
