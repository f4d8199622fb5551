from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from scheduler import submitting
from scheduler.jobs import NewJob, Requirement
from scheduler.models import Job, Quota, SharedOut
from scheduler.people import Quota as QuotaFact
from scheduler.policy import hard_limits
from tests import jobs_made
from tests.builders import GIB, NOW

HOUR = timedelta(hours=1)


def refused(quota: dict[str, Any], waiting: int = 0, **asked: Any) -> dict[str, str]:
    requirement = {
        key: asked.pop(key) for key in ("gpus", "memory_bytes", "exclusive") & asked.keys()
    }
    new = NewJob(command="true", requirement=Requirement(**requirement), **asked)
    found = hard_limits.refusals(new, QuotaFact(**quota), waiting, 80 * GIB)
    return {refusal.field: refusal.text for refusal in found}


def test_without_a_quota_everything_may_be_submitted() -> None:
    assert refused({}, 9999, gpus=64, priority=5, time_limit=900 * HOUR) == {}


def test_more_gpus_than_one_may_ever_hold_are_refused_with_the_numbers() -> None:
    assert refused({"gpus": 2}, gpus=2) == {}
    assert refused({"gpus": 2}, gpus=3) == {
        "gpus": "You ask for 3 GPUs; your quota allows 2 at a time."
    }


def test_more_memory_than_one_may_ever_hold_is_refused() -> None:
    quota = {"memory_bytes": 60 * GIB}

    assert refused(quota, gpus=2, memory_bytes=30 * GIB) == {}
    text = refused(quota, gpus=2, memory_bytes=40 * GIB)["gpu_memory"]
    assert text == "You ask for 80 GiB of GPU memory in all; your quota allows 60 GiB at a time."
    assert "say how much you need to share one" in refused(quota)["gpu_memory"]
    assert refused(quota, gpus=0) == {}


def test_a_priority_above_ones_own_is_refused() -> None:
    assert refused({"priority": 3}, priority=3) == {}
    assert refused({"priority": 3}, priority=5) == {
        "priority": "You ask for priority 5 (urgent); you may use up to 3 (normal)."
    }


def test_a_job_that_takes_more_than_a_days_budget_is_refused() -> None:
    quota = {"gpu_minutes": 600.0}

    assert refused(quota, gpus=2, time_limit=5 * HOUR) == {}
    text = refused(quota, gpus=2, time_limit=6 * HOUR)["time_limit"]
    assert text.startswith("360 min on 2 GPUs are 720 GPU-minutes; your quota allows 600 a day.")
    assert refused(quota, gpus=2) == {}
    assert refused({"gpu_minutes": 0.0}) == {"gpus": "Your quota allows no GPU-minutes."}


def test_who_may_run_nothing_is_told_so_at_once() -> None:
    assert refused({"jobs": 0}, gpus=0) == {"quota": "Your quota lets you run no jobs."}
    assert refused({"jobs": 1}) == {}


def test_a_full_queue_takes_no_more() -> None:
    assert refused({"queued": 3}, waiting=2) == {}
    assert "You may have 3 waiting; 3 jobs wait already" in refused({"queued": 3}, 3)["queue"]


def test_each_element_of_an_array_counts_in_the_queue() -> None:
    assert refused({"queued": 3}, waiting=1, array=(0, 1)) == {}
    assert "this array has 2 more" in refused({"queued": 3}, waiting=2, array=(0, 1))["queue"]
    assert set(refused({"queued": 3}, array=(0, 1, 2, 3))) == {"array"}


@pytest.mark.django_db
def test_what_is_refused_is_not_in_the_queue(alice: User) -> None:
    lab = Group.objects.create(name="lab")
    alice.groups.add(lab)
    Quota.objects.create(group=lab, gpus=1, queued=1)
    SharedOut.objects.create(host="gpubox", at=NOW, gpu_uuids=["GPU-1"], gpu_bytes=80 * GIB)

    with pytest.raises(submitting.UnableToSubmit, match="allows 1 at a time"):
        submitting.submit({"command": "true", "gpus": 2}, alice, NOW)
    submitting.submit({"command": "true"}, alice, NOW)
    with pytest.raises(submitting.UnableToSubmit, match="You may have 1 waiting"):
        submitting.submit({"command": "true"}, alice, NOW)
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_only_jobs_that_wait_fill_ones_queue(alice: User, bob: User) -> None:
    Quota.objects.create(queued=1)
    jobs_made.running(alice)
    jobs_made.waiting(bob)

    assert submitting.submit({"command": "true"}, alice, NOW).owner == alice
