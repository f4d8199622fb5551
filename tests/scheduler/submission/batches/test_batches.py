from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.files.uploadedfile import SimpleUploadedFile
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from gpucoord_site.cli.batch import UnreadableInput, items_of
from monitor.models import Event
from scheduler.facts.jobs import Requirement, RunTime
from scheduler.facts.plans import PlanPolicy, Slots
from scheduler.facts.scripts import MOST_ITEMS
from scheduler.models import Batch, Job, Quota, ScriptDefinition
from scheduler.queue.planner.forecasts import forecast
from scheduler.submission.batches import rows
from scheduler.submission.batches.policy import Pace, coming, expected_end, jobs_to_make
from scheduler.submission.batches.step import BatchStep
from tests import jobs_made
from tests.builders import NOW, queued_job, slot
from tests.processes.scheduling import Scheduler

HOUR = timedelta(hours=1)
COMMAND = {"command": 'test "$GPUCOORD_ITEM" != bad', "gpus": 0}


def pace(**changes: Any) -> Pace:
    facts = {"queued": 100, "waiting": 0, "running": 0, "ended": 0, "work_s": 0.0}
    return Pace(**(facts | changes))


def logged_in(person: User) -> Client:
    client = Client()
    client.force_login(person)
    return client


def post(person: User, path: str, body: dict[str, Any] | None = None) -> Any:
    text = json.dumps(body) if body is not None else None
    more: dict[str, Any] = {"content_type": "application/json"} if text else {}
    return logged_in(person).post(path, text, **more)


def submitted(person: User, items: list[str], **more: Any) -> Batch:
    work = {} if "script" in more else COMMAND
    answer = post(person, "/api/batches/", {**work, "items": items, **more})
    assert answer.status_code == 201, answer.content
    return Batch.objects.get(pk=answer.json()["id"])


def step(second: int = 0) -> int:
    """One pass of a new process, that knows nothing but rows."""
    return BatchStep(transaction.atomic, "gpubox").step(NOW + timedelta(seconds=second))


def end_all(outcome: str = "succeeded", **ending: Any) -> int:
    """Run all waiting jobs to this end."""
    jobs = list(Job.objects.filter(state="queued").order_by("id"))
    for job in jobs:
        jobs_made.place_again(job, on=())
        jobs_made.end(job, outcome, **ending)
    return len(jobs)


def test_a_few_jobs_wait_and_the_other_items_stay_items() -> None:
    assert jobs_to_make(pace(), 3, None) == 5
    assert jobs_to_make(pace(waiting=5), 3, None) == 0
    assert jobs_to_make(pace(waiting=3), 3, None) == 2
    assert jobs_to_make(pace(), 1000, None) == 64
    assert jobs_to_make(pace(queued=1), 3, None) == 1
    assert jobs_to_make(pace(), 3, 2) == 2


def test_the_end_follows_from_the_mean_run_time() -> None:
    now = NOW

    assert expected_end(pace(queued=118, waiting=1, running=2, ended=4, work_s=180), now) == (
        now + timedelta(seconds=120 * 45 / 2)
    )
    assert expected_end(pace(running=2), now) is None
    assert expected_end(pace(ended=4, work_s=180), now) is None


@given(items=st.integers(1, 5000), most=st.integers(1, 200))
def test_the_jobs_that_stand_for_queued_items_take_as_long_as_these(items: int, most: int) -> None:
    each = RunTime(timedelta(seconds=5), timedelta(seconds=7))
    like = queued_job(7, expected=each)

    jobs = coming(like, items, most, count(8))

    assert len(jobs) == min(items, most)
    assert sum((job.expected.p50 for job in jobs if job.expected), timedelta()) == items * each.p50
    assert len({job.id for job in jobs}) == len(jobs)


@pytest.mark.parametrize("days", [3650, 365_000])
def test_items_that_would_run_for_ages_break_no_forecast(days: int) -> None:
    ages, alone = timedelta(days=days), Requirement(exclusive=True)
    like = queued_job(2, requirement=alone, expected=RunTime(ages, ages))
    short = queued_job(1, requirement=alone, expected=RunTime(HOUR, HOUR), priority=5)
    jobs = tuple(coming(like, MOST_ITEMS, 200, count(8)))
    slots = Slots(host="gpubox", gpus=(slot(0), slot(1)), coming=jobs)

    assert forecast([short, like], slots, PlanPolicy(), NOW)[1].p50 == NOW


