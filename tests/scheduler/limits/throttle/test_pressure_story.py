"""A neighbour at 95 % beside somebody who is entitled to 30 % of the only GPU."""

from __future__ import annotations

from datetime import datetime, timedelta

import pytest
from django.contrib.auth.models import User

from monitor.facts.incidents import HOG_RULES
from monitor.facts.readings import ProcessReading
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Gpu, Incident
from scheduler.dispatch.inputs import PlanInputs
from scheduler.facts.jobs import Requirement
from scheduler.facts.plans import PlanPolicy
from scheduler.limits.quotas.step import Charging
from scheduler.limits.throttle.step import ThrottleStep
from scheduler.models import ModeState, Quota
from scheduler.queue.planner.plan import plan
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, gpu_uuid, process, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
SHARED = Requirement(memory_bytes=4 * GIB)
NEIGHBOUR = process(4_200_001, user="bob", sm_pct=95.0, memory_bytes=4 * GIB)


class Story:
    """The controller looks each five seconds; then the queue is planned."""

    def __init__(self) -> None:
        self.now = NOW
        self.seq = 0
        self.parts = (ThrottleStep("gpubox"), Charging("gpubox", "UTC"))
        self.supply = PlanInputs("gpubox", PlanPolicy())

    def goes_on(self, seconds: float, *processes: ProcessReading) -> None:
        use = sum(p.sm_pct or 0.0 for p in processes)
        until = self.now + timedelta(seconds=seconds)
        while self.now < until:
            self.now += timedelta(seconds=5)
            self.seq += 1
            memory = 4 * GIB if processes else 0
            reading = gpu(0, utilization_pct=use, memory_used_bytes=memory)
            shot = snapshot([reading], processes, seq=self.seq, at=self.now)
            snapshots.record(shot)
            for part in self.parts:
                part.judge(shot, self.now)

    def waits_for(self) -> dict[int, set[str]]:
        """The codes of why each job waits; those that may start are not in it."""
        plan_input = self.supply.given(self.supply.queue(self.now), self.now)
        made = plan(
            plan_input.queue, plan_input.slots, plan_input.policy, self.now, plan_input.rules
        )
        return {job: {b.code for b in blockers} for job, blockers in made.blockers.items()}


def hogged(since: datetime, until: datetime) -> None:
    times = {"since_at": since, "opened_at": since, "last_seen_at": until}
    rule = sorted(HOG_RULES)[0]
    row = Gpu.objects.get(uuid=gpu_uuid(0))
    spans = [[since.timestamp(), until.timestamp()]]
    Incident.objects.create(
        host="gpubox", gpu=row, rule=rule, key="0|bob", text="hog", hog_spans=spans, **times
    )


def test_thirty_percent_become_three_and_come_back(alice: User, bob: User) -> None:
    Quota.objects.create(user=alice, share_pct=30.0)
    story = Story()
    story.goes_on(5)
    normal = jobs_made.waiting(alice, requirement=SHARED)
    urgent = jobs_made.waiting(alice, requirement=SHARED, priority=5)
    assert story.waits_for() == {}

    story.goes_on(40, NEIGHBOUR)
    hogged(story.now - timedelta(hours=8), story.now)
    story.goes_on(10, NEIGHBOUR)
    assert ModeState.objects.get().mode == "defensive"
    assert story.waits_for() == {normal.pk: {"Pressure", "ShareReduced"}}

    Incident.objects.update(closed_at=story.now)
    story.goes_on(120)
    assert story.waits_for() == {}
    story.now += timedelta(hours=23)
    story.goes_on(10)
    assert ModeState.objects.get().mode == "cooperative"
    assert urgent.pk not in story.waits_for()
