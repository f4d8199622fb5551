"""The whole story on one GPU, with a clock of our own: a neighbour takes it for eight hours."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.facts.readings import ProcessReading
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import events
from monitor.models import Incident
from scheduler.dispatch.steps.controller import Controller, IncidentWatch
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.facts.jobs import AttemptEnding, NewJob, Outcome, Requirement
from scheduler.facts.plans import PlanPolicy
from scheduler.jobs.rows.changes import submit
from scheduler.jobs.rows.transitions import record_end
from scheduler.limits.quotas.step import Charging
from scheduler.limits.throttle import pages as throttle_region
from scheduler.limits.throttle import step as throttle_rows
from scheduler.limits.throttle.step import ThrottleStep
from scheduler.models import Attempt, Job, Quota
from tests.builders import GIB, NOW, gpu, gpu_uuid, process, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
HOST = "gpubox"
STEP = timedelta(minutes=10)


class Story:
    """One GPU, a controller and a planner; `play` lets time pass."""

    def __init__(self) -> None:
        self.now = NOW
        self.neighbour: tuple[ProcessReading, ...] = ()
        self._seq = 0
        gap_s = 2 * STEP.total_seconds()
        parts = (IncidentWatch(HOST, gap_s), Charging(HOST, "UTC"), ThrottleStep(HOST))
        self._controller = Controller(transaction.atomic, HOST, lambda chore: None, parts)
        self._dispatcher = Dispatcher(transaction.atomic, HOST, PlanPolicy())

    def play(self, hours: float, step: timedelta = STEP) -> None:
        until = self.now + timedelta(hours=hours)
        while self.now < until:
            self.now += step
            self._look()

    def watch(self, minutes: float = 5) -> None:
        """As often as is needed to know the load."""
        self.play(minutes / 60, timedelta(seconds=20))

    def _look(self) -> None:
        self._seq += 1
        busy = sum(p.sm_pct or 0.0 for p in self.neighbour)
        held = sum(p.memory_bytes or 0 for p in self.neighbour)
        reading = gpu(0, utilization_pct=busy, memory_used_bytes=held)
        snapshots.record(snapshot([reading], self.neighbour, at=self.now, seq=self._seq))
        for name, problems in self._controller.step(self.now).results.items():
            assert not isinstance(problems, Exception), (name, problems)
        self._dispatcher.step(self.now)

    def stops(self) -> None:
        self.neighbour = ()

    def comes(self) -> None:
        """Alice trains at 95 %, outside the queue."""
        self.neighbour = (process(sm_pct=95.0, memory_bytes=20 * GIB),)


@pytest.fixture
def story(bob: User) -> Story:
    """Bob is entitled to 30 % of the machine."""
    Quota.objects.create(user=bob, share_pct=30)
    return Story()


def asks(owner: User, now: datetime, priority: int = 3) -> Job:
    """A tenth of the GPU's memory, for an hour."""
    new = NewJob(
        command="python train.py",
        priority=priority,
        requirement=Requirement(memory_bytes=8 * GIB),
        time_limit=timedelta(hours=1),
    )
    return submit(new, owner, now)


def state(job: Job) -> str:
    job.refresh_from_db()
    return job.state


def finish(job: Job, now: datetime) -> None:
    attempt = Attempt.objects.select_related("job__owner").get(job=job, ended_at=None)
    record_end(attempt, AttemptEnding(outcome=Outcome.SUCCEEDED, ended_at=now, exit_code=0), now)


def share_now(entitled: float, now: datetime) -> float:
    return entitled * throttle_rows.throttle(HOST, now, ()).multipliers.get(gpu_uuid(), 1.0)


def test_a_neighbour_takes_the_gpu_for_eight_hours(story: Story, bob: User) -> None:
    story.watch()
    before = asks(bob, story.now)
    story.play(0.1)
    assert state(before) == "starting"
    finish(before, story.now)

    # He comes; what bob asks for beside him waits.
    story.comes()
    story.play(0.5)
    waits = asks(bob, story.now)
    story.play(7.5)
    story.watch()

    (incident,) = Incident.objects.filter(rule="sustained")
    assert incident.closed_at is None
    assert "95 % on GPU 0" in incident.text
    assert incident.waited_jobs == 1
    mode = throttle_rows.mode_of(HOST)
    assert mode is not None
    assert mode.mode == "defensive"
    assert share_now(30, story.now) == pytest.approx(3)
    (summary,) = throttle_region.load(story.now)["hosts"]
    assert summary.quotas == (
        "On all GPUs, quotas are reduced to 10 % (a share of 30 % counts as 3 %): GPUs are"
        " in use outside the queue, a GPU is overused, the mode is defensive."
        " Empty GPUs are not affected."
    )
    assert state(waits) == "queued"
    assert {"ShareReduced"} <= {blocker["code"] for blocker in waits.blockers}

    # Interactive jobs run all the same.
    urgent = asks(bob, story.now, priority=5)
    story.play(0.1)
    assert state(urgent) == "starting"
    finish(urgent, story.now)

    # An operator reads what happened.
    kinds = [event.kind for event in events.recent(200)]
    assert kinds.count("INCIDENT_OPENED") == Incident.objects.filter(lead=None).count() == 1
    assert kinds.count("MODE_CHANGED") == 1
    assert "30 % of the last 24 h" in mode.reason

    # He stops: all is as before, and the mode once a day was quiet enough.
    story.stops()
    story.watch(10)
    assert share_now(30, story.now) == pytest.approx(3)
    assert state(waits) == "starting"
    assert not Incident.objects.filter(closed_at=None).exists()
    story.play(19)
    story.watch()
    mode.refresh_from_db()
    assert mode.mode == "cooperative"
    assert share_now(30, story.now) == 30
