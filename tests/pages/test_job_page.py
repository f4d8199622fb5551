from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from monitor.gpus.rows import snapshot as monitor_store
from monitor.models import Event, ProcessHour
from scheduler.facts.jobs import Dependency, NewJob, Requirement, YieldOptions
from scheduler.jobs.rows import changes as job_queue
from scheduler.models import Attempt, AttemptUse, Job, YieldRequest
from tests import jobs_made
from tests.builders import GIB, NOW, gpu, gpu_uuid, process, snapshot
from tests.monitor.past import gpu_row, process_use

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
    assert html.index("You have 2 of 2 GPUs.") < html.index("All checks")
    assert html.index("0 of 2") < html.index("others are there") < html.index("20 GiB free")
    assert "requested 20 GiB" in html


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
        ("lost", {"exit_code": None}, ["lost", "exit code unknown"]),
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

    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in html
    assert '<span class="a31" data-s="31">red\ufffd</span>' in html
    assert "not shown here" in html
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


def test_a_copied_script_is_shown_by_its_name_and_its_text(
    alice: User, data: Path, as_user: AsUser
) -> None:
    text = "#!/bin/bash\necho 'one' two\n"
    job = jobs_made.waiting(alice, command="", argv=("/bin/bash", "-c", text, "train.sh", "--x"))

    html = page(as_user(alice), job)

    assert "<code>train.sh --x</code>" in html
    assert '<pre class="code">#!/bin/bash\necho &#x27;one&#x27; two\n</pre>' in html


def test_a_soft_limit_of_zero_is_shown_and_bytes_have_a_unit(
    alice: User, data: Path, as_user: AsUser
) -> None:
    limits = {"as": "unlimited", "core": 0, "nofile": 1024, "stack": 8 * 1024**2}
    job = jobs_made.waiting(alice, limits=limits)

    html = page(as_user(alice), job)

    shown = ["core</code>: 0", "nofile</code>: 1024", "stack</code>: 8 MiB", "others</code>: unlim"]
    assert [text for text in shown if text not in html] == []


def test_without_scripts_it_reloads_itself_until_the_end(
    alice: User, data: Path, as_user: AsUser
) -> None:
    assert '<noscript><meta http-equiv="refresh"' in page(as_user(alice), jobs_made.running(alice))
    assert "http-equiv" not in page(as_user(alice), jobs_made.finished(alice))


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

    assert "The job has already ended" in browser.get(f"/jobs/{job.pk}/cancel/").content.decode()
    html = browser.post(f"/jobs/{job.pk}/cancel/", follow=True).content.decode()
    assert "has already ended" in html


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
    first = job_queue.submit(new, alice, NOW)
    assert job_queue.request_cancel(first.pk, "alice", NOW)
    browser, last = as_user(alice), Job.objects.latest("pk")

    assert "0 of 3 succeeded, 1 ended otherwise, 2 wait; at most 2 at once" in page(browser, last)
    assert (
        "all remaining jobs of the array (2)"
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
        yield_options=YieldOptions(preemptible=True, yield_signal="SIGUSR1", retries=3),
    )

    html = page(as_user(alice), job_queue.submit(new, alice, NOW))

    assert f'<a href="/jobs/{before.pk}/">job {before.pk}</a>' in html
    assert "yes, notified by SIGUSR1" in html
    assert "0 of 3 used" in html


def used(job: Job, **use: object) -> None:
    """Record what the job's attempt used."""
    facts = {"gpu_s": 7200.0, "mean_pct": 62.0, "peak_memory_bytes": 30 * GIB, "joules": 3.6e6}
    AttemptUse.objects.create(attempt=job.attempts.get(), **(facts | use))


def test_an_ended_job_shows_what_it_used_of_its_gpus(
    alice: User, data: Path, as_user: AsUser
) -> None:
    job = jobs_made.finished(alice)
    Job.objects.filter(pk=job.pk).update(gpu_memory_bytes=64 * GIB)
    used(job)
    html = page(as_user(alice), job)

    assert "<b>2.00</b> GPU-h" in html
    assert "62 %" in html
    assert "30.0 GiB" in html
    assert "64.0 GiB requested" in html
    assert "A request of 33 GiB would have been enough." in html


def test_a_failed_job_gets_no_hint_of_a_smaller_request(
    alice: User, data: Path, as_user: AsUser
) -> None:
    job = jobs_made.finished(alice)
    Job.objects.filter(pk=job.pk).update(gpu_memory_bytes=64 * GIB, outcome="failed")
    used(job)

    assert "would have been enough" not in page(as_user(alice), job)


