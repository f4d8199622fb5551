from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from monitor import store as monitor_store
from scheduler import store
from scheduler.jobs import Dependency, Manners, NewJob, Requirement
from scheduler.models import Job
from tests import jobs_made
from tests.builders import GIB, NOW, snapshot

pytestmark = pytest.mark.django_db
AsUser = Callable[[User], Client]


def page(browser: Client, job: Job) -> str:
    response = browser.get(f"/jobs/{job.pk}/")
    assert response.status_code == 200
    return response.content.decode()


def test_it_says_why_a_job_waits(alice: User, data: Path, as_user: AsUser) -> None:
    job = jobs_made.waiting(alice)
    reasons = [
        {"code": "GpuMemory", "text": "No GPU has 20 GiB free.", "tier": 5, "requested": "20 GiB"},
        {"code": "UserMaxGpus", "text": "You have 2 of 2 GPUs.", "tier": 3, "available": "0 of 2"},
    ]
    Job.objects.filter(pk=job.pk).update(blockers=reasons)

    html = page(as_user(alice), job)

    assert "No GPU has 20 GiB free." in html
    assert html.index("my limits") < html.index("You have 2 of 2 GPUs.")
    assert html.index("0 of 2") < html.index("others are there") < html.index("20 GiB free")
    assert "asked 20 GiB" in html


def test_it_says_where_a_job_runs(alice: User, data: Path, as_user: AsUser) -> None:
    monitor_store.record(snapshot(2))
    job = jobs_made.running(alice, on=(1,))

    html = page(as_user(alice), job)

    assert ">GPU 1</a>" in html
    assert "<dt>Account</dt><dd>nobody</dd>" in html


@pytest.mark.parametrize(
    ("outcome", "ending", "says"),
    [
        ("succeeded", {}, ["succeeded", "after 2 min"]),
        ("failed", {"exit_code": 7}, ["failed", "exit code 7"]),
        ("failed", {"exit_code": None, "signal": 9}, ["ended by SIGKILL (signal 9)"]),
        ("failed", {"exit_code": None, "signal": 64}, ["ended by SIGRTMAX (signal 64)"]),
        ("lost", {"exit_code": None}, ["lost", "nobody can tell how it ended"]),
        ("succeeded", {"cpu_s": 90.0, "peak_memory_bytes": GIB}, ["1 min", "1.00 GiB"]),
        ("failed", {"problem": "/srv does not exist."}, ["/srv does not exist."]),
    ],
)
def test_it_says_how_a_job_ended(
    alice: User,
    data: Path,
    as_user: AsUser,
    outcome: str,
    ending: dict[str, object],
    says: list[str],
) -> None:
    html = page(as_user(alice), jobs_made.finished(alice, outcome, **ending))

    assert [text for text in says if text not in html] == []


def test_it_says_who_cancelled(alice: User, data: Path, as_user: AsUser) -> None:
    job = jobs_made.waiting(alice)
    as_user(alice).post(f"/jobs/{job.pk}/cancel/")

    html = page(as_user(alice), job)

    assert "by alice" in html
    assert "before it started" in html


def test_it_shows_the_end_of_the_log_as_text(alice: User, data: Path, as_user: AsUser) -> None:
    job = jobs_made.running(alice)
    jobs_made.write_log(data, job, b"x" * 100_000 + b"\n<script>alert(1)</script>\x1b[31mred\xff")

    html = page(as_user(alice), job)

    assert "&lt;script&gt;alert(1)&lt;/script&gt;red\ufffd" in html
    assert "left out here" in html
    assert html.count("x" * 65_000) == 1
    assert "x" * 66_000 not in html
    assert 'data-to="100' in html


def test_variables_are_named_and_never_shown(alice: User, data: Path, as_user: AsUser) -> None:
    job = jobs_made.waiting(alice, env={"API_KEY": "s3cret"})

    html = page(as_user(alice), job)

    assert "<code>API_KEY</code>" in html
    assert "s3cret" not in html


def test_a_stranger_sees_neither_command_nor_log(
    alice: User, bob: User, data: Path, as_user: AsUser
) -> None:
    job = jobs_made.running(
        alice, command="run veiled", name="try", env={"VEILED": "1"}, cwd="/veiled"
    )
    jobs_made.write_log(data, job, b"veiled")
    Job.objects.filter(pk=job.pk).update(problem="/veiled is gone")

    html = page(as_user(bob), job)

    assert "veiled" not in html.lower()
    assert "Only alice and operators" in html
    assert f"/jobs/{job.pk}/cancel/" not in html


def test_an_operator_sees_all(alice: User, root: User, data: Path, as_user: AsUser) -> None:
    job = jobs_made.running(alice, command="run this")

    html = page(as_user(root), job)

    assert "run this" in html
    assert f"/jobs/{job.pk}/cancel/" in html


