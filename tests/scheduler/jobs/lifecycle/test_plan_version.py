from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction

from monitor.gpus.rows import snapshot as monitor_store
from scheduler.dispatch.steps import dispatcher
from scheduler.dispatch.steps.dispatcher import TRIES, Dispatcher
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.facts.plans import Plan, PlanPolicy
from scheduler.jobs.rows import changes as job_queue
from scheduler.jobs.rows import transitions
from scheduler.models import Attempt, Job, PlanVersion, Quota
from scheduler.queue.planner.plan import plan
from tests.builders import NOW, gpu, gpu_uuid, host, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def _host(number: int) -> Dispatcher:
    """A host with the GPU of that number."""
    name = f"host-{number}"
    monitor_store.record(snapshot([gpu(number)], host=host(name=name)))
    return Dispatcher(transaction.atomic, name, PlanPolicy())


def _submit(owner: User, on: int) -> Job:
    """A job for the GPU of that number, and so for its host."""
    request = Requirement(gpus=1, exclusive=True, gpu_uuid=gpu_uuid(on))
    return job_queue.submit(NewJob(command="true", requirement=request), owner, NOW)


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> list[Dispatcher]:
    """These plan and place, one at each time, while another has a plan and not committed it yet."""
    others: list[Dispatcher] = []
    at_work: list[Dispatcher] = []

    def planned(*given: Any) -> Plan:
        made = plan(*given)
        if others and not at_work:
            at_work.append(others.pop())
            at_work[0].step(NOW)
            at_work.clear()
        return made

    monkeypatch.setattr(dispatcher, "plan", planned)
    return others


def test_two_hosts_that_plan_at_once_keep_the_quota_of_each_user(
    alice: User, meanwhile: list[Dispatcher]
) -> None:
    Quota.objects.create(user=alice, gpus=1)
    here, there = _submit(alice, on=0), _submit(alice, on=1)
    meanwhile.append(_host(1))

    assert _host(0).step(NOW) == []
    assert Attempt.objects.get().job_id == there.pk
    here.refresh_from_db()
    assert [blocker["code"] for blocker in here.blockers] == ["UserMaxGpus"]


def test_who_comes_second_places_at_once_what_is_still_allowed(
    alice: User, meanwhile: list[Dispatcher]
) -> None:
    here, there = _submit(alice, on=0), _submit(alice, on=1)
    meanwhile.append(_host(1))

    assert [a.job_id for a in _host(0).step(NOW)] == [here.pk]
    assert set(Attempt.objects.values_list("job_id", flat=True)) == {here.pk, there.pk}


def test_who_is_always_second_leaves_it_to_the_next_step(
    alice: User, meanwhile: list[Dispatcher]
) -> None:
    mine = _submit(alice, on=0)
    for number in range(1, TRIES + 1):
        _submit(alice, on=number)
        meanwhile.append(_host(number))
    slow = _host(0)

    assert slow.step(NOW) == []
    assert [a.job_id for a in slow.step(NOW, has_room=True)] == [mine.pk]


def test_a_turn_is_taken_once() -> None:
    version = transitions.current_version()

    assert transitions.commit_if_current(version, has_placements=True)
    assert not transitions.commit_if_current(version, has_placements=True)
    assert transitions.commit_if_current(transitions.current_version(), has_placements=True)


def test_a_plan_that_only_tells_reasons_leaves_the_turn_to_others() -> None:
    version = transitions.current_version()

    assert transitions.commit_if_current(version, has_placements=False)
    assert transitions.commit_if_current(version, has_placements=True)
    assert not transitions.commit_if_current(version, has_placements=False)


def test_who_is_killed_while_it_commits_has_taken_no_turn() -> None:
    version = transitions.current_version()
    with transaction.atomic():
        transitions.commit_if_current(version, has_placements=True)
        transaction.set_rollback(True)

    assert transitions.commit_if_current(version, has_placements=True)


def test_a_count_that_somebody_deleted_begins_anew() -> None:
    transitions.commit_if_current(transitions.current_version(), has_placements=True)
    PlanVersion.objects.all().delete()

    assert transitions.commit_if_current(transitions.current_version(), has_placements=True)