@pytest.mark.django_db
def test_a_forecast_knows_the_items_that_are_no_jobs_yet(alice: User) -> None:
    submitted(alice, [f"item {n}" for n in range(10)])
    submitted(alice, [f"long {n}" for n in range(1000)])
    submitted(alice, ["one"])
    step()
    queue = [queued_job(pk) for pk in Job.objects.values_list("pk", flat=True)]

    found = rows.coming_jobs(queue)

    # 6 of 10 items, and 100 jobs for 996 of 1000.
    assert len(found) == 6 + 100
    assert not {job.id for job in found} & {job.id for job in queue}
    assert rows.coming_jobs([]) == ()


@pytest.mark.django_db
def test_items_become_jobs_step_by_step_until_all_have_ended(alice: User) -> None:
    batch, jobs = submitted(alice, [f"item {n}" for n in range(10)]), 0
    for second in range(20):
        assert Job.objects.filter(state="queued").count() <= 4
        step(second)
        jobs += end_all()
    step(30)

    batch.refresh_from_db()
    assert (jobs, batch.completed, batch.failed, batch.state) == (10, 10, 0, "complete")
    assert list(batch.items.values_list("attempt", flat=True)) == [1] * 10


@pytest.mark.django_db
def test_each_job_gets_its_item(alice: User) -> None:
    submitted(alice, ["a b", "$(x)"])
    step()

    found = [(job.env["GPUCOORD_ITEM"], job.env["GPUCOORD_ITEM_INDEX"]) for job in
             Job.objects.order_by("id")]  # fmt: skip
    assert found == [("a b", "0"), ("$(x)", "1")]


@pytest.mark.django_db
def test_an_item_is_the_argument_of_a_script(alice: User) -> None:
    schema = {"properties": {"file": {"type": "string", "pattern": "^/"}, "n": {"type": "integer"}}}
    ScriptDefinition.objects.create(
        name="run", argv=["run", "{file}", "{n}"], schema=schema, gpu="no", item_argument="file"
    )
    body = {"script": "run", "script_args": {"n": 3}}

    wrong = post(alice, "/api/batches/", body | {"items": ["/a", "b"]})
    assert [(e["field"], e["index"]) for e in wrong.json()["errors"]] == [("items", 1)]
    assert post(alice, "/api/batches/", body | {"items": ["/a", "/b"]}).status_code == 201
    step()

    assert [job.argv for job in Job.objects.order_by("id")] == [
        ["run", "/a", "3"], ["run", "/b", "3"],
    ]  # fmt: skip


@pytest.mark.django_db
def test_failed_items_can_be_retried(alice: User) -> None:
    batch = submitted(alice, ["one", "two"])
    step()
    end_all("failed", exit_code=7)
    step(1)
    batch.refresh_from_db()
    assert (batch.failed, batch.state) == (2, "failed")
    assert batch.items.first().error == "failed: exit code 7"  # type: ignore[union-attr]

    answer = post(alice, f"/api/batches/{batch.pk}/retry-failed/").json()
    assert (answer["retried"], answer["state"]) == (2, "running")
    step(2)
    end_all()
    step(3)

    batch.refresh_from_db()
    assert (batch.completed, batch.failed, batch.state) == (2, 0, "complete")
    assert set(batch.items.values_list("attempt", flat=True)) == {2}


@pytest.mark.django_db
def test_items_of_a_deactivated_user_wait(alice: User) -> None:
    batch = submitted(alice, ["a", "b"])
    alice.is_active = False
    alice.save()

    assert [step(second) for second in range(3)] == [0, 0, 0]

    alice.is_active = True
    alice.save()
    assert step(3) == 2
    assert Batch.objects.get(pk=batch.pk).state == "running"


