from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from monitor.facts.readings import Health, Snapshot
from scheduler.dispatch.steps.yields import LostGpus
from scheduler.facts.jobs import YieldOptions
from scheduler.models import YieldRequest
from tests import jobs_made
from tests.builders import NOW, gpu, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def _judge(latest: Snapshot | None) -> list[int]:
    return LostGpus("gpubox").judge(latest, NOW)


def test_a_job_that_runs_again_is_asked_to_leave_a_lost_gpu(alice: User) -> None:
    again = YieldOptions(requeue=True)
    job = jobs_made.running(alice, yield_options=again)
    jobs_made.running(alice, on=(1,), yield_options=again)
    jobs_made.running(alice)
    latest = snapshot([gpu(0, health=Health.LOST), gpu(1)])

    assert _judge(latest) == [job.pk]
    assert _judge(latest) == []
    request = YieldRequest.objects.get()
    assert (request.code, request.counts) == ("GpuLost", False)
    assert request.text == "GPU 0 is lost; the job is run again on another."


def test_nobody_is_asked_while_all_gpus_answer_or_nothing_is_known(alice: User) -> None:
    jobs_made.running(alice, yield_options=YieldOptions(requeue=True))

    assert _judge(snapshot(2)) == _judge(None) == []
