from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User

from monitor.facts.gpus import Condition
from monitor.facts.readings import GpuReading
from monitor.models import PolicyValues
from scheduler.dispatch.steps.yields import HotGpus
from scheduler.facts.jobs import YieldOptions
from scheduler.models import YieldRequest
from tests import jobs_made
from tests.builders import NOW, gpu, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def throttled(minutes: float) -> GpuReading:
    return gpu(
        0,
        condition=Condition.THROTTLED,
        condition_since=NOW - timedelta(minutes=minutes),
        condition_reason="It reached 91 °C.",
    )


def yielding(reading: GpuReading) -> list[int]:
    return HotGpus("gpubox").judge(snapshot([reading, gpu(1)]), NOW)


def test_preemptible_jobs_leave_a_gpu_that_is_throttled_for_long(alice: User) -> None:
    PolicyValues.objects.create(name="health", values={"hot_yield_minutes": 5.0})
    may_leave = YieldOptions(preemptible=True)
    job = jobs_made.running(alice, yield_options=may_leave)
    jobs_made.running(alice, on=(1,), yield_options=may_leave)
    jobs_made.running(alice)

    assert yielding(throttled(4)) == []
    assert yielding(throttled(6)) == [job.pk]
    assert yielding(throttled(7)) == []
    request = YieldRequest.objects.get()
    assert (request.code, request.counts) == ("GpuThrottled", False)
    assert request.text == "GPU 0 has been throttled for 6 min: It reached 91 °C."


def test_no_job_is_asked_unless_an_operator_switches_it_on(alice: User) -> None:
    jobs_made.running(alice, yield_options=YieldOptions(preemptible=True))

    assert yielding(throttled(600)) == []
