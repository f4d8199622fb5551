from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from html import unescape

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from gpucoord_site.cli import submit
from monitor.facts.gpus import GpuState
from monitor.gpus.rows import snapshot as snapshots
from scheduler.facts.field_types import Door
from scheduler.facts.job_fields import fields_of
from scheduler.models import Job, JobPreset
from tests import jobs_made
from tests.builders import GIB, gpu, gpu_uuid, process, snapshot

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("data")]


@pytest.fixture
def browser(alice: User, as_user: Callable[[User], Client]) -> Client:
    return as_user(alice)


def refused(browser: Client, **fields: str) -> str:
    response = browser.post("/jobs/new/", {"command": "python train.py"} | fields)
    assert response.status_code == 422
    assert not Job.objects.exists()
    return response.content.decode()


def test_it_submits_and_goes_to_the_job(browser: Client, alice: User) -> None:
    response = browser.post(
        "/jobs/new/",
        {
            "command": "cd /srv\r\npython train.py",
            "gpus": "2",
            "gpu_memory": "20GiB",
            "exclusive": "on",
            "priority": "4",
            "time_limit": "2h",
            "env": "# mine\r\nLR=0.1\r\nexport NAME=a=b c\r\n\r\n",
        },
    )

    job = Job.objects.get()
    assert response["Location"] == f"/jobs/{job.pk}/"
    assert (job.owner, job.command) == (alice, "cd /srv\npython train.py")
    assert (job.gpus, job.gpu_memory_bytes, job.exclusive) == (2, 20 * GIB, True)
    assert (job.priority, job.time_limit_s) == (4, 7200)
    assert job.env == {"LR": "0.1", "NAME": "a=b c"}


def test_what_is_left_out_has_its_default(browser: Client) -> None:
    browser.post("/jobs/new/", {"command": "true"})

    job = Job.objects.get()
    assert (job.gpus, job.priority, job.name) == (1, 3, "true")


def test_htmx_is_sent_on_to_the_job(browser: Client) -> None:
    response = browser.post("/jobs/new/", {"command": "true"}, headers={"hx-request": "true"})

    assert response["HX-Redirect"] == f"/jobs/{Job.objects.get().pk}/"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("command", "", "Say what to run"),
        ("gpus", "two", "Write a whole number of GPUs"),
        ("gpu_memory", "lots", "is not a size"),
        ("time_limit", "soon", "is not a duration"),
        ("cwd", "train", "must start with /"),
        ("env", "LR", "Line 1 is not NAME=value."),
        ("env", "A=1\nA=2", "A is set twice."),
        ("env", "CUDA_VISIBLE_DEVICES=0", "is set by gpucoord itself"),
        ("priority", "9", "not one of the available choices"),
    ],
)
def test_a_mistake_is_said_at_its_field_and_nothing_is_lost(
    browser: Client, field: str, value: str, says: str
) -> None:
    html = refused(browser, name="my try", **{field: value})

    assert says in html
    assert (
        f'aria-invalid="true" aria-describedby="id_{field}_helptext id_{field}_error"' in html
        or (f'id="id_{field}_error"' in html)
    )
    assert 'value="my try"' in html


def test_advanced_fields_open_when_one_has_a_mistake(browser: Client) -> None:
    assert "<details>" in browser.get("/jobs/new/").content.decode()
    assert "<details open>" in refused(browser, cwd="train")


def test_it_refuses_what_no_gpu_has_with_the_numbers(browser: Client) -> None:
    snapshots.record(snapshot(2))

    html = refused(browser, gpu_memory="200GiB", env="not a variable")

    assert "Line 1 is not NAME=value." in html
    assert "You ask for 200 GiB of GPU memory" in html
    assert 'value="200GiB"' in html


def test_it_tells_an_impossible_count_and_an_unreadable_size_at_once(browser: Client) -> None:
    snapshots.record(snapshot(2))

    html = refused(browser, gpus="99", gpu_memory="much")

    assert "You ask for 99 GPUs; this machine has 2 GPUs." in html
    assert "is not a size" in html


