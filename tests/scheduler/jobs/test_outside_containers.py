from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor.facts.readings import OwnerSource, ProcessReading
from monitor.gpus.rows import snapshot as snapshots
from scheduler.jobs.pages.detail import OutsideContainer, outside
from tests import jobs_made
from tests.builders import gpu_uuid, process, snapshot

DOCKER = "docker 0123456789ab"


def found(*processes: ProcessReading) -> list[OutsideContainer]:
    return outside(snapshot(2, processes), "7", "alice", [gpu_uuid(0)])


def contained(on: int = 0, **changes: Any) -> ProcessReading:
    return process(on=on, container=DOCKER, owner_source=OwnerSource.MOUNT, **changes)


def test_a_container_of_the_owner_on_the_job_s_gpu_is_outside_of_it() -> None:
    assert found(contained()) == [OutsideContainer(DOCKER, (0,), is_labelled=False)]


def test_a_container_with_the_job_s_label_is_named_on_each_gpu() -> None:
    first, second = (contained(on, job_ref="7", job_owner="alice") for on in (1, 0))

    assert found(first, second) == [OutsideContainer(DOCKER, (0, 1), is_labelled=True)]


@pytest.mark.parametrize(
    "other",
    [
        process(),
        contained(on=1),
        contained(user="bob"),
        contained(user=None),
        contained(job_ref="8", job_owner="alice"),
        process(container=DOCKER, owner_source=OwnerSource.JOB, job_ref="7"),
    ],
    ids=["no container", "other GPU", "other user", "unknown user", "other job", "inside"],
)
def test_other_processes_are_no_containers_outside_of_the_job(other: ProcessReading) -> None:
    assert found(other) == []


@pytest.mark.django_db
@pytest.mark.usefixtures("data")
def test_the_page_of_the_job_names_the_container(
    alice: User, as_user: Callable[[User], Client]
) -> None:
    snapshots.record(snapshot(1, [contained()]))
    job = jobs_made.running(alice)
    page = as_user(alice).get(f"/jobs/{job.pk}/").text
    jobs_made.end(job)
    ended = as_user(alice).get(f"/jobs/{job.pk}/").text

    assert DOCKER in page
    assert "runs outside of the job" in page
    assert DOCKER not in ended
