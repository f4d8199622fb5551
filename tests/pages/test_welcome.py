"""The pages after a first login: a first job, and the checklist of operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from gpucoord_site import welcome
from monitor.gpus.rows import snapshot as snapshots
from monitor.models import Channel, OsAccount
from scheduler.facts.language_models import OWNER
from scheduler.models import Job, Quota
from tests import jobs_made
from tests.builders import NOW, PASSWORD, gpu, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
AsUser = Callable[[User], Client]


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a file system in which systemd runs."""
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    monkeypatch.setattr(welcome, "ROOT", tmp_path)
    return tmp_path


def log_in(user: User, target: str = "/") -> str:
    """The path at which the login of this user ends."""
    fields = {"username": user.get_username(), "password": PASSWORD, "next": target}
    answer = Client().post("/login/", fields, follow=True)
    return str(answer.redirect_chain[-1][0])


class TestAfterALogin:
    def test_a_new_user_gets_the_welcome_page(self, alice: User) -> None:
        assert log_in(alice) == "/welcome/"

    def test_a_user_with_jobs_gets_the_dashboard(self, alice: User) -> None:
        jobs_made.waiting(alice)

        assert log_in(alice) == "/"

    def test_an_operator_gets_the_checklist(self, root: User) -> None:
        assert log_in(root) == "/setup/"

    def test_a_page_that_was_wanted_comes_first(self, alice: User) -> None:
        assert log_in(alice, "/jobs/") == "/jobs/"

    def test_hiding_it_is_remembered_for_this_user_alone(
        self, alice: User, bob: User, as_user: AsUser
    ) -> None:
        assert as_user(alice).post("/welcome/hide/")["Location"] == "/"

        assert log_in(alice) == "/"
        assert log_in(bob) == "/welcome/"


class TestFirstJob:
    def test_it_shows_the_line_for_the_user_s_os_account(
        self, alice: User, as_user: AsUser
    ) -> None:
        OsAccount.objects.filter(user=alice).update(name="daemon")
        html = as_user(alice).get("/welcome/").text

        assert "gpucoord submit --name first-job -- echo Hello from a job" in html
        assert "ssh daemon@" in html

    def test_without_an_account_it_submits_from_the_page(
        self, alice: User, as_user: AsUser
    ) -> None:
        OsAccount.objects.filter(user=alice).delete()
        browser = as_user(alice)
        assert "gpucoord submit" not in browser.get("/welcome/").text
        html = browser.post("/welcome/job/", {"command": "rm -rf /"}, follow=True).text

        job = Job.objects.get()
        assert (job.owner, job.command, job.name) == (alice, "echo Hello from a job", "first-job")
        assert f"Open job {job.pk}" in html

    def test_it_waits_for_a_job_and_follows_it_to_its_end(
        self, alice: User, bob: User, as_user: AsUser
    ) -> None:
        browser = as_user(alice)
        jobs_made.waiting(bob)
        assert "waiting for your job" in browser.get("/welcome/").text
        job = jobs_made.running(alice)
        assert 'data-shape="busy">running' in browser.get("/welcome/").text
        jobs_made.end(job, "succeeded")

        html = browser.get("/welcome/").text
        assert "succeeded" in html
        assert "hx-trigger" not in html

    def test_hostile_output_is_shown_as_text(
        self, alice: User, as_user: AsUser, data: Path
    ) -> None:
        job = jobs_made.running(alice)
        jobs_made.write_log(data, job, b"<script>alert(1)</script>\n")

        assert "&lt;script&gt;" in as_user(alice).get("/welcome/").text


class TestChecklist:
    def test_only_operators_see_it(self, alice: User, as_user: AsUser) -> None:
        browser = as_user(alice)

        assert browser.get("/setup/").status_code == 403
        assert "/setup/" not in browser.get("/").text

    def test_a_new_server_has_all_to_do(self, root: User, as_user: AsUser, machine: Path) -> None:
        html = as_user(root).get("/setup/").text

        assert "0 of 6 steps done" in html
        assert html.count(">to do<") == 5
        assert "The sampler has written no reading yet." in html

    def test_the_user_of_model_services_is_no_person(self, root: User, as_user: AsUser) -> None:
        User.objects.create_user(OWNER)

        assert "You are the only user." in as_user(root).get("/setup/").text

    def test_each_step_is_marked_by_its_fact(
        self, root: User, alice: User, as_user: AsUser, machine: Path
    ) -> None:
        wants = machine / welcome.ENABLED
        wants.mkdir(parents=True)
        (wants / "gpucoord-backup.timer").touch()
        snapshots.record(snapshot([gpu(0), gpu(1)]))
        Quota.objects.create(user=alice, share_pct=20)
        Channel.objects.create(name="ops", encrypted_address="x", worked_at=NOW)
        jobs_made.running(alice)
        html = as_user(root).get("/setup/").text

        assert "6 of 6 steps done" in html
        assert "2 GPUs on gpubox." in html
        assert log_in(root) == "/"

    def test_a_channel_without_a_delivered_message_is_not_tested(
        self, root: User, as_user: AsUser
    ) -> None:
        Channel.objects.create(name="ops", encrypted_address="x")

        assert "ops has delivered no message." in as_user(root).get("/setup/").text

    def test_without_systemd_the_timer_is_unknown(
        self, root: User, as_user: AsUser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(welcome, "ROOT", tmp_path)

        assert ">unknown<" in as_user(root).get("/setup/").text

    def test_the_dashboard_links_to_it_until_it_is_hidden(
        self, root: User, as_user: AsUser
    ) -> None:
        browser = as_user(root)
        assert "steps done" in browser.get("/").text
        browser.post("/welcome/hide/")

        assert "steps done" not in browser.get("/").text
        assert '<a href="/setup/">Set up</a>' in browser.get("/").text
