"""Idle GPUs get background jobs from templates, and give them up first."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from time_machine import TimeMachineFixture

from monitor.facts.gpus import GpuState
from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Event
from scheduler.dispatch.inputs import PlanInputs
from scheduler.facts.plans import PlanPolicy
from scheduler.models import IdleChoice, IdleTemplate, Job, Quota
from scheduler.queue.planner.plan import plan
from scheduler.submission.idle_work import pages, step
from scheduler.submission.idle_work.api import bodies
from scheduler.submission.idle_work.step import IdleWork
from tests import jobs_made
from tests.builders import NOW, gpu, gpu_uuid, host, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
IDLE = {"utilization_pct": 1.0, "idle_since": NOW - timedelta(minutes=6), "state": GpuState.IDLE}


def template(owner: User, name: str = "train", **changes: Any) -> IdleTemplate:
    values = {"request": {"command": "python step.py"}, "account": owner, "name": name}
    return IdleTemplate.objects.create(**(values | changes))


def judge(*gpus: Any, at: datetime = NOW, **changes: Any) -> list[str]:
    readings = list(gpus) or [gpu(0, **IDLE)]
    seen = snapshot(readings, at=at, **changes)
    monitor_store.record(seen)
    return IdleWork("gpubox").judge(seen, at)


def test_an_idle_gpu_gets_a_preemptible_background_job_of_the_account(alice: User) -> None:
    template(alice)

    assert judge() == ["train"]

    job = Job.objects.get()
    assert (job.owner, job.priority, job.preemptible) == (alice, 1, True)
    assert (job.idle_template, job.gpu_uuid, job.name) == ("train", gpu_uuid(0), "idle train")
    choice = IdleChoice.objects.get()
    assert (choice.job, choice.candidates[0]["share"], choice.idle_s) == (job.pk, 1.0, 360)
    assert Event.objects.filter(kind="IDLE_WORK_STARTED").count() == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"idle_since": NOW - timedelta(minutes=4)},
        {"state": GpuState.EXTERNAL},
        {"state": GpuState.LLM_READY},
        {"utilization_pct": None, "idle_since": None},
        {"closed": "Paused by olga."},
    ],
)
def test_a_gpu_that_is_not_free_and_idle_gets_none(alice: User, changes: dict[str, Any]) -> None:
    template(alice)

    assert judge(gpu(0, **(IDLE | changes))) == []


def test_waiting_jobs_of_users_come_first(alice: User, bob: User) -> None:
    template(alice)
    job = jobs_made.waiting(bob)
    assert judge() == []

    Job.objects.filter(pk=job.pk).update(blockers=[{"code": "Held", "tier": 1, "text": "held"}])
    assert judge() == ["train"]


def test_jobs_that_wait_for_another_gpu_or_host_do_not_keep_a_gpu_idle(
    alice: User, bob: User
) -> None:
    template(alice, most_running=9)
    job = Job.objects.filter(pk=jobs_made.waiting(bob).pk)
    two = [gpu(index, **IDLE) for index in range(2)]

    job.update(gpu_uuid=gpu_uuid(1))
    assert judge(*two) == ["train"]
    assert Job.objects.get(idle_template="train").gpu_uuid == gpu_uuid(0)
    Job.objects.exclude(idle_template="").delete()
    job.update(gpu_uuid="", host="other")
    assert judge(*two) == ["train", "train"]


def test_items_of_a_batch_with_its_own_gpus_do_not_keep_others_idle(alice: User, bob: User) -> None:
    template(alice)
    Job.objects.filter(pk=jobs_made.waiting(bob).pk).update(exclusive_batch=7)

    assert judge() == ["train"]


def test_a_gpu_gets_one_job_at_a_time_and_a_template_as_many_as_it_may(alice: User) -> None:
    template(alice, most_running=2)
    three = [gpu(index, **IDLE) for index in range(3)]

    assert judge(*three) == ["train", "train"]
    assert judge(*three) == []


def test_the_day_limits_the_starts_of_a_template(alice: User) -> None:
    template(alice, most_running=5, most_per_day=2)

    assert len(judge(*[gpu(index, **IDLE) for index in range(4)])) == 2


def test_a_job_that_finds_its_gpu_in_use_is_cancelled(alice: User) -> None:
    template(alice)
    judge()

    judge(gpu(0), at=NOW + timedelta(seconds=61))

    assert Job.objects.get().outcome == "cancelled"


@pytest.mark.parametrize("counts", [True, False])
def test_a_job_that_has_left_its_gpu_waits_for_it_again(alice: User, counts: bool) -> None:
    job = jobs_made.running(alice)
    Job.objects.filter(pk=job.pk).update(
        idle_template="train", state="queued", requeues=int(counts)
    )

    assert step.cancel_waiting(NOW + timedelta(hours=1), NOW + timedelta(hours=1)) == 0
    assert Job.objects.get().state == "queued"


def test_a_template_of_a_deactivated_user_starts_nothing(alice: User) -> None:
    template(alice)
    User.objects.update(is_active=False)
    assert judge() == []

    User.objects.update(is_active=True)
    assert judge() == ["train"]


def test_many_jobs_that_come_too_late_are_cancelled_in_a_few_statements(alice: User) -> None:
    for name in ("one", "two", "three"):
        Job.objects.filter(pk=jobs_made.waiting(alice).pk).update(idle_template=name)
    late = NOW + timedelta(minutes=2)
    with CaptureQueriesContext(connection) as few:
        assert step.cancel_waiting(late, late) == 3
    for number in range(20):
        Job.objects.filter(pk=jobs_made.waiting(alice).pk).update(idle_template=f"t{number}")
    with CaptureQueriesContext(connection) as many:
        assert step.cancel_waiting(late, late) == 20

    assert len(many) <= len(few)
    assert set(Job.objects.values_list("outcome", flat=True)) == {"cancelled"}


def test_a_template_that_its_account_may_not_run_says_why_and_others_run(
    alice: User, bob: User
) -> None:
    Quota.objects.create(user=alice, gpus=0)
    template(alice, "mine", weight=1000)
    template(bob, "other")

    assert judge() == ["other"]
    assert "your quota allows none" in IdleTemplate.objects.get(name="mine").problem


def test_idle_cpus_get_templates_without_a_gpu(alice: User) -> None:
    template(alice, request={"command": "python step.py", "gpus": 0})
    quiet = host(cpu_pct=1.0, cpu_idle_since=NOW - timedelta(minutes=6))

    assert judge(gpu(0), host=quiet) == ["train"]
    assert Job.objects.get().gpus == 0


def test_a_job_that_waits_for_a_gpu_does_not_keep_idle_cpus_idle(alice: User, bob: User) -> None:
    template(alice, request={"command": "python step.py", "gpus": 0})
    template(alice, "gpu")
    quiet = host(cpu_pct=1.0, cpu_idle_since=NOW - timedelta(minutes=6))
    job = jobs_made.waiting(bob)

    Job.objects.filter(pk=job.pk).update(gpus=0)
    assert judge(gpu(0), host=quiet) == []
    Job.objects.filter(pk=job.pk).update(gpus=1)
    assert judge(host=quiet) == ["train"]


def test_gpus_of_a_batch_in_exclusive_mode_get_none(root: User) -> None:
    from scheduler.models import ExclusiveRun
    from scheduler.submission.batches import rows as batch_rows

    template(root)
    batch = batch_rows.create(root, "x", {"command": "true"}, ["a"], NOW, [])
    ExclusiveRun.objects.filter(pk=batch.pk).update(
        host="gpubox", step="announced", gpu_uuids=[gpu_uuid(0)]
    )

    assert judge() == []


@pytest.mark.parametrize("priority", [1, 3])
def test_idle_work_leaves_at_once_for_a_job_of_any_priority(
    alice: User, bob: User, priority: int
) -> None:
    template(alice)
    judge()
    idle = Job.objects.get()
    jobs_made.place_again(idle)
    job = jobs_made.waiting(bob, priority=priority)
    monitor_store.record(snapshot([gpu(0)]))

    inputs = PlanInputs("gpubox", PlanPolicy())
    given = inputs.given(inputs.queue(NOW), NOW + timedelta(seconds=2))
    made = plan(given.queue, given.slots, given.policy, NOW + timedelta(seconds=2), given.rules)

    assert [(wish.job_id, wish.for_job) for wish in made.preemptions] == [(idle.pk, job.pk)]


def test_signals_are_posted_by_the_account_and_shown_with_the_chance(
    alice: User, bob: User
) -> None:
    template(alice)
    template(alice, "other")

    def post(person: User, body: dict[str, Any]) -> Any:
        client = Client()
        client.force_login(person)
        return client.post(
            "/api/idle-templates/train/signals/", body, content_type="application/json"
        )

    assert post(bob, {"quality": 1}).status_code == 403
    assert post(alice, {}).status_code == 422
    assert post(alice, {"quality": 2}).status_code == 422
    answer = post(alice, {"curriculum_weight": 3}).json()
    assert answer["factors"]["curriculum_weight"] == pytest.approx(3, abs=0.01)
    assert answer["share"] == pytest.approx(0.75, abs=0.01)
    assert post(alice, {"quality": 1}).json()["signals"].keys() == {"curriculum_weight", "quality"}


def test_only_administrators_charge_another_account(alice: User, bob: User, root: User) -> None:
    def add(person: User, **more: Any) -> Any:
        client = Client()
        client.force_login(person)
        body = {"name": "new", "request": {"command": "true"}, **more}
        return client.post("/api/idle-templates/", body, content_type="application/json")

    User.objects.filter(pk=bob.pk).update(is_staff=True)
    assert add(alice).status_code == 403
    assert add(bob, account="alice").json()["errors"][0]["field"] == "account"
    assert add(bob, request={"command": "true", "priority": 5}).status_code == 422
    assert add(root, account="alice").json()["account"] == "alice"
    assert add(root, name="second", account="nobody-here").status_code == 422


def test_the_page_explains_each_choice(alice: User) -> None:
    row = template(alice)
    row.signals = {"quality": {"value": 1.0, "at": NOW.isoformat()}}
    row.save()
    template(alice, "other")
    judge()
    client = Client()
    client.force_login(alice)

    page = client.get("/idle-work/").content.decode()

    assert "train 60 %: weight 1, quality × 1.5" in page
    assert "other 40 %: weight 1, all factors × 1" in page


def test_the_page_names_the_next_template_and_the_reason_in_words(
    alice: User, time_machine: TimeMachineFixture
) -> None:
    time_machine.move_to(NOW, tick=False)
    row = template(alice)
    row.signals = {"data_age_hours": {"value": 192, "at": (NOW - timedelta(days=1)).isoformat()}}
    row.save()
    template(alice, "other", weight=0.5)
    template(alice, "off", enabled=False)
    client = Client()
    client.force_login(alice)

    page = client.get("/idle-work/").content.decode()

    assert "Next: <b>train</b> (80 %), because its data is 9 d old." in page
    assert "<summary>Its data is 9 d old</summary>" in page
    assert "weight 1, data age × 2" in page
    assert "<summary>Its own weight alone</summary>" in page


@pytest.mark.parametrize(
    ("posted", "words"),
    [
        ({"quality": 0.1}, "the quality of its results is low"),
        ({"curriculum_weight": 4, "quality": 0.9},
         "its curriculum weight is high and the quality of its results is high"),
        ({"improvement_velocity": 3}, "it improves fastest"),
        ({"curriculum_weight": 1.01}, ""),
    ],
)  # fmt: skip
def test_posted_signals_are_reasons_in_words(
    posted: dict[str, float], words: str, alice: User
) -> None:
    row = template(alice)
    row.signals = {name: {"value": value, "at": NOW.isoformat()} for name, value in posted.items()}
    row.save()

    (line,) = pages.template_lines(bodies(NOW), NOW)

    assert line.reason == words
