from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User

from monitor.models import PolicyValues
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.facts.people import Quota as QuotaFact
from scheduler.models import HostCapacity, Job, Quota
from scheduler.queue.planner import admission
from scheduler.submission.intake import actions as intake_actions
from tests import jobs_made
from tests.builders import GIB, NOW

HOUR = timedelta(hours=1)


def refused(quota: dict[str, Any], waiting: int = 0, **submitted: Any) -> dict[str, str]:
    requirement = {
        key: submitted.pop(key) for key in ("gpus", "memory_bytes", "exclusive") & submitted.keys()
    }
    new = NewJob(command="true", requirement=Requirement(**requirement), **submitted)
    refusals = admission.refusals(new, QuotaFact(**quota), waiting, 80 * GIB)
    return {refusal.field: refusal.text for refusal in refusals}


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


def test_a_larger_share_of_a_gpus_time_than_the_quota_allows_is_refused() -> None:
    def submitted(share: int | None, **changes: object) -> dict[str, str]:
        body = Requirement(memory_bytes=GIB, share_pct=share, **changes)  # type: ignore[arg-type]
        refusals = admission.refusals(
            NewJob(command="true", requirement=body), QuotaFact(gpu_share_pct=30), 0, 80 * GIB
        )
        return {refusal.field: refusal.text for refusal in refusals}

    assert submitted(30) == {}
    assert submitted(40) == {
        "gpu_share": "You ask for 40 % of a shared GPU's time; your quota allows 30 %."
    }
    assert submitted(40, exclusive=True) == {}


@pytest.mark.django_db
def test_a_quota_sets_the_share_of_a_gpus_time_that_a_job_does_not_ask_for(alice: User) -> None:
    Quota.objects.create(user=alice, gpu_share_pct=30)
    job = {"command": "true", "gpus": 1, "gpu_memory": "8GiB"}

    shares = intake_actions.submit(job, alice, NOW)
    less = intake_actions.submit({**job, "gpu_share": 10}, alice, NOW)
    alone = intake_actions.submit({**job, "exclusive": True}, alice, NOW)

    share_pcts = [Job.objects.get(pk=each.pk).share_pct for each in (shares, less, alone)]
    assert share_pcts == [30, 10, None]


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
    HostCapacity.objects.create(host="gpubox", at=NOW, gpu_uuids=["GPU-1"], gpu_bytes=80 * GIB)

    with pytest.raises(intake_actions.UnableToSubmit, match="allows 1 at a time"):
        intake_actions.submit({"command": "true", "gpus": 2}, alice, NOW)
    intake_actions.submit({"command": "true"}, alice, NOW)
    with pytest.raises(intake_actions.UnableToSubmit, match="You may have 1 waiting"):
        intake_actions.submit({"command": "true"}, alice, NOW)
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_only_jobs_that_wait_fill_ones_queue(alice: User, bob: User) -> None:
    Quota.objects.create(queued=1)
    jobs_made.running(alice)
    jobs_made.waiting(bob)

    assert intake_actions.submit({"command": "true"}, alice, NOW).owner == alice


def _submit(owner: User, **raw: Any) -> Job:
    return intake_actions.submit({"command": "true", "gpus": 0} | raw, owner, NOW)


def _says(owner: User, **raw: Any) -> str:
    with pytest.raises(intake_actions.UnableToSubmit) as refused:
        _submit(owner, **raw)
    return str(refused.value)


@pytest.mark.django_db
def test_a_user_without_a_quota_may_have_a_thousand_waiting_jobs(alice: User) -> None:
    _submit(alice, array="0-998")
    _submit(alice)

    text = _says(alice)
    assert text.startswith("queue: You may have 1000 waiting; 1000 jobs wait already")
    assert "cancel some, or ask an operator" in text


@pytest.mark.django_db
def test_an_array_above_the_limit_of_waiting_jobs_is_refused(alice: User) -> None:
    assert _says(alice, array="0-1000").startswith("array: You may have 1000 waiting")


@pytest.mark.django_db
def test_an_operator_may_have_any_number_of_waiting_jobs(root: User) -> None:
    _submit(root, array="0-2000")

    assert Job.objects.count() == 2001


@pytest.mark.django_db
def test_a_quota_with_its_own_figure_of_waiting_jobs_wins(alice: User) -> None:
    Quota.objects.create(user=alice, queued=3000)

    _submit(alice, array="0-2000")
    assert "You may have 3000 waiting" in _says(alice, array="0-2000")


@pytest.mark.django_db
def test_a_quota_without_a_figure_of_waiting_jobs_keeps_the_policys(alice: User) -> None:
    Quota.objects.create(user=alice, gpus=1)
    PolicyValues.objects.create(name="quotas", values={"waiting_jobs": 2})

    assert "You may have 2 waiting" in _says(alice, array="0-2")


@pytest.mark.django_db
def test_a_user_may_use_priority_4_and_an_operator_5(alice: User, root: User) -> None:
    assert _submit(alice, priority=4).priority == 4
    assert "you may use up to 4 (high)" in _says(alice, priority=5)
    assert _submit(root, priority=5).priority == 5


@pytest.mark.django_db
def test_a_quotas_own_highest_priority_wins(alice: User, bob: User) -> None:
    Quota.objects.create(user=alice, priority=5)
    Quota.objects.create(user=bob, priority=2)

    assert _submit(alice, priority=5).priority == 5
    assert "you may use up to 2 (low)" in _says(bob, priority=3)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("highest", "plain", "blocking"), [(None, 3, 4), (5, 3, 4), (3, 3, 3), (1, 1, 1)]
)
def test_a_blocking_job_has_priority_4_as_far_as_the_quota_allows(
    highest: int | None, plain: int, blocking: int, alice: User
) -> None:
    Quota.objects.create(user=alice, priority=highest)

    assert _submit(alice).priority == plain
    assert _submit(alice, blocking=True).priority == blocking
    assert _submit(alice, blocking=True, priority=1).priority == 1
