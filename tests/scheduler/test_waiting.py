from __future__ import annotations

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from monitor.models import Event
from scheduler import dependencies, holding, store, transitions, waiting
from scheduler.jobs import After, Dependency, Manners, NewJob, Outcome, Requirement
from scheduler.models import Job, JobDependency
from scheduler.models.jobs import conditional
from scheduler.plans import Placement
from tests import jobs_made
from tests.builders import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def _codes() -> dict[int, list[str]]:
    return {job: [one.code for one in found] for job, found in waiting.load(NOW).items()}


def _chain(alice: User, on: Job, after: After = After.SUCCESS) -> Job:
    return jobs_made.waiting(alice, after=(Dependency(on=on.pk, after=after),))


def _state(job: Job) -> tuple[str, str]:
    job.refresh_from_db()
    return job.state, job.outcome


def test_ordinary_jobs_cost_one_look_at_an_empty_index(alice: User) -> None:
    jobs_made.waiting(alice)
    with CaptureQueriesContext(connection) as asked:
        assert waiting.load(NOW) == {}

    assert len(asked) == 1
    looked = Job.objects.filter(conditional(), state="queued").values_list("id")
    if connection.vendor == "sqlite":
        assert "job_conditional" in looked.explain()


def test_everything_that_was_asked_for_is_kept(alice: User) -> None:
    asked = Requirement(
        gpus=2, capability=(8, 0), model="A100", power=1.5, gpu_uuid="GPU-1", share_pct=30
    )
    manners = Manners(
        preemptible=True,
        requeue=True,
        yield_signal="SIGUSR1",
        grace=timedelta(minutes=2),
        retries=3,
    )
    begin = NOW + timedelta(hours=1)
    job = jobs_made.waiting(alice, requirement=asked, manners=manners, begin_at=begin)

    found = Job.objects.filter(pk=job.pk)
    assert found.values_list("gpus", "capability", "gpu_model", "power", "gpu_uuid", "share_pct")[
        0
    ] == (2, "8.0", "A100", 1.5, "GPU-1", 30)
    assert found.values_list("preemptible", "requeue", "yield_signal", "grace_s", "retries")[0] == (
        True,
        True,
        "SIGUSR1",
        120,
        3,
    )
    assert _codes() == {job.pk: ["BeginTime"]}


def test_an_array_becomes_a_job_for_each_index(alice: User) -> None:
    first = jobs_made.waiting(alice, array=(0, 2, 4), array_limit=1)

    jobs = Job.objects.order_by("id")
    assert [(job.array, job.array_index) for job in jobs] == [
        (first.pk, 0),
        (first.pk, 2),
        (first.pk, 4),
    ]
    assert list(_codes()) == [job.pk for job in jobs[1:]]
    assert Event.objects.get().text.startswith(f"alice submitted array {first.pk} of 3 jobs")


def test_a_place_of_an_array_counts_until_its_job_ends(alice: User) -> None:
    jobs_made.waiting(alice, array=(0, 1), array_limit=1, requirement=Requirement(gpus=0))
    first, second = Job.objects.order_by("id")
    transitions.place(Placement(job_id=first.pk, host="gpubox"), "b007", NOW)
    assert list(_codes()) == [second.pk]

    jobs_made.end(first)
    assert _codes() == {}


def test_a_job_waits_for_the_success_of_another(alice: User) -> None:
    on = jobs_made.running(alice)
    job = _chain(alice, on)
    assert _codes() == {job.pk: ["Dependency"]}

    jobs_made.end(on)
    assert _codes() == {}
    assert _state(job) == ("queued", "")


def test_what_can_never_start_is_skipped_and_what_waits_for_it_too(alice: User) -> None:
    on = jobs_made.running(alice)
    job = _chain(alice, on)
    last = _chain(alice, job)
    jobs_made.end(on, "failed", exit_code=1)

    assert _state(job) == _state(last) == ("finished", "skipped")
    assert job.problem == f"It was to start after the success of job {on.pk}, which failed."
    assert f"job {job.pk}, which was skipped itself" in last.problem


