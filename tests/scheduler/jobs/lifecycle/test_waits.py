from __future__ import annotations

import random
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test.utils import CaptureQueriesContext

from monitor.models import Event
from scheduler.facts.jobs import (
    Dependency,
    DependencyKind,
    NewJob,
    Outcome,
    Requirement,
    YieldOptions,
)
from scheduler.facts.plans import Placement
from scheduler.jobs.rows import changes as job_changes
from scheduler.jobs.rows import durations, relations, transitions
from scheduler.jobs.rows.relations import UnmetDependencies
from scheduler.models import Job, JobDependency
from scheduler.models.jobs import conditional
from scheduler.queue.wording import text
from tests import jobs_made
from tests.builders import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def _codes() -> dict[int, list[str]]:
    return {job: [one.code for one in waits] for job, waits in durations.load(NOW).items()}


def _chain(alice: User, on: Job, after: DependencyKind = DependencyKind.SUCCESS) -> Job:
    return jobs_made.waiting(alice, after=(Dependency(on=on.pk, after=after),))


def _state(job: Job) -> tuple[str, str]:
    job.refresh_from_db()
    return job.state, job.outcome


def test_ordinary_jobs_cost_one_look_at_an_empty_index(alice: User) -> None:
    jobs_made.waiting(alice)
    with CaptureQueriesContext(connection) as queries:
        assert durations.load(NOW) == {}

    assert len(queries) == 1
    looked = Job.objects.filter(conditional(), state="queued").values_list("id")
    if connection.vendor == "sqlite":
        assert "job_conditional" in looked.explain()