def test_it_needs_a_csrf_token(alice: User) -> None:
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(alice, "django.contrib.auth.backends.ModelBackend")

    assert browser.post("/jobs/new/", {"command": "true"}).status_code == 403


def test_a_job_can_be_submitted_again(browser: Client, alice: User) -> None:
    job = jobs_made.waiting(alice, command="python again.py", env={"KEY": "s3cret"}, priority=5)

    html = browser.get("/jobs/new/", {"like": str(job.pk)}).content.decode()

    assert "python again.py" in html
    assert '<option value="5" selected>' in html
    assert "# KEY=" in html
    assert "s3cret" not in html


@pytest.mark.parametrize("like", ["999", "x", "", "9" * 40])
def test_a_job_that_is_not_there_leaves_the_form_empty(browser: Client, like: str) -> None:
    assert browser.get("/jobs/new/", {"like": like}).status_code == 200


def test_others_jobs_can_not_be_copied(browser: Client, bob: User) -> None:
    job = jobs_made.waiting(bob, command="python hidden.py")

    assert "hidden.py" not in browser.get(f"/jobs/new/?like={job.pk}").content.decode()


def test_it_takes_which_gpu_and_when_and_how_it_yields(browser: Client) -> None:
    snapshots.record(snapshot(2))

    browser.post(
        "/jobs/new/",
        {
            "command": "true",
            "model": "H100",
            "capability": "9.0",
            "on_gpu": "1",
            "gpu_share": "30",
            "preemptible": "on",
            "yield_signal": "SIGUSR1",
            "grace": "60s",
            "retries": "2",
            "begin": "2100-01-01 22:00",
        },
    )

    job = Job.objects.get()
    assert (job.gpu_model, job.capability, job.gpu_uuid) == ("H100", "9.0", gpu_uuid(1))
    assert (job.share_pct, job.preemptible, job.requeue) == (30, True, False)
    assert (job.yield_signal, job.grace_s, job.retries) == ("SIGUSR1", 60, 2)
    assert job.begin_at is not None
    assert job.begin_at.year == 2100


def test_a_group_of_fields_opens_when_one_is_wrong(browser: Client) -> None:
    page = refused(browser, begin="soon")

    assert page.count("<details open>") == 1
    assert "write it like 22:00" in page


def test_it_says_when_it_would_start_and_submits_nothing(browser: Client) -> None:
    snapshots.record(snapshot(1, at=timezone.now()))

    page = browser.post("/jobs/new/", {"command": "python train.py", "what_if": "1"})

    assert "The job would start now." in page.content.decode()
    assert "python train.py" in page.content.decode()
    assert not Job.objects.exists()


def test_it_says_how_much_memory_earlier_runs_needed(browser: Client, alice: User) -> None:
    snapshots.record(snapshot(1, at=timezone.now()))
    jobs_made.past_runs(alice, 5)

    page = browser.post("/jobs/new/", {"command": "python train.py", "what_if": "1"})

    assert "Your last 5 runs of this command peaked at 10.0 GiB" in page.content.decode()


def test_it_says_why_it_would_wait(browser: Client) -> None:
    snapshots.record(snapshot(1, at=timezone.now()))

    page = browser.post("/jobs/new/", {"command": "true", "begin": "in 2h", "what_if": "1"})

    assert "The job would wait." in page.content.decode()
    assert "does not start before" in page.content.decode()


def test_it_says_which_change_would_start_a_draft_earlier(browser: Client) -> None:
    full = gpu(0, memory_used_bytes=72 * GIB)
    held = process(on=0, user="dana", uid=1004, memory_bytes=72 * GIB)
    snapshots.record(snapshot([full, gpu(1)], [held], at=timezone.now()))
    asked = {"command": "true", "gpu_memory": "32GiB", "on_gpu": gpu_uuid(0)}

    for page in (
        browser.post("/jobs/new/", asked | {"what_if": "1"}),
        browser.post("/jobs/new/draft/", asked),
    ):
        assert "Allow any GPU instead of GPU 0: it would start now" in page.text
        assert "Ask dana to free" in page.text