def test_a_job_without_recorded_use_shows_no_figures(
    alice: User, data: Path, as_user: AsUser
) -> None:
    assert "Peak GPU memory" not in page(as_user(alice), jobs_made.finished(alice))


def test_unknown_use_is_not_shown_as_zero(alice: User, data: Path, as_user: AsUser) -> None:
    job = jobs_made.finished(alice)
    used(job, mean_pct=None, peak_memory_bytes=None, joules=None)

    assert "Unknown: not measured" in page(as_user(alice), job)


def test_a_job_that_started_has_charts_of_its_gpus(
    alice: User, data: Path, as_user: AsUser
) -> None:
    job = jobs_made.finished(alice)
    hour = int(NOW.timestamp()) // 3600 * 3600
    use = process_use(
        gpu_row(gpu_uuid(0), NOW), NOW, last_seen_at=NOW + timedelta(minutes=3),
        job_ref=str(job.pk), job_owner="alice",
    )  # fmt: skip
    ProcessHour.objects.create(
        use=use, t=hour, sm_s=30, held_s=60, known_s=60, memory_byte_s=60 * GIB,
        memory_known_s=60, peak_memory_bytes=GIB, joules=600,
    )  # fmt: skip
    html = page(as_user(alice), job)

    assert "Use of the GPUs" in html
    assert "GPU utilisation" in html


def test_the_times_of_a_reason_follow_the_viewers_zone(
    alice: User, data: Path, as_user: AsUser
) -> None:
    at = (datetime.now(UTC) + timedelta(days=1)).replace(minute=30, second=0, microsecond=0)
    text = f"It does not start before {at:%a} {at.day} {at:%b %H:%M} (UTC)."
    job = jobs_made.waiting(alice)
    Job.objects.filter(pk=job.pk).update(blockers=[{"code": "BeginTime", "text": text, "tier": 2}])

    html = page(as_user(alice), job)

    assert f'It does not start before <time datetime="{at.isoformat()}"' in html
    assert "(UTC)" not in html.split('class="why"')[1].split("</section>")[0]


def test_the_page_of_a_job_addresses_its_owner_alone(
    alice: User, bob: User, data: Path, as_user: AsUser
) -> None:
    job = jobs_made.waiting(alice)
    text = "alice's share allows 1 of 8 GPUs."
    reason = {"code": "ShareExceeded", "text": text, "tier": 3}
    Job.objects.filter(pk=job.pk).update(blockers=[reason])

    assert "Your share allows 1 of 8 GPUs." in page(as_user(alice), job)
    assert "alice&#x27;s share allows 1 of 8 GPUs." in page(as_user(bob), job)


def test_a_waiting_job_has_no_charts(alice: User, data: Path, as_user: AsUser) -> None:
    assert "Use of the GPUs" not in page(as_user(alice), jobs_made.waiting(alice))


@pytest.mark.parametrize(
    ("code", "never", "action"),
    [
        ("UserMaxGpus", False, "Shares and limits"),
        ("UserMaxGpus", True, "Change the request"),
        ("OutsideWindow", False, "Request a time window"),
    ],
)
def test_the_reason_to_wait_comes_with_an_action_for_the_owner(
    code: str,
    never: bool,
    action: str,
    alice: User,
    bob: User,
    data: Path,
    as_user: AsUser,
) -> None:
    job = jobs_made.waiting(alice)
    reason = {"code": code, "text": "It waits.", "tier": 3, "never": never}
    Job.objects.filter(pk=job.pk).update(blockers=[reason])

    assert f">{action}</a>" in page(as_user(alice), job).split('class="why"')[1]
    assert f">{action}</a>" not in page(as_user(bob), job).split('class="why"')[1]


def blocked(owner: User, code: str) -> Job:
    job = jobs_made.waiting(owner)
    reason = {"code": code, "text": "Waits.", "headline": "Blocked by a limit.", "tier": 3}
    Job.objects.filter(pk=job.pk).update(blockers=[reason])
    return job


def beside_danas_process(owner: User) -> Job:
    """A job that wants GPU 0 only, which is full of memory outside the queue; GPU 1 is free."""
    full = gpu(0, memory_used_bytes=72 * GIB)
    held = process(on=0, user="dana", uid=1004, memory_bytes=72 * GIB)
    monitor_store.record(snapshot([full, gpu(1)], [held], at=timezone.now()))
    wanted = Requirement(memory_bytes=32 * GIB, gpu_uuid=gpu_uuid(0))
    return jobs_made.waiting(owner, requirement=wanted)


