from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from importlib import import_module

import pytest
from django.conf import settings
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db.models import Model
from django.test import Client, RequestFactory
from django.urls import reverse
from django.utils import timezone

from monitor.gpus.rows import snapshot as snapshots
from monitor.incidents.alerts import steps
from monitor.journal.rows import audit, events
from monitor.models import (
    Agent,
    ApiToken,
    Constraint,
    CpuScanState,
    Event,
    Exemption,
    Gpu,
    GpuClosure,
    Host,
    Incident,
    ItemFault,
    JoinToken,
    Lease,
    LoginLink,
    Pattern,
    PeriodicTask,
    PolicyValues,
    ProcessMinute,
    Response,
)
from monitor.owners import rows as tokens
from monitor.usage.rows import rollups
from scheduler.models import (
    Attempt,
    AttemptUse,
    BrowserNotice,
    CleaningRun,
    DailyGpuUsage,
    EngineStatus,
    EngineTask,
    GpuHold,
    HostCapability,
    HostCapacity,
    HostForecast,
    IdleChoice,
    IdleTemplate,
    Job,
    JobDependency,
    JobInput,
    JobPreset,
    LockRefusal,
    ModelBoot,
    ModelHour,
    ModelInstance,
    ModelService,
    ModelUse,
    ModeState,
    NotificationCursor,
    NotificationSettings,
    PlanVersion,
    Prompt,
    Quota,
    SavedView,
    ScriptDefinition,
    ThrottleState,
    TimeWindow,
    UsageShare,
    WatchedDisk,
    YieldRequest,
)
from scheduler.submission.batches import rows as batch_rows
from scheduler.submission.intake import actions as intake_actions
from tests import jobs_made
from tests.builders import NOW, gpu, gpu_uuid, snapshot
from tests.monitor import alerts_made
from tests.monitor.past import process_use

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]
# The pages are registered with the addresses.
import_module(settings.ROOT_URLCONF)
MODELS = sorted(admin.site._registry, key=lambda model: model._meta.label)
OURS = [m for m in MODELS if m._meta.app_label in ("monitor", "scheduler")]


@pytest.fixture
def browser(root: User, as_user: Callable[[User], Client]) -> Client:
    return as_user(root)