def test_it_offers_the_commands_of_past_jobs_once(browser: Client, alice: User, bob: User) -> None:
    jobs_made.waiting(alice, command="python old.py")
    newest = jobs_made.waiting(alice, command="python old.py")
    jobs_made.waiting(bob, command="python secret.py")

    html = browser.get("/jobs/new/").content.decode()
    assert html.count("<code>python old.py</code>") == 1
    assert f"?like={newest.pk}" in html
    assert "secret.py" not in html


def test_a_preset_is_saved_without_variables_and_fills_in_the_form(browser: Client) -> None:
    fields = {"command": "python a.py", "gpu_memory": "12GiB", "env": "KEY=s3cret"}
    saved = browser.post("/jobs/new/", fields | {"save_preset": "1", "preset_name": "My  run"})

    preset = JobPreset.objects.get()
    assert "The preset is saved" in saved.content.decode()
    assert (preset.name, preset.values["gpu_memory"], "env" in preset.values) == (
        "My run", "12GiB", False,
    )  # fmt: skip
    html = browser.get(f"/jobs/new/?preset={preset.pk}").content.decode()
    assert 'value="12GiB"' in html
    assert not Job.objects.exists()


def test_a_preset_needs_a_name(browser: Client) -> None:
    html = browser.post("/jobs/new/", {"command": "x", "save_preset": "1"}).content.decode()

    assert "Write a name" in html
    assert not JobPreset.objects.exists()


def test_a_preset_of_very_long_values_is_refused(browser: Client) -> None:
    fields = {"command": "x" * 20_001, "save_preset": "1", "preset_name": "long"}
    html = browser.post("/jobs/new/", fields).content.decode()

    assert "more than 20000 characters" in html
    assert not JobPreset.objects.exists()


def test_presets_of_operators_are_for_all_and_those_of_users_for_themselves(
    browser: Client, bob: User
) -> None:
    JobPreset.objects.create(name="for all", values={"gpus": "2"})
    other = JobPreset.objects.create(user=bob, name="of bob", values={"command": "secret"})

    html = browser.get("/jobs/new/").content.decode()
    assert ("for all" in html, "of bob" in html) == (True, False)
    assert "secret" not in browser.get(f"/jobs/new/?preset={other.pk}").content.decode()
    assert browser.post(f"/jobs/new/presets/{other.pk}/remove/").status_code == 404


def test_a_user_removes_a_preset(browser: Client, alice: User) -> None:
    mine = JobPreset.objects.create(user=alice, name="mine")

    assert browser.post(f"/jobs/new/presets/{mine.pk}/remove/").status_code == 302
    assert not JobPreset.objects.exists()


def test_it_shows_the_models_with_their_free_gpus_and_takes_one_over(browser: Client) -> None:
    states = (GpuState.IDLE, GpuState.SCRIPT_BUSY)
    gpus = [gpu(i, state=state, compute_capability="9.0") for i, state in enumerate(states)]
    snapshots.record(snapshot(gpus, at=timezone.now()))
    html = browser.get("/jobs/new/").content.decode()
    assert "80.0 GiB, capability 9.0, 1 of 2 free" in html

    name = "NVIDIA H100 80GB HBM3"
    html = browser.post("/jobs/new/", {"command": "mine.py", "use_model": name}).content.decode()
    assert f'name="model" value="{name}"' in html
    assert "mine.py" in html
    assert not Job.objects.exists()


MUCH = {
    "command": "cd '/srv/my data'\r\npython train.py --epochs 3",
    "gpus": "2",
    "gpu_memory": "20GiB",
    "exclusive": "on",
    "priority": "4",
    "time_limit": "90 min",
    "name": "a 'quoted' name",
    "cwd": "/tmp",
    "env": "LR=s3cret\r\nexport MODE=offline",
    "tags": "project=vision\r\nurgent",
    "model": "H100*",
    "cpus": "2.5",
    "retries": "2",
    "array": "0-3%2",
    "preemptible": "on",
}