def test_everything_that_was_asked_for_is_kept(alice: User) -> None:
    request = Requirement(
        gpus=2, capability=(8, 0), model="A100", power=1.5, gpu_uuid="GPU-1", share_pct=30
    )
    options = YieldOptions(
        preemptible=True,
        requeue=True,
        yield_signal="SIGUSR1",
        grace=timedelta(minutes=2),
        retries=3,
    )
    begin = NOW + timedelta(hours=1)
    job = jobs_made.waiting(alice, requirement=request, yield_options=options, begin_at=begin)

    jobs = Job.objects.filter(pk=job.pk)
    assert jobs.values_list("gpus", "capability", "gpu_model", "power", "gpu_uuid", "share_pct")[
        0
    ] == (2, "8.0", "A100", 1.5, "GPU-1", 30)
    assert jobs.values_list("preemptible", "requeue", "yield_signal", "grace_s", "retries")[0] == (
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
    assert job.problem == f"It depends on the success of job {on.pk}, which failed."
    assert f"job {job.pk}, which was skipped itself" in last.problem


def test_after_the_end_any_end_will_do(alice: User) -> None:
    on = jobs_made.running(alice)
    job = _chain(alice, on, DependencyKind.END)
    jobs_made.end(on, "failed", exit_code=1)

    assert _codes() == {}
    assert _state(job) == ("queued", "")


def test_cancelling_a_waiting_job_skips_who_waits_for_it(alice: User) -> None:
    on = jobs_made.waiting(alice)
    job = _chain(alice, on)
    job_changes.request_cancel(on.pk, "alice", NOW)

    assert _state(job) == ("finished", "skipped")


def test_a_dependency_that_failed_before_is_told_and_skipped(alice: User) -> None:
    on = jobs_made.finished(alice, "failed", exit_code=1)
    ((text,),) = relations.dependency_problems([[Dependency(on=on.pk)]])
    assert text == f"Job {on.pk} failed: it can't succeed any more."
    assert relations.dependency_problems([[Dependency(on=999)]]) == [("There is no job 999.",)]
    assert relations.dependency_problems([[Dependency(on=on.pk, after=DependencyKind.END)]]) == [()]

    assert _state(_chain(alice, on)) == ("finished", Outcome.SKIPPED)


def test_the_same_job_twice_is_one_dependency(alice: User) -> None:
    on = jobs_made.running(alice)
    after = (Dependency(on=on.pk), Dependency(on=on.pk, after=DependencyKind.END))
    job_changes.submit(NewJob(command="true", after=after), alice, NOW)

    assert JobDependency.objects.get().after == "success"


def test_a_held_job_waits_for_a_person(alice: User, bob: User) -> None:
    job = jobs_made.waiting(alice)
    assert job_changes.hold_job(job.pk, "alice", NOW, "the data is not there yet")
    assert not job_changes.hold_job(job.pk, "alice", NOW)
    (blocker,) = durations.load(NOW)[job.pk]
    assert text(blocker) == "alice holds it until it is released: the data is not there yet."

    job.refresh_from_db()
    assert job_changes.may_release(job, alice)
    assert not job_changes.may_release(job, bob)
    assert job_changes.release_job(job.pk, "alice", NOW)
    assert not job_changes.release_job(job.pk, "alice", NOW)
    assert _codes() == {}
    assert list(Event.objects.order_by("id").values_list("kind", flat=True))[1:] == [
        "JOB_HELD",
        "JOB_RELEASED",
    ]


def test_what_an_operator_holds_its_owner_cannot_release(alice: User, root: User) -> None:
    job = jobs_made.waiting(alice)
    job_changes.hold_job(job.pk, root.username, NOW)
    job.refresh_from_db()

    assert not job_changes.may_release(job, alice)
    assert job_changes.may_release(job, root)


def test_a_started_job_can_not_be_held(alice: User) -> None:
    assert not job_changes.hold_job(jobs_made.running(alice).pk, "alice", NOW)


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
    after_all, after_end = _chain(alice, first), _chain(alice, first, DependencyKind.END)
    after_first = jobs_made.waiting(alice, after=(Dependency(on=second.pk),))
    job_changes.request_cancel(second.pk, "alice", NOW)

    assert _state(after_all) == _state(after_first) == ("finished", "skipped")
    assert after_all.problem.endswith(f"job {second.pk}, which was cancelled.")
    assert _codes() == {after_end.pk: ["Dependency"]}
    assert relations.dependency_problems([[Dependency(on=first.pk)]]) == [
        (f"Job {second.pk} was cancelled: it can't succeed any more.",)
    ]
    assert _state(_chain(alice, first)) == ("finished", "skipped")


@pytest.mark.parametrize("seed", range(4))
def test_dependencies_kept_from_pass_to_pass_are_those_in_the_rows(alice: User, seed: int) -> None:
    chance, kept = random.Random(seed), UnmetDependencies()
    jobs: list[Job] = []

    def submit() -> None:
        after = tuple(
            Dependency(on=job.array or job.pk, after=chance.choice(list(DependencyKind)))
            for job in chance.sample(jobs, min(len(jobs), chance.randint(1, 4)))
            if job.outcome in ("", "succeeded") and not job.array
        )
        array = chance.choice([(), (), (0, 1)])
        first = jobs_made.waiting(alice, after=after, array=array, requirement=Requirement(gpus=0))
        jobs.extend(Job.objects.filter(array=first.pk) if array else [first])

    def end() -> None:
        ready = [job for job in jobs if job.state == "queued" and job.pk not in durations.load(NOW)]
        for job in ready[:1]:
            jobs_made.place_again(job, on=())
            jobs_made.end(job, chance.choice(["succeeded", "succeeded", "failed"]))

    def delete() -> None:
        for job in [job for job in jobs if job.state == "finished"][:1]:
            Job.objects.filter(pk=job.pk).delete()
            jobs.remove(job)

    changed = 0
    for _ in range(40):
        chance.choice([submit, submit, submit, end, end, delete])()
        for job in jobs:
            job.refresh_from_db()
        fresh = durations.load(NOW)
        assert durations.load(NOW, unmet=kept) == fresh
        changed += len(fresh)
    assert changed > 20


def test_only_dependencies_of_new_jobs_are_read_again(alice: User) -> None:
    kept, first = UnmetDependencies(), jobs_made.waiting(alice)
    _chain(alice, first)
    durations.load(NOW, unmet=kept)

    with CaptureQueriesContext(connection) as queries:
        durations.load(NOW, unmet=kept)
    assert not [query for query in queries if "scheduler_jobdependency" in query["sql"]]

    new = _chain(alice, first)
    assert new.pk in durations.load(NOW, unmet=kept)


def test_a_dependency_of_an_unknown_kind_keeps_only_its_own_job_waiting(alice: User) -> None:
    first = jobs_made.waiting(alice)
    odd, other = _chain(alice, first), _chain(alice, first)
    JobDependency.objects.filter(job=odd).update(after="odd")

    assert _codes() == {odd.pk: ["JobUnclear"], other.pk: ["Dependency"]}