@pytest.fixture
def filled(alice: User) -> None:
    """At least one row of each model of ours."""
    snapshots.record(snapshot([gpu(0), gpu(1)]))
    jobs_made.running(alice, env={"KEY": "s3cret"})
    ItemFault.objects.create(
        host="gpubox", part="planning", item="job 1", fault="KeyError", since_at=NOW, last_at=NOW,
        retry_at=NOW,
    )  # fmt: skip
    intake_actions.store_key(alice, "key", "digest", [jobs_made.waiting(alice)], NOW)
    jobs_made.finished(alice, "failed", exit_code=7)
    events.add("GPU_LOST", "GPU 1 is lost", now=NOW, severity="error")
    tokens.create_token(alice, NOW)
    Agent.objects.create(user=alice, name="alice_1", created_at=NOW)
    Lease.objects.create(name="sampler:gpubox", loop="sampler", host="gpubox", expires_at=NOW)
    PeriodicTask.objects.create(name="pruning", queued_at=NOW)
    Host.objects.create(name="gpubox", joined_at=NOW)
    JoinToken.objects.create(digest="d", made_by="root", created_at=NOW, expires_at=NOW)
    Constraint.objects.create(host="gpubox", kind="disk", text="Disk is full", from_at=NOW)
    TimeWindow.objects.create(
        user=alice, days=[0], start="20:00", end="06:00", zone="UTC", asked_by="alice", asked_at=NOW
    )
    PlanVersion.objects.create()
    HostForecast.objects.create(host="gpubox", at=NOW)
    ScriptDefinition.objects.create(name="alice_1", argv=["true"])
    template = IdleTemplate.objects.create(
        name="alice-idle", account=alice, request={"command": "true"}
    )
    IdleChoice.objects.create(
        at=NOW, host="gpubox", idle_s=300, template=template.name, job=1, seed=1
    )
    batch_rows.create(alice, "embed", {"command": "true"}, ["one"], NOW, [])
    ModeState.objects.create(host="gpubox", since_at=NOW, reason="No hogs.")
    ThrottleState.objects.create(host="gpubox", at=NOW, allowed="{}", memory="{}")
    one, other = Job.objects.order_by("id")[:2]
    JobDependency.objects.create(job=other, on=one)
    JobInput.objects.create(job=one, data=b"s3cret", size=6)
    asked = {"kind": "eviction", "code": "OwnerPresent", "text": "Its owner is there."}
    YieldRequest.objects.create(
        attempt=one.attempts.get(), asked_at=NOW, deadline=NOW, for_job=other, **asked
    )
    GpuHold.objects.create(host="gpubox", gpu_uuid=gpu(0).uuid, job=other, until=NOW)
    Quota.objects.create(user=alice, gpus=2, memory_bytes=80 * 1024**3)
    HostCapacity.objects.create(host="gpubox", at=NOW, gpu_uuids=["GPU-1"])
    UsageShare.objects.create(host="gpubox", owner="alice")
    DailyGpuUsage.objects.create(host="gpubox", owner="alice", from_at=NOW)
    audit.note("TRIED", "root tried it", by="root", now=NOW)
    PolicyValues.objects.create(name="presence")
    steps.write_test(alerts_made.channel(), "root", "", NOW)
    Response.objects.create(incident=alerts_made.incident(), step="warn", at=NOW)
    times = {"since_at": NOW, "opened_at": NOW, "last_seen_at": NOW}
    Incident.objects.create(host="gpubox", rule="sustained", key="0|alice", text="hog", **times)
    CpuScanState.objects.create(host="gpubox", at=NOW, body="{}")
    Exemption.objects.create(scope="user", name="alice", from_at=NOW)
    Pattern.objects.create(
        host="gpubox",
        gpu_id=gpu_uuid(0),
        user="alice",
        days="0123456",
        start_minute=0,
        end_minute=60,
        zone="UTC",
        hits=9,
        chances=10,
        mean_pct=95.0,
        text="python (alice) monopolises GPU 0",
        found_at=NOW,
    )
    GpuClosure.objects.create(host="gpubox", gpu_uuid="GPU-1", kind="paused", from_at=NOW)
    HostCapability.objects.create(host="gpubox", name="cgroup", since_at=NOW)
    LockRefusal.objects.create(
        gpu_uuid=gpu_uuid(1), host="gpubox", text="held", refused_at=NOW, wait_s=5.0
    )
    ended = Attempt.objects.exclude(ended_at=None)[0]
    AttemptUse.objects.create(attempt=ended, fingerprint="f", gpu_s=60, mean_pct=34.0)
    LoginLink.objects.create(user=alice, digest="d", expires_at=NOW)
    Prompt.objects.create(
        owner=alice, model="small", type="generate", priority=3, created_at=NOW,
        messages=[{"role": "user", "content": "hello"}],
    )  # fmt: skip
    ModelUse.objects.create(hour_at=NOW, model="small", owner="alice", requests=1)
    NotificationSettings.objects.create(user=alice, kinds=["finished"])
    NotificationCursor.objects.create(seen_event=7)
    BrowserNotice.objects.create(user=alice, about="job:1:failed:7", title="t", created_at=NOW)
    JobPreset.objects.create(user=alice, name="alice 1", values={"gpus": "1"})
    SavedView.objects.create(user=alice, name="mine", query="?who=mine")
    _models()
    CleaningRun.objects.create(host="gpubox", asked_by="root", asked_at=NOW, at=NOW)
    WatchedDisk.objects.create(
        host="gpubox", path="/data", role="data", level="normal", since_at=NOW, at=NOW
    )
    EngineStatus.objects.create(host="gpubox", engine="slurm", since_at=NOW)
    EngineTask.objects.create(
        job=ended.job, host="gpubox", engine="slurm", number=1, nonce="n", created_at=NOW
    )
    _past()


def _models() -> None:
    service = ModelService.objects.create(name="qwen2.5:14b", argv=["serve", "{port}"])
    ModelInstance.objects.create(service=service, since=NOW)
    ModelHour.objects.create(service=service, at=NOW, requests=3)
    ModelBoot.objects.create(service=service, gpu_model="H100", boot_s=85.0, measured_at=NOW)


