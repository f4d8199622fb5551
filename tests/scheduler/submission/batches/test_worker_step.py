"""The step of batches with workers: the test writes what workers would write."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.test import Client

from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Claim, Event, Gpu
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import RunTime
from scheduler.facts.scripts import Answer, ItemState
from scheduler.jobs.rows import changes
from scheduler.models import Attempt, Batch, ExclusiveRun, Job, ScriptDefinition
from scheduler.runner.clearing import WorkerFiles
from scheduler.submission.batches import policy, rows
from scheduler.submission.batches import step as workers
from scheduler.submission.batches.step import BatchStep
from tests import jobs_made
from tests.builders import NOW, gpu_uuid, queued_job, snapshot

SCHEMA = {"properties": {"file": {"type": "string"}, "size": {"type": "integer", "default": 3}}}


@dataclass(slots=True)
class Box:
    """A host whose workers are written by the test; each step is one of a new process."""

    folder: Path
    second: int = 0

    def step(self) -> None:
        self.second += 1
        specs = cast(SpecWriter, self)
        now = NOW + timedelta(seconds=self.second)
        BatchStep(transaction.atomic, "gpubox", specs).step(now)

    def worker_files(self, batch: int, attempt: Attempt) -> WorkerFiles:
        return WorkerFiles(self.folder)

    def listed(self) -> dict[str, Any]:
        """The list that the workers read."""
        body: dict[str, Any] = json.loads((self.folder / "items.json").read_text())
        return body

    def write(self, item: list[Any], worker: Attempt, **answer: Any) -> None:
        """A worker takes this item of the list or, with an answer, answers it."""
        index, number, _ = item
        body = {"job": worker.job_id, "attempt": worker.number, "began": 100.0, **answer}
        (self.folder / f"{index}.{number}").write_text(json.dumps(body))


@pytest.fixture
def box(tmp_path: Path, db: None) -> Iterator[Box]:
    ScriptDefinition.objects.create(
        name="work", worker=["work", "{size}"], schema=SCHEMA, item_argument="file"
    )
    for index in range(4):
        Gpu.objects.create(
            uuid=gpu_uuid(index), index=index, host="gpubox", name="x",
            first_seen_at=NOW, state_since_at=NOW, last_seen_at=NOW,
        )  # fmt: skip
    return Box(tmp_path)


def submitted(owner: User, count: int, **more: Any) -> Batch:
    client = Client()
    client.force_login(owner)
    body = {"script": "work", "items": [f"item {n}" for n in range(count)], **more}
    answer = client.post("/api/batches/", json.dumps(body), content_type="application/json")
    assert answer.status_code == 201, answer.content
    Batch.objects.update(created_at=NOW - timedelta(seconds=30))
    return Batch.objects.get(pk=answer.json()["id"])


def test_a_forecast_expects_a_waiting_worker_to_run_as_long_as_its_items(
    alice: User, box: Box
) -> None:
    batch = submitted(alice, 41, estimate="10s")
    unknown = submitted(alice, 5)
    box.step()
    usual = RunTime(timedelta(hours=1), timedelta(hours=3))
    waiting = Job.objects.filter(state="queued").order_by("pk")
    queue = [queued_job(job.pk, expected=usual) for job in waiting]

    def expected(batch: Batch) -> set[RunTime | None]:
        jobs, coming = rows.forecast_jobs(queue)
        assert ([job.id for job in jobs], coming) == ([job.id for job in queue], ())
        return {job.expected for job in jobs if str(job.id) in reloaded(batch).workers}

    # 11 items of 10 s by each of 4 workers.
    (run_time,) = expected(batch)
    assert run_time is not None
    assert run_time.p50 == timedelta(seconds=110)
    assert timedelta(seconds=110) < run_time.p90 < timedelta(seconds=110 * 1.3)
    # The items that have ended took longer.
    Batch.objects.filter(pk=batch.pk).update(completed=1, work_s=60.0)
    assert {each.p50 for each in expected(batch) if each} == {timedelta(minutes=10)}
    assert expected(unknown) == {usual}


def started(box: Box, batch: Batch, count: int = 1) -> list[Attempt]:
    """Workers that run, and have items at hand."""
    box.step()
    jobs = Job.objects.filter(worker_batch=batch.pk, state="queued").order_by("pk")[:count]
    attempts = [jobs_made.place_again(job, (n,), NOW) for n, job in enumerate(jobs)]
    Job.objects.filter(pk__in=[job.pk for job in jobs]).update(state="running")
    box.step()
    return attempts


def item(batch: Batch, index: int) -> dict[str, Any]:
    return cast(
        dict[str, Any],
        batch.items.values("status", "attempt", "failures", "result", "error", "job").get(
            index=index
        ),
    )


def reloaded(batch: Batch) -> Batch:
    return Batch.objects.get(pk=batch.pk)


def test_a_batch_has_one_worker_for_each_gpu_and_no_more_than_items(alice: User, box: Box) -> None:
    large, small = submitted(alice, 50), submitted(alice, 2)

    box.step()
    box.step()

    jobs = [Job.objects.filter(worker_batch=batch.pk) for batch in (large, small)]
    assert [own.count() for own in jobs] == [4, 2]
    job = jobs[0][0]
    assert (job.argv, job.script, job.task_type, job.requeue) == (
        ["work", "3"],
        "work",
        "process",
        True,
    )


def test_workers_that_share_gpus_are_on_a_gpu_each(alice: User, box: Box) -> None:
    monitor_store.record(snapshot(4))
    batch = submitted(alice, 50, gpu_memory="1GiB")

    box.step()

    jobs = Job.objects.filter(worker_batch=batch.pk).order_by("pk")
    assert [job.gpu_uuid for job in jobs] == [gpu_uuid(n) for n in range(4)]
    changes.cancel(jobs.filter(gpu_uuid=gpu_uuid(2)), "alice", NOW)
    box.step()
    assert jobs.get(state="queued", gpu_uuid=gpu_uuid(2))


def test_workers_get_the_arguments_and_the_limit_of_each_item(alice: User, box: Box) -> None:
    batch = submitted(alice, 9, script_args={"size": 7}, time_limit="5min", retries=2)

    (worker,) = started(box, batch)

    body = box.listed()
    assert (body["args"], body["time_limit_s"]) == ({"size": 7}, 300.0)
    assert body["items"] == [[n, 1, f"item {n}"] for n in range(4)]
    assert (body["is_over"], body["left"], body["workers"]) == (False, 9, [[worker.job_id, 1]])
    job = Job.objects.get(pk=worker.job_id)
    assert (job.time_limit_s, job.retries) == (None, 0)


def test_an_answer_is_stored_once_and_the_next_item_follows(alice: User, box: Box) -> None:
    batch = submitted(alice, 9)
    (worker,) = started(box, batch)
    first = box.listed()["items"][0]

    box.write(first, worker)
    box.step()
    assert item(batch, 0)["status"] == "running"
    box.write(first, worker, ended=101.5, output={"words": 3})
    for _ in range(3):
        box.step()

    assert item(batch, 0) == {
        "status": "complete", "attempt": 1, "failures": 0, "result": {"words": 3}, "error": "",
        "job": worker.job_id,
    }  # fmt: skip
    row = reloaded(batch)
    assert (row.completed, row.work_s) == (1, 1.5)
    assert Attempt.objects.get(pk=worker.pk).items_completed == 1
    assert Claim.objects.get(job_ref=str(worker.job_id)).tasks_completed == 1
    assert [index for index, *_ in box.listed()["items"]] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("outcome", "status", "failures"),
    [
        ("failed", "queued", 1),
        ("lost", "queued", 0),
        ("preempted", "queued", 0),
        ("cancelled", "failed", 1),
    ],
)
def test_a_worker_that_ends_costs_its_item_a_try_only_if_it_failed(
    alice: User, box: Box, outcome: str, status: str, failures: int
) -> None:
    batch = submitted(alice, 9, retries=1)
    (worker,) = started(box, batch)
    box.write(box.listed()["items"][0], worker)
    box.step()

    jobs_made.end(Job.objects.get(pk=worker.job_id), outcome)
    box.step()

    assert (item(batch, 0)["status"], item(batch, 0)["failures"]) == (status, failures)
    assert item(batch, 1)["status"] == "queued"


def test_an_item_that_a_failed_worker_had_reserved_waits_again_without_a_failure(
    alice: User, box: Box
) -> None:
    batch = submitted(alice, 9)
    (worker,) = started(box, batch)
    box.write(box.listed()["items"][0], worker, began=0)
    box.step()
    assert item(batch, 0)["status"] == "assigned"

    jobs_made.end(Job.objects.get(pk=worker.job_id), "failed")
    box.step()

    assert (item(batch, 0)["status"], item(batch, 0)["failures"]) == ("queued", 0)


def test_an_answer_counts_though_its_worker_was_killed_before_it_was_read(
    alice: User, box: Box
) -> None:
    batch = submitted(alice, 9)
    (worker,) = started(box, batch)
    box.write(box.listed()["items"][0], worker, ended=101.0, output=1)

    jobs_made.end(Job.objects.get(pk=worker.job_id), "failed")
    box.step()

    assert (item(batch, 0)["status"], item(batch, 0)["result"]) == ("complete", 1)


def test_an_answer_to_an_earlier_try_is_not_read(alice: User, box: Box) -> None:
    batch = submitted(alice, 9, retries=1)
    (worker,) = started(box, batch)
    first = box.listed()["items"][0]
    box.write(first, worker, ended=101.0, error="no")
    box.step()
    assert (item(batch, 0)["attempt"], item(batch, 0)["failures"]) == (2, 1)

    box.write(first, worker, ended=102.0, output="late")
    box.step()

    assert item(batch, 0)["status"] == "assigned"


def test_an_item_fails_after_its_retries(alice: User, box: Box) -> None:
    batch = submitted(alice, 9, retries=1)
    (worker,) = started(box, batch)

    for number in (1, 2):
        box.write([0, number, ""], worker, ended=101.0, error="unreadable")
        box.step()

    assert (item(batch, 0)["status"], item(batch, 0)["error"]) == ("failed", "unreadable")
    assert reloaded(batch).failed == 1


def test_three_workers_that_never_load_fail_the_batch_with_the_reason(
    alice: User, box: Box
) -> None:
    batch = submitted(alice, 1)

    for _ in range(3):
        (worker,) = started(box, batch)
        jobs_made.end(Job.objects.get(pk=worker.job_id), "failed", exit_code=3)
    box.step()

    assert reloaded(batch).state == "failed"
    assert f"see the log of job {worker.job_id}" in item(batch, 0)["error"]


def test_workers_that_never_load_fail_a_batch_of_many_items(alice: User, box: Box) -> None:
    batch = submitted(alice, 50)

    for _ in range(3):
        for worker in started(box, batch, 4):
            jobs_made.end(Job.objects.get(pk=worker.job_id), "failed", exit_code=3)
        box.step()

    row = reloaded(batch)
    assert (row.state, row.failed) == ("failed", 50)
    assert not Job.objects.exclude(state="finished").exists()


def test_a_worker_that_has_answered_allows_others_to_fail(alice: User, box: Box) -> None:
    batch = submitted(alice, 50)
    good, *bad = started(box, batch, 4)
    box.write(box.listed()["items"][0], good, ended=101.0, output=1)
    box.step()

    for worker in bad:
        jobs_made.end(Job.objects.get(pk=worker.job_id), "failed", exit_code=3)
    box.step()
    jobs_made.end(Job.objects.get(pk=good.job_id))
    box.step()
    box.step()

    assert reloaded(batch).state == "running"
    assert Job.objects.filter(worker_batch=batch.pk, state="queued").count() == 4


def test_items_of_a_host_that_is_down_wait_again(alice: User, box: Box) -> None:
    batch = submitted(alice, 9)
    (worker,) = started(box, batch)
    batch.items.filter(status="assigned").update(host="lost")
    Attempt.objects.filter(pk=worker.pk).update(
        host="lost", ended_at=NOW, outcome="lost", abandoned=True
    )
    Job.objects.filter(pk=worker.job_id).update(state="queued")

    box.step()

    assert set(batch.items.values_list("status", flat=True)) == {"queued"}


@pytest.mark.parametrize(
    "text",
    [
        "[1",
        "[" * 5000,
        "[]",
        '{"job": "x", "attempt": 1, "began": 1}',
        '{"job": 1, "attempt": 1, "began": NaN, "ended": NaN, "output": 1}',
        '{"job": 1, "attempt": 1, "began": 1, "ended": Infinity, "output": 1}',
        '{"job": 1e999, "attempt": 1, "began": 1}',
    ],
)
def test_a_file_that_makes_no_sense_fails_its_item_alone(alice: User, box: Box, text: str) -> None:
    batch = submitted(alice, 9)
    (worker,) = started(box, batch)
    broken, other, *_ = box.listed()["items"]

    (box.folder / f"{broken[0]}.{broken[1]}").write_text(text)
    box.write(other, worker, ended=101.0, output=1)
    box.step()

    ended = [item(batch, index)["status"] for index in (broken[0], other[0])]
    assert ended == ["failed", "complete"]
    assert item(batch, broken[0])["error"] == "The answer can't be read."
    assert 0 <= reloaded(batch).work_s < 60


def test_an_error_that_cannot_be_stored_is_replaced(alice: User, box: Box) -> None:
    batch = submitted(alice, 9)
    (worker,) = started(box, batch)

    box.write(box.listed()["items"][0], worker, ended=1e308, error="a\0b")
    box.step()

    assert item(batch, 0)["error"] == "Its error has characters that can't be stored."
    assert reloaded(batch).work_s < 60


def test_a_gpu_is_booting_until_its_worker_takes_an_item(alice: User, box: Box) -> None:
    batch = submitted(alice, 9)
    (worker,) = started(box, batch)
    assert Claim.objects.get(job_ref=str(worker.job_id)).phase == "booting"

    box.write(box.listed()["items"][0], worker)
    box.step()

    assert Claim.objects.get(job_ref=str(worker.job_id)).phase == "busy"


def test_events_are_the_start_each_tenth_and_the_end(alice: User, box: Box) -> None:
    batch = submitted(alice, 20)
    (worker,) = started(box, batch)

    while reloaded(batch).state == "running":
        box.write(box.listed()["items"][0], worker, ended=101.0, output=1)
        box.step()

    kinds = [e.kind for e in Event.objects.filter(kind__startswith="BATCH").order_by("pk")]
    assert kinds == ["BATCH_SUBMITTED", "BATCH_STARTED", *["BATCH_PROGRESS"] * 9, "BATCH_ENDED"]


def test_workers_that_still_wait_are_cancelled_when_no_item_is_left(alice: User, box: Box) -> None:
    batch = submitted(alice, 2)
    (worker,) = started(box, batch)

    for entry in box.listed()["items"]:
        box.write(entry, worker, ended=101.0, output=1)
    box.step()

    assert reloaded(batch).state == "complete"
    other = Job.objects.exclude(pk=worker.job_id).get(worker_batch=batch.pk)
    assert (other.outcome, other.cancelled_by) == ("cancelled", "gpucoord")
    assert box.listed()["is_over"] is True


def test_cancelling_a_batch_cancels_its_workers(alice: User, box: Box) -> None:
    batch = submitted(alice, 9)
    (worker,) = started(box, batch)
    client = Client()
    client.force_login(alice)

    client.post(f"/api/batches/{batch.pk}/cancel/")

    states = dict(Job.objects.filter(worker_batch=batch.pk).values_list("pk", "state"))
    assert states.pop(worker.job_id) == "stopping"
    assert set(states.values()) == {"finished"}
    assert set(batch.items.values_list("status", flat=True)) == {"cancelled"}


def test_a_worker_leaves_after_its_turn_while_another_user_waits(
    alice: User, bob: User, box: Box
) -> None:
    batch = submitted(alice, 9)
    (worker,) = started(box, batch)
    Attempt.objects.filter(pk=worker.pk).update(started_at=NOW - timedelta(minutes=11))
    box.step()
    assert box.listed()["leave"] == []

    jobs_made.waiting(bob)
    box.step()

    assert box.listed()["leave"] == [worker.job_id]


def test_a_worker_leaves_when_the_exclusive_mode_is_ended(root: User, box: Box) -> None:
    batch = submitted(root, 9, gpu_mode="exclusive")
    ExclusiveRun.objects.update(step="working", gpu_uuids=[gpu_uuid(0)])
    (worker,) = started(box, batch)
    assert Job.objects.get(pk=worker.job_id).exclusive_batch == batch.pk
    assert (box.listed()["leave"], Job.objects.count()) == ([], 1)

    rows.stop(batch, "root", NOW)
    box.step()

    assert box.listed()["leave"] == [worker.job_id]


def test_a_script_with_a_worker_only_runs_in_batches(alice: User, box: Box) -> None:
    client = Client()
    client.force_login(alice)
    body = {"script": "work", "script_args": {"file": "a"}}

    answer = client.post("/api/jobs/", json.dumps(body), content_type="application/json")

    assert answer.status_code == 422
    assert "submit a batch" in answer.content.decode()


def test_the_folder_of_an_ended_batch_goes(alice: User, box: Box, data: Path) -> None:
    running, ended = submitted(alice, 3), submitted(alice, 3)
    Batch.objects.filter(pk=ended.pk).update(state="complete")
    for batch in (running, ended):
        (data / "jobs" / f"batch-{batch.pk}" / "given").mkdir(parents=True)

    assert workers.clear(data, None) == [ended.pk]
    assert (data / "jobs" / f"batch-{running.pk}").exists()


def test_items_at_hand_last_for_seconds() -> None:
    assert policy.items_at_hand(2, 0, 0.0) == 8
    assert policy.items_at_hand(2, 100, 10.0) == 100
    assert policy.items_at_hand(2, 10, 500.0) == 2
    assert policy.items_at_hand(1, 10**6, 1.0) == policy.MOST_AT_HAND


def test_no_more_workers_are_made_than_can_have_an_item() -> None:
    assert policy.workers_to_make(0, 50, 50, 4, None) == 4
    assert policy.workers_to_make(3, 1, 4, 8, None) == 1
    assert policy.workers_to_make(1, 0, 5, 8, None) == 0
    assert policy.workers_to_make(0, 50, 50, 4, 2) == 2
    assert policy.workers_to_make(6, 50, 50, 4, None) == 0


def test_an_item_that_was_returned_is_no_failure() -> None:
    decision = policy.decide(Answer(job=1, attempt=1, ended=5.0, returned=True), "preempted", 0, 0)

    assert (decision.status, decision.failed) == (ItemState.QUEUED, False)


def test_pages_and_rest_name_the_jobs_of_the_workers(alice: User, box: Box) -> None:
    batch = submitted(alice, 9)
    (worker,) = started(box, batch)
    client = Client()
    client.force_login(alice)

    page = client.get(f"/batches/{batch.pk}/").content.decode()
    scripts = client.get("/scripts/").content.decode()
    body = client.get(f"/api/batches/{batch.pk}/").json()

    assert f'/jobs/{worker.job_id}/">{worker.job_id}</a>' in page
    assert "It runs in batches only." in scripts
    assert worker.job_id in body["workers"]
