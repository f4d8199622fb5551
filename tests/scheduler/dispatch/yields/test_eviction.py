"""Somebody comes to a GPU that jobs are on: a trace of rows, one look a second."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from msgspec.structs import replace

from monitor.facts.readings import ProcessReading, Snapshot
from monitor.gpus.policy.presence import PresencePolicy
from monitor.gpus.rows import snapshot as snapshots
from monitor.gpus.sampling import step as presence_step
from monitor.journal.rows import events
from monitor.thresholds import rows as thresholds
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.dispatch.steps.yields import EvictionStep
from scheduler.facts.jobs import Requirement, YieldOptions
from scheduler.facts.plans import PlanPolicy
from scheduler.models import Job, YieldRequest
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, gpu_uuid, process, snapshot

pytestmark = pytest.mark.django_db


class Machine:
    """Two GPUs; sampler, evictor and dispatcher look once a second, in this order."""

    def __init__(self) -> None:
        self.at = NOW
        self.last: Snapshot | None = None
        self.evictor = EvictionStep(nullcontext, "gpubox")
        self.dispatcher = Dispatcher(nullcontext, "gpubox", PlanPolicy())
        self.asked_at: dict[int, datetime] = {}
        self.started: dict[int, datetime] = {}

    def run(self, seconds: int, *there: ProcessReading) -> None:
        used = {p.gpu_uuid: p.memory_bytes for p in there}
        gpus = [gpu(i, memory_used_bytes=used.get(gpu_uuid(i), 0)) for i in range(2)]
        for _ in range(seconds):
            self.at += timedelta(seconds=1)
            latest, changes = presence_step.watched(
                snapshot(gpus, there, at=self.at), self.last, thresholds.current(PresencePolicy)
            )
            for note in changes:
                events.add(note.kind, note.text, now=self.at)
            snapshots.record(latest)
            self.last = latest
            self.asked_at |= {eviction.job_id: self.at for eviction in self.evictor.step(self.at)}
            placed = self.dispatcher.step(self.at, has_room=False)
            self.started |= {attempt.job_id: self.at for attempt in placed}


@pytest.fixture
def machine(settings: Any) -> Machine:
    settings.CONFIG = replace(settings.CONFIG, profile="desktop", node="gpubox")
    return Machine()


def game(on: int = 0) -> ProcessReading:
    return process(5001 + on, on, program="game", user="dana", kinds="G", memory_bytes=4 * GIB)


def on_gpu(index: int) -> dict[str, Any]:
    return {"requirement": Requirement(gpu_uuid=gpu_uuid(index), memory_bytes=GIB)}


def test_the_whole_visit(machine: Machine, alice: User) -> None:
    here = jobs_made.running(alice, (0,))
    beside = jobs_made.running(alice, (1,))
    machine.run(3)
    came_at = machine.at + timedelta(seconds=1)
    waits = jobs_made.waiting(alice, machine.at, **on_gpu(0))

    # It is there: nothing starts from the first second on; its GPU's job is asked at the second.
    machine.run(10, game())
    assert machine.started == {}
    assert machine.asked_at == {here.pk: came_at + timedelta(seconds=1)}
    assert YieldRequest.objects.get().counts is False
    waits.refresh_from_db()
    blockers = [b for b in waits.blockers if b["code"] == "OwnerPresent"]
    assert blockers[0]["holder"] == "dana/game"

    # It goes: the GPU is free a minute later, and no second before.
    jobs_made.end(here)
    left_at = machine.at + timedelta(seconds=1)
    machine.run(2)
    machine.at += timedelta(seconds=55)
    machine.run(10)
    assert machine.started == {waits.pk: left_at + timedelta(seconds=60)}
    assert [event.kind for event in events.recent(50) if event.kind.startswith("OWNER")] == [
        "OWNER_GONE",
        "OWNER_PRESENT",
    ]
    assert Job.objects.get(pk=beside.pk).state == "running"


def test_other_gpus_go_on_starting_jobs(machine: Machine, alice: User) -> None:
    machine.run(2)
    machine.run(3, game(on=0))
    job = jobs_made.waiting(alice, machine.at)

    machine.run(1, game(on=0))

    assert list(machine.started) == [job.pk]
    assert job.attempts.get().gpu_uuids == [gpu_uuid(1)]


def test_a_server_gives_way_to_nobody_unless_it_is_told_to(
    machine: Machine, alice: User, settings: Any
) -> None:
    settings.CONFIG = replace(settings.CONFIG, profile="server")
    willing = jobs_made.running(alice, (0,), yield_options=YieldOptions(preemptible=True))
    unwilling = jobs_made.running(alice, (1,))
    machine.run(5, game(on=0), game(on=1))
    assert machine.asked_at == {}

    thresholds.change("presence", {"enabled": True}, by="root", now=NOW)
    machine.run(5, game(on=0), game(on=1))

    assert list(machine.asked_at) == [willing.pk]
    assert unwilling.pk not in machine.asked_at


def test_old_readings_ask_nobody(machine: Machine, alice: User) -> None:
    machine.run(5, game())
    jobs_made.running(alice, (0,))

    assert machine.evictor.step(machine.at + timedelta(seconds=11)) == []


def test_while_nobody_is_there_it_costs_one_question(
    machine: Machine, django_assert_num_queries: Any
) -> None:
    machine.run(3)

    with django_assert_num_queries(1):
        assert machine.evictor.step(machine.at + timedelta(seconds=1)) == []
    with django_assert_num_queries(0):
        assert machine.evictor.step(machine.at + timedelta(seconds=1.5)) == []