def test_cancelling_takes_one_statement_for_all_items(alice: User) -> None:
    batch = submitted(alice, [str(n) for n in range(500)])
    step()
    with CaptureQueriesContext(
        connection,
    ) as asked:
        assert rows.cancel(batch, "alice", NOW) == 500

    updates = [q for q in asked.captured_queries if 'UPDATE "scheduler_batchitem"' in q["sql"]]
    assert len(updates) == 1
    assert set(batch.items.values_list("status", flat=True)) == {"cancelled"}
    assert set(Job.objects.values_list("outcome", flat=True)) == {"cancelled"}
    assert post(alice, f"/api/batches/{batch.pk}/cancel/").json()["cancelled"] == 0
    assert step(1) == 0


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"command": "x", "items": []}, "items"),
        ({"command": "x", "items": ["a", ""]}, "items"),
        ({"command": "x", "items": ["a\nb"]}, "items"),
        ({"items": ["a"]}, "command"),
        ({"script": "none", "items": ["a"]}, "script"),
        ({"command": "x", "items": ["a"], "array": "0-3"}, "array"),
        ({"command": "x", "items": ["a"], "gpu_memory": "much"}, "gpu_memory"),
    ],
)
def test_a_wrong_batch_is_refused_as_a_whole(alice: User, body: dict[str, Any], field: str) -> None:
    answer = post(alice, "/api/batches/", body)

    assert answer.status_code == 422
    assert {error["field"] for error in answer.json()["errors"]} == {field}
    assert not Batch.objects.exists()


@pytest.mark.django_db
def test_a_million_items_are_refused_with_a_reason(alice: User) -> None:
    too_many = post(alice, "/api/batches/", {"command": "x", "items": ["1"] * (MOST_ITEMS + 1)})
    assert too_many.status_code == 422
    assert f"at most {MOST_ITEMS} items" in too_many.json()["errors"][0]["message"]
    assert post(alice, "/api/batches/", {"command": "x", "items": ["1"] * 10**6}).status_code in (
        413, 422,
    )  # fmt: skip


@pytest.mark.django_db
def test_the_queue_of_the_owner_has_room_for_so_many_only(alice: User) -> None:
    Quota.objects.create(user=alice, queued=3)
    submitted(alice, [str(n) for n in range(10)])

    assert step() == 3
    assert step(1) == 0


@pytest.mark.django_db
def test_batches_that_wait_cost_no_statement_each(alice: User) -> None:
    Quota.objects.create(user=alice, queued=3)
    for _ in range(20):
        submitted(alice, [str(n) for n in range(10)])
    step()

    with CaptureQueriesContext(connection) as asked:
        assert step(1) == 0

    assert len(asked) <= 6


@pytest.mark.django_db
def test_of_many_items_only_those_that_are_wrong_fail(alice: User) -> None:
    schema = {"properties": {"file": {"type": "string"}}}
    script = ScriptDefinition.objects.create(
        name="run", argv=["run", "{file}"], schema=schema, gpu="no", item_argument="file"
    )
    batch = submitted(alice, ["a", "b1", "c"], script="run")
    # The script has become stricter since.
    script.schema = {"properties": {"file": {"type": "string", "pattern": "^[a-z]$"}}}
    script.save()

    assert (step(), step(1)) == (0, 2)

    statuses = dict(batch.items.values_list("input", "status"))
    assert statuses == {"a": "assigned", "b1": "failed", "c": "assigned"}
    assert "script_args.file: 'b1' does not match" in batch.items.get(input="b1").error


@pytest.mark.django_db
def test_an_item_has_a_small_result_and_names_the_job_of_a_large_one(alice: User) -> None:
    batch = submitted(alice, ["one", "two"])
    step()
    small, large = (item.job for item in batch.items.order_by("index"))
    assert small is not None
    assert large is not None
    end_all()
    Job.objects.filter(pk=small.pk).update(result={"output": {"words": 3}})
    Job.objects.filter(pk=large.pk).update(result={"output": "x" * 9000})

    step(1)

    first, second = batch.items.order_by("index")
    assert first.result == {"words": 3}
    assert second.result == {"problem": "The result is larger than 8192 bytes; see the job."}