def draft(browser: Client, **fields: str) -> str:
    response = browser.post("/jobs/new/draft/", fields)
    assert response.status_code == 200
    assert not Job.objects.exists()
    return response.content.decode()


def line(html: str, name: str) -> list[str]:
    """The words of a line that the page offers for a shell."""
    found = re.search(rf'<code id="draft-{name}">(.*?)</code>', html, re.DOTALL)
    assert found
    return shlex.split(unescape(found[1]))


def saved(browser: Client, body: object) -> list[dict[str, object]]:
    """Submit by REST; returns what is stored of the fields of the form, and removes it."""
    answer = browser.post("/api/jobs/", body, content_type="application/json")
    assert answer.status_code == 201, answer.content
    return stored()


def stored() -> list[dict[str, object]]:
    names = [field.column for field in fields_of(Door.FORM) if field.column]
    rows = [{name: getattr(job, name) for name in names} for job in Job.objects.order_by("pk")]
    Job.objects.all().delete()
    return rows


def by_command(words: list[str]) -> dict[str, object]:
    """The request that the command line would send to another machine."""
    command = submit.submit
    options = command.read(command.parser(), ["--url", "https://gpu.example.org", *words[2:]])
    return submit.body_of(options, options.words)


def test_the_shown_commands_submit_the_same_job_as_the_form(
    browser: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LR", "s3cret")
    monkeypatch.setenv("MODE", "offline")
    html = draft(browser, **MUCH)
    words, request = line(html, "command"), json.loads(line(html, "curl")[-2])
    assert request["env"] == {"LR": "…", "MODE": "…"}

    browser.post("/jobs/new/", MUCH)
    by_form = stored()

    assert len(by_form) == 4
    assert saved(browser, request | {"env": {"LR": "s3cret", "MODE": "offline"}}) == by_form
    assert saved(browser, by_command(words)) == by_form


def test_the_shown_commands_leave_defaults_out(browser: Client) -> None:
    html = draft(browser, command="true", gpus="1", priority="3")

    assert line(html, "command") == ["gpucoord", "submit", "--detach", "--", "true"]
    assert json.loads(line(html, "curl")[-2]) == {"command": "true"}
    assert line(html, "curl")[-1] == "http://testserver/api/jobs/"


def test_the_shown_commands_never_hold_the_value_of_a_variable(browser: Client) -> None:
    assert "s3cret" not in draft(browser, **MUCH)


def test_a_value_that_begins_like_an_option_stays_a_value(browser: Client) -> None:
    words = line(draft(browser, command="true", name="-x"), "command")

    assert by_command(words)["name"] == "-x"


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"command": "true", "gpus": "0"}, "The job would start now."),
        ({"command": "true", "gpus": "9"}, "this machine has 1 GPU"),
        ({"command": ""}, "Write a command"),
        ({"command": "true", "gpu_memory": "lots"}, "GPU memory (each GPU): "),
    ],
)
def test_the_start_is_told_while_the_form_is_filled_in(
    browser: Client, fields: dict[str, str], says: str
) -> None:
    snapshots.record(snapshot((gpu(0),), at=timezone.now()))

    assert says in draft(browser, **fields)


def test_it_offers_the_free_gpus_and_takes_one_over(browser: Client) -> None:
    busy = gpu(1, state=GpuState.SCRIPT_BUSY)
    free = gpu(0, state=GpuState.IDLE)
    snapshots.record(snapshot((free, busy), at=timezone.now()))

    html = browser.get("/jobs/new/").content.decode()
    chosen = browser.post("/jobs/new/", {"command": "true", "use_gpu": gpu_uuid(0)})

    offered = re.findall(r'name="use_gpu" value="([^"]+)"[^>]*>([^<]+)', html)
    assert offered == [(gpu_uuid(0), "GPU 0")]
    assert chosen.context["form"]["on_gpu"].value() == gpu_uuid(0)
    assert not Job.objects.exists()