def _past() -> None:
    """A minute and an hour of a GPU, its host, and a process on it."""
    later = NOW + timedelta(minutes=2)
    rollups.roll_up(later)
    use = process_use(Gpu.objects.order_by("index")[0], later)
    ProcessMinute.objects.create(use=use, t=int(NOW.timestamp()))
    rollups.roll_up_processes(later)


def url(model: type[Model], page: str, *args: object) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_{page}", args=args)


def test_every_model_of_ours_is_there() -> None:
    from django.apps import apps

    ours = [
        *apps.get_app_config("monitor").get_models(),
        *apps.get_app_config("scheduler").get_models(),
    ]
    assert sorted(m._meta.label for m in OURS) == sorted(m._meta.label for m in ours)


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
def test_each_list_opens_and_can_be_searched(browser: Client) -> None:
    lists = {(model, query): browser.get(url(model, "changelist"), query and {"q": query})
             for model in MODELS for query in ("", "alice 1")}  # fmt: skip

    assert {key for key, answer in lists.items() if answer.status_code != 200} == set()


def test_a_search_for_too_many_words_is_refused(browser: Client, alice: User) -> None:
    job = jobs_made.waiting(alice)
    path = "/admin/scheduler/job/"

    found = browser.get(path, {"q": "alice " * 20})
    refused = browser.get(path, {"q": "a " * 5000})

    assert f"{path}{job.pk}/change/" in found.content.decode()
    assert refused.status_code == 200
    assert "Search for at most 20 words." in refused.content.decode()


@pytest.mark.usefixtures("filled")
def test_each_row_opens(browser: Client) -> None:
    for model in OURS:
        row = model._default_manager.first()
        assert row is not None, model
        assert browser.get(url(model, "change", row.pk)).status_code == 200, model


@pytest.mark.slow
@pytest.mark.usefixtures("filled")
def test_each_filter_of_each_list_works(browser: Client, root: User) -> None:
    for model in OURS:
        html = browser.get(url(model, "changelist")).content.decode()
        links = {part.split('"')[0] for part in html.split('href="?')[1:]}
        for query in sorted(links):
            request = RequestFactory().get("/?" + query.replace("&amp;", "&"))
            request.user = root
            answer = admin.site._registry[model].changelist_view(request)
            assert answer.status_code == 200, (model, query)
            # Not drawn, as all pages look alike: only what a filter decides about.
            listed = answer.context_data["cl"]
            assert len(listed.result_list) == listed.result_count, (model, query)
            assert all(list(spec.choices(listed)) for spec in listed.filter_specs)


@pytest.mark.slow
def test_each_add_page_opens_or_is_not_offered(browser: Client) -> None:
    for model in MODELS:
        offered = url(model, "add") in browser.get(url(model, "changelist")).content.decode()
        status = browser.get(url(model, "add")).status_code
        expected = 302 if model in (Job, TimeWindow) else 200 if offered else 403
        assert status == expected, model


def test_a_job_is_added_by_the_form_for_all(browser: Client) -> None:
    assert browser.get(url(Job, "add"))["Location"] == "/jobs/new/"


def test_what_gpucoord_writes_can_not_be_changed(browser: Client, alice: User) -> None:
    jobs_made.running(alice)

    assert browser.post(url(Attempt, "change", Attempt.objects.get().pk), {}).status_code == 403
    assert browser.get(url(Lease, "add")).status_code == 403


def test_it_finds_jobs_by_number_name_and_owner(browser: Client, alice: User, bob: User) -> None:
    mine, other = jobs_made.waiting(alice, name="resnet"), jobs_made.waiting(bob, name="bert")

    for text in (str(mine.pk), "resnet", "alice"):
        html = browser.get(url(Job, "changelist"), {"q": text}).content.decode()
        assert [url(Job, "change", job.pk) in html for job in (mine, other)] == [True, False]


@pytest.mark.usefixtures("filled")
def test_variables_are_named_and_never_shown(browser: Client) -> None:
    html = browser.get(url(Job, "change", Job.objects.get(state="running").pk)).content.decode()

    assert "KEY" in html
    assert "s3cret" not in html