@pytest.mark.django_db
def test_ten_thousand_items_are_submitted_and_shown_quickly(alice: User) -> None:
    items = [f"/data/recordings/{n:05d}.wav" for n in range(10_000)]
    began = time.process_time()
    batch = submitted(alice, items)
    submitted_s = time.process_time() - began
    client = logged_in(alice)
    client.get(f"/batches/{batch.pk}/")
    began = time.process_time()
    page = client.get(f"/batches/{batch.pk}/")
    shown_s = time.process_time() - began

    assert page.status_code == 200
    print(f"submit {submitted_s:.2f} s, page {shown_s * 1000:.0f} ms")  # noqa: T201
    assert submitted_s < 6
    assert shown_s < 0.6


@pytest.mark.django_db
def test_only_its_owner_and_operators_see_the_items(alice: User, bob: User, root: User) -> None:
    batch = submitted(alice, ["secret.wav"])

    for person, sees in ((alice, True), (bob, False), (root, True)):
        client = logged_in(person)
        page = client.get(f"/batches/{batch.pk}/").content.decode()
        answer = client.get(f"/api/batches/{batch.pk}/items/")
        assert ("secret.wav" in page, answer.status_code == 200) == (sees, sees)
        assert client.get(f"/api/batches/{batch.pk}/").json()["total_items"] == 1
    assert logged_in(bob).post(f"/batches/{batch.pk}/cancel/").status_code == 403


@pytest.mark.django_db
def test_the_form_submits_lines_and_keeps_what_was_wrong(alice: User) -> None:
    client = logged_in(alice)
    wrong = client.post("/batches/", {"items": "a\nb"})
    assert wrong.status_code == 422
    assert "Say what to run" in wrong.content.decode()

    done = client.post("/batches/", {"items": "a\n\nb", "command": "true", "gpus": "0"})

    batch = Batch.objects.get()
    assert (done.status_code, batch.total_items) == (302, 2)
    assert f"/batches/{batch.pk}/" in client.get("/batches/").content.decode()


@pytest.mark.django_db
def test_the_form_takes_a_file_with_an_item_in_each_line(alice: User) -> None:
    file = SimpleUploadedFile("items.txt", b"/data/a.wav\n\n/data/b.wav\r\n")

    values = {"items": "/data/first.wav", "file": file, "command": "true", "gpus": "0"}
    answer = logged_in(alice).post("/batches/", values)

    assert answer.status_code == 302, answer.content
    items = list(Batch.objects.get().items.order_by("index").values_list("input", flat=True))
    assert items == ["/data/first.wav", "/data/a.wav", "/data/b.wav"]


