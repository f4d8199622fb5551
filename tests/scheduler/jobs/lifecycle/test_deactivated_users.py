from __future__ import annotations

import pytest
from django.contrib.auth.models import User

from scheduler.jobs.rows import changes as job_changes
from scheduler.models import Job
from tests.builders import NOW
from tests.jobs_made import finished, running, waiting

pytestmark = pytest.mark.django_db


def _switch_off(person: User) -> None:
    person.is_active = False
    person.save()


def test_waiting_jobs_of_an_account_that_is_switched_off_are_held(alice: User, bob: User) -> None:
    job, other = waiting(alice), waiting(bob)

    _switch_off(alice)
    job.refresh_from_db()
    other.refresh_from_db()
    assert "the account alice is switched off" in job.held
    assert other.held == ""


def test_jobs_that_run_or_are_over_stay_as_they_are(alice: User) -> None:
    jobs = [running(alice), finished(alice)]

    _switch_off(alice)
    assert not Job.objects.filter(pk__in=[job.pk for job in jobs]).exclude(held="").exists()


def test_only_operators_let_them_go(alice: User, root: User) -> None:
    job = waiting(alice)
    _switch_off(alice)
    alice.is_active = True
    alice.save()
    job.refresh_from_db()

    assert job.held
    assert not job_changes.may_release(job, alice)
    assert job_changes.may_release(job, root)


def test_what_somebody_holds_already_keeps_their_reason(alice: User) -> None:
    job = waiting(alice)
    job_changes.hold_job(job.pk, "alice", NOW, "data is not there yet")

    _switch_off(alice)
    job.refresh_from_db()
    assert "data is not there yet" in job.held


def test_a_login_or_another_change_of_the_account_holds_nothing(alice: User) -> None:
    job = waiting(alice)

    alice.email = "alice@example.org"
    alice.save()
    alice.save(update_fields=["last_login"])
    job.refresh_from_db()
    assert job.held == ""
