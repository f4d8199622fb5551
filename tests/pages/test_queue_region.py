from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.template.loader import render_to_string
from msgspec.structs import replace

from monitor.gpus.rows import snapshot as snapshots
from scheduler.jobs.pages import table
from scheduler.models import Batch, BatchItem, Job
from tests import jobs_made
from tests.builders import NOW, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


def shown() -> str:
    return render_to_string("scheduler/_queue.html", {**table.load(NOW), "now": NOW})


def test_an_empty_queue_says_what_to_do() -> None:
    assert "gpucoord submit -- echo Hello from a job" in shown()


@pytest.mark.parametrize(
    ("gpus", "line"),
    [(1, "gpucoord submit -- nvidia-smi -L"), (0, "gpucoord submit --gpus 0 -- hostname")],
)
def test_it_suggests_a_command_that_runs_on_this_server(
    gpus: int, line: str, settings: Any
) -> None:
    settings.CONFIG = replace(settings.CONFIG, probe="nvml")
    snapshots.record(snapshot(gpus))

    assert line in shown()


def test_what_runs_comes_first_then_the_queue_in_its_order(alice: User, bob: User) -> None:
    late, urgent = jobs_made.waiting(alice), jobs_made.waiting(bob, priority=5)
    runs = jobs_made.running(alice)

    queue = table.load(NOW)["queue"]

    assert [line.id for line in queue.lines] == [runs.pk, urgent.pk, late.pk]
    assert queue.running == 1
    assert table.load(NOW)["waiting_jobs"] == 2


def test_the_longest_running_job_is_first_so_that_a_new_one_moves_none(
    alice: User, bob: User
) -> None:
    old = jobs_made.running(alice, priority=2)
    urgent = jobs_made.running(bob, priority=5)
    Job.objects.filter(pk=old.pk).update(started_at=NOW - timedelta(hours=1))

    assert [line.id for line in table.load(NOW)["queue"].lines] == [old.pk, urgent.pk]


def test_a_running_batch_is_one_line_with_its_progress(alice: User) -> None:
    item, own = jobs_made.running(alice), jobs_made.waiting(alice)
    batch = Batch.objects.create(
        owner=alice, name="whisper", total_items=125, completed=38, failed=2, created_at=NOW
    )
    BatchItem.objects.create(batch=batch, index=0, input="a", job=item)

    queue = table.load(NOW)["queue"]
    [group] = queue.groups
    html = shown()

    assert [line.id for line in queue.lines] == [own.pk]
    assert (group.owner, group.ended, group.total, group.failed) == ("alice", 40, 125, 2)
    assert f'href="/batches/{batch.pk}/" title="whisper">whisper</a>' in html
    assert "<b>40</b> of 125, 2 failed" in html


def test_an_array_is_one_line_while_a_job_of_it_is_open(alice: User) -> None:
    first, second = jobs_made.running(alice, name="sweep"), jobs_made.waiting(alice, name="sweep")
    ended = jobs_made.finished(alice, "failed")
    array = Job.objects.filter(pk__in=[first.pk, second.pk, ended.pk])
    array.update(array=first.pk)
    queue = table.load(NOW)["queue"]

    assert queue.lines == ()
    assert [(g.name, g.ended, g.total, g.failed) for g in queue.groups] == [("sweep", 1, 3, 1)]
    array.update(state="finished", outcome="succeeded", ended_at=NOW)
    assert table.load(NOW)["queue"].groups == ()


def test_work_beyond_the_first_lines_is_shown_to_its_owner_only(alice: User, bob: User) -> None:
    for _ in range(table.MOST_LINES + 1):
        jobs_made.waiting(alice)
    late = [jobs_made.waiting(bob).pk for _ in range(table.OWN_LINES + 1)]

    queue = table.load(NOW)["queue"]

    assert len(queue.lines) == table.MOST_LINES
    assert [line.id for line in queue.own] == late[:-1]
    assert shown().count('data-owners="bob" class="only-own"') == table.OWN_LINES


def test_its_version_changes_when_a_job_does(alice: User) -> None:
    job = jobs_made.waiting(alice)
    before = table.load(NOW)
    assert table.load(NOW) == before

    Job.objects.filter(pk=job.pk).update(blockers=[{"code": "X", "text": "Wait."}])
    assert table.load(NOW) != before


def test_it_shows_no_commands(alice: User) -> None:
    jobs_made.waiting(alice, command="python secret.py", name="x")

    assert "secret" not in shown()


def test_it_is_cheap(alice: User, django_assert_max_num_queries: Callable[[int], object]) -> None:
    for _ in range(4):
        jobs_made.running(alice)

    with django_assert_max_num_queries(6):  # type: ignore[attr-defined]
        table.load(NOW)