def test_it_cancels_selected_jobs(browser: Client, alice: User) -> None:
    waits, runs, ended = (
        jobs_made.waiting(alice),
        jobs_made.running(alice),
        jobs_made.finished(alice),
    )
    chosen = {"action": "cancel_selected", "_selected_action": [waits.pk, runs.pk, ended.pk]}

    html = browser.post(url(Job, "changelist"), chosen, follow=True).content.decode()

    states = dict(Job.objects.values_list("pk", "state"))
    assert (states[waits.pk], states[runs.pk]) == ("finished", "stopping")
    assert "Cancelled 2 jobs. 1 had ended already" in html
    waits.refresh_from_db()
    assert waits.cancelled_by == "root"


def test_a_waiting_job_can_be_served_earlier(browser: Client, alice: User) -> None:
    job = jobs_made.waiting(alice)

    browser.post(url(Job, "change", job.pk), {"name": "now", "priority": "5", **_no_attempts()})

    job.refresh_from_db()
    assert (job.name, job.priority) == ("now", 5)


def test_a_started_job_stays_as_it_is(browser: Client, alice: User) -> None:
    job = jobs_made.running(alice)
    fields = {"name": "x", "priority": "5", "state": "finished", **_no_attempts(1)}

    response = browser.post(url(Job, "change", job.pk), fields)

    job.refresh_from_db()
    assert (response.status_code, job.name, job.priority) == (403, "python train.py", 3)


def _no_attempts(there: int = 0) -> dict[str, str]:
    return {"attempts-TOTAL_FORMS": str(there), "attempts-INITIAL_FORMS": str(there)}


def test_jobs_are_not_deleted(browser: Client, alice: User) -> None:
    job = jobs_made.finished(alice)

    assert browser.post(url(Job, "delete", job.pk), {"post": "yes"}).status_code == 403


def test_a_token_made_here_is_shown_once_and_works(browser: Client, alice: User) -> None:
    response = browser.post(
        url(ApiToken, "add"),
        {"user": alice.pk, "name": "ci", "expires_at_0": "2099-01-01", "expires_at_1": "00:00"},
    )

    text = response.content.decode().partition('<pre id="token">')[2].partition("<")[0]
    assert tokens.authenticate(text, timezone.now()) == alice
    assert "no-store" in response["Cache-Control"]
    row = ApiToken.objects.get()
    assert (row.name, row.expires_at.year) == ("ci", 2099)  # type: ignore[union-attr]
    assert text not in browser.get(url(ApiToken, "change", row.pk)).content.decode()


def test_a_token_is_revoked_by_deleting_it(browser: Client, alice: User) -> None:
    row, text = tokens.create_token(alice, timezone.now())

    browser.post(url(ApiToken, "delete", row.pk), {"post": "yes"})

    assert tokens.authenticate(text, timezone.now()) is None


def test_a_token_can_be_renamed_but_not_given_to_another(
    browser: Client, alice: User, bob: User
) -> None:
    row, _ = tokens.create_token(alice, NOW)

    browser.post(url(ApiToken, "change", row.pk), {"name": "new", "user": bob.pk})

    row.refresh_from_db()
    assert (row.name, row.user) == ("new", alice)


def test_only_superusers_make_tokens_of_others(
    bob: User, root: User, as_user: Callable[[User], Client]
) -> None:
    User.objects.filter(pk=bob.pk).update(is_staff=True)
    bob.user_permissions.add(Permission.objects.get(codename="add_apitoken"))

    as_user(bob).post(url(ApiToken, "add"), {"user": root.pk, "name": ""})

    assert not ApiToken.objects.exists()


def test_its_first_page_begins_with_what_operators_decide(browser: Client) -> None:
    html = browser.get("/admin/").content.decode()
    places = [
        html.index(name)
        for name in ("People and limits", "Alerts and rules", "Troubleshooting", "GPU hours")
    ]

    assert places == sorted(places)
    assert all(html.count(f'href="{_list_of(model)}"') for model in MODELS)


def _list_of(model: type[Model]) -> str:
    return reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def test_internal_tables_are_folded_away_on_the_index(browser: Client) -> None:
    shown, internal = browser.get(reverse("admin:index")).text.split("<details", 1)

    assert "Time windows" in shown
    assert "Leases" not in shown
    assert "Leases" in internal