def test_an_argv_is_shown_as_one_would_type_it(alice: User, data: Path, as_user: AsUser) -> None:
    job = jobs_made.waiting(alice, command="", argv=("echo", "a b"))

    assert "echo &#x27;a b&#x27;" in page(as_user(alice), job)


def test_without_scripts_it_reloads_itself_until_the_end(
    alice: User, data: Path, as_user: AsUser
) -> None:
    assert '<noscript><meta http-equiv="refresh"' in page(as_user(alice), jobs_made.running(alice))
    assert "refresh" not in page(as_user(alice), jobs_made.finished(alice))


@pytest.mark.parametrize("pk", [999, 2**70])
def test_a_job_that_is_not_there_is_404(alice: User, as_user: AsUser, pk: int) -> None:
    assert as_user(alice).get(f"/jobs/{pk}/").status_code == 404


def test_it_asks_once_before_it_cancels(alice: User, data: Path, as_user: AsUser) -> None:
    job = jobs_made.running(alice, name="train")

    asked = as_user(alice).get(f"/jobs/{job.pk}/cancel/").content.decode()
    job.refresh_from_db()
    assert (f"Cancel job {job.pk}, train?" in asked, job.state) == (True, "running")

    response = as_user(alice).post(f"/jobs/{job.pk}/cancel/")
    job.refresh_from_db()
    assert (response["Location"], job.state) == (f"/jobs/{job.pk}/", "stopping")


def test_to_cancel_what_has_ended_says_so(alice: User, data: Path, as_user: AsUser) -> None:
    job = jobs_made.finished(alice)
    browser = as_user(alice)

    assert "It has ended already" in browser.get(f"/jobs/{job.pk}/cancel/").content.decode()
    html = browser.post(f"/jobs/{job.pk}/cancel/", follow=True).content.decode()
    assert "had ended already" in html


@pytest.mark.parametrize("method", ["get", "post"])
def test_a_stranger_may_not_cancel(
    alice: User, bob: User, data: Path, as_user: AsUser, method: str
) -> None:
    job = jobs_made.waiting(alice)

    response = getattr(as_user(bob), method)(f"/jobs/{job.pk}/cancel/")

    job.refresh_from_db()
    assert (response.status_code, job.state) == (403, "queued")


def test_a_person_holds_and_releases_their_job(alice: User, bob: User, as_user: AsUser) -> None:
    job = jobs_made.waiting(alice)

    assert as_user(bob).post(f"/jobs/{job.pk}/hold/").status_code == 403
    as_user(alice).post(f"/jobs/{job.pk}/hold/", {"reason": "not before lunch"})
    job.refresh_from_db()
    assert job.held == "alice holds it until it is released: not before lunch."
    assert "Release" in page(as_user(alice), job)

    as_user(alice).post(f"/jobs/{job.pk}/release/")
    job.refresh_from_db()
    assert job.held == ""


def test_what_an_operator_holds_its_owner_does_not_release(
    alice: User, root: User, as_user: AsUser
) -> None:
    job = jobs_made.waiting(alice)
    as_user(root).post(f"/jobs/{job.pk}/hold/")

    assert as_user(alice).post(f"/jobs/{job.pk}/release/").status_code == 403
    assert as_user(root).post(f"/jobs/{job.pk}/release/").status_code == 302


def test_it_says_how_far_its_array_is_and_cancels_the_rest(alice: User, as_user: AsUser) -> None:
    new = NewJob(command="true", array=(0, 1, 2), array_limit=2, requirement=Requirement(gpus=0))
    first = store.submit(new, alice, NOW)
    assert store.request_cancel(first.pk, "alice", NOW)
    browser, last = as_user(alice), Job.objects.latest("pk")

    assert "0 of 3 succeeded, 1 ended otherwise, 2 wait; at most 2 at a time" in page(browser, last)
    assert (
        "all that is left of the array (2)"
        in browser.get(f"/jobs/{last.pk}/cancel/").content.decode()
    )
    browser.post(f"/jobs/{last.pk}/cancel/", {"all": "1"})
    assert not Job.objects.exclude(outcome="cancelled").exists()


def test_it_says_what_it_waits_for_and_how_it_may_be_interrupted(
    alice: User, as_user: AsUser
) -> None:
    before = jobs_made.waiting(alice)
    new = NewJob(
        command="true",
        after=(Dependency(on=before.pk),),
        manners=Manners(preemptible=True, yield_signal="SIGUSR1", retries=3),
    )

    html = page(as_user(alice), store.submit(new, alice, NOW))

    assert f'<a href="/jobs/{before.pk}/">job {before.pk}</a>' in html
    assert "yes, told by SIGUSR1" in html
    assert "0 of 3 times so far" in html
