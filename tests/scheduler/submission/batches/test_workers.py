"""Batches that a worker answers, with real jobs of the scheduler's pass."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from scheduler.models import Attempt, Batch, Job, ScriptDefinition, YieldRequest
from scheduler.runner.programs import worker
from scheduler.submission.batches import policy
from tests.processes.attempts import wait_for
from tests.processes.scheduling import Scheduler, attempt_of, kill_runner_of, log_of
from tests.scheduler.submission.batches import worker_program

pytestmark = [pytest.mark.processes, pytest.mark.django_db(transaction=True)]
SCHEMA = {
    "properties": {"file": {"type": "string"}, "size": {"type": "integer", "default": 3}},
    "required": ["file"],
}


@pytest.fixture
def scheduler(data: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler()
    yield scheduler
    scheduler.close()


@pytest.fixture
def marks(tmp_path: Path) -> Path:
    """The file in which the registered worker notes its work."""
    marks = tmp_path / "marks"
    program = [sys.executable, worker_program.__file__, str(marks)]
    ScriptDefinition.objects.create(
        name="work", worker=program, schema=SCHEMA, gpu="optional", item_argument="file"
    )
    return marks


def submitted(owner: User, items: list[str], **more: Any) -> Batch:
    client = Client()
    client.force_login(owner)
    body = {"script": "work", "items": items, "gpus": 0, **more}
    answer = client.post("/api/batches/", json.dumps(body), content_type="application/json")
    assert answer.status_code == 201, answer.content
    return Batch.objects.get(pk=answer.json()["id"])


def run(scheduler: Scheduler, batch: Batch, within_s: float = 30) -> Batch:
    scheduler.run_until(lambda: reloaded(batch).state != "running", within_s=within_s)
    return reloaded(batch)


def reloaded(batch: Batch) -> Batch:
    return Batch.objects.get(pk=batch.pk)


def statuses(batch: Batch) -> dict[str, str]:
    return dict(batch.items.values_list("input", "status"))


def workers_of(batch: Batch) -> list[Job]:
    return list(Job.objects.filter(worker_batch=batch.pk).order_by("pk"))


def test_workers_load_once_and_answer_all_items(
    scheduler: Scheduler, root: User, marks: Path
) -> None:
    batch = submitted(root, [f"item {number}" for number in range(40)], script_args={"size": 5})

    ended = run(scheduler, batch)

    assert (ended.state, ended.completed) == ("complete", 40)
    lines = Counter(line.partition(" ")[0] for line in marks.read_text().splitlines())
    assert lines.pop("loaded") == len([job for job in workers_of(batch) if job.started_at]) <= 4
    assert lines == {str(index): 1 for index in range(40)}
    item = batch.items.get(index=17)
    assert item.result == {"item": "item 17", "size": 5}
    assert item.job is not None
    assert "a line for the log" in log_of(item.job)
    scheduler.run_until(lambda: {job.state for job in workers_of(batch)} == {"finished"})


def test_an_item_fails_alone(scheduler: Scheduler, root: User, marks: Path) -> None:
    batch = submitted(root, ["a", "fail", "b", "die", "c"])

    ended = run(scheduler, batch)

    assert (ended.state, ended.completed, ended.failed) == ("failed", 3, 2)
    errors = dict(batch.items.exclude(error="").values_list("input", "error"))
    assert errors == {
        "fail": "no such recording",
        "die": "The worker ended with exit code 7.",
    }


def test_an_item_over_its_time_limit_fails_and_the_worker_loads_again(
    scheduler: Scheduler, root: User, marks: Path
) -> None:
    batch = submitted(root, ["hang", "a"], time_limit="2s")

    ended = run(scheduler, batch)

    assert (ended.completed, ended.failed) == (1, 1)
    assert batch.items.get(input="hang").error == "It took longer than its time limit of 2 s."


def test_a_worker_that_never_reads_its_input_is_stopped_at_the_time_limit(tmp_path: Path) -> None:
    listed = {
        "workers": [[1, 1]],
        "items": [[0, 1, "x" * 200_000]],
        "args": {},
        "time_limit_s": 0.5,
    }
    (tmp_path / "items.json").write_text(json.dumps(listed))
    deaf = "import time; print('{\"ready\": true}', flush=True); time.sleep(600)"
    feeder = subprocess.Popen(
        [sys.executable, "-I", worker.__file__, tmp_path, "--", sys.executable, "-c", deaf],
        env={"GPUCOORD_JOB_ID": "1", "GPUCOORD_ATTEMPT": "1"},
    )

    try:
        wait_for(lambda: "error" in read(tmp_path / "0.1"), within_s=30)
    finally:
        feeder.terminate()
        feeder.wait()

    answer = json.loads(read(tmp_path / "0.1"))
    assert answer["error"] == "It took longer than its time limit of 0.5 s."


def test_a_worker_reserves_its_next_item_but_returns_it_while_the_current_one_takes_long(
    tmp_path: Path,
) -> None:
    items = [[index, 1, text] for index, text in enumerate(("a", "half", "b", "c"))]
    listed = {"workers": [[1, 1]], "items": items, "args": {}}
    (tmp_path / "items.json").write_text(json.dumps(listed))
    program = [sys.executable, worker_program.__file__, tmp_path / "marks"]
    feeder = subprocess.Popen(
        [sys.executable, "-I", worker.__file__, tmp_path, "--", *program],
        env={"GPUCOORD_JOB_ID": "1", "GPUCOORD_ATTEMPT": "1"},
    )

    try:
        wait_for(lambda: "returned" in read(tmp_path / "2.1"))
    finally:
        feeder.terminate()
        feeder.wait()

    assert json.loads(read(tmp_path / "2.1"))["began"] == 0
    assert json.loads(read(tmp_path / "1.1"))["returned"]
    assert not (tmp_path / "3.1").exists()


def test_an_item_is_tried_again_as_often_as_the_batch_allows(
    scheduler: Scheduler, root: User, marks: Path
) -> None:
    batch = submitted(root, ["die"], retries=2)

    run(scheduler, batch)

    item = batch.items.get()
    assert (item.status, item.failures) == ("failed", 3)
    assert marks.read_text().count("0 die") == 3


def test_a_worker_that_never_loads_fails_the_batch(
    scheduler: Scheduler, root: User, marks: Path
) -> None:
    ScriptDefinition.objects.filter(name="work").update(worker=["sh", "-c", "echo no; exit 3"])
    batch = submitted(root, ["a"])

    ended = run(scheduler, batch)

    last = workers_of(batch)[-1]
    assert (ended.state, len(workers_of(batch)), last.exit_code) == ("failed", 3, 3)
    assert f"the log of job {last.pk}" in batch.items.get().error
    assert log_of(last) == "no\n"


def test_a_cancelled_batch_ends_its_workers(scheduler: Scheduler, root: User, marks: Path) -> None:
    batch = submitted(root, ["half", "a"])
    scheduler.run_until(lambda: "half" in read(marks))
    client = Client()
    client.force_login(root)

    client.post(f"/api/batches/{batch.pk}/cancel/")

    scheduler.run_until(lambda: {job.state for job in workers_of(batch)} == {"finished"})
    assert statuses(batch)["half"] == "cancelled"


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_worker_that_is_asked_to_leave_returns_its_item_and_starts_again(
    scheduler: Scheduler, root: User, marks: Path
) -> None:
    batch = submitted(root, ["half"])
    scheduler.run_until(lambda: "half" in read(marks))
    (job,) = workers_of(batch)
    first = attempt_of(job)
    ask_to_yield(first, within_s=1.0)
    scheduler.run_until(lambda: Attempt.objects.get(pk=first.pk).ended_at is not None)
    marks.with_name("marks.go").touch()

    ended = run(scheduler, batch)

    item = batch.items.get()
    assert (ended.state, item.failures) == ("complete", 0)
    assert marks.read_text().count("0 half") == 2
    assert [job.requeues for job in workers_of(batch)] == [1]


def test_a_worker_that_is_lost_again_after_an_item_starts_again_at_once(
    scheduler: Scheduler, root: User, marks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "MOST_WITHOUT_GPU", 1)
    batch = submitted(root, ["half", "hang"])
    scheduler.run_until(lambda: "half" in read(marks))
    (job,) = workers_of(batch)
    kill_runner_of(job)
    marks.with_name("marks.go").touch()
    scheduler.run_until(lambda: attempt_of(job).number == 2 and attempt_of(job).pid)
    wait_for(lambda: "hang" in read(marks), within_s=30)
    kill_runner_of(job)

    scheduler.run_until(lambda: attempt_of(job).number == 3)


def ask_to_yield(attempt: Attempt, within_s: float) -> None:
    now = timezone.now()
    YieldRequest.objects.create(
        attempt=attempt, kind=YieldRequest.Kind.EVICTION, code="OWNER_PRESENT", text="leave",
        asked_at=now, deadline=now + timedelta(seconds=within_s),
    )  # fmt: skip


def test_an_object_of_python_is_a_worker(scheduler: Scheduler, root: User, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "class Length:\n"
        "    def load(self): self.unit = 'letters'\n"
        "    def run(self, item, args):\n"
        "        print('this goes into the log')\n"
        "        yield 0.5\n"
        "        return {self.unit: len(item) // args['by']}\n"
    )
    ScriptDefinition.objects.create(
        name="work", worker=["{python}", "{programs}/serve.py", "mine:Length"], gpu="no",
        schema={"properties": {"by": {"type": "integer"}}},
    )  # fmt: skip
    items, cwd = ["abcdef"], str(tmp_path)
    batch = submitted(root, items, script_args={"by": 2}, cwd=cwd)
    wrong = submitted(root, items, script_args={"by": 0}, cwd=cwd)

    assert run(scheduler, batch).state == "complete"
    assert batch.items.get().result == {"letters": 3}
    assert run(scheduler, wrong).state == "failed"
    assert wrong.items.get().error.startswith("ZeroDivisionError")
    (job,) = workers_of(batch)
    assert "this goes into the log" in log_of(job)