def test_a_change_that_is_planned_to_help_is_one_button_of_the_owner(
    alice: User, bob: User, data: Path, as_user: AsUser
) -> None:
    job, browser = beside_danas_process(alice), as_user(alice)
    Job.objects.filter(pk=job.pk).update(blockers=[{"code": "GpuMemory", "text": "x", "tier": 5}])
    html = page(browser, job)
    assert ">Allow any GPU instead of GPU 0</button>" in html
    assert "<span>starts <b>now</b></span>" in html
    assert "Ask dana to free 72 GiB on GPU 0" in html
    assert "priority to" not in html

    change = {"change": '{"on_gpu": null}'}
    assert as_user(bob).post(f"/jobs/{job.pk}/advice/", change).status_code == 403
    sent = browser.post(f"/jobs/{job.pk}/advice/", change, follow=True).content.decode()

    assert f"Job {job.pk} was changed: Allow any GPU instead of GPU 0." in sent
    job.refresh_from_db()
    assert job.gpu_uuid == ""


def test_a_change_that_does_not_help_any_more_is_not_made(
    alice: User, data: Path, as_user: AsUser
) -> None:
    job, browser = beside_danas_process(alice), as_user(alice)

    for change in ('{"priority": 4}', '{"ask": "dana", "gpu": 0}', "no JSON"):
        sent = browser.post(f"/jobs/{job.pk}/advice/", {"change": change}, follow=True)
        assert "would not start job" in sent.content.decode()

    job.refresh_from_db()
    assert job.priority == 3


def test_an_owner_requests_a_higher_limit_once_and_operators_are_told(
    alice: User, bob: User, root: User, data: Path, as_user: AsUser
) -> None:
    job, browser = blocked(alice, "UserMaxGpus"), as_user(alice)
    assert "Request more" in page(browser, job)
    assert "Raise priority" not in page(browser, job)

    for _ in range(2):
        browser.post(f"/jobs/{job.pk}/request/")

    event = Event.objects.get(kind="LIMIT_REQUESTED")
    assert event.text == (f"alice requests a higher limit for job {job.pk}: Blocked by a limit.")
    assert "A higher limit was requested." in page(browser, job)
    assert "Change the quota of alice" in page(as_user(root), job)
    assert "Request more" not in page(as_user(bob), job)


def test_a_job_that_waits_for_no_limit_offers_no_request(
    alice: User, data: Path, as_user: AsUser
) -> None:
    job, browser = blocked(alice, "Dependency"), as_user(alice)
    assert 'class="card choices"' not in page(browser, job)

    browser.post(f"/jobs/{job.pk}/request/")
    assert not Event.objects.filter(kind="LIMIT_REQUESTED").exists()


@pytest.mark.parametrize(
    ("learned", "shown", "hidden"),
    [
        (True, "of 80.0 GiB expected from earlier runs", "would have been enough"),
        (False, "of 80.0 GiB requested", "expected from earlier runs"),
    ],
)
def test_memory_that_gpucoord_learned_is_not_called_requested(
    learned: bool, shown: str, hidden: str, alice: User, data: Path, as_user: AsUser
) -> None:
    jobs_made.past_runs(alice, 1)
    Job.objects.update(gpu_memory_bytes=80 * GIB, gpu_memory_is_learned=learned)

    html = page(as_user(alice), Job.objects.get())

    assert shown in html
    assert hidden not in html
    assert ("would have been enough" in html) is not learned
    assert "<dt>Efficiency</dt>" not in html


@pytest.mark.parametrize(
    ("exit_code", "next_run"),
    [(85, "The next run continues from its checkpoint."), (143, "The next run begins anew.")],
)
def test_a_job_that_made_room_says_so_while_it_waits_again(
    exit_code: int, next_run: str, alice: User, data: Path, as_user: AsUser
) -> None:
    job = jobs_made.running(alice)
    attempt = Attempt.objects.get(job=job)
    at = NOW + timedelta(minutes=2)
    YieldRequest.objects.create(
        attempt=attempt, kind="preemption", code="Preempted", text="Job 7 of bob needs its GPU.",
        asked_at=at, deadline=at,
    )  # fmt: skip
    Attempt.objects.update(ended_at=at, outcome="preempted", exit_code=exit_code)
    Job.objects.update(state="queued", started_at=None)

    html = " ".join(page(as_user(alice), job).split())

    assert "Run 1 left its GPUs at " in html
    assert " after 1 min. Job 7 of bob needs its GPU. " in html
    assert next_run in html
