"""The jobs that would start earlier if an incident ended."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Incident
from scheduler.dispatch.steps.preview import earlier_starts
from scheduler.facts.jobs import Requirement
from scheduler.models import Job
from scheduler.queue.planner import forecasts
from tests import jobs_made
from tests.builders import GIB, gpu, gpu_uuid, process, snapshot
from tests.pages.test_incidents_page import made
from tests.scheduler.jobs.test_job_api import Api

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]
PID = 4_200_001


def full_gpu(*, rest: int = 0) -> Incident:
    """One GPU, which alice's process fills, apart from `rest` bytes of another one of hers."""
    held = [process(PID, on=0, user="alice", memory_bytes=72 * GIB - rest)]
    if rest:
        held.append(process(PID + 1, on=0, user="alice", memory_bytes=rest))
    snapshots.record(snapshot([gpu(0, memory_used_bytes=72 * GIB)], held, at=timezone.now()))
    return made(pid=PID)


def waiting(owner: User, memory_bytes: int = 32 * GIB) -> Job:
    return jobs_made.waiting(owner, requirement=Requirement(memory_bytes=memory_bytes))


def starting_earlier(incident: Incident) -> list[int] | None:
    starts = earlier_starts(incident, timezone.now())
    return None if starts is None else [each.job.pk for each in starts]


def test_a_job_that_waits_for_the_memory_of_the_process_would_start_now(bob: User) -> None:
    incident, job, now = full_gpu(), waiting(bob), timezone.now()

    (start,) = earlier_starts(incident, now) or []

    assert start.job == job
    assert start.before is None
    assert (start.start - now).total_seconds() < 5


def test_only_the_processes_of_the_incident_end(bob: User) -> None:
    incident = full_gpu(rest=50 * GIB)
    waiting(bob)

    assert starting_earlier(incident) == []


def test_a_job_that_starts_anyway_is_not_named(bob: User) -> None:
    incident = full_gpu()
    waiting(bob, memory_bytes=1 * GIB)

    assert starting_earlier(incident) == []


def test_the_forecast_is_made_once_for_several_viewers(
    bob: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    incident, job, now = full_gpu(), waiting(bob), timezone.now()
    earlier_starts(incident, now)
    monkeypatch.setattr(forecasts, "forecast", None)

    (start,) = earlier_starts(incident, now + timedelta(seconds=4)) or []

    assert start.job == job


def test_of_an_incident_of_a_job_nothing_is_known(bob: User) -> None:
    full_gpu()
    waiting(bob)

    assert starting_earlier(made(job_ref="12")) is None


def test_the_page_names_the_job_and_its_starts(alice: User, bob: User, as_user: AsUser) -> None:
    incident, job = full_gpu(), waiting(bob)

    html = as_user(alice).get(f"/incidents/{incident.pk}/without/").content.decode()
    words = " ".join(re.sub("<[^>]+>", " ", html).split())

    assert f"Job {job.pk} {job.name} bob would start now instead of at an unknown time." in words
    assert f'hx-get="/incidents/{incident.pk}/without/"' in (
        as_user(alice).get(f"/incidents/{incident.pk}/").content.decode()
    )


def test_jobs_beyond_the_first_three_are_counted(alice: User, bob: User, as_user: AsUser) -> None:
    incident = full_gpu()
    for _ in range(5):
        waiting(bob, memory_bytes=10 * GIB)

    html = as_user(alice).get(f"/incidents/{incident.pk}/without/").content.decode()

    assert html.count("would start") == 4
    assert "2 more waiting jobs would start earlier." in html


def test_other_users_do_not_read_it(bob: User, as_user: AsUser) -> None:
    incident = full_gpu()

    assert as_user(bob).get(f"/incidents/{incident.pk}/without/").status_code == 403


def test_the_same_pid_on_another_gpu_changes_nothing(bob: User) -> None:
    snapshots.record(snapshot(2, at=timezone.now()))
    full_gpu()
    elsewhere = made(pid=PID, gpu_id=gpu_uuid(1))
    waiting(bob)

    assert starting_earlier(elsewhere) == []


def test_rest_names_the_same_jobs_as_the_page(alice: User, bob: User) -> None:
    incident, job = full_gpu(), waiting(bob)

    status, answer = Api(alice).get(f"/incidents/{incident.pk}/without/")

    assert status == 200
    assert [(each["job"], each["start_now"]) for each in answer["jobs"]] == [(job.pk, None)]
    assert Api(bob).get(f"/incidents/{incident.pk}/without/")[0] == 403


def test_rest_says_of_a_closed_incident_that_it_is_not_known(alice: User) -> None:
    incident = full_gpu()
    Incident.objects.update(closed_at=timezone.now())

    assert Api(alice).get(f"/incidents/{incident.pk}/without/")[1] == {"jobs": None}
