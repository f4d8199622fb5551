"""Jobs on several hosts: which host takes a job, and the end of contact with a host."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.contrib.auth.models import User
from django.core import signing
from django.db import transaction
from django.test import Client
from django.utils import timezone

from gpucoord_site.cli import jobs as jobs_command
from monitor.facts.readings import HostState, JoiningHost
from monitor.gpus.rows import hosts
from monitor.gpus.rows import snapshot as snapshots
from monitor.journal.rows import events
from monitor.models import Event, HostMinute
from monitor.runtime.probes.process_identity import boot_id
from monitor.thresholds import rows as thresholds
from scheduler.dispatch.steps.dispatcher import Dispatcher
from scheduler.execution import pages as host_pages
from scheduler.execution.steps.executor import Executor
from scheduler.execution.steps.hosts import HostWatch
from scheduler.execution.steps.specs import SpecWriter
from scheduler.facts.jobs import NewJob, Requirement
from scheduler.facts.plans import PlanPolicy
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import Attempt, Job
from scheduler.runner import files
from tests import jobs_made
from tests.builders import NOW, gpu, host, snapshot
from tests.cli_bridge import connect_as

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
SECOND = timedelta(seconds=1)
AsUser = Callable[[User], Client]


def see(name: str, index: int = 0, at_s: float = 0) -> None:
    """A host with one free GPU."""
    snapshots.record(snapshot([gpu(index)], host=host(name=name), at=NOW + at_s * SECOND))


def register(name: str, address: str = "") -> None:
    new = JoiningHost(
        name=name, instance=name, boot_id="b", version="1", address=address, profile="server"
    )
    hosts.register(new, NOW)


def submit(owner: User, **changes: Any) -> Job:
    return job_queue.submit(
        NewJob(command="true", requirement=Requirement(exclusive=True), **changes), owner, NOW
    )


def plan(on: str, at_s: float = 0) -> list[int]:
    """The jobs that this host takes."""
    dispatcher = Dispatcher(transaction.atomic, on, PlanPolicy(cpu_jobs=1))
    return [attempt.job_id for attempt in dispatcher.step(NOW + at_s * SECOND)]


def codes(job: Job) -> list[str]:
    job.refresh_from_db()
    return [blocker["code"] for blocker in job.blockers]


@pytest.fixture
def both() -> None:
    see("east", 0)
    see("west", 1)


@pytest.mark.usefixtures("both")
def test_a_job_for_any_host_is_taken_by_one_host_once_all_have_planned_it(alice: User) -> None:
    job = submit(alice)

    assert plan("west") == []
    assert plan("east") == [job.pk]
    assert plan("west") == []
    assert Attempt.objects.get().host == "east"


@pytest.mark.usefixtures("both")
def test_a_job_for_one_host_waits_for_it(alice: User) -> None:
    job = submit(alice, host="east")

    assert plan("west") == []
    assert codes(job) == []
    assert plan("east") == [job.pk]


@pytest.mark.usefixtures("both")
def test_a_job_with_a_checkpoint_stays_with_its_host(alice: User) -> None:
    job = submit(alice)
    Job.objects.update(home="east")

    assert plan("west") == []
    assert plan("east") == [job.pk]


@pytest.mark.usefixtures("both")
def test_a_job_with_a_checkpoint_leaves_its_host_only_for_one_that_its_user_names(
    alice: User, as_user: AsUser
) -> None:
    job = submit(alice, host="east")
    Job.objects.update(home="east")
    browser = as_user(alice)

    def moved_to(name: str) -> str:
        changes = {"host": name}
        browser.patch(f"/api/jobs/{job.pk}/", changes, content_type="application/json")
        job.refresh_from_db()
        return job.home

    assert moved_to("any") == "east"
    assert plan("west") == []
    assert moved_to("west") == ""
    assert "host (its checkpoint stays on east)" in Event.objects.latest("pk").text
    assert plan("west") == [job.pk]


def test_a_job_that_saved_a_checkpoint_runs_again_on_its_host_unless_hosts_share_them(
    alice: User, data: Path
) -> None:
    homes = {}
    for shared in (False, True):
        job = jobs_made.running(alice, on=(), requirement=Requirement(gpus=0))
        Job.objects.filter(pk=job.pk).update(requeue=True)
        (data / "jobs").mkdir(exist_ok=True)
        checkpoint = data / "jobs" / str(job.pk) / "checkpoint"
        checkpoint.mkdir(parents=True)
        (checkpoint / "weights").touch()
        Attempt.objects.filter(job=job).update(boot_id="an earlier boot")
        specs = SpecWriter(
            data=data, run_as="service", grace_s=1.0, wake_folder=data / "run",
            shares_checkpoints=shared,
        )  # fmt: skip

        Executor(transaction.atomic, "gpubox", specs).step(NOW + 60 * SECOND)

        job.refresh_from_db()
        assert job.state == "queued"
        homes[shared] = job.home
    assert homes == {False: "gpubox", True: ""}


@pytest.mark.usefixtures("both")
def test_a_drained_host_takes_no_job_and_leaves_the_reason_to_the_others(alice: User) -> None:
    hosts.change("east", HostState.DRAINED, "olga", "new disk", NOW)
    job = submit(alice)

    assert plan("east") == []
    assert codes(job) == []
    assert plan("west") == [job.pk]


def test_the_only_host_names_its_drain_as_the_reason(alice: User) -> None:
    see("east")
    hosts.change("east", HostState.DRAINED, "olga", "new disk", NOW)
    job = submit(alice)

    assert plan("east") == []
    job.refresh_from_db()
    assert job.blockers[0]["code"] == "HostDrained"
    assert "drained by olga: new disk." in job.blockers[0]["text"]
    hosts.change("east", HostState.ACTIVE, "olga", "", NOW)
    assert plan("east", at_s=5) == [job.pk]


@pytest.mark.usefixtures("both")
def test_a_host_that_was_drained_a_moment_ago_takes_no_job(alice: User) -> None:
    dispatcher = Dispatcher(transaction.atomic, "east", PlanPolicy(cpu_jobs=1))
    submit(alice, host="west")
    dispatcher.step(NOW)
    hosts.change("east", HostState.DRAINED, "olga", "", NOW)
    job = submit(alice, host="east")

    assert dispatcher.step(NOW + SECOND / 2) == []
    assert codes(job) == ["HostDrained"]


def silent_job(owner: User, *, requeue: bool) -> Job:
    """A running job of gpubox, whose last reading is a minute old at NOW + 60 s."""
    see("gpubox")
    register("gpubox", "http://127.0.0.1:9")
    job = jobs_made.running(owner)
    Job.objects.filter(pk=job.pk).update(requeue=requeue)
    return job


def look(data: Path, on: str = "east", at_s: float = 60) -> list[int]:
    now = NOW + at_s * SECOND
    return HostWatch(on, data).judge(snapshots.newest(on), now)


def test_a_silent_host_is_reported_once_and_its_jobs_are_left_alone(
    alice: User, data: Path
) -> None:
    job = silent_job(alice, requeue=True)
    see("east", 1, at_s=50)
    see("east", 1, at_s=60)

    assert look(data) == []
    assert look(data, at_s=65) == []
    job.refresh_from_db()
    assert job.state == "running"
    assert len(events.recent(5, kind="HOST_SILENT")) == 1


def test_a_host_is_not_reported_as_silent_for_time_in_which_the_database_was_away(
    alice: User, data: Path
) -> None:
    silent_job(alice, requeue=True)
    see("east", 1)
    # The database is back.
    see("east", 1, at_s=60)

    assert look(data) == []
    assert events.recent(5, kind="HOST_SILENT") == []
    look(data, at_s=66)
    assert len(events.recent(5, kind="HOST_SILENT")) == 1


def confirm_down(name: str, now: datetime) -> None:
    host = hosts.find(name)
    assert host is not None
    assert hosts.confirm_down(host, "root", now) is None


def test_only_jobs_with_requeue_run_elsewhere_once_the_host_is_confirmed_down(
    alice: User, data: Path
) -> None:
    job = silent_job(alice, requeue=True)
    other = jobs_made.running(alice, on=())
    see("east", 1, at_s=60)
    confirm_down("gpubox", NOW + 50 * SECOND)

    assert look(data) == [job.pk]
    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.state, other.state) == ("queued", "running")
    first = job.attempts.get()
    assert (first.outcome, first.abandoned) == ("lost", True)
    assert first.ended_at == hosts.read_until("gpubox", NOW + 60 * SECOND) != NOW + 60 * SECOND
    see("east", 1, at_s=119)
    assert job.pk in plan("east", at_s=120)
    assert look(data, at_s=121) == []


def test_a_host_that_never_registered_can_be_down_too(alice: User, data: Path) -> None:
    see("gpubox")
    job = jobs_made.running(alice)
    Job.objects.filter(pk=job.pk).update(requeue=True)
    see("east", 1, at_s=60)
    confirm_down("gpubox", NOW + 50 * SECOND)

    assert look(data) == [job.pk]


def test_a_host_that_sends_readings_again_keeps_its_jobs_though_it_was_confirmed_down(
    alice: User, data: Path
) -> None:
    job = silent_job(alice, requeue=True)
    confirm_down("gpubox", NOW + 50 * SECOND)
    see("gpubox", at_s=59)
    see("east", 1, at_s=60)

    assert look(data) == []
    job.refresh_from_db()
    assert job.state == "running"


def watch_minutes(host: str, minutes: int) -> None:
    """Readings of this host in the minutes that begin after NOW."""
    columns = {
        field.name: 0
        for field in HostMinute._meta.fields
        if not field.null and field.name not in ("id", "host", "t", "seen_s")
    }
    first = int(NOW.timestamp()) // 60 * 60 + 60
    for number in range(minutes):
        HostMinute.objects.create(host=host, t=first + 60 * number, seen_s=60, **columns)


@pytest.mark.parametrize(
    ("minutes", "watched", "is_down"),
    [(0, 10, False), (5, 2, False), (5, 5, True), (15, 10, False)],
)
def test_a_silent_host_counts_as_down_after_the_time_of_the_threshold_in_which_others_had_readings(
    alice: User, data: Path, minutes: int, watched: int, is_down: bool
) -> None:
    """The other host had none while the database was away."""
    job = silent_job(alice, requeue=True)
    thresholds.change("retries", {"down_after_minutes": minutes}, by="olga", now=NOW)
    see("east", 1, at_s=700)
    watch_minutes("east", watched)

    assert look(data, at_s=700) == ([job.pk] if is_down else [])
    assert (hosts.confirmed_down() == ["gpubox"]) is is_down


def test_a_job_that_slurm_runs_is_not_requeued_with_its_submit_host(
    alice: User, data: Path
) -> None:
    """Its node may be up, and then it would run twice."""
    job = silent_job(alice, requeue=True)
    Attempt.objects.filter(job=job).update(engine="slurm", engine_ref="71", node="n1")
    see("east", 1, at_s=60)
    confirm_down("gpubox", NOW + 50 * SECOND)

    assert look(data) == []
    job.refresh_from_db()
    assert (job.state, job.attempts.get().abandoned) == ("running", False)


def test_a_token_of_bytes_that_are_no_text_is_unknown() -> None:
    assert not hosts.is_valid_token("gpj_\udcff", NOW)


def test_a_join_token_is_good_for_one_host() -> None:
    token = hosts.make_token("olga", NOW)

    assert hosts.is_valid_token(token, NOW)
    assert [hosts.use_token(token) for _ in range(2)] == [True, False]
    assert not hosts.is_valid_token(token, NOW)


def test_a_host_that_returns_ends_what_its_requeued_jobs_left_there(
    alice: User, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = silent_job(alice, requeue=True)
    Attempt.objects.update(boot_id=boot_id())
    confirm_down("gpubox", NOW + 50 * SECOND)
    look(data)
    (data / "jobs").mkdir(exist_ok=True)
    see("gpubox", at_s=90)

    look(data, on="gpubox", at_s=90)

    assert not Attempt.objects.filter(abandoned=True).exists()
    # No runner can start it any more.
    assert (files.attempt_folder(data, job.pk, 1) / files.CLAIMED).exists()
    back = hosts.find("gpubox")
    assert back is not None
    assert back.down_at is None
    assert len(events.recent(5, kind="HOST_RETURNED")) == 1


def test_rest_and_pages_say_that_contact_is_lost(alice: User, as_user: AsUser, data: Path) -> None:
    job = silent_job(alice, requeue=False)
    browser = as_user(alice)

    body = browser.get(f"/api/jobs/{job.pk}/").json()
    assert body["contact_lost_since"] is not None
    assert (body["host"], body["state"]) == ("gpubox", "running")
    page = browser.get(f"/jobs/{job.pk}/").content.decode()
    assert "Contact with gpubox is lost since" in page
    assert "contact lost" in browser.get("/jobs/").content.decode()
    host_page = browser.get("/hosts/gpubox/").content.decode()
    assert 'data-shape="failing">contact lost</span> The last reading came' in host_page
    (row,) = browser.get("/api/jobs/").json()["jobs"]
    assert row["contact_lost_since"] == body["contact_lost_since"]
    why = browser.get(f"/api/jobs/{job.pk}/why/").json()["text"]
    assert why == "Contact with its host gpubox is lost. The job may still run."


def test_the_list_of_the_command_line_says_that_contact_is_lost(
    alice: User, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent_job(alice, requeue=False)
    connect_as(alice, monkeypatch)

    assert jobs_command.queue([]) == 0
    assert "contact lost" in capsys.readouterr().out


def test_the_log_of_a_job_on_another_host_is_never_silently_empty(
    alice: User, as_user: AsUser, data: Path
) -> None:
    job = silent_job(alice, requeue=False)
    browser = as_user(alice)
    where = f"Read them at http://127.0.0.1:9/api/jobs/{job.pk}/log/?tail=5"

    answer = browser.get(f"/api/jobs/{job.pk}/log/?tail=5")
    assert (answer.status_code, where in answer.json()["detail"]) == (409, True)
    page = browser.get(f"/jobs/{job.pk}/").content.decode()
    assert f"Read them at http://127.0.0.1:9/jobs/{job.pk}/" in page
    # Its size is unknown, not zero.
    assert 'id="log-size"></span>' in page
    # Folders of jobs may be on storage that the hosts share.
    jobs_made.write_log(data, job, b"shared")
    assert browser.get(f"/api/jobs/{job.pk}/log/").content == b"shared"


def test_a_host_gives_pieces_of_logs_to_holders_of_a_fresh_ticket_alone(
    alice: User, client: Client, data: Path, settings: Any
) -> None:
    job = jobs_made.running(alice, on=())
    jobs_made.write_log(data, job, b"0123456789")
    here = {"host": settings.CONFIG.node, "job": job.pk, "number": 1}

    def ask(salt: str = host_pages.SALT, **asked: Any) -> Any:
        ticket = signing.dumps({**here, "offset": 0, "limit": 4, **asked}, salt=salt)
        return client.get(f"/internal/log/{ticket}/")

    answer = ask(offset=2)
    assert (answer.content, answer["X-Log-Start"], answer["X-Log-Size"]) == (b"2345", "2", "10")
    assert ask(offset=-3, limit=3).content == b"789"
    assert ask(salt="other").status_code == 403
    assert ask(host="elsewhere").status_code == 404
    with time_machine.travel(NOW, tick=False):
        old = signing.dumps({**here, "offset": 0, "limit": 4}, salt=host_pages.SALT)
    assert client.get(f"/internal/log/{old}/").status_code == 403


def test_a_job_for_an_unknown_host_is_refused_with_those_that_exist(
    alice: User, as_user: AsUser
) -> None:
    now = timezone.now()
    snapshots.record(snapshot(1, host=host(name="east"), at=now))
    body = {"command": "true", "host": "north"}

    answer = as_user(alice).post("/api/jobs/", body, content_type="application/json")

    assert answer.status_code == 422
    assert "There is no host north. Hosts: east." in answer.content.decode()
    body["host"] = "any"
    made = as_user(alice).post("/api/jobs/", body, content_type="application/json")
    assert Job.objects.get(pk=made.json()["id"]).host == ""