def test_the_sidebar_lists_what_operators_decide(browser: Client) -> None:
    page = browser.get(reverse("admin:scheduler_usageshare_changelist")).text
    sidebar = page.split('id="nav-sidebar"')[1].split("</nav>")[0]

    assert "Quotas" in sidebar
    assert "Leases" not in sidebar


def test_lists_show_three_digits_and_times_in_the_browsers_zone_with_utc(
    browser: Client,
) -> None:
    UsageShare.objects.create(host="gpubox", owner="zoe", usage=217.32716056299995)
    events.add("GPU_FOUND", "GPU 0 appears", now=datetime(2026, 11, 22, 20, 0, 9, tzinfo=UTC))
    browser.cookies["timezone"] = "Asia/Kolkata"

    assert ">217</" in browser.get(_list_of(UsageShare)).text
    page = browser.get(_list_of(Event)).text
    assert "Times in Asia/Kolkata (UTC+0530)" in page
    assert 'title="2026-11-22 20:00:09 UTC">23 Nov 2026 01:30:09</time>' in page


def test_a_row_that_is_not_edited_shows_units_and_times_of_24_hours(
    browser: Client, filled: None
) -> None:
    page = browser.get(f"/admin/monitor/gpu/{gpu_uuid(0)}/change/").content.decode()
    event = Event.objects.get(kind="GPU_LOST")
    event.at = datetime(2026, 3, 2, 21, 30, tzinfo=UTC)
    event.save()
    shown = browser.get(f"/admin/monitor/event/{event.pk}/change/").content.decode()

    assert "Memory total:" in page
    assert "80 GiB" in page or "80.0 GiB" in page
    assert "Power limit (W):" in page
    assert "GPU UUID:" in shown
    assert "2026-03-02 21:30:00 UTC" in shown
    assert "p.m." not in shown


def test_lists_show_sizes_with_units(browser: Client, filled: None) -> None:
    CleaningRun.objects.create(
        host="gpubox", asked_by="root", asked_at=NOW, at=NOW, freed_bytes=3 * 1024**2
    )

    assert "3.00 MiB" in browser.get("/admin/scheduler/cleaningrun/").content.decode()


def test_the_memory_of_a_script_is_written_with_a_unit(browser: Client) -> None:
    values = {
        "name": "tidy", "argv": '["true"]', "schema": "{}", "gpu": "yes",
        "task_type": "process", "gpu_memory_bytes": "20GiB", "enabled": "on",
    }  # fmt: skip
    browser.post("/admin/scheduler/scriptdefinition/add/", values)

    script = ScriptDefinition.objects.get(name="tidy")
    assert script.gpu_memory_bytes == 20 * 1024**3
    page = browser.get(f"/admin/scheduler/scriptdefinition/{script.pk}/change/")
    assert 'value="20 GiB"' in page.content.decode()


def test_a_model_service_is_deleted_with_its_hourly_figures(browser: Client) -> None:
    service = ModelService.objects.create(name="m", argv=["serve"], gpus=0)
    ModelHour.objects.create(service=service, at=NOW, requests=3)

    browser.post(f"/admin/scheduler/modelservice/{service.pk}/delete/", {"post": "yes"})

    assert not ModelService.objects.exists()


def test_the_history_of_a_row_links_the_audit_log(browser: Client, alice: User) -> None:
    page = browser.get(f"/admin/auth/user/{alice.pk}/history/").content.decode()

    assert "/admin/monitor/auditentry/" in page


def test_staff_who_may_only_view_see_each_row(
    alice: User, as_user: Callable[[User], Client], filled: None
) -> None:
    alice.is_staff = True
    alice.save()
    alice.user_permissions.set(Permission.objects.filter(codename__startswith="view_"))
    viewer = as_user(alice)
    rows = [(m, m._default_manager.first()) for m in OURS if m is not PolicyValues]
    statuses = {
        model._meta.label: viewer.get(
            reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_change", args=[row.pk])
        ).status_code
        for model, row in rows
        if row is not None
    }

    assert {label: s for label, s in statuses.items() if s != 200} == {}
    assert len(statuses) > 40