def test_after_the_end_any_end_will_do(alice: User) -> None:
    on = jobs_made.running(alice)
    job = _chain(alice, on, After.END)
    jobs_made.end(on, "failed", exit_code=1)

    assert _codes() == {}
    assert _state(job) == ("queued", "")


def test_cancelling_a_waiting_job_skips_who_waits_for_it(alice: User) -> None:
    on = jobs_made.waiting(alice)
    job = _chain(alice, on)
    store.request_cancel(on.pk, "alice", NOW)

    assert _state(job) == ("finished", "skipped")


def test_a_dependency_that_failed_before_is_told_and_skipped(alice: User) -> None:
    on = jobs_made.finished(alice, "failed", exit_code=1)
    (text,) = dependencies.problems((Dependency(on=on.pk),))
    assert text == f"Job {on.pk} failed: it can't succeed any more."
    assert dependencies.problems((Dependency(on=999),)) == ("There is no job 999.",)
    assert dependencies.problems((Dependency(on=on.pk, after=After.END),)) == ()

    assert _state(_chain(alice, on)) == ("finished", Outcome.SKIPPED)


def test_the_same_job_twice_is_one_dependency(alice: User) -> None:
    on = jobs_made.running(alice)
    after = (Dependency(on=on.pk), Dependency(on=on.pk, after=After.END))
    store.submit(NewJob(command="true", after=after), alice, NOW)

    assert JobDependency.objects.get().after == "success"


def test_a_held_job_waits_for_a_person(alice: User, bob: User) -> None:
    job = jobs_made.waiting(alice)
    assert holding.hold(job.pk, "alice", NOW, "the data is not there yet")
    assert not holding.hold(job.pk, "alice", NOW)
    (blocker,) = waiting.load(NOW)[job.pk]
    assert blocker.text == "alice holds it until it is released: the data is not there yet."

    job.refresh_from_db()
    assert holding.may_release(job, alice)
    assert not holding.may_release(job, bob)
    assert holding.release(job.pk, "alice", NOW)
    assert not holding.release(job.pk, "alice", NOW)
    assert _codes() == {}
    assert list(Event.objects.order_by("id").values_list("kind", flat=True))[1:] == [
        "JOB_HELD",
        "JOB_RELEASED",
    ]


def test_what_an_operator_holds_its_owner_cannot_release(alice: User, root: User) -> None:
    job = jobs_made.waiting(alice)
    holding.hold(job.pk, root.username, NOW)
    job.refresh_from_db()

    assert not holding.may_release(job, alice)
    assert holding.may_release(job, root)


def test_a_started_job_can_not_be_held(alice: User) -> None:
    assert not holding.hold(jobs_made.running(alice).pk, "alice", NOW)


def test_who_names_an_array_waits_for_all_of_it(alice: User) -> None:
    first = jobs_made.waiting(alice, array=(0, 1))
    second = Job.objects.get(array_index=1)
    after_all = _chain(alice, first)
    after_one = _chain(alice, second)
    for job in (first, second):
        assert _codes()[after_all.pk] == ["Dependency"]
        jobs_made.place_again(job)
        jobs_made.end(job)

    assert _codes() == {}
    assert _state(after_all) == _state(after_one) == ("queued", "")


def test_one_failure_in_an_array_skips_who_waits_for_its_success(alice: User) -> None:
    first = jobs_made.waiting(alice, array=(0, 1))
    second = Job.objects.get(array_index=1)
    after_all, after_end = _chain(alice, first), _chain(alice, first, After.END)
    after_first = jobs_made.waiting(alice, after=(Dependency(on=second.pk),))
    store.request_cancel(second.pk, "alice", NOW)

    assert _state(after_all) == _state(after_first) == ("finished", "skipped")
    assert after_all.problem.endswith(f"job {second.pk}, which was cancelled.")
    assert _codes() == {after_end.pk: ["Dependency"]}
    assert dependencies.problems((Dependency(on=first.pk),)) == (
        f"Job {second.pk} was cancelled: it can't succeed any more.",
    )
    assert _state(_chain(alice, first)) == ("finished", "skipped")
