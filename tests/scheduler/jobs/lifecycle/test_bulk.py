from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User

from monitor.journal.rows import counters
from monitor.models import Event
from scheduler.facts.jobs import Dependency, NewJob, Outcome, Requirement
from scheduler.facts.plans import Placement
from scheduler.jobs.rows import changes as job_changes
from scheduler.jobs.rows import relations, transitions
from scheduler.models import Job
from tests import jobs_made
from tests.builders import NOW

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
LATER = NOW + timedelta(minutes=1)
MANY = 1200


def array_of(owner: User, size: int, **changes: Any) -> Job:
    return jobs_made.waiting(
        owner, array=tuple(range(size)), requirement=Requirement(gpus=0), **changes
    )


def states(array: int) -> dict[tuple[str, str], int]:
    counts: dict[tuple[str, str], int] = {}
    for state in Job.objects.filter(array=array).values_list("state", "outcome"):
        counts[state] = counts.get(state, 0) + 1
    return counts


def events() -> list[tuple[str, str, str]]:
    return list(Event.objects.order_by("id").values_list("kind", "job_ref", "owner"))[1:]


def test_cancelling_an_array_takes_a_few_statements_and_one_event(
    alice: User, django_assert_max_num_queries: Any
) -> None:
    first = array_of(alice, MANY)
    transitions.place(Placement(job_id=first.pk, host="gpubox"), "b007", NOW)

    with django_assert_max_num_queries(30):
        assert job_changes.cancel(relations.array_jobs(first.pk), "alice", LATER) == MANY

    assert states(first.pk) == {("finished", "cancelled"): MANY - 1, ("stopping", ""): 1}
    assert events() == [("JOB_FINISHED", str(first.pk), "alice")]
    (counter,) = counters.of(counters.FINISHED_JOBS)
    assert (counter.subject, counter.value) == ("cancelled", MANY - 1)
    job = Job.objects.filter(array=first.pk).latest("id")
    assert (job.cancelled_by, job.ended_at, job.cancel_requested_at) == ("alice", LATER, LATER)
    assert job_changes.cancel(relations.array_jobs(first.pk), "alice", LATER) == 0


def test_holding_and_releasing_an_array_takes_a_few_statements_and_an_event_each(
    alice: User, django_assert_max_num_queries: Any
) -> None:
    first = array_of(alice, MANY)
    jobs = relations.array_jobs(first.pk)

    with django_assert_max_num_queries(15):
        assert job_changes.hold(jobs, "alice", NOW, "no data.") == MANY
    assert jobs.filter(held="alice holds it until it is released: no data.").count() == MANY
    assert job_changes.hold(jobs, "alice", NOW) == 0

    with django_assert_max_num_queries(15):
        assert job_changes.release(jobs, "alice", LATER) == MANY
    assert jobs.filter(held="", held_by="", released_at=LATER).count() == MANY
    assert events() == [
        ("JOB_HELD", str(first.pk), "alice"),
        ("JOB_RELEASED", str(first.pk), "alice"),
    ]


def test_skipping_the_dependents_of_an_array_takes_a_few_statements(
    alice: User, bob: User, django_assert_max_num_queries: Any
) -> None:
    first = array_of(alice, 600)
    after = (Dependency(on=first.pk),)
    dependent = array_of(bob, MANY, after=after)
    last = jobs_made.waiting(alice, after=(Dependency(on=dependent.pk),))

    with django_assert_max_num_queries(60):
        job_changes.cancel(relations.array_jobs(first.pk), "alice", LATER)

    assert states(dependent.pk) == {("finished", "skipped"): MANY}
    last.refresh_from_db()
    assert last.outcome == Outcome.SKIPPED
    assert last.problem.startswith("It depends on the success of job ")
    kinds = [(kind, owner) for kind, _, owner in events()]
    assert kinds.count(("JOB_FINISHED", "bob")) == 1
    assert kinds.count(("JOB_FINISHED", "alice")) == 2


def test_an_array_that_waits_for_a_long_ended_array_is_submitted_in_a_few_statements(
    alice: User, django_assert_max_num_queries: Any
) -> None:
    first = array_of(alice, 600)
    job_changes.cancel(relations.array_jobs(first.pk), "alice", LATER)
    new = NewJob(command="true", after=(Dependency(on=first.pk),))

    with django_assert_max_num_queries(30):
        job = job_changes.submit(new, alice, LATER)

    job.refresh_from_db()
    assert job.outcome == Outcome.SKIPPED


def test_jobs_of_several_users_share_one_event_without_an_owner(alice: User, bob: User) -> None:
    for owner in (alice, bob):
        jobs_made.waiting(owner)

    assert job_changes.cancel(Job.objects.all(), "root", LATER) == 2
    event = Event.objects.latest("id")
    assert (event.text, event.job_ref, event.owner) == ("root cancelled 2 jobs", "", "")


def test_only_the_selected_jobs_change(alice: User) -> None:
    one, other = jobs_made.waiting(alice), jobs_made.waiting(alice)

    assert job_changes.cancel(Job.objects.filter(pk=one.pk), "alice", LATER) == 1
    other.refresh_from_db()
    assert other.state == "queued"
