from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string

from monitor.gpus.snapshot import rows as snapshots
from scheduler.jobs.live import regions
from scheduler.models import Batch, BatchItem, Job
from tests import jobs_made
from tests.builders import NOW, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def shown() -> str:
    return render_to_string("scheduler/_queue.html", {**regions.load(NOW), "now": NOW})


def test_an_empty_queue_says_what_to_do() -> None:
    snapshots.record(snapshot(1))

    assert "gpucoord submit -- nvidia-smi" in shown()


def test_an_empty_queue_without_gpus_suggests_a_command_that_runs_there() -> None:
    html = shown()

    assert "gpucoord submit --gpus 0 -- hostname" in html
    assert "nvidia-smi" not in html


def test_what_runs_comes_first_then_the_queue_in_its_order(alice: User, bob: User) -> None:
    late, urgent = jobs_made.waiting(alice), jobs_made.waiting(bob, priority=5)
    runs = jobs_made.running(alice)

    queue = regions.load(NOW)["queue"]

    assert [line.id for line in queue.lines] == [runs.pk, urgent.pk, late.pk]
    assert (queue.running, queue.waiting, queue.more) == (1, 2, 0)


def test_the_longest_running_job_is_first_so_that_a_new_one_moves_none(
    alice: User, bob: User
) -> None:
    old = jobs_made.running(alice, priority=2)
    urgent = jobs_made.running(bob, priority=5)
    Job.objects.filter(pk=old.pk).update(started_at=NOW - timedelta(hours=1))

    assert [line.id for line in regions.load(NOW)["queue"].lines] == [old.pk, urgent.pk]


def test_items_of_a_batch_have_no_lines_and_are_counted(alice: User) -> None:
    item, own = jobs_made.running(alice), jobs_made.waiting(alice)
    batch = Batch.objects.create(owner=alice, name="many", total_items=1, created_at=NOW)
    BatchItem.objects.create(batch=batch, index=0, input="a", job=item)

    queue = regions.load(NOW)["queue"]

    assert [line.id for line in queue.lines] == [own.pk]
    assert (queue.running, queue.waiting, queue.more) == (1, 1, 1)
    assert "1 more" in shown()
    Job.objects.filter(pk=own.pk).delete()
    assert "1 job of batches" in shown()


def test_it_counts_what_it_does_not_list(alice: User) -> None:
    for _ in range(regions.MOST_LINES + 3):
        jobs_made.waiting(alice)

    assert regions.load(NOW)["queue"].more == 3
    assert "3 more" in shown()


def test_its_version_changes_when_a_job_does(alice: User) -> None:
    job = jobs_made.waiting(alice)
    before = regions.load(NOW)
    assert regions.load(NOW) == before

    Job.objects.filter(pk=job.pk).update(blockers=[{"code": "X", "text": "Wait."}])
    assert regions.load(NOW) != before


def test_it_shows_no_commands(alice: User) -> None:
    jobs_made.waiting(alice, command="python secret.py", name="x")

    assert "secret" not in shown()


def test_it_is_cheap(alice: User, django_assert_max_num_queries: Callable[[int], object]) -> None:
    for _ in range(4):
        jobs_made.running(alice)

    with django_assert_max_num_queries(4):  # type: ignore[attr-defined]
        regions.load(NOW)