@pytest.mark.django_db
def test_one_broken_batch_does_not_stop_the_others(
    alice: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, good = submitted(alice, ["a"]), submitted(alice, ["b"])
    settle = rows.settle

    def failing(batch: Batch, now: datetime) -> int:
        if batch.pk == broken.pk:
            raise ValueError("odd row")
        return settle(batch, now)

    monkeypatch.setattr(rows, "settle", failing)

    assert step() == 1
    assert good.items.get().job is not None
    assert broken.items.get().job is None


def test_the_command_line_finds_items_in_folders_patterns_and_lists(tmp_path: Path) -> None:
    for name in ("b.wav", "a.wav", "c.mp3"):
        (tmp_path / name).touch()
    texts, numbers = tmp_path / "list.txt", tmp_path / "list.json"
    texts.write_text("one\n\ntwo\n")
    numbers.write_text('["x", 5]')

    assert items_of([f"{tmp_path}/*.wav"]) == [f"{tmp_path}/a.wav", f"{tmp_path}/b.wav"]
    assert len(items_of([str(tmp_path)])) == 5
    assert items_of([str(texts), str(numbers)]) == ["one", "two", "x", "5"]
    with pytest.raises(UnreadableInput):
        items_of([f"{tmp_path}/*.flac"])


@pytest.fixture
def scheduler(data: Path) -> Iterator[Scheduler]:
    scheduler = Scheduler()
    yield scheduler
    scheduler.close()


@pytest.mark.processes
@pytest.mark.django_db(transaction=True)
def test_a_batch_runs_through_restarts_of_the_scheduler(scheduler: Scheduler, root: User) -> None:
    batch = submitted(root, ["one", "bad", "three", "four", "five", "six"])
    for _ in range(3):
        scheduler.step()
        scheduler.restart()

    def is_over() -> bool:
        batch.refresh_from_db()
        return batch.state != "running"

    scheduler.run_until(is_over, within_s=30)

    assert (batch.completed, batch.failed, batch.state) == (5, 1, "failed")
    assert batch.items.get(status="failed").input == "bad"
    assert Job.objects.count() == 6


@pytest.mark.django_db
def test_the_owner_and_operators_end_the_exclusive_mode_by_rest(
    alice: User, bob: User, root: User
) -> None:
    Quota.objects.create(user=alice, exclusive_batches=True)
    batch = submitted(alice, ["one"], gpus=1, gpu_mode="exclusive")

    assert logged_in(alice).get(f"/api/batches/{batch.pk}/").json()["exclusive"]["step"] == (
        "waiting"
    )
    assert post(bob, f"/api/batches/{batch.pk}/share/").status_code == 403
    assert post(root, f"/api/batches/{batch.pk}/share/").json()["gpu_mode"] == "shared"
    body = logged_in(alice).get(f"/api/batches/{batch.pk}/").json()
    assert body["exclusive"]["stopped_by"] == "root"
    other = submitted(alice, ["one"], gpus=1, gpu_mode="exclusive")
    assert post(alice, f"/api/batches/{other.pk}/share/").json()["gpu_mode"] == "shared"


@pytest.mark.django_db
def test_a_user_without_a_gpu_of_their_share_asks_for_exclusive_mode(
    alice: User, bob: User, root: User
) -> None:
    def page(person: User, path: str) -> str:
        return logged_in(person).get(path).content.decode()

    assert "so an operator must approve it" in page(alice, "/batches/")
    assert "operator must approve" not in page(root, "/batches/")
    batch = submitted(alice, ["one"], gpus=1, gpu_mode="exclusive")
    path, request = f"/batches/{batch.pk}/", "Requests for exclusive mode"

    assert request in page(alice, "/batches/")
    assert request in page(root, "/batches/")
    assert request not in page(bob, "/batches/")
    assert "Withdraw" in page(alice, path)
    assert "Approve" in page(root, path)
    assert "alice asks for exclusive mode" in page(bob, path)
    assert logged_in(alice).post(f"{path}approve/").status_code == 403
    assert logged_in(root).post(f"{path}approve/").status_code == 302
    body = logged_in(bob).get(f"/api/batches/{batch.pk}/").json()["exclusive"]
    assert (body["approval"], body["approved_by"]) == ("approved", "root")
    assert request not in page(root, "/batches/")
    texts = list(Event.objects.filter(kind="BATCH_EXCLUSIVE").values_list("text", flat=True))
    assert len(texts) == 2


@pytest.mark.django_db
def test_a_request_that_was_withdrawn_is_not_approved(alice: User, root: User) -> None:
    batch = submitted(alice, ["one"], gpus=1, gpu_mode="exclusive")
    post(alice, f"/api/batches/{batch.pk}/share/")

    body = post(root, f"/api/batches/{batch.pk}/approve-exclusive/").json()

    assert (body["gpu_mode"], body["exclusive"]["approval"]) == ("shared", "asked")


@pytest.mark.django_db
def test_unknown_gpus_and_impossible_modes_name_their_field(root: User) -> None:
    def wrong(person: User, **more: Any) -> list[tuple[str, str]]:
        answer = post(person, "/api/batches/", {"command": "true", "items": ["a"], **more})
        assert answer.status_code == 422
        return [(error["field"], error["message"]) for error in answer.json()["errors"]]

    assert wrong(root, gpu_mode="exclusive", only_gpus=["77"])[0] == (
        "only_gpus", "There is no GPU 77.",
    )  # fmt: skip
    assert "without a GPU" in wrong(root, gpu_mode="exclusive", gpus=0)[0][1]
