"""Jobs that fail quickly in a row hold the further jobs of their program."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from scheduler.jobs.policy import CrashGuard, EndedJob, last_lines, program, quick_series
from scheduler.jobs.rows import changes, relations
from scheduler.models import Job, NotificationSettings
from tests import jobs_made
from tests.builders import NOW
from tests.scheduler.jobs.test_changing import Api

TAIL = b"10%\r50%\rloading\n\nTraceback\nKeyError: 'lr'\n"


@pytest.mark.parametrize(
    ("argv", "same"),
    [
        (["/bin/sh", "-c", "python train.py --lr 1"], ("python", "train.py")),
        (["python", "train.py", "--lr", "2"], ("python", "train.py")),
        (["/bin/bash", "-c", "#!/bin/bash\necho", "/w/a.sh", "x"], ("/bin/bash", "/w/a.sh")),
        (["/bin/sh", "-c", "#!/bin/sh\ntrue", "/w/b.sh"], ("/bin/sh", "/w/b.sh")),
        (["nvidia-smi"], ("nvidia-smi",)),
        ([], ()),
    ],
)
def test_jobs_of_one_program_differ_in_arguments_only(argv: list[str], same: Any) -> None:
    assert program(argv) == same


def ended(number: int, seconds: float, outcome: str = "failed") -> EndedJob:
    return EndedJob(number, outcome, NOW, NOW + timedelta(seconds=seconds))


def test_only_a_whole_series_of_quick_failures_counts() -> None:
    guard = CrashGuard()

    assert quick_series([ended(3, 1), ended(2, 30), ended(1, 5), ended(0, 1)], guard) == [1, 2, 3]
    assert quick_series([ended(3, 1), ended(2, 31), ended(1, 5)], guard) == []
    assert quick_series([ended(3, 1), ended(2, 1, "succeeded"), ended(1, 5)], guard) == []
    assert quick_series([ended(3, 1), ended(2, 1, "cancelled"), ended(1, 5)], guard) == []
    assert quick_series([ended(3, 1), ended(2, 1)], guard) == []


def test_the_end_of_a_log_is_text() -> None:
    assert last_lines(TAIL) == "loading\nTraceback\nKeyError: 'lr'"
    assert last_lines(b"\xff\0" + b"x" * 5000) == "\ufffd" + "x" * 298
    assert len(last_lines(b"line\n" * 500).splitlines()) == 15


def failed(owner: User, seconds: int = 5, **changed: Any) -> Job:
    """A job that has failed so many seconds after its start."""
    job = jobs_made.finished(owner, "failed", exit_code=1, **changed)
    Job.objects.filter(pk=job.pk).update(
        started_at=NOW, ended_at=NOW + timedelta(seconds=seconds), submitted_at=NOW
    )
    job.refresh_from_db()
    return job


@pytest.mark.django_db
def test_the_third_failure_holds_the_rest_until_one_release(alice: User, bob: User) -> None:
    waiting = [jobs_made.waiting(alice) for _ in range(3)]
    others = [jobs_made.waiting(bob), jobs_made.waiting(alice, command="python other.py", name="o")]
    guarded = [failed(alice) for _ in range(3)]
    Job.objects.filter(pk=guarded[-1].pk).update(pause_on_quick_failure=True)
    guarded[-1].refresh_from_db()

    assert relations.hold_alike(guarded[0], TAIL, NOW) == 0
    assert relations.hold_alike(guarded[-1], TAIL, NOW) == 3

    held = Job.objects.filter(held_after=guarded[-1].pk)
    assert {job.pk for job in held} == {job.pk for job in waiting}
    numbers = ", ".join(str(job.pk) for job in guarded)
    assert held[0].held.startswith(f"Jobs {numbers} of the same program failed within 30 s")
    assert "KeyError" not in held[0].held
    assert held[0].held_log.endswith("KeyError: 'lr'")
    assert not Job.objects.filter(pk__in=[job.pk for job in others]).exclude(held="").exists()

    assert changes.release_job(waiting[0].pk, "alice", NOW + timedelta(minutes=1))
    assert not Job.objects.exclude(held="").exists()
    assert not Job.objects.exclude(held_log="").exists()
    # A release begins a new series.
    assert relations.hold_alike(guarded[-1], TAIL, NOW + timedelta(minutes=2)) == 0


@pytest.mark.django_db
def test_an_attempt_that_is_tried_again_holds_nothing(alice: User) -> None:
    NotificationSettings.objects.create(user=alice, pause_on_quick_failure=True)
    for _ in range(3):
        failed(alice)
    tried_again = jobs_made.waiting(alice)

    assert relations.hold_alike(tried_again, TAIL, NOW) == 0
    assert not Job.objects.exclude(held="").exists()


@pytest.mark.django_db
def test_the_setting_of_a_user_has_its_own_numbers(alice: User) -> None:
    NotificationSettings.objects.create(
        user=alice, pause_on_quick_failure=True, quick_failures=1, quick_failure_s=60
    )
    jobs_made.waiting(alice)

    slow = failed(alice, seconds=61)
    assert relations.hold_alike(slow, TAIL, NOW) == 0
    Job.objects.filter(pk=slow.pk).update(ended_at=NOW + timedelta(seconds=60))
    assert relations.hold_alike(slow, TAIL, NOW) == 1


@pytest.mark.django_db
def test_its_owner_sees_the_log_and_others_do_not(
    alice: User, bob: User, client: Client, data: Any
) -> None:
    NotificationSettings.objects.create(user=alice, pause_on_quick_failure=True, quick_failures=1)
    job = jobs_made.waiting(alice)
    last = failed(alice)
    relations.hold_alike(last, TAIL, NOW)

    own, theirs = (
        client.get(f"/api/jobs/{job.pk}/", headers=Api(user).headers).json()
        for user in (alice, bob)
    )
    client.force_login(alice)
    page = client.get(f"/jobs/{job.pk}/").content.decode()

    assert (own["held_after"], own["held_log"].splitlines()[-1]) == (last.pk, "KeyError: 'lr'")
    assert (theirs["held_after"], theirs["held_log"]) == (last.pk, None)
    assert "KeyError" in page
    assert "Release all" in page


@pytest.mark.django_db
def test_users_change_their_crash_guard_by_rest_and_page(
    alice: User, client: Client, data: Any
) -> None:
    body = {"pause_on_quick_failure": True, "quick_failures": 5}
    status, answer = Api(alice).send("put", "/account/notifications/", body)

    assert status == 200
    shown = (answer[name] for name in (*body, "quick_failure_s"))
    assert tuple(shown) == (True, 5, 30)
    client.force_login(alice)
    client.post("/account/notifications/", {"quick_failure_s": "90"})
    row = NotificationSettings.objects.get()
    assert (row.pause_on_quick_failure, row.quick_failures, row.quick_failure_s) == (False, 5, 90)
